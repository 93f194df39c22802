//! The lowest id that an unsettled batch can have.
//!
//! Under an old snapshot, the index of unsettled batches keeps an entry for every batch that was
//! ever settled. A statement without a near lower limit would read all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::domain::{BatchId, TaskId, Timestamp, ids};

/// A task is claimed at most one window (10 s at most) before it is due, and the claimer's clock is
/// less than a minute behind. Days before that cannot hold its batch.
const CLAIMED_BEFORE_DUE_MAX: Duration = Duration::from_secs(70);

/// Returns the lowest id that a batch with one of these rows can have, settled or not.
pub(super) fn lowest_batch_of(rows: impl Iterator<Item = TaskId>) -> Uuid {
    let earliest = rows.map(TaskId::due_at).min().unwrap_or_default();
    ids::floor_of(earliest.minus(CLAIMED_BEFORE_DUE_MAX).max(Timestamp::EPOCH))
}

/// An id such that no unsettled batch has a lower one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnsettledFloor(Uuid);

impl UnsettledFloor {
    pub(super) fn uuid(self) -> Uuid {
        self.0
    }

    /// Returns the lowest id that an unsettled batch with one of these rows can have.
    pub(super) fn of(self, rows: impl Iterator<Item = TaskId>) -> Uuid {
        lowest_batch_of(rows).max(self.0)
    }
}

/// The floor as this node last found it. Clones share it. It is the lowest of all ids until
/// [`Self::set`] is called.
#[derive(Clone, Debug, Default)]
pub struct SharedUnsettledFloor(Arc<AtomicI64>);

impl SharedUnsettledFloor {
    /// Takes the lowest id, or `None` while it is unknown.
    pub fn set(&self, from: Option<BatchId>) {
        let from = from.map_or(Timestamp::EPOCH, |from| TaskId::from_uuid(from.uuid()).due_at());
        self.0.store(from.as_millis(), Ordering::Release);
    }

    pub(super) fn get(&self) -> UnsettledFloor {
        UnsettledFloor(ids::floor_of(Timestamp::from_millis(self.0.load(Ordering::Acquire))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Shard;

    #[test]
    fn the_search_begins_at_the_floor_or_at_the_earliest_claim_of_the_rows() {
        let at = |second: u64| Timestamp::EPOCH.plus(Duration::from_secs(second));
        let row = |second| TaskId::new(at(second), Shard::new(0), 1);
        let shared = SharedUnsettledFloor::default();
        let of = |rows: &[u64]| shared.get().of(rows.iter().map(|second| row(*second)));
        assert_eq!(shared.get().uuid(), Uuid::nil(), "nothing is known");
        assert_eq!(of(&[1000, 2000]), ids::floor_of(at(930)));
        shared.clone().set(Some(BatchId::new(at(1500), 1, 1)));
        assert_eq!(shared.get().uuid(), ids::floor_of(at(1500)));
        assert_eq!(of(&[1000, 2000]), ids::floor_of(at(1500)));
        assert_eq!(of(&[2000, 3000]), ids::floor_of(at(1930)));
        shared.set(None);
        assert_eq!(of(&[1000, 2000]), ids::floor_of(at(930)));
    }
}
