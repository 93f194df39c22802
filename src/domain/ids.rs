//! Ids of tasks, batches and nodes. All are UUIDs of version 8 whose first 48 bits are a time in
//! milliseconds.
//!
//! ```text
//! bits   0..48   ms since the epoch: due time of a task, time of the claim of a batch, start of a
//!                node
//! bits  48..52   version, 8
//! bits  52..64   shard of a task; random in a batch and a node
//! bits  64..66   variant
//! bits  66..128  random, except in a task with a key:
//!       66..72   place of the key within its shard
//!       72..128  order of the submit among those due at the same time, and chance (`submit_order`)
//! ```
//!
//! So ids sort by time, then by shard. One index on (shard, id) serves the range of a claim, the
//! look-up and the delete.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use az::SaturatingAs as _;
use thiserror::Error;
use uuid::Uuid;

use super::task::submit_order::{ORDER_BITS, Position, order_of};
use super::{Shard, Timestamp};

const SHARD_BITS_MAX: u128 = 0xfff;

#[derive(Debug, Error, PartialEq, Eq)]
#[error("an id must be a UUID of version 8, such as 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f")]
pub struct IdError;

/// The id of a task row: the due time, the shard, and 62 more bits. For tasks with a key these bits
/// also hold the order of the submits. Otherwise they are random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Uuid);

/// The id of a batch: the time of its claim, by its node's estimate of the cluster's clock, and 74
/// random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(Uuid);

/// The id of a node, new at every start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Uuid);

/// Ids from `from` (inclusive) to `to` (exclusive).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdRange {
    pub from: Uuid,
    pub to: Uuid,
}

fn compose(millis: i64, twelve_bits: u16, random: u64) -> Uuid {
    let time = u128::from(u64::try_from(millis.clamp(0, Timestamp::MAX.as_millis())).unwrap_or(0));
    let low = u128::from(random & (u64::MAX >> 2)) | (0b10_u128 << 62);
    Uuid::from_u128(
        (time << 80) | (8_u128 << 76) | ((u128::from(twelve_bits) & SHARD_BITS_MAX) << 64) | low,
    )
}

fn millis_of(id: Uuid) -> i64 {
    (id.as_u128() >> 80).saturating_as::<i64>()
}

fn parse(text: &str) -> Result<Uuid, IdError> {
    // Only the hyphenated form is accepted, so one id has one spelling, in paths as in logs.
    match Uuid::try_parse(text) {
        Ok(id) if text.len() == 36 && id.get_version_num() == 8 => Ok(id),
        _ => Err(IdError),
    }
}

/// The time by which the row of a held task is put off: 7,922 years. Due times keep their order.
pub const PUT_OFF: Duration = Duration::from_millis(250_000_000_000_000);

/// Returns the lowest id of a millisecond, which is also the limit of a partition that starts
/// there.
pub fn floor_of(at: Timestamp) -> Uuid {
    let time = u128::from(u64::try_from(at.as_millis()).unwrap_or(0));
    Uuid::from_u128(time << 80)
}

impl TaskId {
    pub fn new(due_at: Timestamp, shard: Shard, random: u64) -> Self {
        Self(compose(due_at.as_millis(), shard.number(), random))
    }

    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }

    pub fn due_at(self) -> Timestamp {
        Timestamp::from_millis(millis_of(self.0))
    }

    /// Returns the due time of the task of this row. A held task is due before the row.
    pub fn due_at_unheld(self) -> Timestamp {
        if IdRange::held().contains(self.0) { self.due_at().minus(PUT_OFF) } else { self.due_at() }
    }

    /// Returns the same id with a position in the order of submits. Among the tasks of the key due
    /// at the same time, lower positions come first.
    #[must_use]
    pub fn with_position(self, position: Position, random: u64) -> Self {
        let place = self.low_bits() & !((1 << ORDER_BITS) - 1);
        Self::new(self.due_at(), self.shard(), place | order_of(self.due_at(), position, random))
    }

    /// Returns the same id with another 62 random bits.
    #[must_use]
    pub fn drawn_again(self, random: u64) -> Self {
        Self::new(self.due_at(), self.shard(), random)
    }

    /// Returns the low 64 bits. They stay when the due time of the id changes.
    pub fn low_bits(self) -> u64 {
        u64::try_from(self.0.as_u128() & u128::from(u64::MAX)).unwrap_or(0)
    }

    /// Returns the same id, due at `at` at the earliest. Only the time in the id changes.
    #[must_use]
    pub fn due_at_least(self, at: Timestamp) -> Self {
        if self.due_at() >= at {
            return self;
        }
        Self::new(at.ceil_millis(), self.shard(), self.low_bits())
    }

    /// Returns the same id, due at another time. Only the time in the id changes.
    #[must_use]
    pub fn moved_to(self, at: Timestamp) -> Self {
        Self::new(at.ceil_millis(), self.shard(), self.low_bits())
    }

    /// Returns the shard in the id. The shard of a row is always the shard of its id.
    pub fn shard(self) -> Shard {
        let bits = (self.0.as_u128() >> 64) & SHARD_BITS_MAX;
        Shard::new(u16::try_from(bits).unwrap_or(0))
    }
}

impl BatchId {
    /// The lowest id.
    pub const MIN: Self = Self(Uuid::nil());

