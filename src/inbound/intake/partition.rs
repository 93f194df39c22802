//! The state of a partition of an intake topic that this node reads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::clock;
use crate::domain::task::intake_record::{IntakeRecord, Rejection};
use crate::domain::task::outbox_row::RejectedRow;
use crate::domain::{Backoff, Monotonic, Timestamp, TopicName};
use crate::postgres::inbound::offsets::WaitingRejections;
use crate::postgres::inbound::{OffsetPrecondition, Position, StorePrecondition};

/// The first pause after a failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// For how long a partition waits for topics that Kafka does not let this node see: as long as the
/// tasks of a forbidden topic wait by default (`--topic-denial-max`).
const DENIED_WAIT: Duration = Duration::from_secs(5 * 60);
/// The period in which a partition waits at most [`DENIED_WAIT`] for denied topics, so that wrong
/// records never stop it for long.
const DENIED_PERIOD: Duration = Duration::from_secs(60 * 60);
/// Maximum time between two tries at a record that counts as waiting.
const DENIED_STEP_MAX: Duration = PAUSE_MAX.saturating_mul(2);

#[derive(Debug)]
pub(super) struct Partition {
    pub(super) precondition: OffsetPrecondition,
    /// The offset behind the last record that was taken from the reader.
    read_to: i64,
    /// Records that were read and are not stored, from `precondition.position.next` on, and before
    /// it the rejected ones that are not written yet.
    pub(super) records: VecDeque<IntakeRecord>,
    /// The rejections that are stored, and whose records are not written yet.
    pub(super) waiting: WaitingRejections,
    /// Offsets of rejections whose records are written, and that are not deleted yet.
    pub(super) written: BTreeSet<i64>,
    /// Records refused by the statement that stores records. The next check rejects these records.
    refused: BTreeMap<i64, RejectedRow>,
    /// Records before this offset have counted against the limits of their principal.
    pub(super) charged_to: i64,
    /// The most records of the next turn: one after a record was refused, and then twice as many
    /// after each turn. So the records behind refused ones are not checked again for each of them.
    checked_max: usize,
    /// When the partition began to wait, if it waits.
    waits_since: Option<Monotonic>,
    /// The waiting for topics that Kafka does not let this node see.
    denied: Option<DeniedWait>,
    retry_at: Monotonic,
    backoff: Backoff,
}

/// How long a partition has waited for denied topics within the hour from `began_at` on.
#[derive(Clone, Copy, Debug)]
struct DeniedWait {
    began_at: Monotonic,
    last_at: Monotonic,
    span: Duration,
}

impl Partition {
    pub(super) fn new(topic: &TopicName, partition: i32, position: Position) -> Self {
        Self {
            precondition: OffsetPrecondition {
                topic: topic.clone(),
                partition,
                position,
                read_at: Timestamp::EPOCH,
                rejections: BTreeMap::new(),
            },
            read_to: position.next,
            records: VecDeque::new(),
            waiting: WaitingRejections::new(),
            written: BTreeSet::new(),
            refused: BTreeMap::new(),
            charged_to: 0,
            checked_max: usize::MAX,
            waits_since: None,
            denied: None,
            retry_at: Monotonic::default(),
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
        }
    }

    /// Returns true when the table has this position, and these rejections that wait.
    pub(super) fn is_at(&self, position: Position, waiting: &WaitingRejections) -> bool {
        self.precondition.position == position && self.waiting == *waiting
    }

    /// Takes a position that was read again, with the rejections that wait. The records that were
    /// read are read again, too.
    pub(super) fn set(&mut self, position: Position, waiting: WaitingRejections) {
        if position.generation != self.precondition.position.generation {
            self.refused.clear();
            self.charged_to = 0;
            self.written.clear();
        }
        self.precondition.position = position;
        self.waiting = waiting;
        self.written.retain(|offset| self.waiting.contains_key(offset));
        self.records.clear();
    }

    /// Returns the offset to read from. It is before `next` while the record of a rejection waits.
    pub(super) fn read_from(&self) -> i64 {
        if let Some(last) = self.records.back() {
            return last.offset.saturating_add(1);
        }
        let next = self.precondition.position.next;
        self.waiting.first_key_value().map_or(next, |(offset, _)| next.min(*offset))
    }

    /// Notes the offset that is read next: that of an assignment, or behind the taken records.
    pub(super) fn reads_on(&mut self) {
        self.read_to = self.read_from();
    }

