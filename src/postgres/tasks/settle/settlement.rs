//! The outcomes of a batch, prepared for the statements of a settle.

use std::collections::HashSet;
use std::time::Duration;

use az::SaturatingAs as _;
use uuid::Uuid;

use crate::domain::task::expiry;
use crate::domain::task::feedback::Delivery;
use crate::domain::{
    Batch, BatchId, IdRange, Outcome, Reach, Receipt, TaskId, Timestamp, TrackedRow,
};
use crate::sealing::{Columns, KeySet, OwnedColumns, RecordOwner, SealError};

/// The entry of a named task that is published later than this after its due time is kept for that
/// much longer. The retention of names is not exact below this.
const LATE: Duration = Duration::from_secs(60);

/// The outcomes of one batch, ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settlement {
    pub batch: BatchId,
    pub(super) width_class: i16,
    pub(super) id_from: Uuid,
    pub(super) id_to: Uuid,
    pub(super) topic_names: Vec<String>,
    pub(super) topic_indexes: Option<Vec<i16>>,
    pub(super) outcomes: Vec<i16>,
    pub(super) partitions: Vec<i32>,
    pub(super) offsets: Vec<i64>,
    pub(super) published_ats: Vec<i64>,
    pub(super) next_ids: Option<Vec<Option<Uuid>>>,
    pub(super) follow_ups: Vec<FollowUp>,
    pub(super) dead: Vec<DeadTask>,
    /// Later attempts that are final now.
    pub(super) ended: Vec<Ended>,
    /// Names that are kept for longer than their due time requires.
    pub(super) moves: Vec<Move>,
    pub(super) tracked: Vec<Tracked>,
}

/// The facts that a settle does not have in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettleTerms {
    /// Leaves are attached up to here. Attempts that are due later go to `task_far`.
    pub leaves_end: Timestamp,
    /// A lower bound of Postgres's clock.
    pub now: Timestamp,
    /// See [`ClusterSettings::window`](crate::domain::ClusterSettings).
    pub window: Duration,
}

/// The result of a settle.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settled {
    /// The batches that were unsettled and owned by this node.
    pub batches: HashSet<BatchId>,
    /// The ids of new rows of tracked tasks in `task`.
    pub rows: Option<IdRange>,
    /// Attempts whose consumers stayed silent for their time to run.
    pub timed_out: u64,
    /// Tracked tasks that were given up because they were not finished.
    pub exhausted: u64,
}

/// A change of the entry of a name. The entry follows the task: to the next row, or to the moment
/// of the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub(super) topic: String,
    pub(super) name: String,
    pub(super) first_id: Uuid,
    /// The row of the follow-up, or `None` when the task is final.
    pub(super) next: Option<Uuid>,
    /// The number of the final state, unless the task is published or goes on.
    pub(super) outcome: Option<i16>,
}

