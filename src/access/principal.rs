//! Principals, and the callers that have proven to be one.

use std::fmt;
use std::sync::Arc;

use super::rights::Rights;
use super::token::TokenId;
use crate::domain::PrincipalName;

/// Someone with rights: a service, a person, or everybody without a credential.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    pub name: PrincipalName,
    pub rights: Rights,
}

/// Who sends a request, and the credential that proved it.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Arc<Principal>,
    pub credential: CredentialId,
}

impl Caller {
    /// Returns the caller of a request without a credential.
    pub fn anonymous(rights: Rights) -> Self {
        let principal = Arc::new(Principal { name: PrincipalName::anonymous(), rights });
        Self { principal, credential: CredentialId::Anonymous }
    }
}

/// The public name of a credential, for logs and the audit trail: the id of a token, or
/// `anonymous`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CredentialId {
    Anonymous,
    Token(TokenId),
}

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Token(id) => write!(f, "{id}"),
        }
    }
}
