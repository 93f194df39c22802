//! The text of a token: three parts of base64url with dots between them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::keys::Algorithm;
use super::members::Members;

/// The longest token, in bytes.
const BYTES_MAX: usize = 8 << 10;

/// The reason why a token is refused, for the log of the node. Callers are not told.
pub type Refusal = &'static str;

/// A token whose form is right. Nothing of it is verified yet.
#[derive(Debug)]
pub struct Compact<'a> {
    /// The bytes that the signature covers.
    pub signed: &'a str,
    pub signature: Vec<u8>,
    pub algorithm: Algorithm,
    /// The id of the key.
    pub kid: Option<String>,
    pub claims: Members,
}

impl<'a> Compact<'a> {
    /// Takes a token apart. `jku`, `x5u`, `jwk` and `x5c` are never looked at: a token does not
    /// bring its own key.
    pub fn read(text: &'a str) -> Result<Self, Refusal> {
        if text.len() > BYTES_MAX {
            return Err("the token is longer than 8 KiB");
        }
        let mut parts = text.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("the token does not have three parts");
        };
        // The decoder refuses padding, and spellings that are not its own.
        let decoded = |part: &str| {
            URL_SAFE_NO_PAD
                .decode(part)
                .map_err(|_wrong| "a part of the token is not canonical base64url")
        };
        let signed = text.get(..header.len() + 1 + claims.len()).unwrap_or_default();
        let (header, claims) = (decoded(header)?, decoded(claims)?);
        let signature = decoded(signature)?;
        let header = Members::read(&header)
            .ok_or("the header is not a JSON object, or has a member twice")?;
        let algorithm = header.text("alg").and_then(Algorithm::new);
        let algorithm = algorithm.ok_or("the algorithm is not ES256, RS256 or EdDSA")?;
        let is_jwt =
            |kind: &str| ["JWT", "at+jwt"].iter().any(|known| kind.eq_ignore_ascii_case(known));
        if header.get("typ").is_some() && !header.text("typ").is_some_and(is_jwt) {
            return Err("the type of the token is not JWT");
        }
        if header.get("crit").is_some() {
            return Err("the token has critical extensions, and no extension is known");
        }
        if header.get("kid").is_some() && header.text("kid").is_none() {
            return Err("the key id is not a string");
        }
        let kid = header.text("kid").map(str::to_owned);
        let claims = Members::read(&claims)
            .ok_or("the claims are not a JSON object, or have a member twice")?;
        Ok(Self { signed, signature, algorithm, kid, claims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, claims: &str) -> String {
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part));
        format!("{header}.{claims}.c2ln")
    }

    #[test]
    fn a_token_is_taken_apart() {
        let text = token(r#"{"alg":"ES256","kid":"a","typ":"at+jwt","jku":"https://evil"}"#, "{}");
        let read = Compact::read(&text).unwrap();
        assert_eq!(format!("{}.c2ln", read.signed), text);
        assert_eq!((read.signature.as_slice(), read.kid.as_deref()), (&b"sig"[..], Some("a")));
        assert_eq!(read.algorithm, Algorithm::Es256);
    }

    #[test]
    fn a_token_that_could_be_read_in_two_ways_is_refused() {
        let good = token(r#"{"alg":"ES256"}"#, "{}");
        assert!(Compact::read(&good).is_ok());
        for wrong in [
            token(r#"{"alg":"none"}"#, "{}"),
            token(r#"{"alg":"nOnE"}"#, "{}"),
            token(r#"{"alg":"HS256"}"#, "{}"),
            token(r#"{"alg":"es256"}"#, "{}"),
            token(r#"{"alg":["ES256"]}"#, "{}"),
            token("{}", "{}"),
            token(r#"{"alg":"none","alg":"ES256"}"#, "{}"),
            token(r#"{"alg":"ES256","crit":["exp"]}"#, "{}"),
            token(r#"{"alg":"ES256","crit":[]}"#, "{}"),
            token(r#"{"alg":"ES256","typ":"JWE"}"#, "{}"),
            token(r#"{"alg":"ES256","typ":null}"#, "{}"),
            token(r#"{"alg":"ES256","kid":7}"#, "{}"),
            token(r#"{"alg":"ES256"}"#, r#"{"sub":"a","sub":"b"}"#),
            token(r#"{"alg":"ES256"}"#, "[]"),
            good.replace(".c2ln", ""),
            format!("{good}.c2ln"),
            good.replace("c2ln", "c2ln="),
            // Another spelling of two bytes.
            good.replace("c2ln", "c2k").replace("c2k", "c2l"),
            good.replace("c2ln", "c2+n"),
            format!("{good}{}", "A".repeat(8192)),
            String::new(),
            "..".to_owned(),
        ] {
            assert!(Compact::read(&wrong).is_err(), "{wrong}");
        }
    }
}
