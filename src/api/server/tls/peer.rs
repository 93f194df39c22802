//! The names that a client certificate proves.
//!
//! A name is a URI or a DNS name of the certificate's subject alternative names, never its common
//! name.

use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::access::credential::certificate::{PeerCertificate, PeerName};
use crate::access::principal::Fingerprint;
use crate::domain::Timestamp;

/// Reads the names of a certificate whose signature and validity were verified, and until when it
/// is valid. A certificate that cannot be read proves nothing.
pub fn peer_of(certificate: &[u8]) -> PeerCertificate {
    let id = Fingerprint::of(certificate);
    match names_and_end(certificate) {
        Ok((names, until)) => {
            PeerCertificate { id, names: names.iter().filter_map(name_of).collect(), until }
        }
        Err(error) => {
            tracing::debug!(%error, "cannot read a client certificate");
            PeerCertificate { id, names: Vec::new(), until: Timestamp::MAX }
        }
    }
}

fn names_and_end(
    certificate: &[u8],
) -> Result<(Vec<GeneralName>, Timestamp), x509_cert::der::Error> {
    let certificate = Certificate::from_der(certificate)?.tbs_certificate;
    let names = certificate.get::<SubjectAltName>()?;
    let until = Timestamp::EPOCH.plus(certificate.validity.not_after.to_unix_duration());
    Ok((names.map(|(_, SubjectAltName(names))| names).unwrap_or_default(), until))
}

fn name_of(name: &GeneralName) -> Option<PeerName> {
    match name {
        GeneralName::UniformResourceIdentifier(uri) => PeerName::uri(uri.as_str()),
        GeneralName::DnsName(name) => PeerName::dns(name.as_str()),
        _ => None,
    }
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
        peer_of(params.self_signed(&key).unwrap().der()).names
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
    fn the_end_of_the_validity_is_that_of_the_certificate() {
        let mut params = CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2031, 2, 3);
        let key = KeyPair::generate().unwrap();
        let peer = peer_of(params.self_signed(&key).unwrap().der());
        assert_eq!(peer.until, Timestamp::from_millis(1_927_843_200_000));
    }

    #[test]
    fn bytes_that_are_no_certificate_prove_nothing() {
        assert_eq!(peer_of(b"no certificate").names, []);
    }
}
