//! The keys that sign requests of callbacks.
//!
//! The file has one or two lines, each the base64 of 24 to 64 bytes. Both keys sign, so that
//! services learn a new one before the old one goes. Lines that begin with `#` are comments.

use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use thiserror::Error;

use crate::domain::TopicName;
use crate::private_file::{self, PrivateFileError};

const BYTES_MAX: u64 = 4 << 10;
const KEYS_MAX: usize = 2;
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// Why a file is refused. No message has a key.
#[derive(Debug, Error)]
pub enum WrongKeys {
    #[error(transparent)]
    Unread(#[from] PrivateFileError),
    #[error("{path}: expected one or two lines, each the base64 of 24 to 64 bytes: {what}")]
    Text { path: String, what: &'static str },
}

/// One or two keys.
#[derive(Clone)]
pub struct SigningKeys(Vec<hmac::Key>);

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} signing keys", self.0.len())
    }
}

impl SigningKeys {
    /// Reads the file at `path`. Returns the keys, and a warning if everyone on the machine may
    /// read the file. Blocks.
    ///
    /// # Errors
    /// When the file cannot be read, when others may write it, or when its text is wrong.
    pub fn load(path: &Path) -> Result<(Self, Option<String>), WrongKeys> {
        let file = private_file::read(path, BYTES_MAX)?;
        let wrong = |what| WrongKeys::Text { path: path.display().to_string(), what };
        let text = str::from_utf8(&file.bytes).map_err(|_error| wrong("it is not UTF-8"))?;
        Ok((Self::parse(text).map_err(wrong)?, file.warning))
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let lines = text.lines().map(str::trim);
        let mut keys = Vec::new();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let bytes = STANDARD.decode(line).map_err(|_hidden| "a line is no base64")?;
            if !LENGTHS.contains(&bytes.len()) {
                return Err("a key is too short or too long");
            }
            keys.push(hmac::Key::new(hmac::HMAC_SHA256, &bytes));
        }
        match keys.len() {
            0 => Err("there is no key in it"),
            1..=KEYS_MAX => Ok(Self(keys)),
            _ => Err("there are more than two keys"),
        }
    }

    /// Returns the value of the header `punctual-signature`: the seconds since the epoch, and for
    /// each key the HMAC-SHA256 over these, the topic and the body, with line feeds between them. A
    /// signature for one topic proves nothing about another: its submitters are others.
    pub fn sign(&self, seconds: i64, topic: &TopicName, body: &[u8]) -> String {
        let mut value = format!("t={seconds}");
        for key in &self.0 {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{seconds}\n{topic}\n").as_bytes());
            context.update(body);
            value.push_str(",v1=");
            value.push_str(&hex::encode(context.sign()));
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5";
    const SIGNED_BY_ONE: &str =
        "v1=c9762b2a2c7c6d1c6402686ecf40a8651d6d1f9b3a6149cc986fa0098419bd69";
    const TWO: &str = "a2V5IHR3byBrZXkgdHdvIGtleSB0d28ga2V5";

    #[test]
    fn both_keys_sign_the_time_the_topic_and_the_body() {
        let keys = SigningKeys::parse(&format!("# old\n{ONE}\n\n{TWO}\n")).unwrap();
        // By openssl dgst -sha256 -hmac 'key one key one key one key'.
        let topic = TopicName::stored("orders");
        let signed = keys.sign(1_700_000_000, &topic, br#"{"a":1}"#);
        let parts: Vec<&str> = signed.split(',').collect();
        assert_eq!(parts.len(), 3, "{signed}");
        assert_eq!(parts[0], "t=1700000000");
        assert_eq!(parts[1], SIGNED_BY_ONE);
        assert_ne!(parts[1], parts[2]);
        assert_ne!(keys.sign(1_700_000_001, &topic, br#"{"a":1}"#), signed);
        assert_ne!(keys.sign(1_700_000_000, &topic, br#"{"a":2}"#), signed);
        assert_ne!(keys.sign(1_700_000_000, &TopicName::stored("other"), br#"{"a":1}"#), signed);
    }

    #[test]
    fn a_wrong_file_is_refused_without_telling_it() {
        for wrong in ["", "# none", "not base64!", "c2hvcnQ=", &format!("{ONE}\n{ONE}\n{TWO}")] {
            let error = SigningKeys::parse(wrong).unwrap_err();
            assert!(!error.contains(ONE), "{error}");
        }
        assert_eq!(format!("{:?}", SigningKeys::parse(ONE).unwrap()), "1 signing keys");
    }
}
