//! Headers of a record, and their encoding in the column `headers`.

use az::SaturatingAs as _;
use thiserror::Error;

/// Prefix of Punctual's own header names. A submitter may not use them.
pub const RESERVED_PREFIX: &str = "punctual-";
/// The header with the name of the principal that submitted the task. Only records of topics whose
/// policy asks for it have it, and no submitter can forge it.
pub const SUBMITTED_BY: &str = "punctual-submitted-by";
/// W3C Trace Context: the headers of a trace.
pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";
/// The header with the `traceparent` of the submit. A task has it when a node with tracing has
/// stored it, and its `traceparent` is then replaced by that of the publication.
pub const SUBMIT_TRACEPARENT: &str = "punctual-submit-traceparent";
/// Maximum number of headers of one task. More is a mistake, and each header costs the producer
/// about 1 us.
pub const COUNT_MAX: usize = 128;

/// The length for a null value. No bytes follow, and no value is that long.
const NULL: u32 = u32::MAX;

/// Headers in the order in which they were given, in the encoding of the column `headers`. Each
/// header is the length of the name (u16, big endian), the name, the length of the value (u32, big
/// endian), and the value. A null value has the length `ffffffff`. The encoding of no headers is
/// empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Headers(Vec<u8>);

#[derive(Debug, Error, PartialEq, Eq)]
pub enum HeadersError {
    #[error("a header name may not be empty")]
    EmptyName,
    #[error("header names that begin with '{RESERVED_PREFIX}' are reserved, such as {0:?}")]
    Reserved(String),
    #[error("a header name may have 65535 bytes at most, and a value less than 4 GiB")]
    TooLong,
    #[error("a header name may not contain the character NUL")]
    Nul,
    #[error("a task may have {COUNT_MAX} headers at most")]
    TooMany,
}

impl Headers {
    /// Encodes headers with these names and values. A name may occur several times, and a value may
    /// be null.
    pub fn new<'a, V: Into<Option<&'a [u8]>>>(
        headers: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Self, HeadersError> {
        let mut encoded = Vec::new();
        for (count, (name, value)) in headers.into_iter().enumerate() {
            if count == COUNT_MAX {
                return Err(HeadersError::TooMany);
            }
            check_name(name)?;
            encode(&mut encoded, name, value.into())?;
        }
        Ok(Self(encoded))
    }

    /// Encodes headers of Punctual itself, with names forbidden to submitters. Number and lengths
    /// are small.
    pub fn own<const N: usize>(headers: [(&'static str, String); N]) -> Self {
        let mut encoded = Vec::new();
        for (name, value) in headers {
            encoded.extend_from_slice(&name.len().saturating_as::<u16>().to_be_bytes());
            encoded.extend_from_slice(name.as_bytes());
            encoded.extend_from_slice(&value.len().saturating_as::<u32>().to_be_bytes());
            encoded.extend_from_slice(value.as_bytes());
        }
        Self(encoded)
    }

    /// Returns these headers, followed by `more`.
    #[must_use]
    pub fn followed_by(mut self, more: &Self) -> Self {
        self.0.extend_from_slice(&more.0);
        self
    }

    /// Wraps the column `headers` of a row.
    pub fn stored(column: Option<Vec<u8>>) -> Self {
        Self(column.unwrap_or_default())
    }

    /// Returns the encoding, which is empty when there are no headers.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the value of the column `headers`, which is NULL when there are no headers.
    pub fn as_column(&self) -> Option<&[u8]> {
        Some(self.as_bytes()).filter(|bytes| !bytes.is_empty())
    }
}

/// Encodes headers unchanged, also headers forbidden to tasks. Leaves out headers too long for the
/// encoding.
pub fn encode_any<'a>(headers: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>) -> Vec<u8> {
    let mut encoded = Vec::new();
    for (name, value) in headers {
        let before = encoded.len();
        if encode(&mut encoded, name, value).is_err() {
            encoded.truncate(before);
        }
    }
    encoded
}

fn encode(encoded: &mut Vec<u8>, name: &str, value: Option<&[u8]>) -> Result<(), HeadersError> {
    let name_length = u16::try_from(name.len()).map_err(|_too_long| HeadersError::TooLong)?;
    let value_length = match value.map(|value| u32::try_from(value.len())) {
        None => NULL,
        Some(Ok(length)) if length < NULL => length,
        Some(_too_long) => return Err(HeadersError::TooLong),
    };
    encoded.extend_from_slice(&name_length.to_be_bytes());
    encoded.extend_from_slice(name.as_bytes());
    encoded.extend_from_slice(&value_length.to_be_bytes());
    encoded.extend_from_slice(value.unwrap_or_default());
    Ok(())
}

fn check_name(name: &str) -> Result<(), HeadersError> {
    if name.is_empty() {
        return Err(HeadersError::EmptyName);
    }
    if name.contains('\0') {
        return Err(HeadersError::Nul);
    }
    let prefix = name.as_bytes().get(..RESERVED_PREFIX.len());
    if prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(RESERVED_PREFIX.as_bytes())) {
        return Err(HeadersError::Reserved(name.to_owned()));
    }
    Ok(())
}

/// Decodes headers one by one. Stops early at bytes that are not a valid encoding, and never
/// panics.
pub fn decode(encoded: &[u8]) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
    let mut rest = encoded;
    std::iter::from_fn(move || {
        let (name, after_name) = split_counted::<2>(rest)?;
        let (value, after_value) = match after_name.strip_prefix(&NULL.to_be_bytes()) {
            Some(after_value) => (None, after_value),
            None => split_counted::<4>(after_name)
                .map(|(value, after_value)| (Some(value), after_value))?,
        };
        rest = after_value;
        Some((std::str::from_utf8(name).ok()?, value))
    })
}

