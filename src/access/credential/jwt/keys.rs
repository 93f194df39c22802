//! The key set of an issuer (a JWKS, RFC 7517), and the verification of signatures with the keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde_json::{Map, Value};

use super::members::Members;

/// The most keys of a set.
const KEYS_MAX: usize = 64;
/// The shortest and the longest modulus of RSA, in bits.
const RSA_BITS_MIN: usize = 2048;
const RSA_BITS_MAX: usize = 8192;

/// An algorithm of signatures. The ones with a shared secret are missing on purpose: a public key
/// could be taken for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    Es256,
    Rs256,
    EdDsa,
}

impl Algorithm {
    pub const ALL: [Self; 3] = [Self::Es256, Self::Rs256, Self::EdDsa];

    /// Returns the algorithm of this name, which is compared byte for byte.
    pub fn new(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// A public key. The kind of the key is that of one algorithm, so no other can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
enum PublicKey {
    /// An uncompressed point.
    Es256(Vec<u8>),
    Rs256 {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    EdDsa(Vec<u8>),
}

/// A key of a set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    kid: Option<String>,
    public: PublicKey,
}

impl Key {
    pub fn algorithm(&self) -> Algorithm {
        match self.public {
            PublicKey::Es256(_) => Algorithm::Es256,
            PublicKey::Rs256 { .. } => Algorithm::Rs256,
            PublicKey::EdDsa(_) => Algorithm::EdDsa,
        }
    }

    /// Returns true when `signature` is that of `message` by this key.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.public {
            PublicKey::Es256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            PublicKey::Rs256 { n, e } => RsaPublicKeyComponents { n, e }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            PublicKey::EdDsa(point) => {
                UnparsedPublicKey::new(&ED25519, point).verify(message, signature)
            }
        };
        verified.is_ok()
    }

    /// Reads a key. Returns `None` for one that is for something else than these algorithms.
    fn read(jwk: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        let coordinate = |name| bytes(name).filter(|bytes| bytes.len() == 32);
        let public = match (text("kty")?, text("crv")) {
            ("EC", Some("P-256")) => {
                PublicKey::Es256([vec![4], coordinate("x")?, coordinate("y")?].concat())
            }
            ("OKP", Some("Ed25519")) => PublicKey::EdDsa(coordinate("x")?),
            ("RSA", None) => {
                let (n, e) = (bytes("n")?, bytes("e")?);
                let unused = usize::try_from(n.first()?.leading_zeros()).ok()?;
                let bits = (n.len() * 8).saturating_sub(unused);
                let is_usual = (RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits) && unused < 8;
                is_usual.then_some(PublicKey::Rs256 { n, e })?
            }
            _ => return None,
        };
        let key = Self { kid: text("kid").map(str::to_owned), public };
        let is_for_signatures = jwk.get("use").is_none_or(|purpose| purpose == "sig")
            && jwk.get("alg").is_none_or(|alg| alg == key.algorithm().name())
            && jwk.get("key_ops").is_none_or(|operations| {
                operations.as_array().is_some_and(|all| all.iter().any(|one| one == "verify"))
            });
        is_for_signatures.then_some(key)
    }
}

/// The keys of an issuer at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeySet {
    keys: Vec<Key>,
    /// True when the set has one key in all.
    has_one: bool,
}

/// The result of looking for the key of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<'a> {
    Key(&'a Key),
    /// There is no such key. A newer set may have it.
    Unknown,
    /// There is one, for another algorithm, or there are several.
    Unfit,
}

