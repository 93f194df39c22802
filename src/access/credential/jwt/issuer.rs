//! Issuers of JSON Web Tokens: the checks of a token, and the principal that it proves.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::compact::{Compact, Refusal};
use super::keys::{Algorithm, Found, KeySet};
use super::members::Members;
use super::slot::{KeySlot, Unknown};
use crate::access::limits::Limits;
use crate::access::metrics::principals::PrincipalCounts;
use crate::access::principal::{Caller, CredentialId, Fingerprint, Principal};
use crate::access::rights::Grants;
use crate::domain::{PrincipalName, Timestamp};

/// How far the clock of an issuer may be from that of the cluster.
const LEEWAY: Duration = Duration::from_secs(60);
/// The longest identity in a claim, in bytes.
const IDENTITY_BYTES_MAX: usize = 255;
/// The most verified remembered tokens.
const REMEMBERED_MAX: usize = 10_000;
/// The last second of the year 9999. Later ones are typing errors.
const SECONDS_MAX: i64 = 253_402_300_799;

/// An entry of `[[jwt]]` of the auth file.
#[derive(Debug)]
pub struct Issuer {
    /// The beginning of the principals' names.
    pub name: String,
    /// The claim `iss`, compared byte for byte.
    pub issuer: String,
    pub audience: String,
    pub algorithms: Vec<Algorithm>,
    /// The claim that tells callers apart.
    pub principal_claim: String,
    /// The longest time from `iat` to `exp`.
    pub max_age: Duration,
    pub maps: Vec<ClaimMap>,
    /// The limits of each principal.
    pub limits: Limits,
    /// The counters of all principals together.
    pub counts: PrincipalCounts,
    pub keys: Arc<KeySlot>,
}

/// Rights of the tokens in which a claim has a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimMap {
    pub claim: String,
    pub test: ClaimTest,
    pub grants: Grants,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimTest {
    /// The claim is this string.
    Equals(String),
    /// The claim is an array with this string, or the string itself.
    Contains(String),
}

/// The reason why a token does not identify a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotProven {
    Refused(Refusal),
    /// The keys of the issuer are not loaded yet.
    KeysMissing,
}

impl From<Refusal> for NotProven {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A token that was verified, so its next requests cost no signature.
#[derive(Debug)]
struct Remembered {
    caller: Caller,
    /// The index of the issuer in [`Issuers`].
    issuer: usize,
    /// The keys that verified the token. With other keys the token is verified anew.
    keys: Arc<KeySet>,
    until: Timestamp,
}

/// All issuers of an auth file. No two have the same `iss`.
#[derive(Default, Debug)]
pub struct Issuers {
    issuers: Vec<Issuer>,
    /// By the SHA-256 of the token.
    remembered: Mutex<HashMap<[u8; 32], Remembered>>,
}

impl Issuers {
    pub fn new(issuers: Vec<Issuer>) -> Self {
        Self { issuers, remembered: Mutex::default() }
    }

    pub fn all(&self) -> &[Issuer] {
        &self.issuers
    }

    /// Takes over the key sets by URL that `former` has fetched.
    pub fn adopt_keys(&mut self, former: &Self) {
        for issuer in &mut self.issuers {
            let is_same = |other: &&Issuer| other.keys.source == issuer.keys.source;
            let is_fetched = issuer.keys.url().is_some();
            if let Some(fetched) = former.issuers.iter().find(is_same).filter(|_| is_fetched) {
                issuer.keys = Arc::clone(&fetched.keys);
            }
        }
    }

    /// Returns the caller with this token.
    pub fn identify(&self, token: &str, now: Timestamp) -> Result<Caller, NotProven> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(caller) = self.remembered(&hash, now) {
            return Ok(caller);
        }
        let compact = Compact::read(token)?;
        // The claim is not verified here, but by the keys of the named issuer.
        let claimed = compact.claims.text("iss").ok_or("the token has no `iss`")?;
        let mut places = self.issuers.iter().enumerate();
        let (place, issuer) = places
            .find(|(_, issuer)| issuer.issuer == claimed)
            .ok_or("no [[jwt]] has the issuer of the token")?;
        let keys = issuer.verify(&compact)?;
        let proven = issuer.check(&compact.claims, now)?;
        let credential = CredentialId::Jwt(Fingerprint::of(token.as_bytes()));
        let (principal, until) = (Arc::new(proven.principal), Some(proven.until));
        let caller = Caller { principal, credential, until };
        let remembered =
            Remembered { caller: caller.clone(), issuer: place, keys, until: proven.until };
        self.remember(hash, remembered);
        Ok(caller)
    }

