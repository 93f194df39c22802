//! The policy: every principal with its rights and credentials, as one immutable snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use super::principal::{Caller, CredentialId, Principal};
use super::rights::Rights;
use super::token::{Token, TokenHash, TokenId};
use crate::domain::Timestamp;

/// A token of the auth file. The times are of the cluster's clock.
#[derive(Clone, Debug)]
pub struct TokenEntry {
    pub principal: Arc<Principal>,
    pub hash: TokenHash,
    /// From here on the token is valid.
    pub not_before: Option<Timestamp>,
    /// From here on the token is no longer valid.
    pub expires: Option<Timestamp>,
}

/// All principals. It never changes: a changed auth file makes a new one.
#[derive(Debug)]
pub struct Policy {
    /// True without an auth file: every caller is anonymous, whatever it sends.
    is_open: bool,
    anonymous: Option<Caller>,
    principals: Vec<Arc<Principal>>,
    tokens: HashMap<TokenId, TokenEntry>,
}

/// Why a request has no caller. The first two may be told to the caller. The others have the same
/// answer, so that nobody learns which tokens exist; the log has the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unidentified {
    #[error("no credential was sent, and anonymous callers have no rights here")]
    NoCredential,
    #[error("the authorization is not `Bearer` and one token")]
    Malformed,
    #[error("the token is of no principal")]
    Unknown,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
}

impl Policy {
    /// Returns the policy of a node without an auth file: everything is allowed to everybody.
    pub fn open() -> Self {
        let anonymous = Caller::anonymous(Rights::everything());
        Self {
            is_open: true,
            principals: vec![anonymous.principal.clone()],
            anonymous: Some(anonymous),
            tokens: HashMap::new(),
        }
    }

    /// Makes the policy of an auth file. `anonymous` has the rights of callers without a
    /// credential; without it, every caller needs one.
    pub fn new(
        principals: Vec<Arc<Principal>>,
        tokens: HashMap<TokenId, TokenEntry>,
        anonymous: Option<Rights>,
    ) -> Self {
        let anonymous = anonymous.map(Caller::anonymous);
        Self { is_open: false, anonymous, principals, tokens }
    }

    /// Returns the caller of a request with this `Authorization` header. `now` is
    /// [`crate::clock::ClusterClock::at_most`], so that no token is taken after its end.
    ///
    /// # Errors
    /// When the credential is missing or proves nobody. A wrong credential is never anonymous.
    pub fn identify(
        &self,
        authorization: Option<&str>,
        now: Timestamp,
    ) -> Result<Caller, Unidentified> {
        if let (true, Some(anonymous)) = (self.is_open, &self.anonymous) {
            return Ok(anonymous.clone());
        }
        let Some(authorization) = authorization else {
            return self.anonymous.clone().ok_or(Unidentified::NoCredential);
        };
        let text = bearer(authorization).ok_or(Unidentified::Malformed)?;
        let token = Token::parse(text).map_err(|_told_by_the_reason| Unidentified::Unknown)?;
        self.verify(&token, now)
    }

    /// Returns the caller with this token.
    pub fn verify(&self, token: &Token, now: Timestamp) -> Result<Caller, Unidentified> {
        let entry = self.tokens.get(&token.id());
        let is_right = token.is_of(entry.map(|entry| &entry.hash));
        let entry = entry.filter(|_| is_right).ok_or(Unidentified::Unknown)?;
        if entry.expires.is_some_and(|expires| expires <= now) {
            return Err(Unidentified::Expired);
        }
        if entry.not_before.is_some_and(|not_before| now < not_before) {
            return Err(Unidentified::NotYet);
        }
        let credential = CredentialId::Token(token.id());
        Ok(Caller { principal: entry.principal.clone(), credential })
    }

    /// Returns the principal and the times of the token with this id.
    pub fn entry(&self, id: TokenId) -> Option<&TokenEntry> {
        self.tokens.get(&id)
    }

    /// Returns the principals of the file, in the order of their names.
    pub fn principals(&self) -> &[Arc<Principal>] {
        &self.principals
    }

    /// Returns the rights of callers without a credential, if they have any.
    pub fn anonymous_rights(&self) -> Option<&Rights> {
        self.anonymous.as_ref().map(|caller| &caller.principal.rights)
    }

    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true without an auth file.
    pub fn is_open(&self) -> bool {
        self.is_open
    }
}

/// Returns the credential after the scheme, which is compared without regard to case.
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, rest) = authorization.split_once(' ')?;
    let credential = rest.trim_matches(' ');
    let is_one_word =
        !credential.is_empty() && credential.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && is_one_word).then_some(credential)
}
