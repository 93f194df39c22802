//! Bearer tokens: `pt_`, 8 characters of an id, `_`, 43 characters of base64url (32 random bytes),
//! and 6 characters of base62 (the CRC-32 of everything before them).
//!
//! The prefix and the checksum let secret scanners find tokens. The id is public: it finds the
//! entry in the auth file and stands in logs. The file holds the SHA-256 of the whole token. A fast
//! hash suffices, because a secret of 256 random bits cannot be guessed.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use thiserror::Error;

const PREFIX: &str = "pt_";
const ID_LENGTH: usize = 8;
const SECRET_LENGTH: usize = 43;
const CHECKSUM_LENGTH: usize = 6;
/// The length of everything before the checksum.
const CHECKED_LENGTH: usize = PREFIX.len() + ID_LENGTH + 1 + SECRET_LENGTH;
const LENGTH: usize = CHECKED_LENGTH + CHECKSUM_LENGTH;

const ID_DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const CHECKSUM_DIGITS: &[u8; 62] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The public id of a token: 8 of `0-9 a-z`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId([u8; ID_LENGTH]);

impl TokenId {
    pub fn new(text: &str) -> Option<Self> {
        let bytes: [u8; ID_LENGTH] = text.as_bytes().try_into().ok()?;
        bytes.iter().all(|byte| ID_DIGITS.contains(byte)).then_some(Self(bytes))
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{}", char::from(*byte)))
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TokenError {
    #[error(
        "not a token of Punctual, which is `pt_`, an id of 8 characters, `_`, and 49 more \
         characters"
    )]
    Format,
    #[error("the checksum is wrong: a character is wrong or missing")]
    Checksum,
}

/// A token whose format and checksum are right. Neither `Debug` nor an error shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: TokenId,
    text: String,
}

impl Token {
    /// Makes a token from the random numbers of the operating system.
    ///
    /// # Errors
    /// When the operating system has no random numbers.
    pub fn generate() -> Result<Self, rand::rand_core::OsError> {
        let mut secret = [0_u8; 32];
        OsRng.try_fill_bytes(&mut secret)?;
        let mut id = [0_u8; ID_LENGTH];
        for digit in &mut id {
            // Of 256 values, 252 are whole rounds of the 36 digits.
            *digit = loop {
                let mut byte = [0_u8];
                OsRng.try_fill_bytes(&mut byte)?;
                if let [value @ ..252] = byte {
                    let place = usize::from(value).checked_rem(ID_DIGITS.len()).unwrap_or(0);
                    break ID_DIGITS.get(place).copied().unwrap_or(b'0');
                }
            };
        }
        Ok(Self::of_parts(TokenId(id), &secret))
    }

    fn of_parts(id: TokenId, secret: &[u8; 32]) -> Self {
        let checked = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        let checksum = checksum(&checked);
        Self { id, text: checked + &checksum }
    }

