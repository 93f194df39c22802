//! The policy: every principal with its rights and credentials, as one immutable snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::credential::certificate::{self, CertificateEntry, PeerCertificate};
use super::credential::jwt::compact::Refusal;
use super::credential::jwt::issuer::{Issuer, Issuers, NotProven};
use super::credential::token::{Token, TokenHash, TokenId};
use super::limits::Limits;
use super::metrics::Metrics;
use super::pattern::Pattern;
use super::principal::{Caller, CredentialId, Principal};
use super::rights::Rights;
use crate::domain::{Timestamp, TopicName};

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
    certificates: Vec<CertificateEntry>,
    issuers: Issuers,
    topic_limits: Vec<(Pattern, Limits)>,
    /// Cancelled when another policy has taken the place of this one.
    replaced: CancellationToken,
}

/// Why a request has no caller. The first two may be told to the caller. The others have the same
/// answer, so nobody learns which tokens exist; the log has the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unidentified {
    #[error("no credential was sent, and anonymous callers have no rights here")]
    NoCredential,
    #[error("the Authorization header is not `Bearer` and one token")]
    Malformed,
    #[error("no principal has this token")]
    Unknown,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the JWT is refused: {0}")]
    Jwt(Refusal),
    #[error("the keys of the issuer of the JWT are not there yet")]
    KeysMissing,
}