/// A task that has ended as a later row than its first. Its line leads from the first id to the
/// receipt, for as long as the receipt is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ended {
    pub(super) first_id: Uuid,
    pub(super) row_id: Uuid,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SettleRow {
    pub(super) first_id: Uuid,
    pub(super) topic: String,
    pub(super) key: Option<Vec<u8>>,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) headers: Option<Vec<u8>>,
    pub(super) name: Option<String>,
    pub(super) attempt: i16,
    /// The due time that the task was moved to, in ms since the epoch.
    pub(super) moved_to: Option<i64>,
    /// 1-based place in the arrays of the batch, which have the submitter.
    pub(super) position: i32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FollowUp {
    pub(super) id: Uuid,
    pub(super) shard: i16,
    pub(super) maybe_sent: bool,
    pub(super) row: SettleRow,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DeadTask {
    pub(super) row_id: Uuid,
    pub(super) reason: String,
    pub(super) row: SettleRow,
}

impl Settlement {
    /// Prepares the settle of `batch`. `outcomes` are in the order of its tasks.
    ///
    /// # Panics
    /// When there is not exactly one outcome per task.
    pub fn new(batch: &Batch, outcomes: &[Outcome]) -> Self {
        assert_eq!(
            batch.len(),
            outcomes.len(),
            "a batch is settled when each of its tasks has an outcome"
        );
        let reach = Reach::of((0..batch.len()).map(|index| batch.id_of(index)));
        let has_one_topic = batch.topics().len() == 1;
        let has_next = outcomes
            .iter()
            .any(|outcome| matches!(outcome, Outcome::Deferred { .. } | Outcome::Attempted { .. }));
        let mut settlement = Self {
            batch: batch.id,
            width_class: reach.map_or(0, |reach| reach.width_class.as_smallint()),
            id_from: reach.map_or_else(Uuid::nil, |reach| reach.from.uuid()),
            id_to: reach.map_or_else(Uuid::nil, |reach| reach.to.uuid()),
            topic_names: batch.topics().iter().map(ToString::to_string).collect(),
            topic_indexes: (!has_one_topic).then(|| {
                batch
                    .tasks()
                    .map(|task| task.topic.saturating_as::<i16>().saturating_add(1))
                    .collect()
            }),
            outcomes: outcomes.iter().map(Outcome::code).collect(),
            partitions: Vec::with_capacity(outcomes.len()),
            offsets: Vec::with_capacity(outcomes.len()),
            published_ats: Vec::with_capacity(outcomes.len()),
            next_ids: has_next.then(|| vec![None; outcomes.len()]),
            follow_ups: Vec::new(),
            dead: Vec::new(),
            ended: Vec::new(),
            moves: Vec::new(),
            tracked: Vec::new(),
        };
        for (index, outcome) in outcomes.iter().enumerate() {
            settlement.add(batch, index, outcome);
        }
        // All statements are given the entries in this order.
        settlement.moves.sort_unstable_by(|a, b| (&a.topic, &a.name).cmp(&(&b.topic, &b.name)));
        settlement
    }

    fn add(&mut self, batch: &Batch, index: usize, outcome: &Outcome) {
        let task = batch.task(index);
        let (partition, offset, published_at) = match (outcome.receipt(), outcome) {
            (Some(receipt), _) => {
                (receipt.partition, receipt.offset, receipt.published_at.as_millis())
            }
            // The line of an expired task keeps the time of its expiry.
            (None, Outcome::Expired { expires_at }) => (-1, -1, expires_at.as_millis()),
            (None, _) => (-1, -1, 0),
        };
        self.partitions.push(partition);
        self.offsets.push(offset);
        self.published_ats.push(published_at);
        let is_later_attempt = task.first_id != task.id;
        if let Some(tracked) = Tracked::of(batch, index, outcome) {
            if let (Some(next_ids), Some(next)) = (&mut self.next_ids, tracked.next) {
                next_ids[index] = Some(next.uuid());
            }
            self.tracked.push(tracked);
            return;
        }
        if let Some(name) = task.name {
            self.keep_name(batch, index, outcome, name);
        }
        match outcome {
            Outcome::Published(_) | Outcome::Attempted { .. } | Outcome::Expired { .. } => {}
            Outcome::Deferred { next, maybe_sent } => {
                if let Some(next_ids) = &mut self.next_ids {
                    next_ids[index] = Some(next.uuid());
                }
                let mut row = SettleRow::of(batch, index, task.attempt.saturating_add(1));
                if *maybe_sent {
                    row.mark_maybe_sent();
                }
                self.follow_ups.push(FollowUp {
                    id: next.uuid(),
                    shard: next.shard().as_smallint(),
                    maybe_sent: *maybe_sent,
                    row,
                });
                return;
            }
            Outcome::Dead { reason, .. } => {
                let row = SettleRow::of(batch, index, task.attempt);
                self.dead.push(DeadTask {
                    row_id: task.id.uuid(),
                    reason: reason.replace('\0', " "),
                    row,
                });
            }
        }
        if is_later_attempt {
            self.ended.push(Ended { first_id: task.first_id.uuid(), row_id: task.id.uuid() });
        }
    }

    /// Keeps the entry of a name for longer where that is necessary. Most tasks are published on
    /// time, and their entry is right already.
    fn keep_name(&mut self, batch: &Batch, index: usize, outcome: &Outcome, name: &[u8]) {
        let task = batch.task(index);
        let next = match outcome {
            Outcome::Published(receipt)
                if receipt.published_at <= task.promised_at().plus(LATE) =>
            {
                return;
            }
            Outcome::Published(_)
            | Outcome::Attempted { .. }
            | Outcome::Dead { .. }
            | Outcome::Expired { .. } => None,
            Outcome::Deferred { next, .. } => Some(next.uuid()),
        };
        self.moves.push(Move {
            topic: batch.topics()[usize::from(task.topic)].to_string(),
            name: String::from_utf8_lossy(name).into_owned(),
            first_id: task.first_id.uuid(),
            next,
            outcome: match outcome {
                Outcome::Dead { .. } => Some(Outcome::DEAD),
                Outcome::Expired { .. } => Some(Outcome::EXPIRED_OF_NAME),
                _ => None,
            },
        });
    }

    /// Moves follow-ups that are due before `now` to `now`. When a settle is repeated after a long
    /// outage, their leaf may be gone, and the settle would be refused for ever.
    pub fn put_off_until(&mut self, now: Timestamp) {
        let put_off = |id: &mut Uuid| *id = TaskId::from_uuid(*id).due_at_least(now).uuid();
        self.follow_ups.iter_mut().for_each(|follow_up| put_off(&mut follow_up.id));
        self.next_ids.iter_mut().flatten().flatten().for_each(put_off);
        self.moves.iter_mut().filter_map(|moved| moved.next.as_mut()).for_each(put_off);
        for next in self.tracked.iter_mut().filter_map(|tracked| tracked.next.as_mut()) {
            *next = next.due_at_least(now);
        }
    }

    /// Returns true when only the row of the batch itself is written.
    pub(super) fn is_plain(&self) -> bool {
        self.follow_ups.is_empty()
            && self.dead.is_empty()
            && self.ended.is_empty()
            && self.moves.is_empty()
            && self.tracked.is_empty()
    }

    /// Returns the settlement with the records of its new rows sealed. Returns `None` when it has
    /// no such rows.
    pub(super) fn sealed(&self, keys: &KeySet) -> Result<Option<Self>, SealError> {
        if self.follow_ups.is_empty() && self.dead.is_empty() && self.tracked.is_empty() {
            return Ok(None);
        }
        let mut sealed = self.clone();
        let follow_ups = sealed.follow_ups.iter_mut().map(|follow_up| &mut follow_up.row);
        let dead = sealed.dead.iter_mut().map(|dead| &mut dead.row);
        let tracked = sealed.tracked.iter_mut().map(|tracked| &mut tracked.contents);
        follow_ups.chain(dead).chain(tracked).try_for_each(|row| row.seal(keys))?;
        Ok(Some(sealed))
    }

    pub fn task_count(&self) -> usize {
        self.outcomes.len()
    }

    /// Returns the ids of the new rows of deferred tasks.
    pub fn follow_up_ids(&self) -> Option<IdRange> {
        IdRange::spanning(self.follow_ups.iter().map(|follow_up| TaskId::from_uuid(follow_up.id)))
    }
}

impl SettleRow {
    /// Records that a record of the task may be in the topic, for the expiry of its later rows.
    fn mark_maybe_sent(&mut self) {
        if let Some(headers) = &mut self.headers {
            expiry::mark_maybe_sent(headers);
        }
    }

    /// Seals the record, unless it is sealed still: its key was missing.
    fn seal(&mut self, keys: &KeySet) -> Result<(), SealError> {
        let first = TaskId::from_uuid(self.first_id);
        let owner = RecordOwner::Task(first, &self.topic);
        let plain =
            Columns::new(self.key.as_deref(), self.payload.as_deref(), self.headers.as_deref());
        if let Some(sealed) = keys.seal(owner, plain)? {
            let OwnedColumns { key, payload, headers } = sealed;
            (self.key, self.payload, self.headers) = (key, payload, headers);
        }
        Ok(())
    }

    fn of(batch: &Batch, index: usize, attempt: i16) -> Self {
        let task = batch.task(index);
        Self {
            first_id: task.first_id.uuid(),
            topic: batch.topics()[usize::from(task.topic)].to_string(),
            key: task.key.map(<[u8]>::to_vec),
            payload: task.payload.map(<[u8]>::to_vec),
            headers: Some(task.headers.to_vec()).filter(|headers| !headers.is_empty()),
            name: task.name.map(|name| String::from_utf8_lossy(name).into_owned()),
            attempt,
            moved_to: task.moved_to.map(Timestamp::as_millis),
            position: index.saturating_as::<i32>().saturating_add(1),
        }
    }
}

/// A tracked task of a batch, with the outcome of its record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tracked {
    pub(super) id: TaskId,
    pub(super) first: TaskId,
    pub(super) tracking: TrackedRow,
    pub(super) delivery: Delivery,
    /// The row that the settle inserts, unless the consumer has left a note.
    pub(super) next: Option<TaskId>,
    pub(super) appended_at: Option<Timestamp>,
    pub(super) receipt: Option<Receipt>,
    /// The reason of the death.
    pub(super) reason: Option<String>,
    pub(super) contents: SettleRow,
}

