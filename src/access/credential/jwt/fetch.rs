//! Fetches the key sets of issuers by URL, and keeps them current.
//!
//! The URL is from the auth file alone, so no caller can make a node ask another server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::redirect::Policy as Redirects;
use reqwest::{Certificate, Client};

use super::keys::KeySet;
use super::slot::{KeySlot, KeyUrl};
use crate::access::metrics::Metrics;
use crate::access::reload::PolicyHandle;
use crate::clock;
use crate::domain::Throttle;
use crate::error_chain::chain;
use crate::shutdown::{TaskFailure, Tasks};

/// The interval of the checks for due sets.
const TURN: Duration = Duration::from_secs(1);
/// How long one fetch may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer, in bytes.
const BYTES_MAX: usize = 1 << 20;
/// The largest file with a token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// The shortest interval of the log lines about fetches that fail.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Fetches the key sets of the issuers of a policy.
#[derive(Debug)]
pub struct KeyFetcher {
    policy: PolicyHandle,
    metrics: Metrics,
    failure_log: Throttle,
}

impl KeyFetcher {
    pub fn new(policy: PolicyHandle, metrics: Metrics) -> Self {
        Self { policy, metrics, failure_log: Throttle::new(LOG_EVERY) }
    }

    /// Fetches until the node stops. An issuer that is away is no failure.
    pub async fn run(mut self, tasks: Tasks) -> Result<(), TaskFailure> {
        loop {
            if tasks.stopping.run_until_cancelled(self.turn()).await.is_none() {
                return Ok(());
            }
            tokio::select! {
                () = clock::sleep(TURN) => {}
                () = tasks.stopping.cancelled() => return Ok(()),
            }
        }
    }

    /// Fetches the due sets, all at the same time.
    async fn turn(&mut self) {
        let policy = self.policy.current();
        let issuers = policy.issuers().all();
        let due = issuers.iter().filter_map(|issuer| {
            let url = issuer.keys.url()?;
            let is_due = issuer.keys.begin_if_due(clock::monotonic());
            is_due.then(|| refresh(&issuer.keys, url, &issuer.name))
        });
        for (name, outcome) in join_all(due).await {
            self.metrics.key_fetched(outcome.is_ok());
            match outcome {
                Ok(count) => tracing::debug!(issuer = name, keys = count, "fetched the keys"),
                Err(error) if self.failure_log.lets_through(clock::monotonic()) => {
                    tracing::error!(
                        issuer = name,
                        error,
                        "the keys of an issuer cannot be fetched; those from before hold for 24 \
                         hours (others within a minute are not said)"
                    );
                }
                Err(_) => {}
            }
        }
        let missing = issuers.iter().filter(|issuer| issuer.keys.current().is_none()).count();
        self.metrics.keys_missing.set(i64::try_from(missing).unwrap_or(i64::MAX));
    }
}

/// Fetches one set. Returns the number of its keys.
async fn refresh<'a>(
    slot: &Arc<KeySlot>,
    url: &KeyUrl,
    name: &'a str,
) -> (&'a str, Result<usize, String>) {
    // The files that it reads may be on a file system that does not answer.
    let fetched = tokio::time::timeout(2 * TIMEOUT, fetch(url, TIMEOUT)).await;
    let fetched = fetched.unwrap_or_else(|_elapsed| Err("the fetch took too long".to_owned()));
    let outcome = fetched.as_ref().map(KeySet::len).map_err(Clone::clone);
    slot.end(fetched.ok(), clock::monotonic());
    (name, outcome)
}

/// Fetches a set: over https alone, without following redirects, within `timeout`.
async fn fetch(from: &KeyUrl, timeout: Duration) -> Result<KeySet, String> {
    let mut client = Client::builder()
        .https_only(true)
        .redirect(Redirects::none())
        .no_proxy()
        .timeout(timeout)
        .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")));
    if let Some(path) = &from.ca_file {
        let pem = read(path, BYTES_MAX).await?;
        let authorities = Certificate::from_pem_bundle(&pem)
            .map_err(|error| format!("{}: {}", path.display(), chain(&error)))?;
        client = client.tls_built_in_root_certs(false);
        client = authorities.into_iter().fold(client, reqwest::ClientBuilder::add_root_certificate);
    }
    let failed = |error: reqwest::Error| chain(&error.without_url());
    // Making the client may read all authorities of the machine, which blocks for a while.
    let client = tokio::task::spawn_blocking(|| client.build());
    let client = client.await.map_err(|error| error.to_string())?.map_err(failed)?;
    let mut request = client.get(&from.url).header(ACCEPT, "application/json");
    if let Some(path) = &from.bearer_token_file {
        let token = read(path, TOKEN_BYTES_MAX).await?;
        let text = [b"Bearer ", token.trim_ascii()].concat();
        let mut header = HeaderValue::from_bytes(&text)
            .map_err(|_not_printed| format!("{}: there is no token in it", path.display()))?;
        header.set_sensitive(true);
        request = request.header(AUTHORIZATION, header);
    }
    let mut response = request.send().await.map_err(failed)?;
    if response.status() != 200 {
        return Err(format!("the answer is {}, and not 200", response.status()));
    }
    let mut json = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(failed)? {
        json.extend_from_slice(&piece);
        if json.len() > BYTES_MAX {
            return Err("the answer has more than 1 MiB".to_owned());
        }
    }
    KeySet::read(&json)
}

async fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let text = tokio::fs::read(path).await.map_err(|error| format!("{shown}: {error}"))?;
    if text.len() > bytes_max { Err(format!("{shown} is too large")) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rcgen::{CertificateParams, KeyPair};
    use rustls::ServerConfig;
    use rustls::crypto::ring;
    use rustls::pki_types::PrivateKeyDer;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tokio_rustls::TlsAcceptor;

    use super::super::keys::tests::ec_jwk;
    use super::*;

    /// A server with TLS that answers every request in the same way, and the requests it got.
    struct Issuer {
        from: KeyUrl,
        ca_file: PathBuf,
        _task: JoinSet<()>,
        requests: Arc<parking_lot::Mutex<Vec<String>>>,
    }

    impl Issuer {
        /// `answer` is the text after the header of a request. Without `answer` the server stays
        /// silent.
        async fn start(answer: Option<Vec<u8>>) -> Self {
            ring::default_provider().install_default().ok();
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let certificate = certificate.self_signed(&key).unwrap();
            let name = format!("punctual-jwks-{:032x}", rand::random::<u128>());
            let ca_file = std::env::temp_dir().join(name);
            std::fs::write(&ca_file, certificate.pem()).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let config = ServerConfig::builder()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], key)
                .unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("https://localhost:{}/keys", listener.local_addr().unwrap().port());
            let requests: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
            let seen = requests.clone();
            let mut task = JoinSet::new();
            task.spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                    let mut request = vec![0; 4096];
                    let length = stream.read(&mut request).await.unwrap();
                    seen.lock().push(String::from_utf8_lossy(&request[..length]).into_owned());
                    match &answer {
                        // The caller may have seen enough before the end.
                        Some(answer) => {
                            stream.write_all(answer).await.ok();
                            stream.shutdown().await.ok();
                        }
                        None => std::future::pending().await,
                    }
                }
            });
            let from = KeyUrl { url, ca_file: Some(ca_file.clone()), bearer_token_file: None };
            Self { from, ca_file, _task: task, requests }
        }
    }

    impl Drop for Issuer {
        fn drop(&mut self) {
            std::fs::remove_file(&self.ca_file).unwrap();
        }
    }

    fn answer(status: &str, body: &str) -> Option<Vec<u8>> {
        let length = body.len();
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\
             location: /other\r\nconnection: close\r\n\r\n{body}"
        );
        Some(text.into_bytes())
    }

    fn keys() -> String {
        json!({ "keys": [ec_jwk("a").1] }).to_string()
    }

    #[tokio::test]
    async fn a_key_set_is_fetched_over_tls_with_a_token() {
        let mut issuer = Issuer::start(answer("200 OK", &keys())).await;
        assert_eq!(fetch(&issuer.from, TIMEOUT).await.unwrap().len(), 1);
        assert!(!issuer.requests.lock()[0].contains("authorization"));
        let token_file = issuer.ca_file.with_extension("token");
        std::fs::write(&token_file, "abc\n").unwrap();
        issuer.from.bearer_token_file = Some(token_file.clone());
        assert!(fetch(&issuer.from, TIMEOUT).await.is_ok());
        std::fs::remove_file(&token_file).unwrap();
        let request = issuer.requests.lock()[1].clone();
        assert!(request.starts_with("GET /keys HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("authorization: Bearer abc\r\n"), "{request}");
        let gone = fetch(&issuer.from, TIMEOUT).await.unwrap_err();
        assert!(gone.contains(".token: "), "{gone}");
    }

    #[tokio::test]
    async fn an_answer_that_is_not_a_small_key_set_is_refused() {
        let large = format!("{}{}", keys(), " ".repeat(2 << 20));
        for (answer, reason) in [
            (answer("302 Found", &keys()), "302"),
            (answer("404 Not Found", ""), "404"),
            (answer("200 OK", &large), "1 MiB"),
            (answer("200 OK", "<html>"), "not a JSON object"),
            (answer("200 OK", r#"{"keys":[]}"#), "no key"),
            (Some(b"nonsense".to_vec()), ""),
        ] {
            let issuer = Issuer::start(answer).await;
            let refused = fetch(&issuer.from, TIMEOUT).await.unwrap_err();
            assert!(refused.contains(reason), "{refused}");
            assert_eq!(issuer.requests.lock().len(), 1, "a redirect is not followed");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_slow_unknown_or_without_tls_is_not_waited_for() {
        let issuer = Issuer::start(None).await;
        assert!(fetch(&issuer.from, Duration::from_millis(200)).await.is_err());
        assert_eq!(issuer.requests.lock().len(), 1);
        let issuer = Issuer::start(answer("200 OK", &keys())).await;
        let unknown = KeyUrl { ca_file: None, ..issuer.from.clone() };
        let refused = fetch(&unknown, TIMEOUT).await.unwrap_err();
        assert!(refused.contains("certificate"), "{refused}");
        let plain = KeyUrl { url: issuer.from.url.replace("https", "http"), ..issuer.from.clone() };
        assert!(fetch(&plain, TIMEOUT).await.is_err());
        assert!(issuer.requests.lock().is_empty());
    }
}
