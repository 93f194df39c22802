//! Tracked tasks: what a submitter wants of the consumer's answers, and the part of it that each
//! row of a task carries.

use std::fmt;
use std::time::Duration;

use az::SaturatingAs as _;
use thiserror::Error;

use super::retry_policy::{RetryPolicy, Ttr};
use crate::domain::{Receipt, Timestamp, TopicName};

/// The wishes of the submitter of a tracked task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tracking {
    pub ttr: Ttr,
    pub retry: RetryPolicy,
    /// The topic that gets the record of a task that is given up.
    pub dead_topic: Option<TopicName>,
}

/// The column `tracking` of a row: the wishes, and the place of the row among the attempts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrackedRow {
    pub tracking: Tracking,
    /// The number of this attempt. A verdict row has the number of the last one.
    pub attempt: u16,
    /// Attempts that do not count, because they were before a redrive.
    pub attempts_before: u16,
    /// The row is not published to its topic. When the row is claimed, the task is dead.
    pub is_verdict: bool,
    /// The attempt before this one. `None` for the first row.
    pub sent: Option<Sent>,
    /// The reason that the consumer gave when it failed the attempt before a verdict row.
    pub reason: Option<Box<str>>,
}

/// An attempt that is, or was, with its consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The upper bound of the time at which Kafka appended the record.
    pub appended_at: Timestamp,
    /// The end of the consumer's time to run.
    pub finish_by: Timestamp,
    /// `None` when Kafka has not acknowledged the record.
    pub record: Option<RecordPlace>,
}

/// The place of a record in its topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPlace {
    partition: i32,
    offset: i64,
}

impl RecordPlace {
    pub fn of(receipt: Receipt) -> Self {
        let Receipt { partition, offset, .. } = receipt;
        Self { partition, offset }
    }
}

/// Partition and offset, as the header `punctual-receipt` has them: `3:1042`.
impl fmt::Display for RecordPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

/// The bytes are no tracking of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the column tracking of a row cannot be read: a later version may have written it")]
pub struct TrackingError;

/// The first byte of the column. Another version of the program may write others.
const VERSION: u8 = 1;
const HAS_VERDICT: u8 = 1;
const HAS_SENT: u8 = 2;
const HAS_RECORD: u8 = 4;
/// Length of the part that every column has.
const FIXED: usize = 22;
/// Maximum length of a consumer's reason, in bytes.
pub const REASON_MAX: usize = 1024;

impl Tracking {
    /// Returns the first row of a task.
    pub fn first_row(&self) -> TrackedRow {
        TrackedRow {
            tracking: self.clone(),
            attempt: 1,
            attempts_before: 0,
            is_verdict: false,
            sent: None,
            reason: None,
        }
    }
}

impl TrackedRow {
    /// Returns the number of the last attempt. It grows with each redrive.
    pub fn attempts_max(&self) -> u16 {
        self.attempts_before.saturating_add(self.tracking.retry.attempts_max())
    }

    /// Returns the number of attempts since the last redrive, up to attempt number `attempt`. The
    /// back-off begins anew after a redrive.
    pub fn attempts_since_redrive(&self, attempt: u16) -> u16 {
        attempt.saturating_sub(self.attempts_before).max(1)
    }

    /// Returns how long after the deadline of the extended attempt `attempt` the next row is due,
    /// when the consumer stays silent. It is not random, so that the deadline can be computed from
    /// the due time. `window` is how long before their due times rows are claimed. After the last
    /// attempt there is nothing to back off from.
    pub fn wait_after_extension(&self, attempt: u16, window: Duration) -> Duration {
        if attempt >= self.attempts_max() {
            return window;
        }
        let attempt = self.attempts_since_redrive(attempt);
        self.tracking.retry.wait_after_silence(attempt, 0).max(window)
    }

    /// Returns the row with which a redrive continues after this one has died.
    #[must_use]
    pub fn redriven(&self, last_attempt: u16) -> Self {
        Self {
            attempt: last_attempt.saturating_add(1),
            attempts_before: last_attempt,
            is_verdict: false,
            sent: None,
            reason: None,
            ..self.clone()
        }
    }

