//! An authority that signs certificates for a test.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate for self-signed if its issuer has the same name.
        params.distinguished_name.push(DnType::CommonName, "authority");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns the certificate of the authority in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns a certificate with its key, both in PEM. `change` completes it.
    pub fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let mut params = CertificateParams::default();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// Returns a certificate for 127.0.0.1 with its key, both in PEM.
    pub fn sign_local(&self) -> (String, String) {
        self.sign(|params| params.subject_alt_names = vec![local()])
    }
}

/// Returns the address of servers in tests.
pub fn local() -> SanType {
    SanType::IpAddress([127, 0, 0, 1].into())
}