/// Splits off a part beginning with its length, a big-endian number of `N` bytes.
fn split_counted<const N: usize>(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<N>()?;
    let length = length.iter().fold(0_usize, |sum, byte| (sum << 8) | usize::from(*byte));
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            headers in proptest::collection::vec(
                (
                    "[a-z]{1,20}",
                    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..50)),
                ),
                0..10,
            ),
        ) {
            let pairs: Vec<(&str, Option<&[u8]>)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
            let encoded = Headers::new(pairs.iter().copied()).unwrap();
            prop_assert_eq!(decode(encoded.as_bytes()).collect::<Vec<_>>(), pairs);
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes: Vec<u8>) {
            prop_assert!(decode(&bytes).count() <= bytes.len());
        }
    }

    /// Rows of the first release must stay readable forever.
    #[test]
    fn the_encoding_stays() {
        let of_strings = Headers::new([("a", b"1".as_slice()), ("b", b"".as_slice())]).unwrap();
        assert_eq!(of_strings.as_bytes(), b"\x00\x01a\x00\x00\x00\x011\x00\x01b\x00\x00\x00\x00");
        let of_null = Headers::new([("a", None), ("a", Some(b"1".as_slice()))]).unwrap();
        assert_eq!(of_null.as_bytes(), b"\x00\x01a\xff\xff\xff\xff\x00\x01a\x00\x00\x00\x011");
        assert_eq!(
            decode(of_null.as_bytes()).collect::<Vec<_>>(),
            [("a", None), ("a", Some(b"1".as_slice()))]
        );
    }

    #[test]
    fn our_own_names_are_refused_in_any_case() {
        for name in ["punctual-task-id", "Punctual-X"] {
            assert_eq!(
                Headers::new([(name, b"".as_slice())]),
                Err(HeadersError::Reserved(name.to_owned()))
            );
        }
        assert_eq!(Headers::new([("", b"".as_slice())]), Err(HeadersError::EmptyName));
    }
}
