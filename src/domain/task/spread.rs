//! Spread: tasks without an exact due time are due at different times, so that not all are due at
//! once.
//!
//! The name of a task, else the key, decides the part of the spread by which the task is due later.
//! So the part is the same for each repetition, and tasks without a name and an expiry keep the
//! order of their key. The requested time stands in the column `headers`, as an expiry does: see
//! [`super::expiry`].

use std::time::Duration;

use az::SaturatingAs as _;
use xxhash_rust::xxh3::Xxh3;

use super::headers::{self, Headers};
use crate::domain::{TaskName, Timestamp, TopicName};

/// The name of the header in which the requested time is stored.
const NAME: &str = "punctual-requested";
/// Length of the whole header: two bytes of length, the name, four bytes of length, the value.
const LENGTH: usize = 2 + NAME.len() + 4 + 8;
/// Makes the hash independent of that which decides the shard.
const SEED: u64 = 1;
/// The longest spread of a policy.
pub const SPREAD_MAX: Duration = Duration::from_hours(24);

/// Returns how much later than requested a task is due: less than `spread`, in whole milliseconds.
/// `random` decides for a task with neither a name nor a key.
pub fn part_of(
    spread: Duration,
    topic: &TopicName,
    (name, key): (Option<&TaskName>, Option<&[u8]>),
    random: u64,
) -> Duration {
    let number = match name.map(|name| name.as_str().as_bytes()).or(key) {
        Some(identity) => {
            let mut hash = Xxh3::with_seed(SEED);
            hash.update(topic.as_str().as_bytes());
            hash.update(&[0]);
            hash.update(identity);
            hash.digest()
        }
        None => random,
    };
    let millis = (u128::from(number) * spread.as_millis()) >> 64;
    Duration::from_millis(millis.saturating_as())
}

/// Returns the column `headers` of a row that was requested for `requested_at`.
pub fn in_front_of(requested_at: Timestamp, headers: &Headers) -> Headers {
    let value = requested_at.as_millis().to_be_bytes();
    let own = headers::encode_any([(NAME, Some(value.as_slice()))]);
    Headers::stored(Some(own)).followed_by(headers)
}

/// Splits headers, behind an expiry, into the requested time and the headers of the submitter.
pub fn split(column: &[u8]) -> (Option<Timestamp>, &[u8]) {
    read(column).map_or((None, column), |(at, own)| (Some(at), own))
}

fn read(column: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (head, own) = column.split_at_checked(LENGTH)?;
    if head.get(2..2 + NAME.len())? != NAME.as_bytes() {
        return None;
    }
    let (name, value) = headers::decode(head).next()?;
    let millis = i64::from_be_bytes(value?.try_into().ok()?);
    (name == NAME).then_some((Timestamp::from_millis(millis), own))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic() -> TopicName {
        TopicName::stored("reminders")
    }

    #[test]
    fn a_name_or_a_key_is_always_due_at_the_same_part_and_all_of_them_are_spread_evenly() {
        let hour = Duration::from_hours(1);
        let mut counts = [0; 6];
        for number in 0..6_000 {
            let name = TaskName::new(&format!("n{number}")).unwrap();
            let named = part_of(hour, &topic(), (Some(&name), Some(b"k")), 1);
            assert_eq!(named, part_of(hour, &topic(), (Some(&name), None), 2));
            let keyed = part_of(hour, &topic(), (None, Some(name.as_str().as_bytes())), 3);
            assert_eq!(named, keyed, "of a name as of a key");
            assert!(named < hour);
            counts[usize::try_from(named.as_secs() / 600).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        let random = |number| part_of(hour, &topic(), (None, None), number);
        assert_eq!(
            (random(0), random(u64::MAX)),
            (Duration::ZERO, hour - Duration::from_millis(1))
        );
        assert_eq!(part_of(Duration::ZERO, &topic(), (None, Some(b"k")), 0), Duration::ZERO);
    }

    /// Rows that are stored must stay readable, and repetitions must be due as the first was.
    #[test]
    fn the_parts_and_the_encoding_stay() {
        let part = part_of(SPREAD_MAX, &topic(), (None, Some(b"k")), 0);
        assert_eq!(part, part_of(SPREAD_MAX, &topic(), (None, Some(b"k")), 9));
        let column = in_front_of(Timestamp::from_millis(258), &Headers::default());
        let wanted = b"\x00\x12punctual-requested\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x01\x02";
        assert_eq!((column.as_bytes(), LENGTH), (wanted.as_slice(), 32));
    }

    proptest! {
        #[test]
        fn a_requested_time_is_read_as_it_was_written(
            millis in 0_i64..4_000_000_000_000,
            name in "[a-z]{1,20}",
        ) {
            let own = Headers::new([(name.as_str(), None)]).unwrap();
            let at = Timestamp::from_millis(millis);
            let column = in_front_of(at, &own);
            prop_assert_eq!(split(column.as_bytes()), (Some(at), own.as_bytes()));
            prop_assert_eq!(split(own.as_bytes()), (None, own.as_bytes()));
        }

        #[test]
        fn no_bytes_are_a_reason_to_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(split(&bytes).1.len() <= bytes.len());
        }
    }
}