impl From<NotProven> for Unidentified {
    fn from(reason: NotProven) -> Self {
        match reason {
            NotProven::Refused(refusal) => Self::Jwt(refusal),
            NotProven::KeysMissing => Self::KeysMissing,
        }
    }
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
            certificates: Vec::new(),
            issuers: Issuers::default(),
            topic_limits: Vec::new(),
            replaced: CancellationToken::new(),
        }
    }

    /// Makes the policy of an auth file. `anonymous` is the caller without a
    /// credential; without it, every caller needs one.
    pub fn new(
        principals: Vec<Arc<Principal>>,
        tokens: HashMap<TokenId, TokenEntry>,
        anonymous: Option<Caller>,
    ) -> Self {
        Self {
            is_open: false,
            anonymous,
            principals,
            tokens,
            certificates: Vec::new(),
            issuers: Issuers::default(),
            topic_limits: Vec::new(),
            replaced: CancellationToken::new(),
        }
    }

    /// Returns a token that is cancelled when another policy holds. Requests that wait longer than
    /// others end then, and their callers come again with what rights they have.
    pub fn replaced(&self) -> &CancellationToken {
        &self.replaced
    }

    /// Returns the expiry times of the tokens of `principal`, or of all principals for `None`, the
    /// earliest first. Tokens that do not expire are left out.
    pub fn expiries(&self, principal: Option<&Principal>) -> Vec<(Timestamp, TokenId)> {
        let is_own = |(_id, entry): &(&TokenId, &TokenEntry)| {
            principal.is_none_or(|principal| entry.principal.name == principal.name)
        };
        let own = self.tokens.iter().filter(is_own);
        let mut all: Vec<_> = own.filter_map(|(id, entry)| Some((entry.expires?, *id))).collect();
        all.sort_unstable_by_key(|(expires, _id)| *expires);
        all
    }

    /// Adds limits of topics. No two of them have the same pattern.
    #[must_use]
    pub fn with_topic_limits(mut self, topic_limits: Vec<(Pattern, Limits)>) -> Self {
        self.topic_limits = topic_limits;
        self
    }

    /// Returns all limits of a topic. As in denying rules, `*` and prefixes cover names that begin
    /// with `_`, too.
    pub fn topic_limits(&self, topic: &TopicName) -> impl Iterator<Item = (&Pattern, &Limits)> {
        let covering = self.topic_limits.iter().filter(move |(pattern, _)| pattern.denies(topic));
        covering.map(|(pattern, limits)| (pattern, limits))
    }

    /// Tells whether any topic has limits.
    pub fn limits_topics(&self) -> bool {
        !self.topic_limits.is_empty()
    }

    /// Adds entries for client certificates. No two of them cover the same name.
    #[must_use]
    pub fn with_certificates(mut self, certificates: Vec<CertificateEntry>) -> Self {
        self.certificates = certificates;
        self
    }

    /// Adds issuers of JSON Web Tokens. No two of them have the same `iss`.
    #[must_use]
    pub fn with_issuers(mut self, issuers: Vec<Issuer>) -> Self {
        self.issuers = Issuers::new(issuers);
        self
    }

    /// Takes over the keys that the policy before has fetched.
    pub fn adopt_keys(&mut self, former: &Self) {
        self.issuers.adopt_keys(&former.issuers);
    }

    /// Gives counters to all principals, before the policy holds. Names that the policy before had
    /// count on. All principals of an issuer, or of an entry for certificates, count together:
    /// their names come from callers.
    pub fn count_with(&self, metrics: &Metrics) {
        let name_of = |principal: &Principal| principal.name.as_str().to_owned();
        let issuers = self.issuers.all().iter();
        let issuers = issuers.map(|issuer| (format!("jwt:{}", issuer.name), &issuer.counts));
        let principals = self.principals.iter();
        let principals = principals.map(|principal| (name_of(principal), &principal.counts));
        let certificates = self.certificates.iter();
        let certificates =
            certificates.map(|entry| (format!("cert:{}", entry.names), &entry.counts));
        let anonymous = self.anonymous.as_ref().map(|caller| &caller.principal);
        let anonymous = anonymous.map(|principal| (name_of(principal), &principal.counts));
        let names = issuers.chain(principals).chain(certificates);
        metrics.of_principals.count(anonymous, names);
    }

    /// Returns the caller of a request without an `Authorization` header. `peer` is the certificate
    /// of the connection. A certificate without a principal is like none: a caller can always come
    /// without one.
    ///
    /// # Errors
    /// When there is no identity, and anonymous callers have no rights.
    pub fn identify_peer(&self, peer: Option<&PeerCertificate>) -> Result<Caller, Unidentified> {
        let proven = peer.filter(|_| !self.is_open).and_then(|peer| {
            let principal = certificate::principal_of(&self.certificates, &peer.names)?;
            Some(Caller { principal, credential: CredentialId::Certificate(peer.id), until: None })
        });
        proven.or_else(|| self.anonymous.clone()).ok_or(Unidentified::NoCredential)
    }

    /// Returns the caller of a request with an `Authorization` header. The header wins over the
    /// certificate of the connection. `now` is [`crate::clock::ClusterClock::at_most`], so no token
    /// is taken after its end.
    ///
    /// # Errors
    /// When the token proves nobody. A wrong token is never anonymous.
    pub fn identify(&self, authorization: &str, now: Timestamp) -> Result<Caller, Unidentified> {
        if let (true, Some(anonymous)) = (self.is_open, &self.anonymous) {
            return Ok(anonymous.clone());
        }
        let text = bearer(authorization).ok_or(Unidentified::Malformed)?;
        match Token::parse(text) {
            Ok(token) => self.verify(&token, now),
            Err(_) if !self.issuers.all().is_empty() && !Token::is_like(text) => {
                Ok(self.issuers.identify(text, now)?)
            }
            Err(_told_by_the_reason) => Err(Unidentified::Unknown),
        }
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
        Ok(Caller { principal: entry.principal.clone(), credential, until: entry.expires })
    }

    /// Returns the principal and the times of the token with this id.
    pub fn entry(&self, id: TokenId) -> Option<&TokenEntry> {
        self.tokens.get(&id)
    }

    /// Returns the principals of the file, in its order.
    pub fn principals(&self) -> &[Arc<Principal>] {
        &self.principals
    }

    /// Returns the rights of callers without a credential, if they have any.
    pub fn anonymous_rights(&self) -> Option<&Rights> {
        self.anonymous.as_ref().map(|caller| &*caller.principal.rights)
    }

    pub fn issuers(&self) -> &Issuers {
        &self.issuers
    }

    pub fn certificates(&self) -> &[CertificateEntry] {
        &self.certificates
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

#[cfg(test)]
mod tests {
    use super::super::credential::certificate::{NamePattern, PeerName};
    use super::super::credential::token::tests::HASHED;
    use super::super::limits::Limits;
    use super::super::metrics::principals::PrincipalCounts;
    use super::super::principal::Fingerprint;
    use super::*;
    use crate::domain::PrincipalName;

    fn policy(token: &Token, times: [Option<i64>; 2], anonymous: Option<Rights>) -> Policy {
        let anonymous = anonymous.map(Caller::anonymous);
        let principal = Arc::new(Principal {
            name: PrincipalName::new("orders").unwrap(),
            rights: Arc::default(),
            limits: Limits::default(),
            counts: PrincipalCounts::default(),
        });
        let [not_before, expires] = times.map(|time| time.map(Timestamp::from_millis));
        let entry =
            TokenEntry { principal: principal.clone(), hash: token.hash(), not_before, expires };
        Policy::new(vec![principal], HashMap::from([(token.id(), entry)]), anonymous)
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn name(caller: Result<Caller, Unidentified>) -> Result<String, Unidentified> {
        caller.map(|caller| format!("{} {}", caller.principal.name, caller.credential))
    }

    #[test]
    fn a_token_proves_its_principal() {
        let token = Token::generate().unwrap();
        let policy = policy(&token, [None, None], None);
        for scheme in ["Bearer", "bearer", "BEARER", "Bearer "] {
            let header = format!("{scheme} {}", token.expose());
            let expected = format!("orders {}", token.id());
            assert_eq!(name(policy.identify(&header, at(1))), Ok(expected), "{scheme}");
        }
    }

    #[test]
    fn headers_that_are_no_bearer_are_malformed() {
        let token = Token::generate().unwrap();
        let policy = policy(&token, [None, None], Some(Rights::default()));
        let text = token.expose();
        let headers = [
            String::new(),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
            text.to_owned(),
            format!("Basic {text}"),
            format!("Bearer {text}, Bearer {text}"),
            format!("Bearer {text} {text}"),
            format!("Bearer\t{text}"),
            format!("Bearer {text}\0"),
            format!("Bearer {text}\r\n"),
            format!("Bearer {text}ä"),
        ];
        for header in headers {
            let identified = policy.identify(&header, at(1));
            assert_eq!(name(identified), Err(Unidentified::Malformed), "{header:?}");
        }
    }

    #[test]
    fn no_credential_is_anonymous_only_where_the_file_says_so() {
        let token = Token::generate().unwrap();
        let strict = policy(&token, [None, None], None);
        assert_eq!(name(strict.identify_peer(None)), Err(Unidentified::NoCredential));
        let lenient = policy(&token, [None, None], Some(Rights::default()));
        assert_eq!(name(lenient.identify_peer(None)), Ok("anonymous anonymous".to_owned()));
        let wrong = format!("Bearer {}", Token::generate().unwrap().expose());
        assert_eq!(name(lenient.identify(&wrong, at(1))), Err(Unidentified::Unknown));
    }

    #[test]
    fn wrong_tokens_have_one_answer_and_the_work_does_not_tell_known_ids() {
        let token = Token::generate().unwrap();
        let policy = policy(&token, [None, None], None);
        let (unknown, other) = (Token::generate().unwrap(), Token::generate().unwrap());
        // The id of the known token with the secret of another one, and a checksum that is right.
        let mixed = Token::with_id_of(&token, &other);
        let hashed = |token: &Token| {
            let before = HASHED.get();
            let header = format!("Bearer {}", token.expose());
            let identified = name(policy.identify(&header, at(1)));
            assert_eq!(identified, Err(Unidentified::Unknown));
            HASHED.get() - before
        };
        assert_eq!((hashed(&unknown), hashed(&mixed)), (1, 1));
        let broken = token.expose().replace("pt_", "pt-");
        for text in [broken, "x".repeat(8192), "pt_".to_owned(), "*".to_owned()] {
            let header = format!("Bearer {text}");
            let identified = name(policy.identify(&header, at(1)));
            assert_eq!(identified, Err(Unidentified::Unknown), "{text}");
        }
    }

    #[test]
    fn a_token_is_valid_from_its_beginning_until_its_end() {
        let token = Token::generate().unwrap();
        let policy = policy(&token, [Some(1000), Some(2000)], None);
        let header = format!("Bearer {}", token.expose());
        let ask = |millis| policy.identify(&header, at(millis)).map(drop);
        assert_eq!(policy.identify(&header, at(1999)).unwrap().until, Some(at(2000)));
        assert_eq!(ask(999), Err(Unidentified::NotYet));
        assert_eq!(ask(1000), Ok(()));
        assert_eq!(ask(1999), Ok(()));
        assert_eq!(ask(2000), Err(Unidentified::Expired));
    }

    #[test]
    fn without_an_auth_file_every_caller_is_anonymous() {
        let peer = peer("spiffe://shop/orders");
        let open = Policy::open();
        for caller in [
            open.identify("Basic eDp5", at(1)),
            open.identify("Bearer x", at(1)),
            open.identify_peer(None),
            open.identify_peer(Some(&peer)),
        ] {
            let caller = caller.unwrap();
            assert_eq!(caller.credential, CredentialId::Anonymous);
            assert!(caller.principal.rights.operates());
        }
    }

    fn peer(uri: &str) -> PeerCertificate {
        let names = vec![PeerName::uri(uri).unwrap()];
        PeerCertificate { id: Fingerprint::of(b"a certificate"), names, until: Timestamp::MAX }
    }

    #[test]
    fn a_certificate_proves_its_principal_and_a_token_wins_over_it() {
        let token = Token::generate().unwrap();
        let names = NamePattern::uri("spiffe://shop/*").unwrap();
        let (limits, counts) = (Limits::default(), PrincipalCounts::default());
        let entry = CertificateEntry { names, rights: Arc::default(), limits, counts };
        let strict = policy(&token, [None, None], None).with_certificates(vec![entry.clone()]);
        let (known, other) = (peer("spiffe://shop/orders"), peer("spiffe://bank/orders"));
        let expected = "cert:spiffe://shop/orders certificate-81acd762";
        assert_eq!(name(strict.identify_peer(Some(&known))), Ok(expected.to_owned()));
        let refused = name(strict.identify_peer(Some(&other)));
        assert_eq!(refused, Err(Unidentified::NoCredential));
        let lenient = policy(&token, [None, None], Some(Rights::default()));
        let lenient = lenient.with_certificates(vec![entry]);
        let anonymous = name(lenient.identify_peer(Some(&other)));
        assert_eq!(anonymous, Ok("anonymous anonymous".to_owned()));
    }
}
