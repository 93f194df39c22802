//! The names that a client certificate proves.
//!
//! A name is a URI or a DNS name of the certificate's subject alternative names, never its common
//! name. A name that could be read in two ways is no name: comparing it with a pattern would mean
//! different things to different readers.

use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The longest name, in bytes. SPIFFE has the same limit.
const NAME_BYTES_MAX: usize = 2048;

/// The verified certificate of a caller. Requests over its connection have it as an extension,
/// inside an `Arc`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerCertificate {
    /// The names without those that are malformed. Empty when the certificate proves no identity.
    pub names: Vec<PeerName>,
}

/// One name of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerName {
    /// `scheme://host/path`, as it stands in the certificate.
    Uri(String),
    /// In lower case.
    Dns(String),
}

impl PeerCertificate {
    /// Reads the names of a certificate whose signature and validity were verified.
    pub fn of(certificate: &[u8]) -> Self {
        let names = match alternative_names(certificate) {
            Ok(names) => names.iter().filter_map(name_of).collect(),
            Err(error) => {
                tracing::debug!(%error, "a client certificate's names cannot be read");
                Vec::new()
            }
        };
        Self { names }
    }
}

fn alternative_names(certificate: &[u8]) -> Result<Vec<GeneralName>, x509_cert::der::Error> {
    let certificate = Certificate::from_der(certificate)?;
    let names = certificate.tbs_certificate.get::<SubjectAltName>()?;
    Ok(names.map(|(_, SubjectAltName(names))| names).unwrap_or_default())
}

fn name_of(name: &GeneralName) -> Option<PeerName> {
    match name {
        GeneralName::UniformResourceIdentifier(uri) => {
            is_uri(uri.as_str()).then(|| PeerName::Uri(uri.as_str().to_owned()))
        }
        GeneralName::DnsName(name) => {
            let name = name.as_str().to_ascii_lowercase();
            is_dns(&name).then_some(PeerName::Dns(name))
        }
        _ => None,
    }
}

/// True for `scheme://host/path` of plain characters: without a query, a fragment, a user, an
/// escape, and segments that are empty or dots.
fn is_uri(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once("://") else { return false };
    let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
    let is_segment = |segment: &str| {
        !["", ".", ".."].contains(&segment)
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte))
    };
    uri.len() <= NAME_BYTES_MAX
        && scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && !host.is_empty()
        && host.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:".contains(&byte)
        })
        && path.is_none_or(|path| path.split('/').all(is_segment))
}

/// True for a host name. A wildcard names no caller.
fn is_dns(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn names(sans: Vec<SanType>) -> Vec<PeerName> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "orders");
        params.subject_alt_names = sans;
        let key = KeyPair::generate().unwrap();
        PeerCertificate::of(params.self_signed(&key).unwrap().der()).names
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().unwrap())
    }

    #[test]
    fn names_are_those_of_the_alternative_names_and_never_the_common_name() {
        assert_eq!(names(Vec::new()), []);
        assert_eq!(names(vec![SanType::IpAddress([127, 0, 0, 1].into())]), []);
        let both =
            names(vec![uri("spiffe://shop.example/ns/orders/sa/web"), dns("Orders.Shop.svc")]);
        let expected = [
            PeerName::Uri("spiffe://shop.example/ns/orders/sa/web".to_owned()),
            PeerName::Dns("orders.shop.svc".to_owned()),
        ];
        assert_eq!(both, expected);
    }

    #[test]
    fn a_name_that_could_be_read_in_two_ways_is_none() {
        for wrong in [
            "spiffe://shop.example/ns/../admin",
            "spiffe://shop.example/ns/./admin",
            "spiffe://shop.example/ns//admin",
            "spiffe://shop.example/ns/",
            "spiffe://shop.example/ns/%61dmin",
            "spiffe://shop.example/ns?x=/admin",
            "spiffe://shop.example/ns#admin",
            "spiffe://me@shop.example/ns",
            "spiffe://Shop.example/ns",
            "SPIFFE://shop.example/ns",
            "spiffe://spiffe://shop.example",
            "spiffe:///ns/orders",
            "spiffe:shop.example",
            "urn:x",
            "spiffe://shop.example/a b",
            "spiffe://shop.example/a*",
            "",
        ] {
            assert_eq!(names(vec![uri(wrong)]), [], "{wrong}");
        }
        assert!(names(vec![uri(&format!("spiffe://a/{}", "x".repeat(2048)))]).is_empty());
        for wrong in ["*.shop.svc", "", "shop..svc", "a/b", "shop.svc."] {
            assert_eq!(names(vec![dns(wrong)]), [], "{wrong}");
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_prove_nothing() {
        assert_eq!(PeerCertificate::of(b"no certificate").names, []);
    }
}