    /// Returns the bytes of the column.
    ///
    /// ```text
    /// 0       1     2       4      6            8      10  14          18          22
    /// version flags attempt before attempts_max factor ttr backoff_min backoff_max | appended_at
    /// finish_by | partition offset | length of dead topic, dead topic, reason
    /// ```
    /// Spans are in milliseconds, times in milliseconds since the epoch. Flags say whether
    /// `appended_at` and `finish_by` are there, and partition and offset of the record.
    pub fn encode(&self) -> Vec<u8> {
        let retry = self.tracking.retry;
        let mut bytes = Vec::with_capacity(64);
        let flags = if self.is_verdict { HAS_VERDICT } else { 0 }
            | if self.sent.is_some() { HAS_SENT } else { 0 }
            | if self.sent.is_some_and(|sent| sent.record.is_some()) { HAS_RECORD } else { 0 };
        bytes.extend([VERSION, flags]);
        for number in
            [self.attempt, self.attempts_before, retry.attempts_max(), retry.backoff_factor()]
        {
            bytes.extend(number.to_be_bytes());
        }
        for span in [self.tracking.ttr.as_duration(), retry.backoff_min(), retry.backoff_max()] {
            bytes.extend(span.as_millis().saturating_as::<u32>().to_be_bytes());
        }
        if let Some(sent) = self.sent {
            bytes.extend(sent.appended_at.as_millis().to_be_bytes());
            bytes.extend(sent.finish_by.as_millis().to_be_bytes());
            if let Some(RecordPlace { partition, offset }) = sent.record {
                bytes.extend(partition.to_be_bytes());
                bytes.extend(offset.to_be_bytes());
            }
        }
        let dead_topic = self.tracking.dead_topic.as_ref().map_or("", TopicName::as_str);
        bytes.push(dead_topic.len().saturating_as::<u8>());
        bytes.extend(dead_topic.as_bytes());
        bytes.extend(self.reason.as_deref().unwrap_or_default().as_bytes());
        bytes
    }

    /// Reads the bytes of the column.
    ///
    /// # Errors
    /// When another version has written them.
    pub fn decode(bytes: &[u8]) -> Result<Self, TrackingError> {
        Self::read(bytes).ok_or(TrackingError)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = Bytes(bytes);
        let [version, flags] = rest.array()?;
        if version != VERSION || flags & !(HAS_VERDICT | HAS_SENT | HAS_RECORD) != 0 {
            return None;
        }
        let [attempt, attempts_before, attempts_max, factor] =
            [rest.u16()?, rest.u16()?, rest.u16()?, rest.u16()?];
        let [ttr, backoff_min, backoff_max] = [rest.millis()?, rest.millis()?, rest.millis()?];
        let sent = match flags & HAS_SENT {
            0 => None,
            _ => Some(Sent {
                appended_at: rest.at()?,
                finish_by: rest.at()?,
                record: match flags & HAS_RECORD {
                    0 => None,
                    _ => Some(RecordPlace {
                        partition: rest.array().map(i32::from_be_bytes)?,
                        offset: rest.array().map(i64::from_be_bytes)?,
                    }),
                },
            }),
        };
        let [length] = rest.array()?;
        let dead_topic = std::str::from_utf8(rest.take(usize::from(length))?).ok()?;
        let reason = std::str::from_utf8(rest.0).ok()?;
        Some(Self {
            tracking: Tracking {
                ttr: Ttr::new(ttr).ok()?,
                retry: RetryPolicy::new(attempts_max, backoff_min, backoff_max, factor).ok()?,
                dead_topic: (!dead_topic.is_empty()).then(|| TopicName::stored(dead_topic)),
            },
            attempt,
            attempts_before,
            is_verdict: flags & HAS_VERDICT != 0,
            sent,
            reason: (!reason.is_empty()).then(|| reason.into()),
        })
    }

    /// Returns true for the column of a verdict row. Every record of a claim is asked, so the
    /// column is not decoded as a whole.
    pub fn is_of_verdict(bytes: &[u8]) -> bool {
        bytes.get(1).is_some_and(|flags| flags & HAS_VERDICT != 0)
    }

    /// Returns the reason why the task of a verdict row is dead.
    pub fn dead_reason(&self) -> String {
        dead_reason((self.attempt, self.attempts_max()), self.reason.as_deref())
    }

    /// Returns the dead topic of a verdict row, and nothing for any other row.
    pub fn dead_topic_of_verdict(bytes: &[u8]) -> Option<&str> {
        if !Self::is_of_verdict(bytes) {
            return None;
        }
        let flags = *bytes.get(1)?;
        let sent = if flags & HAS_SENT == 0 { 0 } else { 16 };
        let record = if flags & HAS_RECORD == 0 { 0 } else { 12 };
        let mut rest = Bytes(bytes.get(FIXED + sent + record..)?);
        let [length] = rest.array()?;
        std::str::from_utf8(rest.take(usize::from(length))?).ok().filter(|name| !name.is_empty())
    }
}

/// Returns why a task is dead after the last attempt of several. `words` are those of the consumer
/// who failed it.
pub fn dead_reason((attempt, attempts_max): (u16, u16), words: Option<&str>) -> String {
    match words {
        Some(words) => format!("attempt {attempt} of {attempts_max} failed: {words}"),
        None => format!("attempt {attempt} of {attempts_max} was not finished in its time to run"),
    }
}