    /// Returns true when all further records before `next` are done. The partition is assigned
    /// again then, at `next`: Kafka tells whether its log has this offset.
    pub(super) fn reads_done_records(&self) -> bool {
        let next = self.precondition.position.next;
        self.read_to < next && self.waiting.range(self.read_to..next).next().is_none()
    }

    /// Returns the rejected records to write, each with its rejection.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&IntakeRecord, &Rejection)> {
        let next = self.precondition.position.next;
        let waiting = self.waiting.range(..next);
        let waiting = waiting.filter(|(offset, _)| !self.written.contains(offset));
        waiting.filter_map(|(offset, rejection)| Some((self.rejected(*offset)?, rejection)))
    }

    /// Returns the offsets of rejected records that the log does not have any more.
    pub(super) fn waiting_without_record(&self) -> Vec<i64> {
        let next = self.precondition.position.next;
        let passed = self.waiting.range(..next.min(self.read_to));
        passed.map(|(offset, _)| *offset).filter(|at| self.rejected(*at).is_none()).collect()
    }

    /// Returns the record of a rejection that waits. Another record at its offset is of another
    /// log.
    pub(super) fn rejected(&self, offset: i64) -> Option<&IntakeRecord> {
        let rejection = self.waiting.get(&offset)?;
        self.record(offset).filter(|record| record.at == rejection.record_at)
    }

    /// Returns a record that was read.
    pub(super) fn record(&self, offset: i64) -> Option<&IntakeRecord> {
        let index = self.records.binary_search_by_key(&offset, |record| record.offset).ok()?;
        self.records.get(index)
    }

    /// Forgets records that are stored, or rejected and written.
    pub(super) fn drop_done(&mut self) {
        let next = self.precondition.position.next;
        if self.records.front().is_some_and(|record| record.offset < next) {
            let waiting = &self.waiting;
            let is_kept = |record: &IntakeRecord| {
                record.offset >= next || waiting.contains_key(&record.offset)
            };
            self.records.retain(is_kept);
        }
        self.refused = self.refused.split_off(&next);
    }

    /// Returns the records of the next turn, each with the reason if it was refused.
    pub(super) fn to_check(&self) -> impl Iterator<Item = (&IntakeRecord, Option<&RejectedRow>)> {
        let next = self.precondition.position.next;
        let records = self.records.iter().filter(move |record| record.offset >= next);
        let records = records.take(self.checked_max);
        records.map(|record| (record, self.refused.get(&record.offset)))
    }

    /// Keeps the reason for a record that was refused when it was to be stored.
    pub(super) fn refuse(&mut self, refused: RejectedRow) {
        self.refused.insert(refused.seq, refused);
        self.checked_max = 1;
    }

    /// Notes that all records of a turn are stored or rejected.
    pub(super) const fn turn_is_done(&mut self) {
        self.checked_max = self.checked_max.saturating_mul(2);
    }

    /// Notes that Kafka does not let this node see the topic of a record. Returns true when the
    /// partition has waited for such topics for long enough, and the record is rejected.
    pub(super) fn note_denied(&mut self, now: Monotonic) -> bool {
        let recent = self.denied.filter(|denied| now.since(denied.began_at) < DENIED_PERIOD);
        let denied = match recent {
            None => DeniedWait { began_at: now, last_at: now, span: Duration::ZERO },
            Some(before) => {
                let step = now.since(before.last_at).min(DENIED_STEP_MAX);
                DeniedWait { last_at: now, span: before.span.saturating_add(step), ..before }
            }
        };
        self.denied = Some(denied);
        denied.span >= DENIED_WAIT
    }

    /// Takes back the precondition, which has moved. The rejections that it has passed are stored.
    pub(super) fn take_back(&mut self, precondition: StorePrecondition) {
        let before = self.precondition.position.next;
        if let StorePrecondition::Records(precondition) = precondition {
            self.precondition = precondition;
        }
        let mut stored = std::mem::take(&mut self.precondition.rejections).split_off(&before);
        stored.split_off(&self.precondition.position.next);
        self.waiting.extend(stored);
    }

    pub(super) fn failed(&mut self) {
        let now = clock::monotonic();
        self.waits_since.get_or_insert(now);
        self.retry_at = now.plus(self.backoff.next_pause());
    }

    pub(super) fn succeeded(&mut self) {
        self.waits_since = None;
        self.retry_at = Monotonic::default();
        self.backoff.reset();
    }

    /// Returns how long the partition still waits before it is tried again.
    pub(super) fn pause_at(&self, now: Monotonic) -> Duration {
        self.retry_at.since(now)
    }

    /// Returns for how long the partition could not go on.
    pub(super) fn waits_for(&self, now: Monotonic) -> Duration {
        self.waits_since.map(|since| now.since(since)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::task::intake_record::tests::record;

    #[test]
    fn the_turns_after_a_refused_record_are_short_at_first() {
        let position = Position { generation: 1, next: 10, newest_at: None };
        let mut partition = Partition::new(&TopicName::new("in").unwrap(), 0, position);
        partition.records.extend((10..20).map(|offset| record(offset, &[])));
        assert_eq!(partition.to_check().count(), 10);
        partition.refuse(RejectedRow { seq: 10, status: 409, reason: "late".to_owned() });
        let next: Vec<(i64, bool)> =
            partition.to_check().map(|(record, why)| (record.offset, why.is_some())).collect();
        assert_eq!(next, [(10, true)]);
        let counts = [2, 4, 8, 10].map(|wanted| {
            partition.turn_is_done();
            (partition.to_check().count(), wanted)
        });
        assert!(counts.iter().all(|(count, wanted)| count == wanted), "{counts:?}");
    }

    #[test]
    fn a_partition_waits_for_denied_topics_for_five_minutes_of_an_hour() {
        let position = Position { generation: 1, next: 10, newest_at: None };
        let partition = || Partition::new(&TopicName::new("in").unwrap(), 0, position);
        let at = |seconds: u64| Monotonic::from_start(Duration::from_secs(seconds));
        // The same record is tried every five seconds.
        let mut stopped = partition();
        let first = (0..).map(|n| n * 5).find(|now| stopped.note_denied(at(*now)));
        assert_eq!(first, Some(300));
        assert!(stopped.note_denied(at(2_000)), "another record within the hour");
        assert!(!stopped.note_denied(at(3_600)), "the next hour");
        // Rights that come a little late, now and then, cost no record.
        let mut rare = partition();
        assert!([0, 1_200, 2_400].iter().all(|now| !rare.note_denied(at(*now))));
    }

    #[test]
    fn records_before_the_next_one_are_read_while_a_rejection_waits() {
        let position = Position { generation: 1, next: 10, newest_at: None };
        let mut partition = Partition::new(&TopicName::new("in").unwrap(), 0, position);
        let rejection = |offset| Rejection::new(&record(offset, &[]), 409, "late");
        let waiting = [3, 6].map(|offset| (offset, rejection(offset)));
        partition.set(position, waiting.into());
        partition.reads_on();
        assert_eq!(partition.read_from(), 3);
        partition.records.extend([2, 3, 4].map(|offset| record(offset, &[])));
        partition.reads_on();
        partition.drop_done();
        let offsets = |partition: &Partition| -> Vec<i64> {
            partition.waiting().map(|(record, _)| record.offset).collect()
        };
        assert_eq!(offsets(&partition), [3]);
        assert_eq!(partition.to_check().count(), 0);
        assert!(!partition.reads_done_records(), "the record at 6 is not read yet");
        partition.waiting.remove(&3);
        partition.drop_done();
        // A record at the same offset with another time is of another log.
        let mut other = record(6, &[]);
        other.at = other.at.plus(Duration::from_secs(1));
        partition.records.push_back(other);
        partition.reads_on();
        assert!(offsets(&partition).is_empty());
        assert_eq!(partition.waiting_without_record(), [6]);
        partition.waiting.clear();
        partition.drop_done();
        assert!(partition.reads_done_records(), "the next record to carry out is at 10");
        assert_eq!(partition.read_from(), 10);
    }

    #[test]
    fn rejections_wait_when_the_offset_is_behind_their_records() {
        let position = Position { generation: 1, next: 10, newest_at: None };
        let mut partition = Partition::new(&TopicName::new("in").unwrap(), 0, position);
        let rejections = [10, 11, 12].map(|at| (at, Rejection::new(&record(at, &[]), 422, "\0")));
        partition.precondition.rejections = rejections.into();
        let mut moved = partition.precondition.clone();
        moved.position.next = 12;
        partition.take_back(StorePrecondition::Records(moved));
        assert_eq!(partition.waiting.keys().copied().collect::<Vec<_>>(), [10, 11]);
        assert_eq!(partition.waiting[&10].reason, "\u{fffd}");
        assert!(partition.precondition.rejections.is_empty());
    }
}
