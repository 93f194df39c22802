//! Principals: who submits, cancels or reads tasks.

use std::fmt;
use std::sync::Arc;

use az::SaturatingAs as _;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// A principal name: 1 to 300 bytes of `a-z A-Z 0-9 . _ @ : / - ~ | + =`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrincipalName(Arc<str>);

/// Enough for a prefix and an identity of 255 bytes that a token or a certificate proves.
const BYTES_MAX: usize = 300;
const ANONYMOUS: &str = "anonymous";

#[derive(Debug, Error, PartialEq, Eq)]
pub enum PrincipalNameError {
    #[error("a principal's name may not be empty")]
    Empty,
    #[error("a principal's name may have {BYTES_MAX} bytes at most, but this one has {0}")]
    TooLong(usize),
    #[error("a principal's name may have letters, digits, and . _ @ : / - ~ | + =, but not {0:?}")]
    Illegal(char),
}

impl PrincipalName {
    pub fn new(name: &str) -> Result<Self, PrincipalNameError> {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || "._@:/-~|+=".contains(c);
        match name.chars().find(|c| !is_legal(*c)) {
            Some(illegal) => Err(PrincipalNameError::Illegal(illegal)),
            None if name.is_empty() => Err(PrincipalNameError::Empty),
            None if name.len() > BYTES_MAX => Err(PrincipalNameError::TooLong(name.len())),
            None => Ok(Self(name.into())),
        }
    }

    /// Returns the name of all callers without a credential.
    pub fn anonymous() -> Self {
        Self(ANONYMOUS.into())
    }

    /// True for callers without a credential. No principal of an auth file has this name.
    pub fn is_anonymous(&self) -> bool {
        self.as_str() == ANONYMOUS
    }

    /// Takes over a name that was checked before it was stored.
    pub fn stored(name: &str) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the number of this principal in the tables, from 1 to 32,767, unless taken by
    /// another one.
    pub fn preferred_number(&self) -> i16 {
        let numbers = i16::MAX.unsigned_abs();
        let place = xxh3_64(self.0.as_bytes()) % u64::from(numbers);
        1 + place.saturating_as::<i16>()
    }
}

impl fmt::Display for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// The number of a principal in the tables of the cluster. Anonymous callers have none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PrincipalId(i16);

impl PrincipalId {
    pub const fn new(id: i16) -> Self {
        Self(id)
    }

    pub const fn as_smallint(self) -> i16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_services_accounts_and_certificates_are_taken() {
        for name in [
            "order-service",
            "ann@shop.example",
            "jwt:k8s/system:serviceaccount:shop:orders",
            "jwt:web/auth0|5f7c",
            "a",
        ] {
            assert_eq!(PrincipalName::new(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn numbers_are_spread_and_stay_what_they_are() {
        let number = |name: &str| PrincipalName::new(name).unwrap().preferred_number();
        let numbers: BTreeSet<i16> = (0..1000).map(|n| number(&format!("p{n}"))).collect();
        assert!(numbers.len() > 970 && *numbers.first().unwrap() > 0);
        assert_eq!(number("order-service"), number("order-service"));
    }

    #[test]
    fn both_ends_of_the_length_hold_and_other_characters_are_refused() {
        assert!(PrincipalName::new(&"x".repeat(300)).is_ok());
        assert_eq!(PrincipalName::new(&"x".repeat(301)), Err(PrincipalNameError::TooLong(301)));
        assert_eq!(PrincipalName::new(""), Err(PrincipalNameError::Empty));
        for illegal in ['*', ' ', '\n', '\0', '"', 'ä', ','] {
            let name = format!("a{illegal}");
            assert_eq!(PrincipalName::new(&name), Err(PrincipalNameError::Illegal(illegal)));
        }
    }
}
