//! A TLS connection from its first byte to the end of its handshake.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::keeper::Acceptor;
use super::peer::PeerCertificate;
use crate::api::server::watched::WatchedStream;

/// The first byte of a connection that begins with a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// The answer to a caller that speaks HTTP without TLS. Its request is never read.
const PLAIN: &str = "HTTP/1.1 400 Bad Request\r\n\
    content-type: text/plain; charset=utf-8\r\n\
    content-length: 38\r\n\
    connection: close\r\n\
    \r\n\
    This port takes https:// and no http.\n";

/// A connection after its handshake.
pub struct Secured {
    pub stream: TlsStream<WatchedStream>,
    /// `None` when the caller has shown no certificate.
    pub peer: Option<Arc<PeerCertificate>>,
}

/// Performs the handshake of `stream`. Its time counts as that of the first header, because
/// [`WatchedStream`] waits for both with one timer.
///
/// Returns `None` when the caller closes the connection without a byte, as a check of a load
/// balancer does.
///
/// # Errors
/// When the caller is too slow, does not speak TLS, or the two sides do not come to terms.
pub async fn shake_hands(
    mut stream: WatchedStream,
    acceptor: &Acceptor,
) -> io::Result<Option<Secured>> {
    match stream.first_byte().await? {
        Some(HANDSHAKE) => {}
        // The first letter of a method.
        Some(b'A'..=b'Z') => {
            stream.write_all(PLAIN.as_bytes()).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "HTTP without TLS"));
        }
        Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "neither TLS nor HTTP")),
        None => return Ok(None),
    }
    let stream = TlsAcceptor::from(acceptor.config()).accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates();
    let peer = certificates.and_then(<[_]>::first).map(|own| Arc::new(PeerCertificate::of(own)));
    Ok(Some(Secured { stream, peer }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
    use rustls::crypto::ring;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::access::{Policy, PolicyHandle};
    use crate::api::line::{CallerConnection, Callers};
    use crate::api::server::tls::{ClientAuth, Keeper, Metrics, PeerName, Settings};
    use crate::api::{Api, ApiMetrics, ApiSettings};
    use crate::domain::Monotonic;
    use crate::node::requests::service::Service;
    use crate::telemetry::Registry;

    #[tokio::test]
    async fn a_caller_is_known_by_the_names_of_its_certificate() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let server_key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let server = server.signed_by(&server_key, &issuer).unwrap();
        let folder = std::env::temp_dir().join(format!("punctual-peer-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [certificate_file, key_file, ca_file] =
            ["c.pem", "k.pem", "ca.pem"].map(|name| folder.join(name));
        std::fs::write(&certificate_file, server.pem()).unwrap();
        std::fs::write(&key_file, server_key.serialize_pem()).unwrap();
        std::fs::write(&ca_file, issuer.pem()).unwrap();
        let clients = Some((ca_file, ClientAuth::Optional));
        let look_every = Duration::from_secs(1);
        let settings = Settings { certificate_file, key_file, clients, look_every };
        let keeper = Keeper::new(settings, Metrics::default()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();

        let mut roots = RootCertStore::empty();
        roots.add(issuer.der().clone()).unwrap();
        let mut own = CertificateParams::default();
        own.subject_alt_names = vec![SanType::URI("spiffe://shop/orders".try_into().unwrap())];
        let own_key = KeyPair::generate().unwrap();
        let own = own.signed_by(&own_key, &issuer).unwrap().der().clone();
        let builder = || {
            ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots.clone())
        };
        let own_key = PrivateKeyDer::try_from(own_key.serialize_der()).unwrap();
        let known = builder().with_client_auth_cert(vec![own], own_key).unwrap();
        let uri = PeerName::Uri("spiffe://shop/orders".to_owned());
        for (config, names) in [(known, Some(vec![uri])), (builder().with_no_client_auth(), None)] {
            let secured = secured(&keeper, config).await;
            assert_eq!(secured.peer.map(|peer| peer.names.clone()), names);
        }
    }

    /// Performs a handshake between `config` and the server.
    async fn secured(keeper: &Keeper, config: ClientConfig) -> Secured {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut registry = Registry::default();
        let metrics = ApiMetrics::register(&mut registry);
        let (service, settings) = (Service::default(), ApiSettings::default());
        let api = Api::new(
            service,
            settings,
            metrics,
            Arc::new(registry),
            PolicyHandle::new(Policy::open()),
        );
        let caller = Callers::default().enter([127, 0, 0, 1].into(), 1).unwrap();
        let line = Arc::new(CallerConnection::new(caller, Monotonic::default()));
        let client = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
        };
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            let watched = WatchedStream::new(stream, api, line);
            shake_hands(watched, &keeper.acceptor()).await.unwrap().unwrap()
        };
        tokio::join!(client, server).1
    }
}
