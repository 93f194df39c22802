//! A kept-alive HTTP/1 connection to a node. The client is as cheap as possible, because it shares
//! the machine with the measured program.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Timeout of a call. A node itself answers within 30 s.
const DEADLINE: Duration = Duration::from_secs(35);

/// A node's answer.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub body: Bytes,
}

/// How the certificates of nodes are checked.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Trusts the authorities of a file in PEM alone, or without one the public authorities.
    ///
    /// # Errors
    /// Returns the reason as text when the file cannot be used.
    pub fn new(ca_file: Option<&Path>) -> Result<Self, String> {
        let roots = match ca_file {
            None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
            Some(path) => roots_of(path).map_err(|why| format!("{}: {why}", path.display()))?,
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        Ok(Self(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
    }
}

fn roots_of(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("the file has no certificate".to_owned());
    }
    Ok(roots)
}

/// A connection that opens on demand, and again after it broke.
#[derive(Debug)]
pub struct Http {
    /// `host:port`
    authority: String,
    /// `None` for `http://`.
    trust: Option<Trust>,
    authorization: Option<HeaderValue>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Drives the connection, and ends with it.
    _driver: JoinSet<()>,
}

impl Http {
    /// # Errors
    /// Returns an error when `url` is neither `http://host:port` nor `https://host:port`.
    pub fn new(url: &str, trust: &Trust) -> Result<Self, String> {
        let wrong = || {
            // A URL that may hold a password is not repeated.
            let given = if url.contains('@') {
                "a URL with a user or password".to_owned()
            } else {
                format!("`{url}`")
            };
            format!("{given} is not the URL of a node; write it like http://127.0.0.1:7070")
        };
        let (scheme, authority) = url.trim_end_matches('/').split_once("://").ok_or_else(wrong)?;
        let (trust, port) = match scheme {
            "http" => (None, 80),
            "https" => (Some(trust.clone()), 443),
            _ => return Err(wrong()),
        };
        if authority.is_empty() || authority.contains(['/', '@']) {
            return Err(wrong());
        }
        let has_port = !authority.ends_with(']') && authority.contains(':');
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        Ok(Self { authority, trust, authorization: None, open: None })
    }

    /// Returns the host without its port.
    pub fn host(&self) -> &str {
        self.authority.rsplit_once(':').map_or(&self.authority, |(host, _port)| host)
    }

    /// Sends this header with each call.
    #[must_use]
    pub fn authorized(self, authorization: Option<HeaderValue>) -> Self {
        Self { authorization, ..self }
    }

    /// Makes a call. The body is JSON.
    ///
    /// # Errors
    /// Returns the reason as text when no answer came. The call may have taken effect.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<HttpAnswer, String> {
        let outcome = tokio::time::timeout(DEADLINE, self.exchange(method, path, body)).await;
        let outcome =
            outcome.unwrap_or_else(|_elapsed| Err(format!("no answer within {DEADLINE:?}")));
        if outcome.is_err() {
            self.open = None;
        }
        outcome
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<HttpAnswer, String> {
        let broke = |error: hyper::Error| format!("{}: {error}", self.authority);
        let request = Request::builder().method(method).uri(path).header(HOST, &self.authority);
        let request = match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        };
        let request = if body.is_empty() {
            request
        } else {
            request.header(CONTENT_TYPE, "application/json")
        };
        let request = request.body(Full::new(body)).map_err(|error| format!("{path}: {error}"))?;
        if self.open.as_ref().is_none_or(|open| open.sender.is_closed()) {
            self.open = Some(connect(&self.authority, self.trust.as_ref()).await?);
        }
        let Some(open) = &mut self.open else { return Err("no connection".to_owned()) };
        open.sender.ready().await.map_err(broke)?;
        let response = open.sender.send_request(request).await.map_err(broke)?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(broke)?.to_bytes();
        Ok(HttpAnswer { status, body })
    }
}

async fn connect(authority: &str, trust: Option<&Trust>) -> Result<Open, String> {
    let failed = |error: &dyn std::error::Error| format!("cannot reach {authority}: {error}");
    let stream = TcpStream::connect(authority).await.map_err(|error| failed(&error))?;
    stream.set_nodelay(true).map_err(|error| failed(&error))?;
    let Some(Trust(config)) = trust else {
        return open(stream).await.map_err(|error| failed(&error));
    };
    let host = authority.rsplit_once(':').map_or(authority, |(host, _port)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
    let connecting = TlsConnector::from(Arc::clone(config)).connect(name, stream);
    let stream = connecting.await.map_err(|error| failed(&error))?;
    open(stream).await.map_err(|error| failed(&error))
}

async fn open<S>(stream: S) -> Result<Open, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended");
        }
    });
    Ok(Open { sender, _driver: driver })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn only_plain_urls_of_nodes_are_taken() {
        let trust = Trust::new(None).unwrap();
        let authority = |url| Http::new(url, &trust).unwrap().authority;
        assert_eq!(authority("http://127.0.0.1:7070/"), "127.0.0.1:7070");
        assert_eq!(authority("http://node"), "node:80");
        assert_eq!(authority("https://node"), "node:443");
        assert_eq!(authority("https://[::1]"), "[::1]:443");
        for wrong in ["ftp://node:1", "node:1", "http://", "https:///", "http://node/v1"] {
            assert!(Http::new(wrong, &trust).is_err(), "{wrong}");
        }
    }

    /// Answers one request over TLS, as a node with a certificate for `localhost` does. Returns the
    /// certificate and the URL.
    async fn secure_node(servers: &mut JoinSet<std::io::Result<()>>) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let config =
            rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(
                    vec![certificate.der().clone()],
                    rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
                )
                .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        servers.spawn(async move {
            let (stream, _) = listener.accept().await?;
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
            let mut stream = acceptor.accept(stream).await?;
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await? > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await?;
            stream.shutdown().await
        });
        (certificate.pem(), url)
    }

    #[tokio::test]
    async fn a_node_with_tls_is_asked_when_its_authority_is_trusted() {
        let file = std::env::temp_dir().join(format!("punctual-bench-{}.pem", std::process::id()));
        let mut servers = JoinSet::new();
        let (certificate, url) = secure_node(&mut servers).await;
        std::fs::write(&file, certificate).unwrap();
        let trust = Trust::new(Some(&file)).unwrap();
        let mut http = Http::new(&url, &trust).unwrap();
        let answer = http.call(Method::GET, "/livez", Bytes::new()).await.unwrap();
        assert_eq!((answer.status, answer.body.as_ref()), (200, b"ok".as_slice()));
        let (_, of_other) = secure_node(&mut servers).await;
        let mut http = Http::new(&of_other, &trust).unwrap();
        let said = http.call(Method::GET, "/livez", Bytes::new()).await.unwrap_err();
        assert!(said.contains("certificate"), "{said}");
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_file_without_authorities_is_refused() {
        for path in ["/no/such/file.pem", "/dev/null"] {
            let said = Trust::new(Some(Path::new(path))).unwrap_err();
            assert!(said.starts_with(path), "{said}");
        }
    }
}