    fn remembered(&self, hash: &[u8; 32], now: Timestamp) -> Option<Caller> {
        let remembered = self.remembered.lock();
        let token = remembered.get(hash).filter(|token| now < token.until)?;
        let current = self.issuers.get(token.issuer)?.keys.current()?;
        Arc::ptr_eq(&current, &token.keys).then(|| token.caller.clone())
    }

    /// Remembers a token. When there is no room, all are forgotten and verified anew.
    fn remember(&self, hash: [u8; 32], token: Remembered) {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(hash, token);
    }
}

/// The identity that claims prove.
struct Proven {
    principal: Principal,
    until: Timestamp,
}

impl Issuer {
    /// Checks the algorithm, the key and the signature. Returns the keys that have verified it.
    fn verify(&self, token: &Compact<'_>) -> Result<Arc<KeySet>, NotProven> {
        if !self.algorithms.contains(&token.algorithm) {
            return Err("the issuer may not use the algorithm of the token".into());
        }
        let keys = self.keys.current().ok_or(NotProven::KeysMissing)?;
        let key = match keys.find(token.kid.as_deref(), token.algorithm) {
            Found::Key(key) => key,
            Found::Unfit => {
                return Err("the key is for another algorithm, or the token names none".into());
            }
            Found::Unknown => {
                return Err(match self.keys.miss() {
                    Unknown::Final => "the key of the token is unknown".into(),
                    Unknown::Open => NotProven::KeysMissing,
                });
            }
        };
        if !key.verifies(token.signed.as_bytes(), &token.signature) {
            return Err("the signature is wrong".into());
        }
        Ok(keys)
    }

    /// Checks the claims of a token whose signature is right.
    fn check(&self, claims: &Members, now: Timestamp) -> Result<Proven, Refusal> {
        let is_meant = |audience: &Value| match audience {
            Value::String(one) => *one == self.audience,
            Value::Array(all) => all.iter().any(|one| *one == self.audience.as_str()),
            _ => false,
        };
        if !claims.get("aud").is_some_and(is_meant) {
            return Err("the token is for another audience");
        }
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => {
                time_of(value).map(Some).ok_or("a time of the token is not a number of seconds")
            }
        };
        let until = time("exp")?.ok_or("the token has no `exp`")?.plus(LEEWAY);
        let issued_at = time("iat")?.ok_or("the token has no `iat`")?;
        if until <= now {
            return Err("the token has expired");
        }
        if time("nbf")?.is_some_and(|from| now.plus(LEEWAY) < from) {
            return Err("the token is not valid yet");
        }
        if now.plus(LEEWAY) < issued_at {
            return Err("the token was issued in the future");
        }
        if until.minus(LEEWAY) > issued_at.plus(self.max_age) {
            return Err("the token is valid for longer than `max_age`");
        }
        let identity =
            claims.text(&self.principal_claim).ok_or("the token has no principal claim")?;
        let is_printable = |text: &str| {
            (1..=IDENTITY_BYTES_MAX).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let name = Some(identity).filter(|identity| is_printable(identity));
        let name = name.and_then(|id| PrincipalName::new(&format!("jwt:{}/{id}", self.name)).ok());
        let name =
            name.ok_or("the name of the principal has illegal characters, or is too long")?;
        let mut grants = Grants::default();
        for map in self.maps.iter().filter(|map| map.fits(claims)) {
            grants.extend(&map.grants);
        }
        let (rights, limits) = (Arc::new(grants.rights()), self.limits.clone());
        let principal = Principal { name, rights, limits, counts: self.counts.clone() };
        Ok(Proven { principal, until })
    }
}