impl Tracked {
    /// Returns `None` for an untracked task.
    fn of(batch: &Batch, index: usize, outcome: &Outcome) -> Option<Self> {
        let task = batch.task(index);
        let tracking = task.tracked()?;
        let (delivery, next, appended_at, reason) = match outcome {
            Outcome::Attempted { appended_at, next, .. } => {
                (Delivery::Published, Some(*next), Some(*appended_at), None)
            }
            Outcome::Deferred { next, maybe_sent: true } => {
                (Delivery::PerhapsSent, Some(*next), None, None)
            }
            Outcome::Deferred { next, maybe_sent: false } => {
                (Delivery::NotSent, Some(*next), None, None)
            }
            Outcome::Dead { reason, .. } => {
                (Delivery::Dead, None, None, Some(reason.replace('\0', " ")))
            }
            Outcome::Expired { .. } => (Delivery::Expired, None, None, None),
            // A published task is final, tracked or not.
            Outcome::Published(_) => return None,
        };
        // Tries of Kafka are counted apart from attempts: an outage uses none up.
        let tries = if appended_at.is_some() { 1 } else { task.attempt.saturating_add(1) };
        let mut contents = SettleRow::of(batch, index, tries);
        if matches!(delivery, Delivery::Published | Delivery::PerhapsSent) {
            contents.mark_maybe_sent();
        }
        Some(Self {
            id: task.id,
            first: task.first_id,
            tracking,
            delivery,
            next,
            appended_at,
            receipt: outcome.receipt(),
            reason,
            contents,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::batch::TaskParts;
    use crate::domain::{
        BatchBuilder, Expiry, ExpiryTime, Headers, RetryPolicy, Shard, Tracking, Ttr,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    fn id(second: i64) -> TaskId {
        TaskId::new(at(second), Shard::new(1), 7)
    }

    #[test]
    fn a_follow_up_that_is_overdue_is_due_now_wherever_the_settlement_names_it() {
        let mut builder = BatchBuilder::new(BatchId::new(at(1), 0, 1), 1, 16);
        let (key, payload, headers) = (None, Some(&b"p"[..]), None);
        let name = Some(&b"n"[..]);
        builder.push(TaskParts {
            id: id(1),
            first_id: None,
            attempt: None,
            topic: "t",
            key,
            payload,
            headers,
            name,
            tracking: None,
            moved_to: None,
        });
        let mut settlement = Settlement::new(
            &builder.build(),
            &[Outcome::Deferred { next: id(5), maybe_sent: false }],
        );
        let before = settlement.clone();
        settlement.put_off_until(at(5));
        assert_eq!(settlement, before, "what is not overdue stays");
        settlement.put_off_until(at(9));
        let next = id(9).uuid();
        assert_eq!(
            settlement.follow_ups.iter().map(|follow_up| follow_up.id).collect::<Vec<_>>(),
            [next]
        );
        assert_eq!(settlement.next_ids, Some(vec![Some(next)]));
        assert_eq!(
            settlement.moves.iter().map(|moved| moved.next).collect::<Vec<_>>(),
            [Some(next)]
        );
    }

    #[test]
    fn a_later_row_knows_whether_a_record_of_its_task_may_be_in_the_topic() {
        let after = Expiry::new(ExpiryTime::After(Duration::from_secs(60)));
        let headers = after.in_front_of(&Headers::default());
        let ttr = Ttr::new(Duration::from_secs(30)).unwrap();
        let tracking = Tracking { ttr, retry: RetryPolicy::DEFAULT, dead_topic: None };
        let tracking = tracking.first_row().encode();
        let marked = |tracking: Option<&[u8]>, outcome: Outcome| {
            let mut builder = BatchBuilder::new(BatchId::new(at(1), 0, 1), 1, 16);
            builder.push(TaskParts {
                id: id(1),
                first_id: None,
                attempt: None,
                topic: "t",
                key: None,
                payload: None,
                headers: headers.as_column(),
                name: None,
                tracking,
                moved_to: None,
            });
            let settlement = Settlement::new(&builder.build(), &[outcome]);
            let rows = settlement.follow_ups.iter().map(|follow_up| &follow_up.row);
            let row = rows.chain(settlement.tracked.iter().map(|tracked| &tracked.contents)).next();
            let headers = row.and_then(|row| row.headers.as_deref());
            headers.and_then(Expiry::of_column).map(|expiry| expiry.is_maybe_sent)
        };
        for tracking in [None, Some(tracking.as_slice())] {
            for maybe_sent in [false, true] {
                let outcome = Outcome::Deferred { next: id(5), maybe_sent };
                assert_eq!(marked(tracking, outcome), Some(maybe_sent));
            }
        }
        let receipt = Receipt { partition: 0, offset: 1, published_at: at(1) };
        let outcome = Outcome::Attempted { receipt, appended_at: at(1), next: id(31) };
        assert_eq!(marked(Some(tracking.as_slice()), outcome), Some(true));
    }

    #[test]
    fn an_expired_task_is_final_tracked_or_not_and_its_line_keeps_its_expiry() {
        let ttr = Ttr::new(Duration::from_secs(30)).unwrap();
        let tracking = Tracking { ttr, retry: RetryPolicy::DEFAULT, dead_topic: None };
        let tracking = tracking.first_row().encode();
        let (name, moved) = (Some(&b"n"[..]), Some(id(0)));
        for (first_id, tracking, ended_count) in [
            (None, None, 0),
            (moved, None, 1),
            (None, Some(tracking.as_slice()), 0),
            (moved, Some(tracking.as_slice()), 0),
        ] {
            let mut builder = BatchBuilder::new(BatchId::new(at(1), 0, 1), 1, 16);
            builder.push(TaskParts {
                id: id(1),
                first_id,
                attempt: None,
                topic: "t",
                key: None,
                payload: None,
                headers: None,
                name,
                tracking,
                moved_to: None,
            });
            let expired = Outcome::Expired { expires_at: at(9) };
            let settlement = Settlement::new(&builder.build(), &[expired]);
            assert_eq!(settlement.outcomes, [Outcome::EXPIRED]);
            assert_eq!(settlement.published_ats, [at(9).as_millis()]);
            assert_eq!((settlement.partitions[0], settlement.ended.len()), (-1, ended_count));
            assert!(settlement.dead.is_empty() && settlement.follow_ups.is_empty());
            // The settle of a tracked task looks for the note of its consumer first.
            let deliveries = settlement.tracked.iter().map(|tracked| tracked.delivery);
            let is_tracked = tracking.is_some();
            let wanted: &[Delivery] = if is_tracked { &[Delivery::Expired] } else { &[] };
            assert_eq!(deliveries.collect::<Vec<_>>(), wanted);
            let outcomes: Vec<_> = settlement.moves.iter().map(|moved| moved.outcome).collect();
            let wanted: &[_] = if is_tracked { &[] } else { &[Some(Outcome::EXPIRED_OF_NAME)] };
            assert_eq!(outcomes, wanted);
        }
    }
}
