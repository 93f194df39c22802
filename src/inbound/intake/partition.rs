//! The state of a partition of an intake topic that this node reads.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::clock;
use crate::domain::task::intake_record::IntakeRecord;
use crate::domain::task::outbox_row::RejectedRow;
use crate::domain::{Monotonic, Timestamp, TopicName};
use crate::postgres::inbound::{Hold, OffsetHold, Position};

/// The first pause after a failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Partition {
    pub(super) hold: OffsetHold,
    /// Records that were read and are not stored, from `hold.position.next` on.
    pub(super) records: VecDeque<IntakeRecord>,
    /// Records that Postgres has refused for a value. They are rejected when they are checked
    /// again.
    pub(super) refused: BTreeMap<i64, RejectedRow>,
    /// Records before this offset have counted against the limits of their principal.
    pub(super) charged_to: i64,
    /// When the partition began to wait, if it waits.
    waits_since: Option<Monotonic>,
    retry_at: Monotonic,
    pause: Duration,
}

impl Partition {
    pub(super) fn new(topic: &TopicName, partition: i32, position: Position) -> Self {
        Self {
            hold: OffsetHold {
                topic: topic.clone(),
                partition,
                position,
                read_at: Timestamp::EPOCH,
            },
            records: VecDeque::new(),
            refused: BTreeMap::new(),
            charged_to: 0,
            waits_since: None,
            retry_at: Monotonic::default(),
            pause: PAUSE_MIN,
        }
    }

    /// Takes a position that was read again. The records that were read are read again, too.
    pub(super) fn set(&mut self, position: Position) {
        if position.generation != self.hold.position.generation {
            self.refused.clear();
            self.charged_to = 0;
        }
        self.hold.position = position;
        self.records.clear();
    }

    /// Forgets records that are stored or rejected.
    pub(super) fn drop_done(&mut self) {
        let next = self.hold.position.next;
        while self.records.front().is_some_and(|record| record.offset < next) {
            self.records.pop_front();
        }
        self.refused = self.refused.split_off(&next);
    }

    /// Takes back the hold, which has moved.
    pub(super) fn take_back(&mut self, hold: Hold) {
        if let Hold::Records(hold) = hold {
            self.hold = hold;
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