impl ClaimMap {
    fn fits(&self, claims: &Members) -> bool {
        match (&self.test, claims.get(&self.claim)) {
            (ClaimTest::Equals(wanted) | ClaimTest::Contains(wanted), Some(Value::String(is))) => {
                is == wanted
            }
            (ClaimTest::Contains(wanted), Some(Value::Array(all))) => {
                all.iter().any(|one| *one == wanted.as_str())
            }
            _ => false,
        }
    }
}

impl fmt::Display for ClaimMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, value) = match &self.test {
            ClaimTest::Equals(value) => ("equals", value),
            ClaimTest::Contains(value) => ("contains", value),
        };
        write!(f, "{:?} {verb} {value:?}", self.claim)
    }
}

/// Reads a time in seconds since 1970, with or without a fraction.
fn time_of(value: &Value) -> Option<Timestamp> {
    let whole = value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds.saturating_as()));
    let seconds = whole.filter(|seconds| (0..=SECONDS_MAX).contains(seconds))?;
    Some(Timestamp::from_millis(seconds.saturating_mul(1000)))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;
    use ring::signature::EcdsaKeyPair;
    use serde_json::json;

    use super::super::keys::tests::{ec_jwk, set_of, sign};
    use super::super::slot::KeySource;
    use super::*;
    use crate::access::Action;
    use crate::access::pattern::Pattern;
    use crate::access::rights::Rule;
    use crate::domain::TopicName;

    const NOW: i64 = 1_800_000_000;

    /// An issuer with one key in a file.
    struct World {
        issuers: Issuers,
        key: EcdsaKeyPair,
        jwk: Value,
    }

    fn grants(action: Action, operates: bool) -> Grants {
        let topics = vec![Pattern::new("orders").unwrap()];
        Grants {
            allow: vec![Rule { actions: vec![action], topics }],
            operates,
            ..Grants::default()
        }
    }

    impl World {
        fn new() -> Self {
            let (key, jwk) = ec_jwk("one");
            let keys = KeySlot::new(KeySource::File("keys.json".into()));
            keys.take_file(set_of(&[jwk.clone(), ec_jwk("other").1]));
            let map =
                |claim: &str, test, grants| ClaimMap { claim: claim.to_owned(), test, grants };
            let issuer = Issuer {
                name: "k8s".to_owned(),
                issuer: "https://issuer.example".to_owned(),
                audience: "punctual".to_owned(),
                algorithms: vec![Algorithm::Es256, Algorithm::Rs256],
                principal_claim: "sub".to_owned(),
                max_age: Duration::from_hours(24),
                maps: vec![
                    map("sub", ClaimTest::Equals("orders".into()), grants(Action::Submit, false)),
                    map("groups", ClaimTest::Contains("sre".into()), grants(Action::Read, true)),
                ],
                limits: Limits::default(),
                counts: PrincipalCounts::default(),
                keys: Arc::new(keys),
            };
            Self { issuers: Issuers::new(vec![issuer]), key, jwk }
        }

        fn token(&self, header: &Value, claims: &Value) -> String {
            let [header, claims] =
                [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
            let signed = format!("{header}.{claims}");
            let signature = URL_SAFE_NO_PAD.encode(sign(&self.key, &signed));
            format!("{signed}.{signature}")
        }

        fn identify(&self, token: &str) -> Result<Caller, NotProven> {
            self.issuers.identify(token, at(NOW))
        }

        fn reason(&self, token: &str) -> Refusal {
            match self.identify(token) {
                Err(NotProven::Refused(refusal)) => refusal,
                other => panic!("{other:?}"),
            }
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn header() -> Value {
        json!({ "alg": "ES256", "kid": "one", "typ": "JWT" })
    }

    fn claims() -> Value {
        json!({
            "iss": "https://issuer.example", "aud": "punctual", "sub": "orders",
            "iat": NOW - 10, "exp": NOW + 3600
        })
    }

    fn with(mut object: Value, name: &str, value: Value) -> Value {
        object[name] = value;
        object
    }

    fn without(mut object: Value, name: &str) -> Value {
        object.as_object_mut().unwrap().remove(name).unwrap();
        object
    }

    #[test]
    fn a_token_proves_its_principal_with_the_rights_of_its_claims() {
        let world = World::new();
        let topic = TopicName::new("orders").unwrap();
        let caller = world.identify(&world.token(&header(), &claims())).unwrap();
        assert_eq!(caller.principal.name.as_str(), "jwt:k8s/orders");
        assert!(caller.credential.to_string().starts_with("jwt-"));
        let rights = &caller.principal.rights;
        assert!(rights.allows(Action::Submit, &topic) && !rights.operates());
        let both = with(claims(), "groups", json!(["dev", "sre"]));
        let both = world.identify(&world.token(&header(), &both)).unwrap().principal;
        assert!(both.rights.allows(Action::Submit, &topic) && both.rights.operates());
        for (sub, groups) in
            [("order-service", json!("srex")), ("ordersx", json!(["sr", "e"])), ("x", json!(7))]
        {
            let token = with(with(claims(), "sub", json!(sub)), "groups", groups);
            let nobody = world.identify(&world.token(&header(), &token)).unwrap().principal;
            assert!(!nobody.rights.operates() && !nobody.rights.allows(Action::Submit, &topic));
        }
        let alone = with(with(claims(), "sub", json!("x")), "groups", json!("sre"));
        let alone = world.identify(&world.token(&header(), &alone)).unwrap().principal;
        assert!(alone.rights.operates());
    }

    #[test]
    fn all_principals_of_an_issuer_count_together() {
        let world = World::new();
        for subject in ["orders", "mails"] {
            let token = world.token(&header(), &with(claims(), "sub", json!(subject)));
            for _first_and_remembered in 0..2 {
                let principal = world.identify(&token).unwrap().principal;
                assert_eq!(principal.counts, world.issuers.all()[0].counts, "{subject}");
            }
        }
    }

    #[test]
    fn a_header_with_another_algorithm_or_key_is_refused() {
        let world = World::new();
        for (wrong, reason) in [
            (with(header(), "alg", json!("none")), "the algorithm is not"),
            (with(header(), "alg", json!("nOnE")), "the algorithm is not"),
            (with(header(), "alg", json!("HS256")), "the algorithm is not"),
            (with(header(), "alg", json!("EdDSA")), "may not use"),
            (with(header(), "alg", json!("RS256")), "another algorithm"),
            (with(header(), "kid", json!("two")), "unknown"),
            (with(header(), "kid", json!("other")), "signature"),
            (with(header(), "kid", json!("../../etc/passwd")), "unknown"),
            (with(header(), "kid", json!("x".repeat(4096))), "unknown"),
            (without(header(), "kid"), "the token names none"),
            (with(header(), "crit", json!(["exp"])), "critical"),
        ] {
            let refused = world.reason(&world.token(&wrong, &claims()));
            assert!(refused.contains(reason), "{wrong}: {refused}");
        }
        for ignored in ["jku", "x5u", "jwk", "x5c"] {
            let header = with(header(), ignored, json!("https://evil.example"));
            assert!(world.identify(&world.token(&header, &claims())).is_ok(), "{ignored}");
        }
        // The public key as a shared secret.
        let hs256 = with(header(), "alg", json!("HS256"));
        let [first, second] =
            [&hs256, &claims()].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{first}.{second}");
        let secret =
            ring::hmac::Key::new(ring::hmac::HMAC_SHA256, world.jwk.to_string().as_bytes());
        let forged = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, signed.as_bytes()));
        assert!(world.reason(&format!("{signed}.{forged}")).contains("the algorithm is not"));
    }

    #[test]
    fn a_signature_is_of_this_token() {
        let world = World::new();
        let token = world.token(&header(), &claims());
        let other = world.token(&header(), &with(claims(), "sub", json!("admin")));
        let (signed, _) = other.rsplit_once('.').unwrap();
        let (_, signature) = token.rsplit_once('.').unwrap();
        assert!(world.reason(&format!("{signed}.{signature}")).contains("signature"));
        assert!(world.reason(&format!("{signed}.")).contains("signature"));
        assert!(world.reason(&format!("{token}=")).contains("base64url"));
    }

    #[test]
    fn claims_are_of_this_issuer_for_this_audience_and_this_time() {
        let world = World::new();
        let claim = |name: &str, value: Value| with(claims(), name, value);
        let good = [
            claim("aud", json!(["other", "punctual"])),
            claim("exp", json!(NOW - 59)),
            claim("nbf", json!(NOW + 59)),
            claim("iat", json!(NOW + 59)),
            claim("exp", json!(f64::from(1_800_000_000) + 0.5)),
            with(claim("iat", json!(NOW - 82_800)), "exp", json!(NOW + 3600)),
        ];
        for good in good {
            assert!(world.identify(&world.token(&header(), &good)).is_ok(), "{good}");
        }
        for (wrong, reason) in [
            (claim("iss", json!("https://issuer.example/")), "no [[jwt]]"),
            (claim("iss", json!("https://issuer")), "no [[jwt]]"),
            (without(claims(), "iss"), "no `iss`"),
            (without(claims(), "aud"), "audience"),
            (claim("aud", json!("punctual-2")), "audience"),
            (claim("aud", json!("punct")), "audience"),
            (claim("aud", json!(["other"])), "audience"),
            (claim("aud", json!({ "punctual": true })), "audience"),
            (without(claims(), "exp"), "no `exp`"),
            (claim("exp", json!((NOW + 60).to_string())), "not a number"),
            (claim("exp", json!(-1)), "not a number"),
            (claim("exp", json!(1e300)), "not a number"),
            (claim("exp", json!(NOW - 60)), "expired"),
            (claim("exp", json!(NOW - 61)), "expired"),
            (claim("nbf", json!(NOW + 61)), "not valid yet"),
            (claim("iat", json!(NOW + 61)), "in the future"),
            (without(claims(), "iat"), "no `iat`"),
            (claim("iat", json!(NOW - 82_801)), "longer than"),
            (without(claims(), "sub"), "no principal claim"),
            (claim("sub", json!(7)), "no principal claim"),
            (claim("sub", json!("")), "characters"),
            (claim("sub", json!("a b")), "characters"),
            (claim("sub", json!("a\n")), "characters"),
            (claim("sub", json!("x".repeat(256))), "characters"),
        ] {
            let refused = world.reason(&world.token(&header(), &wrong));
            assert!(refused.contains(reason), "{wrong}: {refused}");
        }
    }

    #[test]
    fn a_remembered_token_ends_with_its_time_and_with_its_key() {
        let world = World::new();
        let token = world.token(&header(), &claims());
        let count = || world.issuers.remembered.lock().len();
        assert!(world.identify(&token).is_ok() && world.identify(&token).is_ok());
        assert!(world.identify(&format!("{token}A")).is_err());
        assert_eq!(count(), 1, "a token that is refused is not remembered");
        let late = world.issuers.identify(&token, at(NOW + 3660)).map(drop);
        assert_eq!(late, Err(NotProven::Refused("the token has expired")));
        world.issuers.all()[0].keys.take_file(set_of(&[ec_jwk("next").1]));
        assert!(world.reason(&token).contains("unknown"), "its key was rotated out");
    }

    #[test]
    fn without_keys_a_token_is_neither_taken_nor_refused() {
        let mut world = World::new();
        world.issuers.issuers[0].keys = Arc::new(KeySlot::new(KeySource::File("keys.json".into())));
        let token = world.token(&header(), &claims());
        assert_eq!(world.identify(&token).map(drop), Err(NotProven::KeysMissing));
        let wrong = world.token(&with(header(), "alg", json!("none")), &claims());
        assert!(matches!(world.identify(&wrong), Err(NotProven::Refused(_))));
    }

    proptest! {
        #[test]
        fn one_changed_character_is_noticed(place in 0_usize..300, other in "[A-Za-z0-9_.-]") {
            let world = World::new();
            let token = world.token(&header(), &claims());
            let mut changed = token.clone();
            let place = place % token.len();
            changed.replace_range(place..=place, &other);
            prop_assert_eq!(world.identify(&changed).is_ok(), changed == token);
        }
    }
}
