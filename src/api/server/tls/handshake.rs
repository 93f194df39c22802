//! A TLS connection from its first byte to the end of its handshake.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::keeper::Acceptor;
use super::peer::peer_of;
use crate::access::credential::certificate::PeerCertificate;
use crate::api::server::watched::WatchedStream;

/// The first byte of a connection beginning with a TLS handshake.
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
    pub peer: Option<VerifiedPeer>,
}

/// A caller with a verified certificate.
#[derive(Clone, Debug)]
pub struct VerifiedPeer {
    pub certificate: Arc<PeerCertificate>,
    /// Cancelled when certificates are verified by other authorities or revocation lists.
    pub is_outdated: CancellationToken,
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
    let (config, is_outdated) = acceptor.config();
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates();
    let peer = certificates
        .and_then(<[_]>::first)
        .map(|own| VerifiedPeer { certificate: Arc::new(peer_of(own)), is_outdated });
    Ok(Some(Secured { stream, peer }))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use rcgen::{
        CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
        KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    };
    use rustls::client::WantsClientCert;
    use rustls::crypto::ring;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::access::credential::certificate::PeerName;
    use crate::access::{Policy, PolicyHandle};
    use crate::api::callers::{CallerConnection, Callers};
    use crate::api::server::tls::{CertificateKeeper, ClientAuth, Clients, Metrics, Settings};
    use crate::api::{Api, ApiMetrics, ApiSettings};
    use crate::domain::Monotonic;
    use crate::node::requests::service::Service;
    use crate::telemetry::Registry;

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::default();
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A server of a test, whose files are deleted with it.
    struct Server {
        keeper: CertificateKeeper,
        ca_file: PathBuf,
        roots: RootCertStore,
    }

    impl Server {
        /// Makes a server that takes the client certificates of `issuer`.
        fn new(name: &str, issuer: &Authority, revoked: Option<String>) -> Self {
            let folder =
                std::env::temp_dir().join(format!("punctual-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let [certificate_file, key_file, ca_file] =
                ["c.pem", "k.pem", "ca.pem"].map(|name| folder.join(name));
            write_pair(&folder, issuer);
            std::fs::write(&ca_file, issuer.pem()).unwrap();
            let crl_file = revoked.map(|list| {
                let path = folder.join("crl.pem");
                std::fs::write(&path, list).unwrap();
                path
            });
            let auth = ClientAuth::Optional;
            let clients = Some(Clients { ca_file: ca_file.clone(), crl_file, auth });
            let read_every = Duration::from_secs(1);
            let settings = Settings { certificate_file, key_file, clients, read_every };
            let mut roots = RootCertStore::empty();
            roots.add(issuer.der().clone()).unwrap();
            Self {
                keeper: CertificateKeeper::new(settings, Metrics::default()).unwrap(),
                ca_file,
                roots,
            }
        }

        fn client(&self) -> ConfigBuilder<ClientConfig, WantsClientCert> {
            ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(self.roots.clone())
        }

        /// Returns a client with a certificate of `issuer`.
        fn client_of(&self, issuer: &Authority, uri: &str, until_year: i32) -> ClientConfig {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, "orders");
            params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
            // Its own for each year, so one of them can be revoked.
            params.serial_number = Some(u64::try_from(until_year).unwrap().into());
            if !uri.is_empty() {
                params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
            }
            let key = KeyPair::generate().unwrap();
            let own = params.signed_by(&key, issuer).unwrap().der().clone();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            self.client().with_client_auth_cert(vec![own], key).unwrap()
        }

        /// Looks at the files until a change of them is loaded.
        fn look_twice(&mut self) {
            self.keeper.compare_now();
            self.keeper.compare_now();
        }

        async fn names(&self, config: ClientConfig) -> Result<Option<Vec<PeerName>>, String> {
            let secured = secured(&self.keeper, Arc::new(config)).await;
            let secured = secured.map_err(|error| error.to_string())?;
            Ok(secured.peer.map(|peer| peer.certificate.names.clone()))
        }
    }