/// Returns the reason of a dead task without the words of its consumer, which count as payload: the
/// beginning of a [`TrackedRow::dead_reason`] with words, and every other reason as it is.
pub fn reason_without_words(reason: &str) -> &str {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let cut = || {
        let (attempt, rest) = reason.strip_prefix("attempt ")?.split_once(" of ")?;
        let (attempts_max, words) = rest.split_once(" failed: ")?;
        (is_number(attempt) && is_number(attempts_max)).then_some(words)
    };
    let words = cut().map_or(0, |words| words.len().saturating_add(": ".len()));
    reason.get(..reason.len().saturating_sub(words)).unwrap_or_default()
}

/// The bytes that are still to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn millis(&mut self) -> Option<Duration> {
        let millis = self.array().map(u32::from_be_bytes)?;
        Some(Duration::from_millis(millis.into()))
    }

    fn at(&mut self) -> Option<Timestamp> {
        self.array().map(|bytes| Timestamp::from_millis(i64::from_be_bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row() -> impl Strategy<Value = TrackedRow> {
        let topic = prop_oneof![Just(None), "[a-z]{1,20}".prop_map(Some)];
        let reason = prop_oneof![Just(None), ".{1,40}".prop_map(Some)];
        let numbers = (1_u16..=1_000, 0_u16..=1_000, 1_u16..=1_000, 1_u16..=100);
        let record = proptest::option::of((0_i32..=i32::MAX, 0_i64..=i64::MAX));
        let sent =
            proptest::option::of((0_i64..4_000_000_000_000, 0_i64..4_000_000_000_000, record));
        (numbers, 1_000_u32..=604_800_000, 0_u32..=604_800_000, any::<bool>(), sent, topic, reason)
            .prop_map(|(numbers, ttr, backoff, is_verdict, sent, dead_topic, reason)| {
                let (attempt, attempts_before, attempts_max, factor) = numbers;
                let span = |millis: u32| Duration::from_millis(millis.into());
                let retry =
                    RetryPolicy::new(attempts_max, span(backoff / 2), span(backoff), factor);
                TrackedRow {
                    tracking: Tracking {
                        ttr: Ttr::new(span(ttr)).unwrap(),
                        retry: retry.unwrap(),
                        dead_topic: dead_topic.map(|topic| TopicName::stored(&topic)),
                    },
                    attempt,
                    attempts_before,
                    is_verdict,
                    sent: sent.map(|(appended_at, finish_by, record)| Sent {
                        appended_at: Timestamp::from_millis(appended_at),
                        finish_by: Timestamp::from_millis(finish_by),
                        record: record.map(|(partition, offset)| RecordPlace { partition, offset }),
                    }),
                    reason: reason.map(String::into_boxed_str),
                }
            })
    }

    #[test]
    fn the_last_attempt_has_no_back_off_after_its_extension() {
        let (hour, window) = (Duration::from_secs(3_600), Duration::from_millis(200));
        let retry = RetryPolicy::new(2, hour, hour, 1).unwrap();
        let ttr = Ttr::new(Duration::from_secs(1)).unwrap();
        let row = Tracking { ttr, retry, dead_topic: None }.first_row();
        assert_eq!(row.wait_after_extension(1, window), hour);
        assert_eq!(row.wait_after_extension(2, window), window);
        let redriven = row.redriven(2);
        assert_eq!(redriven.wait_after_extension(3, window), hour);
        assert_eq!(redriven.wait_after_extension(4, window), window);
    }

    proptest! {
        #[test]
        fn a_row_is_read_as_it_was_written(row in row()) {
            let bytes = row.encode();
            prop_assert_eq!(TrackedRow::decode(&bytes), Ok(row.clone()));
            let shown = reason_without_words(&row.dead_reason()).to_owned();
            let silent = TrackedRow { reason: None, ..row.clone() };
            match &row.reason {
                Some(_words) => prop_assert!(shown.ends_with(" failed"), "{}", shown),
                None => prop_assert_eq!(shown, silent.dead_reason()),
            }
            let dead_topic = row.tracking.dead_topic.as_ref().filter(|_topic| row.is_verdict);
            prop_assert_eq!(
                TrackedRow::dead_topic_of_verdict(&bytes),
                dead_topic.map(TopicName::as_str)
            );
        }

        #[test]
        fn no_bytes_are_a_reason_to_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            drop(TrackedRow::decode(&bytes));
            TrackedRow::dead_topic_of_verdict(&bytes);
        }
    }

    #[test]
    fn a_redriven_row_goes_on_counting_and_has_its_whole_budget_again() {
        let tracking = Tracking {
            ttr: Ttr::new(Duration::from_secs(1)).unwrap(),
            retry: RetryPolicy::new(3, Duration::ZERO, Duration::ZERO, 1).unwrap(),
            dead_topic: None,
        };
        let first = tracking.first_row();
        assert_eq!((first.attempt, first.attempts_max()), (1, 3));
        let redriven = first.redriven(3);
        assert_eq!((redriven.attempt, redriven.attempts_max()), (4, 6));
        assert_eq!(redriven.attempts_since_redrive(4), 1);
    }
}
