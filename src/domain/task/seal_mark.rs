//! The mark of a sealed record: its key, payload and headers are encrypted at rest.
//!
//! The mark stands in the column `headers`, behind the expiry and the requested time, as a header
//! of Punctual's own. No submitter can have a header of that name. So every statement that copies a
//! row copies its mark, and a claim reads no further column. The first byte of a payload says
//! nothing: a plain payload may begin with any byte. Behind the mark stand the sealed headers,
//! which are always there. See docs/decisions/0034.

use super::headers;
use super::{expiry, spread};

/// The name of the header that marks a sealed record.
const NAME: &str = "punctual-sealed";
/// Length of the flags and the id of the payload key.
const VALUE: usize = 5;
/// Length of the whole header: two bytes of length, the name, four bytes of length, the value.
const LENGTH: usize = 2 + NAME.len() + 4 + VALUE;

const HAS_KEY: u8 = 1;
const HAS_PAYLOAD: u8 = 2;
const HAS_HEADERS: u8 = 4;

/// The mark of a sealed record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealMark {
    /// The id of the payload key.
    pub key_id: u32,
    pub parts: SealedParts,
}

/// The parts that a sealed record has. They are authenticated with each part, so that none can be
/// taken away: a record without a payload is a tombstone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealedParts(u8);

/// A column `headers` with a mark, in its three pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MarkedHeaders<'a> {
    /// The expiry and the requested time, which stay readable.
    pub terms: &'a [u8],
    pub mark: SealMark,
    pub sealed: &'a [u8],
}

/// Why a sealed record was not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unopened {
    /// This node lacks the payload key with this id. The task waits until the node has it.
    NoKey(u32),
    /// The record was not sealed for this task, or was changed afterwards.
    Damaged,
}

impl SealedParts {
    /// Notes whether there is a key, a payload, and a header of the submitter.
    pub const fn new(has_key: bool, has_payload: bool, has_headers: bool) -> Self {
        let key = if has_key { HAS_KEY } else { 0 };
        let payload = if has_payload { HAS_PAYLOAD } else { 0 };
        let headers = if has_headers { HAS_HEADERS } else { 0 };
        Self(key | payload | headers)
    }

    /// Returns the byte that stands for the parts. A damaged byte with unknown bits is returned
    /// unchanged, so that the parts do not open.
    pub const fn bits(self) -> u8 {
        self.0
    }

    pub const fn has_key(self) -> bool {
        self.0 & HAS_KEY != 0
    }

    pub const fn has_payload(self) -> bool {
        self.0 & HAS_PAYLOAD != 0
    }

    pub const fn has_headers(self) -> bool {
        self.0 & HAS_HEADERS != 0
    }
}

impl SealMark {
    /// Returns the mark as it stands in the column.
    pub fn encode(self) -> Vec<u8> {
        let mut value = [self.parts.bits(), 0, 0, 0, 0];
        value[1..].copy_from_slice(&self.key_id.to_be_bytes());
        headers::encode_any([(NAME, Some(value.as_slice()))])
    }
}

/// Splits the column `headers` into the terms, which are never sealed, and the rest.
pub fn split_terms(column: &[u8]) -> (&[u8], &[u8]) {
    let own = spread::split(expiry::split(column).1).1;
    column.split_at(column.len().saturating_sub(own.len()))
}

/// Reads the column `headers`, or its beginning, of a sealed record. Returns `None` for a record
/// that is not sealed.
pub fn marked(column: &[u8]) -> Option<MarkedHeaders<'_>> {
    if column.len() < LENGTH {
        return None;
    }
    let (terms, rest) = split_terms(column);
    let (head, sealed) = rest.split_at_checked(LENGTH)?;
    // The name is compared first, because most rows have another one.
    if head.get(2..2 + NAME.len())? != NAME.as_bytes() {
        return None;
    }
    // A header of this name is a mark, whatever its value, so that a damaged one is not published.
    let (bits, key_id) = head.get(LENGTH - VALUE..)?.split_first()?;
    let mark =
        SealMark { key_id: u32::from_be_bytes(key_id.try_into().ok()?), parts: SealedParts(*bits) };
    Some(MarkedHeaders { terms, mark, sealed })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Expiry, ExpiryTime, Headers, Timestamp};

    fn mark(key_id: u32) -> SealMark {
        let parts = SealedParts::new(true, false, true);
        SealMark { key_id, parts }
    }

    /// Rows that are stored must stay readable, and migration 0022 looks for these bytes.
    #[test]
    fn the_encoding_stays() {
        let wanted = b"\x00\x0fpunctual-sealed\x00\x00\x00\x05\x05\x00\x00\x01\x02";
        assert_eq!((mark(258).encode().as_slice(), LENGTH), (wanted.as_slice(), 26));
    }

    #[test]
    fn a_mark_is_found_behind_the_terms_and_only_there() {
        let at = Timestamp::from_millis(1_900_000_000_000);
        let sealed = Headers::stored(Some([mark(7).encode(), b"sealed".to_vec()].concat()));
        let spread = spread::in_front_of(at, &sealed);
        let both = Expiry::new(ExpiryTime::At(at)).in_front_of(&spread);
        for (column, length) in [(&sealed, 0), (&spread, 32), (&both, 62)] {
            let found = marked(column.as_bytes()).unwrap();
            assert_eq!((found.mark, found.sealed), (mark(7), b"sealed".as_slice()));
            assert_eq!(found.terms.len(), length);
        }
        let own = Headers::new([("a", Some(b"punctual-sealed".as_slice()))]).unwrap();
        assert_eq!(marked(own.as_bytes()), None);
        let behind = own.followed_by(&sealed);
        assert_eq!(marked(behind.as_bytes()), None, "not behind a header of the submitter");
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_reason_to_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Some(found) = marked(&bytes) {
                prop_assert!(found.terms.len() + found.sealed.len() < bytes.len());
            }
        }

        #[test]
        fn a_mark_is_read_as_it_was_written(
            key_id in any::<u32>(),
            (has_key, has_payload, has_headers) in any::<(bool, bool, bool)>(),
        ) {
            let written =
                SealMark { key_id, parts: SealedParts::new(has_key, has_payload, has_headers) };
            prop_assert_eq!(marked(&written.encode()).map(|found| found.mark), Some(written));
        }
    }
}
