//! Sessions of the console: the token of a reader, sealed in a cookie.
//!
//! No node keeps a session, so any node takes it, also after a restart, and sessions take no
//! memory. The token is checked at each request, so a session ends with its token: when the token
//! expires, or is taken out of the auth file. A session ends [`LIFE`] after the login in any case.

use std::sync::OnceLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac::{self, HMAC_SHA256};

use crate::domain::Timestamp;

/// The purposes of the keys, so the secret of the cluster can serve others as well.
const SEAL_PURPOSE: &[u8] = b"punctual console sessions 1";
const FORM_PURPOSE: &[u8] = b"punctual console forms 1";

/// How long a session lasts.
pub const LIFE: Duration = Duration::from_hours(8);

/// Bytes of a token in a session. Browsers keep cookies of up to 4 KiB.
const TOKEN_BYTES_MAX: usize = 2_800;

const TIME_BYTES: usize = 8;
const MARK_BYTES: usize = 16;

/// Seals and opens sessions, once the node knows the secret of its cluster.
#[derive(Debug, Default)]
pub struct Sessions(OnceLock<Keys>);

#[derive(Debug)]
struct Keys {
    seal: LessSafeKey,
    forms: hmac::Key,
}

/// The session of a reader. `Debug` does not show the token.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    pub token: String,
    /// Random bytes, different for each session, that are part of its forms.
    pub mark: [u8; MARK_BYTES],
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

/// The reason why a session cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSession {
    /// The node does not know the secret of its cluster yet.
    Starting,
    TokenTooLong,
}

impl Sessions {
    /// Takes the secret of the cluster. The first one counts.
    pub fn set_secret(&self, secret: &[u8]) {
        let derived = Salt::new(HKDF_SHA256, &[]).extract(secret);
        let (seal, forms) = ([SEAL_PURPOSE], [FORM_PURPOSE]);
        let seal = derived.expand(&seal, &AES_256_GCM);
        let forms = derived.expand(&forms, HMAC_SHA256);
        if let (Ok(seal), Ok(forms)) = (seal, forms) {
            self.0.get_or_init(|| Keys {
                seal: LessSafeKey::new(UnboundKey::from(seal)),
                forms: hmac::Key::from(forms),
            });
        }
    }

    /// Returns a new session as text for a cookie.
    pub fn seal(&self, token: &str, now: Timestamp) -> Result<String, NoSession> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(NoSession::TokenTooLong);
        }
        let keys = self.0.get().ok_or(NoSession::Starting)?;
        let (nonce, mark): ([u8; NONCE_LEN], [u8; MARK_BYTES]) = (rand::random(), rand::random());
        let ends_at = now.plus(LIFE).as_millis().to_be_bytes();
        let mut sealed = [&ends_at[..], &mark, token.as_bytes()].concat();
        let to_seal = Nonce::assume_unique_for_key(nonce);
        keys.seal
            .seal_in_place_append_tag(to_seal, Aad::empty(), &mut sealed)
            .map_err(|_never| NoSession::TokenTooLong)?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// Returns the session of a cookie, unless it has ended, or was not made by this cluster.
    pub fn open(&self, text: &str, now: Timestamp) -> Option<Session> {
        let keys = self.0.get()?;
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let opened = keys.seal.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
        let (ends_at, rest) = opened.split_at_checked(TIME_BYTES)?;
        let (mark, token) = rest.split_at_checked(MARK_BYTES)?;
        let ends_at = Timestamp::from_millis(i64::from_be_bytes(ends_at.try_into().ok()?));
        let token = std::str::from_utf8(token).ok()?.to_owned();
        (now < ends_at).then_some(Session { token, mark: mark.try_into().ok()? })
    }

    /// Returns the token of the forms of a reader. `whose` sets readers apart. Without the secret
    /// it is empty, and proves nothing.
    pub fn form_token(&self, whose: &[u8]) -> String {
        let Some(keys) = self.0.get() else { return String::new() };
        URL_SAFE_NO_PAD.encode(hmac::sign(&keys.forms, whose))
    }

    /// Returns true for the token that [`Self::form_token`] makes, on any node.
    pub fn is_form_token(&self, text: &str, whose: &[u8]) -> bool {
        let Some(keys) = self.0.get() else { return false };
        let Ok(given) = URL_SAFE_NO_PAD.decode(text) else { return false };
        hmac::verify(&keys.forms, whose, &given).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(secret: &[u8]) -> Sessions {
        let sessions = Sessions::default();
        sessions.set_secret(secret);
        sessions
    }

    fn at(hours: u64) -> Timestamp {
        Timestamp::EPOCH.plus(Duration::from_hours(hours))
    }

    #[test]
    fn a_session_is_good_on_every_node_until_it_ends() {
        let text = sessions(b"one").seal("pt_secret", at(1)).unwrap();
        let open =
            |secret: &[u8], now| sessions(secret).open(&text, now).map(|opened| opened.token);
        assert_eq!(open(b"one", at(8)).as_deref(), Some("pt_secret"));
        assert_eq!((open(b"one", at(9)), open(b"two", at(2))), (None, None));
        assert_eq!(Sessions::default().open(&text, at(2)), None);
        assert!(!URL_SAFE_NO_PAD.decode(&text).unwrap().windows(6).any(|part| part == b"secret"));
    }

    #[test]
    fn a_session_cannot_be_altered() {
        let sessions = sessions(b"one");
        let text = sessions.seal("pt_secret", at(1)).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1;
            assert_eq!(sessions.open(&URL_SAFE_NO_PAD.encode(damaged), at(2)), None);
        }
        for text in ["", "AAAA", "not base64!", &text[..30]] {
            assert_eq!(sessions.open(text, at(2)), None, "{text}");
        }
    }

    #[test]
    fn what_no_cookie_holds_is_refused() {
        let sealed = |length| sessions(b"one").seal(&"x".repeat(length), at(1));
        assert!(sealed(TOKEN_BYTES_MAX).unwrap().len() < 4_000);
        assert_eq!(sealed(TOKEN_BYTES_MAX + 1), Err(NoSession::TokenTooLong));
        assert_eq!(Sessions::default().seal("x", at(1)), Err(NoSession::Starting));
    }

    #[test]
    fn a_form_is_of_its_reader() {
        let sessions = sessions(b"one");
        let token = sessions.form_token(b"ann");
        assert!(sessions.is_form_token(&token, b"ann"));
        assert!(!sessions.is_form_token(&token, b"bob") && !sessions.is_form_token("", b"ann"));
        let starting = Sessions::default();
        assert!(!starting.is_form_token(&starting.form_token(b"ann"), b"ann"));
    }
}
