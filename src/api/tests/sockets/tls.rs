//! The API at a socket with TLS.

use std::path::PathBuf;

use axum::body::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::api::Port;
use crate::api::tls::{
    CertificateKeeper, ClientAuth, Clients, Metrics as CertificateMetrics, Settings as Files,
};

const SOON: Duration = Duration::from_millis(100);
const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
const HANDSHAKES: &str = "punctual_api_handshakes_failed_total";

/// An authority, in the folder with the files of the API. The folder is deleted with it.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder =
            std::env::temp_dir().join(format!("punctual-tls-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        let authority = Self { issuer, folder };
        authority.write_server();
        authority
    }

    /// Returns a certificate and its key.
    fn sign(&self, names: Vec<SanType>) -> (CertificateDer<'static>, KeyPair) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), key)
    }

    /// Writes a new certificate of the API and its key.
    fn write_server(&self) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2090, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.folder.join("key.pem"), key.serialize_pem()).unwrap();
        std::fs::write(self.folder.join("certificate.pem"), certificate.pem()).unwrap();
    }

    fn files(&self, auth: Option<ClientAuth>) -> Files {
        Files {
            certificate_file: self.folder.join("certificate.pem"),
            key_file: self.folder.join("key.pem"),
            clients: auth.map(|auth| {
                let ca_file = self.folder.join("ca.pem");
                Clients { ca_file, crl_file: None, auth }
            }),
            read_every: Duration::from_millis(2),
        }
    }

    fn keeper(&self, auth: Option<ClientAuth>) -> CertificateKeeper {
        CertificateKeeper::new(self.files(auth), CertificateMetrics::default()).unwrap()
    }

    /// Serves an API with this authority's certificate, which is watched.
    async fn serve(
        &self,
        settings: ApiSettings,
        auth: Option<ClientAuth>,
    ) -> (SocketAddr, Tasks, Api) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tasks, api, keeper) = (Tasks::default(), api_of(settings).0, self.keeper(auth));
        tasks.spawn("api", serve(listener, api.clone(), Some(keeper.acceptor()), tasks.clone()));
        tasks.spawn("certificate", keeper.run(tasks.clone()));
        (address, tasks, api)
    }

    fn client(&self, own: Option<&(CertificateDer<'static>, KeyPair)>) -> ClientConfig {
        self.client_of(BOTH, own)
    }

    fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        own: Option<&(CertificateDer<'static>, KeyPair)>,
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.folder.join("ca.pem")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![certificate.clone()], key).unwrap()
            }
        }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

type Secure = TlsStream<TcpStream>;

async fn connect(address: SocketAddr, config: ClientConfig) -> std::io::Result<Secure> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect(name, stream)).await.unwrap()
}

/// Sends a request over HTTP/1.1. Returns the first bytes of the response.
async fn ask(stream: &mut Secure, request: &[u8]) -> std::io::Result<String> {
    stream.write_all(request).await?;
    let mut bytes = vec![0; 4096];
    let length = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap()?;
    Ok(String::from_utf8(bytes[..length].to_vec()).unwrap())
}

/// Returns the status of a request over HTTP/2.
async fn status_by_http2(stream: Secure) -> StatusCode {
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let request = Request::get("https://localhost/livez").body(Empty::<Bytes>::new()).unwrap();
    let asked = async { sender.send_request(request).await.unwrap().status() };
    tokio::select! {
        status = asked => status,
        ended = connection => panic!("the connection ended: {ended:?}"),
    }
}

