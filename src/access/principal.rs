//! Principals, and the callers that have proven to be one.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::credential::token::TokenId;
use super::limits::Limits;
use super::metrics::principals::PrincipalCounts;
use super::rights::Rights;
use crate::domain::{PrincipalName, Timestamp};

/// Someone with rights: a service, a person, or everybody without a credential.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    pub name: PrincipalName,
    pub rights: Arc<Rights>,
    pub limits: Limits,
    /// The counters of its requests and tasks. Principals of one issuer, or of one entry for
    /// certificates, have the same.
    pub counts: PrincipalCounts,
}

/// The sender of a request, and the credential.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Arc<Principal>,
    pub credential: CredentialId,
    /// When the token proves the principal no longer. `None` when it has no end, for
    /// certificates, and for callers without a credential.
    pub until: Option<Timestamp>,
}

impl Principal {
    /// Returns what the use of limits is counted by.
    pub fn limited(&self) -> (&PrincipalName, &Limits) {
        (&self.name, &self.limits)
    }
}

impl Caller {
    /// Returns the caller of a request without a credential.
    pub fn anonymous(rights: Rights) -> Self {
        Self::anonymous_within(rights, Limits::default())
    }

    /// Returns the caller of a request without a credential. The limits are those of all of them
    /// together.
    pub fn anonymous_within(rights: Rights, limits: Limits) -> Self {
        let (name, rights) = (PrincipalName::anonymous(), Arc::new(rights));
        let counts = PrincipalCounts::default();
        let principal = Arc::new(Principal { name, rights, limits, counts });
        Self { principal, credential: CredentialId::Anonymous, until: None }
    }
}

/// The public name of a credential, for logs and the audit trail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CredentialId {
    Anonymous,
    Token(TokenId),
    Jwt(Fingerprint),
    Certificate(Fingerprint),
}

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Token(id) => write!(f, "{id}"),
            Self::Jwt(fingerprint) => write!(f, "jwt-{fingerprint}"),
            Self::Certificate(fingerprint) => write!(f, "certificate-{fingerprint}"),
        }
    }
}

/// The first bytes of the SHA-256 of a credential with no id. They lead from a log line to the
/// credential, but not the other way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint([u8; 4]);

impl Fingerprint {
    pub fn of(credential: &[u8]) -> Self {
        let hash: [u8; 32] = Sha256::digest(credential).into();
        let [first, second, third, fourth, ..] = hash;
        Self([first, second, third, fourth])
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}
