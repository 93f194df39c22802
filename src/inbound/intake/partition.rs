//! The state of a partition of an intake topic that this node reads.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::clock;
use crate::domain::task::intake_record::IntakeRecord;
use crate::domain::task::outbox_row::RejectedRow;
use crate::domain::{Monotonic, Timestamp, TopicName};
use crate::postgres::inbound::{OffsetPrecondition, Position, StorePrecondition};

/// The first pause after a failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Partition {
    pub(super) precondition: OffsetPrecondition,
    /// Records that were read and are not stored, from `precondition.position.next` on.
    pub(super) records: VecDeque<IntakeRecord>,
    /// Records refused by the statement that stores records. The next check rejects these records.
    refused: BTreeMap<i64, RejectedRow>,
    /// Records before this offset have counted against the limits of their principal.
    pub(super) charged_to: i64,
    /// The most records of the next turn: one after a record was refused, and then twice as many
    /// after each turn. So the records behind refused ones are not checked again for each of them.
    checked_max: usize,
    /// When the partition began to wait, if it waits.
    waits_since: Option<Monotonic>,
    retry_at: Monotonic,
    pause: Duration,
}

impl Partition {
    pub(super) fn new(topic: &TopicName, partition: i32, position: Position) -> Self {
        Self {
            precondition: OffsetPrecondition {
                topic: topic.clone(),
                partition,
                position,
                read_at: Timestamp::EPOCH,
            },
            records: VecDeque::new(),
            refused: BTreeMap::new(),
            charged_to: 0,
            checked_max: usize::MAX,
            waits_since: None,
            retry_at: Monotonic::default(),
            pause: PAUSE_MIN,
        }
    }

    /// Takes a position that was read again. The records that were read are read again, too.
    pub(super) fn set(&mut self, position: Position) {
        if position.generation != self.precondition.position.generation {
            self.refused.clear();
            self.charged_to = 0;
        }
        self.precondition.position = position;
        self.records.clear();
    }

    /// Forgets records that are stored or rejected.
    pub(super) fn drop_done(&mut self) {
        let next = self.precondition.position.next;
        while self.records.front().is_some_and(|record| record.offset < next) {
            self.records.pop_front();
        }
        self.refused = self.refused.split_off(&next);
    }

    /// Returns the records of the next turn, each with the reason if it was refused.
    pub(super) fn to_check(&self) -> impl Iterator<Item = (&IntakeRecord, Option<&RejectedRow>)> {
        let records = self.records.iter().take(self.checked_max);
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

    /// Takes back the precondition, which has moved.
    pub(super) fn take_back(&mut self, precondition: StorePrecondition) {
        if let StorePrecondition::Records(precondition) = precondition {
            self.precondition = precondition;
        }
    }

    pub(super) fn failed(&mut self) {
        let now = clock::monotonic();
        self.waits_since.get_or_insert(now);
        self.retry_at = now.plus(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    pub(super) fn succeeded(&mut self) {
        self.waits_since = None;
        self.retry_at = Monotonic::default();
        self.pause = PAUSE_MIN;
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
}