    /// Writes a new certificate of a server, and its key.
    fn write_pair(folder: &Path, issuer: &Authority) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, issuer).unwrap();
        std::fs::write(folder.join("c.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.join("k.pem"), key.serialize_pem()).unwrap();
    }

    impl Drop for Server {
        fn drop(&mut self) {
            std::fs::remove_dir_all(self.ca_file.parent().unwrap()).unwrap();
        }
    }

    #[tokio::test]
    async fn a_caller_is_known_by_the_names_of_its_certificate() {
        let (issuer, other) = (authority(), authority());
        let server = Server::new("peer", &issuer, None);
        let uri = "spiffe://shop/orders";
        let known = server.client_of(&issuer, uri, 2090);
        assert_eq!(server.names(known).await, Ok(Some(vec![PeerName::uri(uri).unwrap()])));
        let nameless = server.client_of(&issuer, "", 2090);
        assert_eq!(server.names(nameless).await, Ok(Some(Vec::new())), "a common name alone");
        let without = server.client().with_no_client_auth();
        assert_eq!(server.names(without).await, Ok(None));
        for (wrong, reason) in [
            (server.client_of(&issuer, uri, 2001), "expired"),
            (server.client_of(&other, uri, 2090), "BadSignature"),
        ] {
            let refused = server.names(wrong).await.unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_revoked_certificate_is_refused() {
        let issuer = authority();
        let revoked = RevokedCertParams {
            serial_number: 2089_u64.into(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list_of = |revoked_certs| {
            let list = CertificateRevocationListParams {
                this_update: rcgen::date_time_ymd(2020, 1, 1),
                next_update: rcgen::date_time_ymd(2090, 1, 1),
                crl_number: 1_u64.into(),
                issuing_distribution_point: None,
                revoked_certs,
                key_identifier_method: KeyIdMethod::Sha256,
            };
            list.signed_by(&issuer).unwrap().pem().unwrap()
        };
        let mut server = Server::new("revoked", &issuer, Some(list_of(Vec::new())));
        let client = Arc::new(server.client_of(&issuer, "spiffe://shop/orders", 2089));
        let peer = secured(&server.keeper, client.clone()).await.unwrap().peer.unwrap();
        let crl_file = server.ca_file.with_file_name("crl.pem");
        std::fs::write(crl_file, list_of(vec![revoked])).unwrap();
        server.look_twice();
        assert!(peer.is_outdated.is_cancelled());
        let refused = secured(&server.keeper, client).await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("Revoked"), "{refused}");
        let other = server.client_of(&issuer, "spiffe://shop/orders", 2090);
        assert!(server.names(other).await.is_ok());
    }

    #[tokio::test]
    async fn a_session_does_not_outlive_the_authority_of_its_certificate() {
        let (issuer, next) = (authority(), authority());
        let mut server = Server::new("swap", &issuer, None);
        let client = Arc::new(server.client_of(&issuer, "spiffe://shop/orders", 2090));
        let peer = secured(&server.keeper, client.clone()).await.unwrap().peer.unwrap();
        write_pair(server.ca_file.parent().unwrap(), &issuer);
        server.look_twice();
        assert!(!peer.is_outdated.is_cancelled(), "its certificate was verified by the same files");
        std::fs::write(&server.ca_file, next.pem()).unwrap();
        server.look_twice();
        assert!(peer.is_outdated.is_cancelled());
        // The client would resume its session if the server had one.
        let refused = secured(&server.keeper, client).await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("BadSignature"), "{refused}");
    }

    /// Performs a handshake between `config` and the server.
    async fn secured(keeper: &CertificateKeeper, config: Arc<ClientConfig>) -> io::Result<Secured> {
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
        let connection = Arc::new(CallerConnection::new(caller, Monotonic::default()));
        let client = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let mut stream = TlsConnector::from(config).connect(name, stream).await?;
            // With TLS 1.3, a client learns only by reading that its certificate was refused.
            stream.read(&mut [0]).await
        };
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            let watched = WatchedStream::new(stream, api, connection);
            let mut secured = shake_hands(watched, &keeper.acceptor()).await?.unwrap();
            secured.stream.write_all(b"x").await.unwrap();
            secured.stream.flush().await.unwrap();
            Ok(secured)
        };
        tokio::join!(client, server).1
    }
}
