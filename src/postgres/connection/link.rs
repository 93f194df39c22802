//! The encryption of the link to Postgres, as its URL asks for it.
//!
//! The driver takes the values of `sslmode` in a way of its own. A value with less protection than
//! the name says is refused.

use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// Returns why the driver cannot give what the URL asks for. `has_root` is true when the URL names
/// an authority of its own.
pub(super) fn refusal(mode: PgSslMode, has_root: bool) -> Option<&'static str> {
    match mode {
        PgSslMode::Allow => Some(
            "its sslmode is allow, with which the driver never uses TLS; write verify-full or \
             disable",
        ),
        PgSslMode::VerifyCa => Some(
            "its sslmode is verify-ca, with which any certificate of a public authority passes; \
             write verify-full",
        ),
        PgSslMode::Require if has_root => Some(
            "its sslmode is require, with which the driver ignores sslrootcert and checks no \
             certificate; write verify-full",
        ),
        PgSslMode::Disable | PgSslMode::Prefer | PgSslMode::Require | PgSslMode::VerifyFull => None,
    }
}

/// Returns the host of a connection over TCP to an unverified server: another machine could read
/// along or answer in its place.
pub(super) fn unverified_host(options: &PgConnectOptions) -> Option<&str> {
    let host = options.get_host();
    // The driver takes an absolute path for the folder of a socket.
    let is_socket = options.get_socket().is_some() || host.starts_with('/');
    let is_verified = matches!(options.get_ssl_mode(), PgSslMode::VerifyFull);
    (!is_socket && !is_verified).then_some(host)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair};
    use rustls::ServerConfig;
    use rustls::crypto::ring;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use crate::error_chain::chain;
    use crate::postgres::PostgresSettings;
    use crate::postgres::connection::{Connection, ConnectionPurpose};

    #[test]
    fn a_mode_that_gives_less_than_its_name_says_is_refused() {
        for (mode, has_root, reason) in [
            ("allow", false, "never uses TLS"),
            ("verify-ca", false, "any certificate of a public authority"),
            ("verify-ca", true, "any certificate of a public authority"),
            ("require", true, "checks no certificate"),
        ] {
            for host in ["db", "127.0.0.1"] {
                let root = if has_root { "&sslrootcert=/ca.pem" } else { "" };
                let url = format!("postgres://me:hunter2@{host}/punctual?sslmode={mode}{root}");
                let said = PostgresSettings::new(&url).unwrap_err();
                assert!(said.contains(reason) && !said.contains("hunter2"), "{mode}: {said}");
            }
        }
        for other in ["disable", "prefer", "require", "verify-full", "verify-full&sslrootcert=/ca"]
        {
            PostgresSettings::new(&format!("postgres://me@db/punctual?sslmode={other}")).unwrap();
        }
    }

    #[test]
    fn a_server_on_the_network_is_unverified_without_verify_full() {
        for (url, host) in [
            ("postgres://me@db/punctual", Some("db")),
            ("postgres://me@db/punctual?sslmode=disable", Some("db")),
            ("postgres://me@db/punctual?sslmode=require", Some("db")),
            ("postgres://me@[::1]/punctual", Some("::1")),
            ("postgres://me@db/punctual?sslmode=verify-full", None),
            ("postgres:///punctual?host=/run/postgresql", None),
            ("postgres://me@%2Frun%2Fpostgresql/punctual", None),
        ] {
            assert_eq!(
                PostgresSettings::new(url).unwrap().unverified_hosts(),
                Vec::from_iter(host),
                "{url}"
            );
        }
    }

    const PURPOSE: ConnectionPurpose =
        ConnectionPurpose { name: "test", deadline: Duration::from_secs(10), settings: &[] };

    /// Answers the request for TLS of one connection with `answer`. With `certificate`, performs
    /// the handshake. Returns all bytes that the client sends afterwards.
    async fn serve_once(
        listener: TcpListener,
        answer: u8,
        certificate: Option<ServerConfig>,
    ) -> io::Result<Vec<u8>> {
        let (mut stream, _) = listener.accept().await?;
        let mut request = [0; 8];
        stream.read_exact(&mut request).await?;
        assert_eq!(request[4..], [4, 210, 22, 47], "the request for TLS comes first");
        stream.write_all(&[answer]).await?;
        let mut rest = Vec::new();
        match certificate {
            None => stream.read_to_end(&mut rest).await?,
            Some(config) => {
                let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
                stream.read_to_end(&mut rest).await?
            }
        };
        Ok(rest)
    }

    async fn address() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Connects with `sslmode=verify-full`, and returns the error with its causes.
    async fn reason(address: SocketAddr, root: &str) -> String {
        let url = format!(
            "postgres://me:hunter2@localhost:{}/punctual?sslmode=verify-full{root}",
            address.port()
        );
        let mut connection = Connection::new(&PostgresSettings::new(&url).unwrap(), PURPOSE);
        let error = connection.open().await.map(|_| ()).unwrap_err();
        chain(&error)
    }

    #[tokio::test]
    async fn a_server_that_refuses_tls_gets_no_password() {
        let (listener, address) = address().await;
        let (served, said) = tokio::join!(serve_once(listener, b'N', None), reason(address, ""));
        assert_eq!(served.unwrap(), b"", "nothing follows the refusal");
        assert!(said.contains("does not support TLS"), "{said}");
    }

    fn certificate(name: &str) -> (String, ServerConfig) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        (certificate.pem(), config)
    }

    #[tokio::test]
    async fn a_server_with_another_certificate_gets_no_password() {
        let folder = std::env::temp_dir();
        let own = folder.join(format!("punctual-link-{}.pem", std::process::id()));
        // Of another authority, and of the right one for another name.
        let (trusted, _) = certificate("localhost");
        let (of_other_name, other_name) = certificate("elsewhere.example");
        let (_, other_authority) = certificate("localhost");
        for (root, config, wanted) in [
            (trusted, other_authority, "invalid peer certificate"),
            (of_other_name, other_name, "not valid for"),
        ] {
            std::fs::write(&own, root).unwrap();
            let (listener, address) = address().await;
            let root = format!("&sslrootcert={}", own.display());
            let (served, said) =
                tokio::join!(serve_once(listener, b'S', Some(config)), reason(address, &root));
            assert!(served.is_err(), "the client ends the handshake: {served:?}");
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        std::fs::remove_file(&own).unwrap();
    }
}