#[tokio::test]
async fn both_versions_of_tls_and_of_http_are_served() {
    let authority = Authority::new();
    let (address, _tasks, api) = authority.serve(ApiSettings::default(), None).await;
    for (versions, name) in [(&[&TLS12][..], "1.2"), (&[&TLS13][..], "1.3")] {
        for protocols in [&[][..], &["http/1.1"], &["h2", "http/1.1"]] {
            let mut config = authority.client_of(versions, None);
            config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
            let mut stream = connect(address, config).await.unwrap();
            let agreed = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
            assert_eq!(agreed.as_deref(), protocols.first().map(|name| name.as_bytes()), "{name}");
            if agreed.as_deref() == Some(b"h2") {
                assert_eq!(status_by_http2(stream).await, StatusCode::OK);
            } else {
                for _ in 0..2 {
                    let answer = ask(&mut stream, LIVEZ).await.unwrap();
                    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
                }
            }
        }
    }
    let mut config = authority.client(None);
    config.alpn_protocols = vec![b"smtp".to_vec()];
    assert!(connect(address, config).await.is_err(), "no protocol in common");
    wait_metric(&api, HANDSHAKES, "1").await;
    wait_metric(&api, "punctual_api_connections", "0").await;
}

/// Returns the client hello for a single TLS version.
fn hello_of(version: [u8; 2]) -> Vec<u8> {
    let mut hello = [&version[..], &[7; 32], &[0], &[0, 2, 0, 47], &[1, 0]].concat();
    let length = u8::try_from(hello.len()).unwrap();
    hello.splice(0..0, [1, 0, 0, length]);
    let length = u8::try_from(hello.len()).unwrap();
    [&[22, 3, 0, 0, length][..], &hello].concat()
}

#[tokio::test]
async fn older_versions_are_refused() {
    let authority = Authority::new();
    let (address, _tasks, api) = authority.serve(ApiSettings::default(), None).await;
    for (version, failures) in [([3, 0], "1"), ([3, 1], "2"), ([3, 2], "3")] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&hello_of(version)).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!((answer.first(), answer.len()), (Some(&21), 7), "an alert alone: {answer:?}");
        stream.shutdown().await.ok();
        wait_metric(&api, HANDSHAKES, failures).await;
    }
}

#[tokio::test]
async fn http_without_tls_is_told_so_and_other_bytes_are_not_answered() {
    let authority = Authority::new();
    let (address, _tasks, api) = authority.serve(ApiSettings::default(), None).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(LIVEZ).await.unwrap();
    let answer = rest_of(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"\x00\x01\x02").await.unwrap();
    assert_eq!(rest_of(&mut stream).await, "");
    // A load balancer looks whether the port is open.
    drop(TcpStream::connect(address).await.unwrap());
    wait_metric(&api, HANDSHAKES, "2").await;
    wait_metric(&api, "punctual_api_connections", "0").await;
}

#[tokio::test]
async fn a_slow_handshake_is_cut_off_in_the_time_of_a_header() {
    let authority = Authority::new();
    let settings = ApiSettings { header_timeout: SOON, ..ApiSettings::default() };
    let (address, _tasks, api) = authority.serve(settings, None).await;
    let hello = hello_of([3, 3]);
    let began_at = crate::clock::monotonic();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (mut from, mut to) = stream.split();
    let mut rest = Vec::new();
    tokio::select! {
        _ = from.read_to_end(&mut rest) => {}
        () = async {
            for byte in &hello {
                if to.write_all(&[*byte]).await.is_err() {
                    break;
                }
                timeout(SOON / 5, std::future::pending::<()>()).await.ok();
            }
            std::future::pending::<()>().await;
        } => {}
    }
    assert_eq!(rest, b"");
    assert!(crate::clock::monotonic().since(began_at) >= SOON);
    wait_metric(&api, "punctual_api_cut_off_total{deadline=\"header\"}", "1").await;
    // The handshake and the first header share one time.
    let mut silent = connect(address, authority.client(None)).await.unwrap();
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).await.ok();
    assert_eq!(rest, b"");
    wait_metric(&api, "punctual_api_cut_off_total{deadline=\"header\"}", "2").await;
    wait_metric(&api, "punctual_api_connections", "0").await;
}

