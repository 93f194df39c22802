//! The certificate files: read, checked, and made into the configurations of rustls.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use crate::domain::Timestamp;

pub const CERTIFICATE_FLAG: &str = "--tls-certificate-file";
pub const KEY_FLAG: &str = "--tls-key-file";
pub const CLIENT_CRL_FLAG: &str = "--tls-client-crl-file";
pub const CLIENT_CA_FLAG: &str = "--tls-client-ca-file";

/// The largest file that is read. A bundle with all public authorities has about 250 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The protocols above TLS, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Whether a caller must show a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientAuth {
    /// A caller may come without a certificate. A certificate that is shown must be valid.
    Optional,
    Required,
}

/// The rules for client certificates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clients {
    /// The signing authorities.
    pub ca_file: PathBuf,
    /// The file of revocation lists. With such a file, every authority needs a list.
    pub crl_file: Option<PathBuf>,
    pub auth: ClientAuth,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The server's certificate, followed by the certificates up to the root, in PEM.
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
    pub clients: Option<Clients>,
    /// The interval at which the files are read again.
    pub read_every: Duration,
}

/// The reason why the files cannot be used, for the author of the files. Never holds a key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{flag}: {text}")]
pub struct Error {
    pub flag: &'static str,
    pub text: String,
}

impl Error {
    fn new(flag: &'static str, text: impl Into<String>) -> Self {
        Self { flag, text: text.into() }
    }
}

/// The contents of the files at one time.
#[derive(Clone, PartialEq, Eq)]
pub struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    clients: Option<ClientFiles>,
}

/// The files for client certificates.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ClientFiles {
    roots: Vec<u8>,
    revoked: Option<Vec<u8>>,
    auth: ClientAuth,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Files {
    pub fn read(settings: &Settings) -> Result<Self, Error> {
        let clients = match &settings.clients {
            Some(Clients { ca_file, crl_file, auth }) => {
                let roots = contents(CLIENT_CA_FLAG, ca_file)?;
                let revoked = crl_file.as_deref().map(|path| contents(CLIENT_CRL_FLAG, path));
                Some(ClientFiles { roots, revoked: revoked.transpose()?, auth: *auth })
            }
            None => None,
        };
        Ok(Self {
            certificate: contents(CERTIFICATE_FLAG, &settings.certificate_file)?,
            key: contents(KEY_FLAG, &settings.key_file)?,
            clients,
        })
    }
}

fn contents(flag: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| Error::new(flag, format!("cannot read {}: {error}", path.display())))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        return Err(Error::new(flag, format!("{} is larger than 1 MiB", path.display())));
    }
    Ok(bytes)
}

/// The configurations of one version of the files.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub public: Arc<ServerConfig>,
    /// Never requires a client certificate: a platform's probes have none.
    pub operator: Arc<ServerConfig>,
    /// That of the server certificate.
    pub validity: Validity,
    /// Cancelled when client certificates are verified by other authorities or lists.
    pub is_replaced: CancellationToken,
    clients: Option<ClientFiles>,
}

/// When callers take a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    pub begins_at: Timestamp,
    pub expires_at: Timestamp,
}

impl Loaded {
    /// Checks the files and makes the configurations. `now` is the machine's time, because callers
    /// compare a certificate with that time.
    pub fn new(files: &Files, now: Timestamp) -> Result<Self, Error> {
        let chain = certificates(CERTIFICATE_FLAG, &files.certificate)?;
        check_validity(&validity_of(&chain)?, now)?;
        Self::at_start(files)
    }

    /// Takes a certificate outside of its validity, too, because a node that does not start
    /// publishes nothing. Callers refuse such a certificate.
    pub fn at_start(files: &Files) -> Result<Self, Error> {
        let chain = certificates(CERTIFICATE_FLAG, &files.certificate)?;
        let validity = validity_of(&chain)?;
        let config = |clients| config_of(&chain, &files.key, clients).map(Arc::new);
        let clients = files.clients.as_ref();
        let public = config(clients.map(|clients| (clients, clients.auth)))?;
        let operator = match clients {
            None => Arc::clone(&public),
            Some(clients) => config(Some((clients, ClientAuth::Optional)))?,
        };
        let (is_replaced, clients) = (CancellationToken::new(), files.clients.clone());
        Ok(Self { public, operator, validity, is_replaced, clients })
    }

    /// Takes over the client certificates that `before` has verified. Returns false when the
    /// authorities or the lists are others, so that these certificates must be verified again.
    pub fn takes_over(&mut self, before: &Self) -> bool {
        let is_same = self.clients == before.clients;
        if is_same {
            self.is_replaced = before.is_replaced.clone();
        }
        is_same
    }
}

fn certificates(flag: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::new(flag, format!("no valid PEM: {error}")))?;
    if chain.is_empty() {
        return Err(Error::new(flag, "the file has no certificate"));
    }
    for (index, certificate) in chain.iter().enumerate() {
        parsed(certificate).map_err(|error| {
            Error::new(flag, format!("certificate {} of the file: {error}", index + 1))
        })?;
    }
    Ok(chain)
}

fn parsed(certificate: &CertificateDer<'_>) -> Result<Certificate, x509_cert::der::Error> {
    Certificate::from_der(certificate)
}