    /// Parses a token and checks its checksum.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        if text.len() != LENGTH || !text.is_ascii() {
            return Err(TokenError::Format);
        }
        let (checked, end) = text.split_at(CHECKED_LENGTH);
        let rest = checked.strip_prefix(PREFIX).ok_or(TokenError::Format)?;
        let (id, secret) = rest.split_at(ID_LENGTH);
        let id = TokenId::new(id).ok_or(TokenError::Format)?;
        let secret = secret.strip_prefix('_').ok_or(TokenError::Format)?;
        if checksum(checked) != end {
            return Err(TokenError::Checksum);
        }
        // The decoder refuses spellings that are not its own.
        URL_SAFE_NO_PAD.decode(secret).map_err(|_not_base64| TokenError::Format)?;
        Ok(Self { id, text: text.to_owned() })
    }

    /// Returns true for a text beginning as a token does, whatever follows.
    pub fn is_like(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    pub const fn id(&self) -> TokenId {
        self.id
    }

    /// Returns the token itself, to hand it out.
    pub fn expose(&self) -> &str {
        &self.text
    }

    pub fn hash(&self) -> TokenHash {
        #[cfg(test)]
        tests::HASHED.with(|count| count.set(count.get() + 1));
        TokenHash(Sha256::digest(self.text.as_bytes()).into())
    }

    /// Returns true when this is the token of `stored`. The work is the same without one.
    pub fn is_of(&self, stored: Option<&TokenHash>) -> bool {
        let is_known = stored.is_some();
        let TokenHash(stored) = stored.unwrap_or(&TokenHash([0; 32]));
        let is_equal = self.hash().0.ct_eq(stored);
        bool::from(is_equal) && is_known
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

/// The SHA-256 of a token, as the auth file has it: 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Returns the CRC-32 of `text` in base62, with leading zeros.
fn checksum(text: &str) -> String {
    let mut left = crc32fast::hash(text.as_bytes());
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        let place = usize::try_from(left % 62).unwrap_or(0);
        *digit = CHECKSUM_DIGITS.get(place).copied().unwrap_or(b'0');
        left /= 62;
    }
    digits.map(char::from).iter().collect()
}

#[cfg(test)]
pub(in crate::access) mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    impl Token {
        /// Returns a token with the id of `token` and the secret of `other`.
        pub(in crate::access) fn with_id_of(token: &Self, other: &Self) -> Self {
            let secret = &other.expose()[PREFIX.len() + ID_LENGTH + 1..CHECKED_LENGTH];
            let secret: [u8; 32] = URL_SAFE_NO_PAD.decode(secret).unwrap().try_into().unwrap();
            Self::of_parts(token.id, &secret)
        }
    }

    thread_local! {
        /// How many tokens this thread has hashed.
        pub(in crate::access) static HASHED: Cell<usize> = const { Cell::new(0) };
    }

    fn token() -> Token {
        Token::of_parts(TokenId::new("k3v9q0ab").unwrap(), &[7; 32])
    }

    #[test]
    fn the_format_stays_what_scanners_look_for() {
        let token = token();
        let text = token.expose();
        assert_eq!(text, "pt_k3v9q0ab_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc1PmrQz");
        assert_eq!(text.len(), 61);
        assert_eq!(Token::parse(text).unwrap(), token);
        assert_eq!(token.id().to_string(), "k3v9q0ab");
    }

    #[test]
    fn generated_tokens_differ_and_are_parsed() {
        let (one, other) = (Token::generate().unwrap(), Token::generate().unwrap());
        assert_ne!(one.id(), other.id());
        assert_ne!(one.expose()[12..55], other.expose()[12..55]);
        assert_eq!(Token::parse(one.expose()), Ok(one));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let text = token().expose().to_owned();
        let upper = text.replace("k3v9q0ab", "K3V9Q0AB");
        let wrong = ["", "pt_", "x", &"x".repeat(61), &upper, &text[1..], &"y".repeat(8192)];
        for text in wrong {
            assert_eq!(Token::parse(text), Err(TokenError::Format), "{text}");
        }
        for odd in ['\0', '\r', '\n', ' ', 'ä', '='] {
            let mut odd_text = text.clone();
            odd_text.replace_range(20..20 + odd.len_utf8(), &odd.to_string());
            assert!(Token::parse(&odd_text).is_err(), "{odd:?}");
            assert!(Token::parse(&format!("{text}{odd}")).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn a_second_spelling_of_the_same_bytes_is_refused() {
        // The last of 43 characters carries two unused bits.
        let token = token();
        assert_eq!(&token.expose()[CHECKED_LENGTH - 1..CHECKED_LENGTH], "c");
        let respelled = format!("{}d", &token.expose()[..CHECKED_LENGTH - 1]);
        let text = format!("{respelled}{}", checksum(&respelled));
        assert_eq!(Token::parse(&text), Err(TokenError::Format));
    }

    #[test]
    fn only_the_whole_token_has_the_stored_hash() {
        let (token, other) = (token(), Token::generate().unwrap());
        let stored = TokenHash::new(&token.hash().to_string()).unwrap();
        assert!(token.is_of(Some(&stored)));
        assert!(!other.is_of(Some(&stored)) && !token.is_of(None));
        assert_eq!(TokenHash::new("9f86"), None);
        assert_eq!(TokenHash::new(&"g".repeat(64)), None);
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", token()), "Token(k3v9q0ab)");
    }

    proptest! {
        #[test]
        fn one_changed_character_is_noticed(place in 3..LENGTH, other in "[0-9a-z]") {
            let mut text = token().expose().to_owned();
            text.replace_range(place..=place, &other);
            prop_assert_eq!(Token::parse(&text).is_ok(), text == token().expose());
        }

        #[test]
        fn no_text_makes_it_fail(text in any::<String>()) {
            prop_assert!(Token::parse(&text).is_err());
        }
    }
}