    pub fn new(claimed_at: Timestamp, twelve_bits: u16, random: u64) -> Self {
        Self(compose(claimed_at.as_millis(), twelve_bits, random))
    }

    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl NodeId {
    pub fn new(started_at: Timestamp, twelve_bits: u16, random: u64) -> Self {
        Self(compose(started_at.as_millis(), twelve_bits, random))
    }

    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl IdRange {
    /// Returns the range of all ids due from `from` (inclusive) to `to` (exclusive).
    pub fn of_times(from: Timestamp, to: Timestamp) -> Self {
        Self { from: floor_of(from), to: floor_of(to) }
    }

    /// Returns the range of the rows of held tasks.
    pub fn held() -> Self {
        Self::of_times(Timestamp::EPOCH.plus(PUT_OFF), Timestamp::MAX)
    }

    /// Returns the next id, where the range behind `last` begins.
    pub fn after(last: Uuid) -> Uuid {
        Uuid::from_u128(last.as_u128().saturating_add(1))
    }

    /// Returns the narrowest range holding all of `ids`, or `None` when there are none.
    pub fn spanning(ids: impl IntoIterator<Item = TaskId>) -> Option<Self> {
        let each = ids.into_iter().map(|id| Self { from: id.0, to: Self::after(id.0) });
        each.reduce(|all, one| all.joined(one))
    }

    pub fn is_empty(&self) -> bool {
        self.from >= self.to
    }

    pub fn contains(&self, id: Uuid) -> bool {
        self.from <= id && id < self.to
    }

    /// Returns true when no id lies between the two ranges.
    pub fn touches(&self, other: Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }

    /// Returns the range from the lower beginning to the higher end.
    #[must_use]
    pub fn joined(&self, other: Self) -> Self {
        Self { from: self.from.min(other.from), to: self.to.max(other.to) }
    }

    /// Returns how many numbers the range covers, whether or not they are ids of tasks.
    pub fn width(&self) -> u128 {
        self.to.as_u128().saturating_sub(self.from.as_u128())
    }
}

impl FromStr for TaskId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let id = Self(parse(text)?);
        Ok(id)
    }
}

impl FromStr for NodeId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        parse(text).map(Self)
    }
}

macro_rules! shown_as_uuid {
    ($($id:ty),*) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}
shown_as_uuid!(TaskId, BatchId, NodeId);

impl fmt::Debug for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::SubmitOrder;

    proptest! {
        #[test]
        fn a_task_id_tells_its_due_time_and_shard(
            millis in 0_i64..(1 << 48),
            shard in 0_u16..4096,
            random: u64,
        ) {
            let id = TaskId::new(Timestamp::from_millis(millis), Shard::new(shard), random);
            prop_assert_eq!(id.due_at().as_millis(), millis);
            prop_assert_eq!(id.shard().number(), shard);
            prop_assert_eq!(id.uuid().get_version_num(), 8);
            prop_assert_eq!(id.to_string().parse::<TaskId>(), Ok(id));
        }

        #[test]
        fn ids_sort_by_due_time_then_by_shard(
            a in 0_i64..1000,
            b in 0_i64..1000,
            s in 0_u16..4096,
            t in 0_u16..4096,
            x: u64,
            y: u64,
        ) {
            let first = TaskId::new(Timestamp::from_millis(a), Shard::new(s), x);
            let second = TaskId::new(Timestamp::from_millis(b), Shard::new(t), y);
            if (a, s) != (b, t) {
                prop_assert_eq!(first < second, (a, s) < (b, t));
            }
        }

        #[test]
        fn the_order_of_a_submit_leaves_due_time_shard_and_place_of_the_key_as_they_are(
            millis in 0_i64..(1 << 42),
            shard in 0_u16..4096,
            random: [u64; 3],
        ) {
            let id = TaskId::new(Timestamp::from_millis(millis), Shard::new(shard), random[0]);
            let position = SubmitOrder::default().next(
                Timestamp::from_millis(1_800_000_000_000),
                id.due_at(),
                random[1],
            );
            let own = id.with_position(position, random[2]);
            prop_assert_eq!(own.uuid().as_u128() >> ORDER_BITS, id.uuid().as_u128() >> ORDER_BITS);
            prop_assert_eq!(own.uuid().get_version_num(), 8);
        }

        #[test]
        fn a_range_of_times_holds_exactly_the_ids_due_in_it(
            from in 0_i64..100,
            to in 0_i64..100,
            due in 0_i64..100,
            random: u64,
        ) {
            let range = IdRange::of_times(Timestamp::from_millis(from), Timestamp::from_millis(to));
            let id = TaskId::new(Timestamp::from_millis(due), Shard::new(4095), random);
            prop_assert_eq!(range.contains(id.uuid()), (from..to).contains(&due));
        }
    }

    #[test]
    fn a_range_over_ids_holds_the_first_and_the_last() {
        let ids =
            [5, 3, 9].map(|millis| TaskId::new(Timestamp::from_millis(millis), Shard::new(1), 7));
        let range = IdRange::spanning(ids).unwrap();
        assert!(ids.iter().all(|id| range.contains(id.uuid())));
        assert_eq!(
            (range.from, range.width()),
            (ids[1].uuid(), ids[2].uuid().as_u128() - ids[1].uuid().as_u128() + 1)
        );
        assert_eq!(IdRange::spanning([]), None);
    }

    #[test]
    fn other_spellings_and_other_versions_are_no_ids() {
        for text in
            ["", "x", "01934b2e7d3c80179f2b6a1c0e4d5b7f", "01934b2e-7d3c-4017-9f2b-6a1c0e4d5b7f"]
        {
            assert_eq!(text.parse::<TaskId>(), Err(IdError));
        }
    }
}
