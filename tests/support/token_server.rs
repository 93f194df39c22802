//! A server that gives tokens for logins to Kafka, by OAuth's grant for client credentials. The
//! brokers of a stack with TLS take its tokens.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::stack::Secure;
use super::wait::now_ms;

/// The client that may have tokens.
pub const CLIENT: &str = "punctual";
pub const SECRET: &str = "correct-horse";
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// A server at `https://127.0.0.1:PORT/token`, which can go away and come back.
pub struct TokenServer {
    address: SocketAddr,
    issuer: Arc<Issuer>,
    serving: Option<DropGuard>,
}

struct Issuer {
    key: EcdsaKeyPair,
    tls: TlsAcceptor,
    lifetime: Duration,
    issued_count: AtomicU64,
    unanswered_count: AtomicU64,
    is_silent: AtomicBool,
}

impl TokenServer {
    /// Starts a server whose tokens are valid for `lifetime`.
    pub async fn start(secure: &Secure, lifetime: Duration) -> Self {
        let pem = std::fs::read_to_string(Path::new(&secure.ca).with_file_name("token.key"));
        let PrivateKeyDer::Pkcs8(key) =
            PrivateKeyDer::from_pem_slice(pem.unwrap().as_bytes()).unwrap()
        else {
            panic!("the key is not PKCS#8")
        };
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let key = EcdsaKeyPair::from_pkcs8(algorithm, key.secret_pkcs8_der(), &random).unwrap();
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(&secure.certificate).unwrap().collect();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.unwrap(), PrivateKeyDer::from_pem_file(&secure.key).unwrap());
        let issuer = Issuer {
            key,
            tls: TlsAcceptor::from(Arc::new(tls.unwrap())),
            lifetime,
            issued_count: AtomicU64::new(0),
            unanswered_count: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
        };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Self { address: any, issuer: Arc::new(issuer), serving: None };
        server.come_back().await;
        server
    }

    pub fn url(&self) -> String {
        format!("https://{}/token", self.address)
    }

    /// Returns the number of tokens so far.
    pub fn issued_count(&self) -> u64 {
        self.issuer.issued_count.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that wait for an answer, or have given up.
    pub fn unanswered_count(&self) -> u64 {
        self.issuer.unanswered_count.load(Ordering::Relaxed)
    }

    /// Refuses connections from now on.
    pub fn go_away(&mut self) {
        self.serving = None;
    }

    /// Takes connections and requests from now on, and answers none of them.
    pub fn fall_silent(&self) {
        self.issuer.is_silent.store(true, Ordering::Relaxed);
    }

    /// Serves again, at the same address.
    pub async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let (closing, issuer) = (CancellationToken::new(), Arc::clone(&self.issuer));
        self.serving = Some(closing.clone().drop_guard());
        tokio::spawn(async move {
            while let Some(Ok((client, _))) = closing.run_until_cancelled(listener.accept()).await {
                let issuer = Arc::clone(&issuer);
                let answer = async move {
                    // A client that hangs up is no failure of the server.
                    if let Ok(client) = issuer.tls.accept(client).await {
                        issuer.answer(client).await.ok();
                    }
                };
                tokio::spawn(closing.clone().run_until_cancelled_owned(answer));
            }
        });
    }
}

impl Issuer {
    async fn answer(&self, mut client: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
        let mut request = Vec::new();
        let (head, body) = loop {
            if client.read_buf(&mut request).await? == 0 || request.len() > REQUEST_BYTES_MAX {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&request);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let lower = head.to_ascii_lowercase();
            let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length.and_then(|length| length.parse::<usize>().ok()) <= Some(body.len()) {
                break (head.to_owned(), body.to_owned());
            }
        };
        if self.is_silent.load(Ordering::Relaxed) {
            self.unanswered_count.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        let basic = format!("Basic {}", STANDARD.encode(format!("{CLIENT}:{SECRET}")));
        let is_known = head.contains(&basic);
        let (status, text) = if !is_known {
            ("401 Unauthorized", json!({ "error": "invalid_client" }))
        } else if !body.contains("grant_type=client_credentials") {
            ("400 Bad Request", json!({ "error": "unsupported_grant_type" }))
        } else {
            self.issued_count.fetch_add(1, Ordering::Relaxed);
            let lifetime = self.lifetime.as_secs();
            let token = json!({
                "access_token": self.token(), "token_type": "Bearer", "expires_in": lifetime
            });
            ("200 OK", token)
        };
        let text = text.to_string();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            text.len()
        );
        client.write_all(head.as_bytes()).await?;
        client.write_all(text.as_bytes()).await?;
        client.shutdown().await
    }

    fn token(&self) -> String {
        let now = now_ms() / 1000;
        let until = now + i64::try_from(self.lifetime.as_secs()).unwrap();
        let claims = json!({
            "iss": "https://issuer.example", "aud": "kafka", "sub": CLIENT, "iat": now, "exp": until
        });
        let header = json!({ "alg": "ES256", "kid": "stack", "typ": "JWT" });
        let [header, claims] =
            [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}