#[tokio::test]
async fn half_handshakes_hold_no_more_than_the_limits_and_not_for_ever() {
    let authority = Authority::new();
    let settings =
        ApiSettings { connections_max: 8, header_timeout: 4 * SOON, ..ApiSettings::default() };
    let (address, _tasks, api) = authority.serve(settings, None).await;
    let mut half = Vec::new();
    for turn in 0..8 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Every second caller sends nothing at all.
        stream.write_all(&hello_of([3, 3])[..20 * (turn % 2)]).await.unwrap();
        half.push(stream);
    }
    wait_metric(&api, "punctual_api_connections", "8").await;
    // A connection over the limit is closed without an answer, which would cost a handshake.
    assert_eq!(rest_of(&mut TcpStream::connect(address).await.unwrap()).await, "");
    wait_metric(&api, "punctual_api_rejected_total{limit=\"connections\"}", "1").await;
    wait_metric(&api, "punctual_api_cut_off_total{deadline=\"header\"}", "8").await;
    wait_metric(&api, "punctual_api_connections", "0").await;
    let mut stream = connect(address, authority.client(None)).await.unwrap();
    assert!(ask(&mut stream, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn who_does_not_read_a_large_answer_is_cut_off_over_tls_as_well() {
    let authority = Authority::new();
    let settings = ApiSettings { answer_timeout: SOON, ..ApiSettings::default() };
    let (address, _tasks, api) = authority.serve(settings, None).await;
    let bytes = 14 << 20;
    let task = format!(r#"{{"topic":"t","delay":1,"payload_text":"{}"}}"#, "x".repeat(bytes));
    let path = format!("/v1/tasks/{}", submit(&api, &task).await["id"].as_str().unwrap());
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(authority.client(None)));
    let mut stream = connector.connect(name, stream).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    wait_metric(&api, "punctual_api_cut_off_total{deadline=\"answer\"}", "1").await;
    wait_metric(&api, "punctual_api_connections", "0").await;
}

#[tokio::test]
async fn connections_end_with_the_node_also_in_their_handshake() {
    let authority = Authority::new();
    let (address, tasks, api) = authority.serve(ApiSettings::default(), None).await;
    let mut open = connect(address, authority.client(None)).await.unwrap();
    assert!(ask(&mut open, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    let _half = TcpStream::connect(address).await.unwrap();
    wait_metric(&api, "punctual_api_connections", "2").await;
    assert!(tasks.stop(PATIENCE).await);
    let mut rest = Vec::new();
    // TLS itself signals the end, so the answer is not truncated.
    assert_eq!(open.read_to_end(&mut rest).await.unwrap(), 0);
    assert_eq!(tasks.failure(), None);
}

#[tokio::test]
async fn a_certificate_is_swapped_under_load_without_one_failed_request() {
    const SWAPS: usize = 5;
    let authority = Authority::new();
    let (address, _tasks, _api) = authority.serve(ApiSettings::default(), None).await;
    let first = served_certificate(address, &authority).await;
    let mut kept = connect(address, authority.client(None)).await.unwrap();
    let mut last = first.clone();
    for _ in 0..SWAPS {
        authority.write_server();
        // Each round asks over a new connection, and over one from before the swap.
        let swapped = timeout(PATIENCE, async {
            loop {
                assert!(ask(&mut kept, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
                let now = served_certificate(address, &authority).await;
                if now != last {
                    return now;
                }
            }
        });
        last = swapped.await.expect("the new certificate is served");
    }
    assert_ne!(first, last);
}

/// Asks over a new connection, and returns the certificate of the server.
async fn served_certificate(address: SocketAddr, authority: &Authority) -> Vec<u8> {
    let mut stream = connect(address, authority.client(None)).await.unwrap();
    assert!(ask(&mut stream, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test]
async fn a_required_certificate_is_of_the_authority_and_valid() {
    let authority = Authority::new();
    let (address, _tasks, _api) =
        authority.serve(ApiSettings::default(), Some(ClientAuth::Required)).await;
    let own = authority.sign(vec![SanType::URI("spiffe://shop/orders".try_into().unwrap())]);
    let mut stream = connect(address, authority.client(Some(&own))).await.unwrap();
    assert!(ask(&mut stream, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    let of_other = Authority::new().sign(Vec::new());
    let mut expired = CertificateParams::default();
    expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = KeyPair::generate().unwrap();
    let expired = (expired.signed_by(&key, &authority.issuer).unwrap().der().clone(), key);
    for refused in [None, Some(&of_other), Some(&expired)] {
        for versions in [&[&TLS12][..], &[&TLS13][..]] {
            // With TLS 1.3 the client learns of the refusal only at the first read.
            let connected = connect(address, authority.client_of(versions, refused)).await;
            let asked = match connected {
                Ok(mut stream) => ask(&mut stream, LIVEZ).await,
                Err(error) => Err(error),
            };
            assert!(asked.is_err(), "{asked:?}");
        }
    }
}

#[tokio::test]
async fn other_authorities_end_the_connections_with_a_client_certificate_alone() {
    let authority = Authority::new();
    let (address, _tasks, _api) =
        authority.serve(ApiSettings::default(), Some(ClientAuth::Optional)).await;
    let own = authority.sign(Vec::new());
    let mut proven = connect(address, authority.client(Some(&own))).await.unwrap();
    let mut other = connect(address, authority.client(None)).await.unwrap();
    for stream in [&mut proven, &mut other] {
        assert!(ask(stream, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    }
    let both = [authority.issuer.pem(), Authority::new().issuer.pem()].concat();
    std::fs::write(authority.folder.join("ca.pem"), both).unwrap();
    let mut rest = Vec::new();
    let ended = timeout(PATIENCE, proven.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(ended.unwrap(), 0);
    assert!(ask(&mut other, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    // The next handshake decides.
    let mut again = connect(address, authority.client(Some(&own))).await.unwrap();
    assert!(ask(&mut again, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn an_optional_certificate_may_be_absent_and_not_wrong() {
    let authority = Authority::new();
    let (address, _tasks, _api) =
        authority.serve(ApiSettings::default(), Some(ClientAuth::Optional)).await;
    let mut stream = connect(address, authority.client(None)).await.unwrap();
    assert!(ask(&mut stream, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    let of_other = Authority::new().sign(Vec::new());
    let connected = connect(address, authority.client_of(&[&TLS12], Some(&of_other))).await;
    assert!(connected.is_err());
}

#[tokio::test]
async fn with_client_certificates_no_session_is_resumed() {
    let authority = Authority::new();
    for (auth, is_resumed) in [(None, true), (Some(ClientAuth::Optional), false)] {
        let (address, _tasks, _api) = authority.serve(ApiSettings::default(), auth).await;
        for versions in [&[&TLS12][..], &[&TLS13][..]] {
            let config = authority.client_of(versions, None);
            for turn in 0..2 {
                let mut stream = connect(address, config.clone()).await.unwrap();
                // Session tickets come with the first bytes.
                assert!(ask(&mut stream, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
                let kind = stream.get_ref().1.handshake_kind().unwrap();
                let was_resumed = kind == rustls::HandshakeKind::Resumed;
                assert_eq!(was_resumed, is_resumed && turn == 1, "{auth:?}: {kind:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_operator_port_never_requires_a_certificate() {
    let authority = Authority::new();
    let keeper = authority.keeper(Some(ClientAuth::Required));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = Tasks::default();
    let api = api_of(ApiSettings { port: Port::Operator, ..ApiSettings::default() }).0;
    let acceptor = keeper.acceptor().of_operators();
    tasks.spawn("api", serve(listener, api, Some(acceptor), tasks.clone()));
    let mut stream = connect(address, authority.client(None)).await.unwrap();
    assert!(ask(&mut stream, LIVEZ).await.unwrap().starts_with("HTTP/1.1 200 OK"));
}
