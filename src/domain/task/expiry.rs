//! Expiry: the time from which a task is not published any more.
//!
//! A row has its expiry in the column `headers`, before the headers of the submitter, in the same
//! encoding and under a name forbidden to submitters. So every copy of a row copies the expiry, and
//! a claim reads no further column. Records have the header `punctual-expires-at` instead.

use std::time::Duration;

use az::SaturatingAs as _;

use super::headers::{self, Headers};
use crate::domain::Timestamp;

/// The name of the header in which an expiry is stored.
const NAME: &str = "punctual-expiry";
/// The shortest span of a policy.
pub const EXPIRE_AFTER_MIN: Duration = Duration::from_secs(1);
/// The longest span of a policy: 100 years.
pub const EXPIRE_AFTER_MAX: Duration = Duration::from_hours(24 * 36_525);

/// Length of the flags and the number.
const VALUE: usize = 9;
/// Length of the whole header: two bytes of length, the name, four bytes of length, the value.
const LENGTH: usize = 2 + NAME.len() + 4 + VALUE;
/// Place of the flags.
const FLAGS: usize = LENGTH - VALUE;

/// The number is a span in milliseconds, not a time.
const IS_SPAN: u8 = 1;
const IS_MAYBE_SENT: u8 = 2;

/// The maximum number of bytes that an expiry adds to a record, as the header of the record.
pub const BYTES_MAX: usize = 48;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpiryTime {
    /// A time that the submitter has named. A move of the task does not change it.
    At(Timestamp),
    /// A span after the due time. It moves with the due time.
    After(Duration),
}

/// The expiry of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expiry {
    pub time: ExpiryTime,
    /// An earlier row of the task may have put a record into the topic. Once true, it is true for
    /// all later rows.
    pub is_maybe_sent: bool,
}

impl Expiry {
    /// Returns the expiry of a first row.
    pub const fn new(time: ExpiryTime) -> Self {
        Self { time, is_maybe_sent: false }
    }

    /// Reads the expiry from the column `headers` of a row.
    pub fn of_column(column: &[u8]) -> Option<Self> {
        split(column).0
    }

    /// Returns the time from which a task is not published any more. `due_at` is the due time that
    /// was asked for, not that of a retry.
    pub fn at(self, due_at: Timestamp) -> Timestamp {
        match self.time {
            ExpiryTime::At(at) => at,
            ExpiryTime::After(span) => due_at.plus(span),
        }
    }

    /// Returns the column `headers` of a row with this expiry.
    #[must_use]
    pub fn in_front_of(self, headers: &Headers) -> Headers {
        let (span, number) = match self.time {
            ExpiryTime::At(at) => (0, at.as_millis()),
            ExpiryTime::After(span) => (IS_SPAN, span.as_millis().saturating_as::<i64>()),
        };
        let maybe_sent = if self.is_maybe_sent { IS_MAYBE_SENT } else { 0 };
        let mut value = [0; VALUE];
        value[0] = span | maybe_sent;
        value[1..].copy_from_slice(&number.to_be_bytes());
        Headers::stored(Some(headers::encode_any([(NAME, Some(value.as_slice()))])))
            .followed_by(headers)
    }
}

/// Splits the column `headers` of a row into its expiry and the headers of the submitter.
pub fn split(column: &[u8]) -> (Option<Expiry>, &[u8]) {
    read(column).map_or((None, column), |(expiry, own)| (Some(expiry), own))
}

fn read(column: &[u8]) -> Option<(Expiry, &[u8])> {
    let (head, own) = column.split_at_checked(LENGTH)?;
    // The name is compared first, because most rows have another one.
    if head.get(2..2 + NAME.len())? != NAME.as_bytes() {
        return None;
    }
    let (name, value) = headers::decode(head).next()?;
    let (flags, number) = value?.split_first()?;
    if name != NAME || flags & !(IS_SPAN | IS_MAYBE_SENT) != 0 {
        return None;
    }
    let number = i64::from_be_bytes(number.try_into().ok()?);
    let time = match flags & IS_SPAN {
        0 => ExpiryTime::At(Timestamp::from_millis(number)),
        _ => ExpiryTime::After(Duration::from_millis(number.saturating_as())),
    };
    Some((Expiry { time, is_maybe_sent: flags & IS_MAYBE_SENT != 0 }, own))
}

/// Records in the column `headers` of a later row that a record may be in the topic. A column
/// without an expiry stays as it is.
pub fn mark_maybe_sent(column: &mut [u8]) {
    if read(column).is_some()
        && let Some(flags) = column.get_mut(FLAGS)
    {
        *flags |= IS_MAYBE_SENT;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DUE: Timestamp = Timestamp::from_micros(1_896_082_200_000_000);

    fn expiry() -> impl Strategy<Value = Expiry> {
        let time = prop_oneof![
            (0_i64..4_000_000_000_000).prop_map(|at| ExpiryTime::At(Timestamp::from_millis(at))),
            (0_u64..3_155_760_000_000)
                .prop_map(|span| ExpiryTime::After(Duration::from_millis(span))),
        ];
        (time, any::<bool>()).prop_map(|(time, is_maybe_sent)| Expiry { time, is_maybe_sent })
    }

    proptest! {
        #[test]
        fn an_expiry_is_read_as_it_was_written_and_is_no_header_of_the_submitter(
            expiry in expiry(),
            names in proptest::collection::vec("[a-z]{1,5}", 0..3),
        ) {
            let own = Headers::new(names.iter().map(|name| (name.as_str(), None))).unwrap();
            let column = expiry.in_front_of(&own);
            prop_assert_eq!(split(column.as_bytes()), (Some(expiry), own.as_bytes()));
            prop_assert_eq!(split(own.as_bytes()), (None, own.as_bytes()));
            prop_assert_eq!(Expiry::of_column(column.as_bytes()), Some(expiry));
            let mut marked = column.as_bytes().to_vec();
            mark_maybe_sent(&mut marked);
            let sent = Expiry { is_maybe_sent: true, ..expiry };
            prop_assert_eq!(split(&marked), (Some(sent), own.as_bytes()));
            let mut unmarked = own.as_bytes().to_vec();
            mark_maybe_sent(&mut unmarked);
            prop_assert_eq!(unmarked, own.as_bytes());
        }

        #[test]
        fn no_bytes_are_a_reason_to_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(split(&bytes).1.len() <= bytes.len());
            mark_maybe_sent(&mut bytes);
        }
    }

    /// Migration 0015 takes the header away by its length and its beginning.
    #[test]
    fn the_encoding_stays() {
        let after = Expiry::new(ExpiryTime::After(Duration::from_millis(258)));
        let column = after.in_front_of(&Headers::default());
        let wanted = b"\x00\x0fpunctual-expiry\x00\x00\x00\x09\x01\x00\x00\x00\x00\x00\x00\x01\x02";
        assert_eq!(column.as_bytes(), wanted);
        assert_eq!((column.as_bytes().len(), LENGTH), (30, 30));
    }

    #[test]
    fn a_span_moves_with_the_due_time_and_a_time_does_not() {
        let hour = Duration::from_hours(1);
        let (later, at) = (DUE.plus(hour * 24), DUE.plus(hour));
        let after = Expiry::new(ExpiryTime::After(hour));
        assert_eq!((after.at(DUE), after.at(later)), (at, later.plus(hour)));
        let fixed = Expiry::new(ExpiryTime::At(at));
        assert_eq!((fixed.at(DUE), fixed.at(later)), (at, at));
    }
}