impl KeySet {
    /// Reads a JWKS. Keys for other purposes are left out.
    ///
    /// # Errors
    /// When the text is no JWKS, or there is no key to verify with, or a key is secret.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        let set =
            Members::read(json).ok_or("the key set is not a JSON object, or has a member twice")?;
        let listed =
            set.get("keys").and_then(Value::as_array).ok_or("the key set has no array `keys`")?;
        if listed.len() > KEYS_MAX {
            return Err(format!(
                "the key set has {} keys; at most {KEYS_MAX} are allowed",
                listed.len()
            ));
        }
        let listed: Vec<_> = listed.iter().filter_map(Value::as_object).collect();
        let is_secret = |jwk: &&Map<String, Value>| {
            jwk.contains_key("d") || jwk.get("kty").is_some_and(|kind| kind == "oct")
        };
        if listed.iter().any(is_secret) {
            return Err("the key set has a secret or private key, which only the issuer may have"
                .to_owned());
        }
        let keys: Vec<Key> = listed.iter().filter_map(|jwk| Key::read(jwk)).collect();
        if keys.is_empty() {
            return Err(
                "the key set has no key for ES256, RS256 (2048 bits or more) or EdDSA".to_owned()
            );
        }
        Ok(Self { keys, has_one: listed.len() == 1 })
    }

    /// Returns the key with this id, for this algorithm. Without an id, the set must have one key.
    pub fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Found<'_> {
        let named: Vec<&Key> = match kid {
            Some(_) => self.keys.iter().filter(|key| key.kid.as_deref() == kid).collect(),
            None if self.has_one => self.keys.iter().collect(),
            None => return Found::Unfit,
        };
        if named.is_empty() {
            return Found::Unknown;
        }
        let mut fit = named.into_iter().filter(|key| key.algorithm() == algorithm);
        match (fit.next(), fit.next()) {
            (Some(key), None) => Found::Key(key),
            _ => Found::Unfit,
        }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _};
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
    use serde_json::json;

    use super::*;

    /// A key that signs with ES256, and its JWK.
    pub(crate) fn ec_jwk(kid: &str) -> (EcdsaKeyPair, Value) {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap();
        let [x, y] =
            [1..33, 33..65].map(|range| URL_SAFE_NO_PAD.encode(&key.public_key().as_ref()[range]));
        let jwk = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": kid, "use": "sig" });
        (key, jwk)
    }

    pub(crate) fn sign(key: &EcdsaKeyPair, message: &str) -> Vec<u8> {
        key.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec()
    }

    pub(crate) fn set_of(jwks: &[Value]) -> KeySet {
        KeySet::read(json!({ "keys": jwks }).to_string().as_bytes()).unwrap()
    }

    fn rsa(bits: usize) -> Value {
        let n = URL_SAFE_NO_PAD.encode([vec![0x80; bits / 8 - 1], vec![1]].concat());
        json!({ "kty": "RSA", "n": n, "e": "AQAB", "kid": "r" })
    }

    #[test]
    fn a_signature_is_of_its_key_and_of_its_message_alone() {
        let ((key, jwk), (_, other)) = (ec_jwk("a"), ec_jwk("b"));
        let set = set_of(&[jwk, other]);
        let Found::Key(known) = set.find(Some("a"), Algorithm::Es256) else { panic!("a") };
        let Found::Key(other) = set.find(Some("b"), Algorithm::Es256) else { panic!("b") };
        let signature = sign(&key, "message");
        assert_eq!(signature.len(), 64);
        assert!(known.verifies(b"message", &signature));
        assert!(!known.verifies(b"massage", &signature) && !other.verifies(b"message", &signature));
        let mut der = vec![0x30, 0x44, 0x02, 0x20];
        der.extend(&signature[..32]);
        der.extend([0x02, 0x20]);
        der.extend(&signature[32..]);
        for wrong in [&[][..], &signature[..63], &der[..], &[0; 64][..]] {
            assert!(!known.verifies(b"message", wrong), "{wrong:?}");
        }
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.der_bytes());
        let set = set_of(&[json!({ "kty": "OKP", "crv": "Ed25519", "x": x })]);
        let Found::Key(key) = set.find(None, Algorithm::EdDsa) else { panic!("EdDSA") };
        let signing =
            ring::signature::Ed25519KeyPair::from_pkcs8_maybe_unchecked(&pair.serialize_der());
        let signature = signing.unwrap().sign(b"message");
        assert!(key.verifies(b"message", signature.as_ref()));
        assert!(!key.verifies(b"massage", signature.as_ref()));
    }

    #[test]
    fn a_key_is_found_by_its_id_for_its_own_algorithm() {
        let (ec, named_twice) = (ec_jwk("a").1, [ec_jwk("c").1, ec_jwk("c").1]);
        let set = set_of(&[ec.clone(), rsa(2048), named_twice[0].clone(), named_twice[1].clone()]);
        assert!(matches!(set.find(Some("a"), Algorithm::Es256), Found::Key(_)));
        assert!(matches!(set.find(Some("r"), Algorithm::Rs256), Found::Key(_)));
        for (kid, algorithm, found) in [
            (Some("a"), Algorithm::Rs256, Found::Unfit),
            (Some("r"), Algorithm::Es256, Found::Unfit),
            (Some("c"), Algorithm::Es256, Found::Unfit),
            (Some("../../etc/passwd"), Algorithm::Es256, Found::Unknown),
            (Some(""), Algorithm::Es256, Found::Unknown),
            (None, Algorithm::Es256, Found::Unfit),
        ] {
            assert_eq!(set.find(kid, algorithm), found, "{kid:?} {algorithm:?}");
        }
        assert!(matches!(set_of(&[ec]).find(None, Algorithm::Es256), Found::Key(_)));
    }

    #[test]
    fn keys_for_other_purposes_are_left_out() {
        let ec = ec_jwk("a").1;
        let with = |name: &str, value: Value| {
            let mut jwk = ec.clone();
            jwk[name] = value;
            jwk
        };
        for other in [
            with("use", json!("enc")),
            with("alg", json!("ES384")),
            with("alg", json!("RS256")),
            with("key_ops", json!(["sign"])),
            with("crv", json!("P-384")),
            with("kty", json!("RSA")),
            with("x", json!("AAAA")),
            rsa(2040),
            rsa(1024),
            rsa(8200),
            json!({ "kty": "new" }),
        ] {
            let set = json!({ "keys": [other] }).to_string();
            assert!(KeySet::read(set.as_bytes()).is_err(), "{set}");
            let both = set_of(&[other, ec.clone()]);
            assert_eq!(both.len(), 1);
            assert_eq!(both.find(None, Algorithm::Es256), Found::Unfit, "the set lists two");
        }
        assert_eq!(set_of(&[with("alg", json!("ES256")), rsa(8192)]).len(), 2);
    }

    #[test]
    fn a_text_that_is_no_key_set_is_refused() {
        let ec = ec_jwk("a").1;
        let mut secret = ec.clone();
        secret["d"] = json!("AAAA");
        for (set, part) in [
            (json!([]).to_string(), "not a JSON object"),
            (json!({}).to_string(), "no array"),
            (json!({ "keys": [] }).to_string(), "no key"),
            (json!({ "keys": [secret, ec] }).to_string(), "secret"),
            (json!({ "keys": [{ "kty": "oct", "k": "AAAA" }] }).to_string(), "secret"),
            (json!({ "keys": vec![ec_jwk("a").1; 65] }).to_string(), "65 keys"),
            (r#"{"keys":[],"keys":[]}"#.to_owned(), "twice"),
        ] {
            let refused = KeySet::read(set.as_bytes()).unwrap_err();
            assert!(refused.contains(part) && !refused.contains("AAAA"), "{refused}");
        }
    }
}