/// Returns the validity of the server certificate. An intermediate certificate may have expired:
/// callers can know another way to the root.
fn validity_of(chain: &[CertificateDer<'_>]) -> Result<Validity, Error> {
    let Some(Ok(leaf)) = chain.first().map(parsed) else {
        return Err(Error::new(CERTIFICATE_FLAG, "the file has no certificate"));
    };
    let validity = &leaf.tbs_certificate.validity;
    let [begins_at, expires_at] = [validity.not_before, validity.not_after]
        .map(|time| Timestamp::EPOCH.plus(time.to_unix_duration()));
    Ok(Validity { begins_at, expires_at })
}

/// Refuses a certificate that callers would refuse.
fn check_validity(validity: &Validity, now: Timestamp) -> Result<(), Error> {
    let Validity { begins_at, expires_at } = *validity;
    let wrong = |text: String| Err(Error::new(CERTIFICATE_FLAG, text));
    if now >= expires_at {
        return wrong(format!("the certificate has expired: {expires_at}"));
    }
    if now < begins_at {
        return wrong(format!("the certificate is not valid before {begins_at}"));
    }
    Ok(())
}

fn config_of(
    chain: &[CertificateDer<'static>],
    key: &[u8],
    clients: Option<(&ClientFiles, ClientAuth)>,
) -> Result<ServerConfig, Error> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
        Error::new(KEY_FLAG, format!("the file has no private key in PEM: {error}"))
    })?;
    let of_key = |error: rustls::Error| {
        Error::new(KEY_FLAG, format!("the key does not belong to the certificate: {error}"))
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(of_key)?;
    let (has_clients, builder) = match clients {
        None => (false, builder.with_no_client_auth()),
        Some((clients, auth)) => {
            (true, builder.with_client_cert_verifier(verifier(clients, auth)?))
        }
    };
    let mut config = builder.with_single_cert(chain.to_vec(), key).map_err(of_key)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    if has_clients {
        // A resumed session is not verified again, so it would outlive its certificate.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
    }
    Ok(config)
}

fn verifier(clients: &ClientFiles, auth: ClientAuth) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CLIENT_CA_FLAG, &clients.roots)? {
        roots.add(certificate).map_err(|error| {
            Error::new(CLIENT_CA_FLAG, format!("an authority of the file: {error}"))
        })?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        Arc::new(ring::default_provider()),
    );
    let builder = match &clients.revoked {
        None => builder,
        // The certificates between are as trusted as the authorities of the file.
        Some(pem) => builder.with_crls(lists(pem)?).only_check_end_entity_revocation(),
    };
    let builder = match auth {
        ClientAuth::Optional => builder.allow_unauthenticated(),
        ClientAuth::Required => builder,
    };
    builder.build().map_err(|error| match error {
        VerifierBuilderError::InvalidCrl(error) => {
            Error::new(CLIENT_CRL_FLAG, format!("a list of the file: {error:?}"))
        }
        other => Error::new(CLIENT_CA_FLAG, other.to_string()),
    })
}

fn lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
    let lists: Vec<_> = CertificateRevocationListDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::new(CLIENT_CRL_FLAG, format!("no valid PEM: {error}")))?;
    if lists.is_empty() {
        return Err(Error::new(CLIENT_CRL_FLAG, "there is no list (X509 CRL) in it"));
    }
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn pair(from_day: i64, to_day: i64) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + DAY * u32::try_from(from_day).unwrap();
        params.not_after = epoch + DAY * u32::try_from(to_day).unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn load(certificate: &str, key: &str, clients: Option<&str>) -> Result<Loaded, Error> {
        let clients = clients.map(|roots| ClientFiles {
            roots: roots.into(),
            revoked: None,
            auth: ClientAuth::Required,
        });
        let files = Files { certificate: certificate.into(), key: key.into(), clients };
        Loaded::new(&files, Timestamp::EPOCH.plus(DAY * 100))
    }

    fn reason(certificate: &str, key: &str, clients: Option<&str>) -> String {
        load(certificate, key, clients).unwrap_err().to_string()
    }

    #[test]
    fn a_pair_is_loaded_with_the_end_of_its_validity() {
        let (certificate, key) = pair(99, 101);
        let loaded = load(&certificate, &key, None).unwrap();
        assert_eq!(loaded.validity.expires_at, Timestamp::EPOCH.plus(DAY * 101));
        assert!(loaded.public.send_tls13_tickets > 0);
        assert_eq!(loaded.public.max_early_data_size, 0);
        let loaded = load(&certificate, &key, Some(&certificate)).unwrap();
        for config in [&loaded.public, &loaded.operator] {
            assert_eq!(config.send_tls13_tickets, 0);
            assert!(!config.session_storage.can_cache());
        }
    }

    #[test]
    fn files_that_callers_would_refuse_are_not_loaded() {
        let (certificate, key) = pair(99, 101);
        for (certificate, key, clients, wanted) in [
            (pair(98, 100).0.as_str(), key.as_str(), None, "has expired"),
            (&pair(101, 102).0, &key, None, "not valid before"),
            (&certificate, &pair(99, 101).1, None, "does not belong"),
            (&certificate, &key[..key.len() / 2], None, "no private key in PEM"),
            (&certificate, "", None, "no private key in PEM"),
            ("", &key, None, "no certificate"),
            (&certificate[..certificate.len() / 2], &key, None, "--tls-certificate-file: no"),
            (&certificate, &key, Some(""), "--tls-client-ca-file: the file has no certificate"),
        ] {
            let said = reason(certificate, key, clients);
            assert!(said.contains(wanted), "{wanted}: {said}");
            assert!(!said.contains("PRIVATE"), "{said}");
        }
        let garbage = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n";
        let said = reason(&format!("{certificate}{garbage}"), &key, None);
        assert!(said.contains("certificate 2 of the file"), "{said}");
    }
}
