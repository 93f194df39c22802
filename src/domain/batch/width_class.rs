//! Width classes, for finding the batch of a task. Every settled batch stores its lowest and
//! highest id, and the class of the width between them.
//!
//! Class c holds the batches whose due times are at most 4^c ms apart. So a batch of class c
//! containing an id begins at most 4^c ms before it: one short index range per class.
//! docs/decisions/0002 has the figures.

use std::time::Duration;

use uuid::Uuid;

use crate::domain::{TaskId, Timestamp, ids};

/// The width class of a batch, as stored in `execlog_batch`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WidthClass(u8);

/// The lowest and the highest id of a batch, and its width class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    pub width_class: WidthClass,
    pub from: TaskId,
    /// Inclusive.
    pub to: TaskId,
}

impl WidthClass {
    /// 4^16 ms are 49 days, more than a leaf, a horizon or a usual backlog. Wider batches are of
    /// this class, too; a look-up searches them from the beginning of time.
    pub const WIDEST: Self = Self(16);

    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::WIDEST.0).map(Self)
    }

    fn of_width(width: Duration) -> Self {
        Self::all().find(|width_class| width <= width_class.width()).unwrap_or(Self::WIDEST)
    }

    /// Returns the maximum distance between due times in a batch of this class.
    pub const fn width(self) -> Duration {
        Duration::from_millis(1 << (2 * self.0))
    }

    pub fn as_smallint(self) -> i16 {
        i16::from(self.0)
    }

    /// Returns the lowest id with which a batch of this class containing `id` can begin.
    pub fn lowest_start(self, id: TaskId) -> Uuid {
        if self == Self::WIDEST {
            Uuid::nil()
        } else {
            ids::floor_of(id.due_at().minus(self.width()).max(Timestamp::EPOCH))
        }
    }
}

impl Reach {
    /// Returns `None` when there are no ids.
    pub fn of(ids: impl Iterator<Item = TaskId> + Clone) -> Option<Self> {
        let (from, to) = (ids.clone().min()?, ids.max()?);
        Some(Self { width_class: WidthClass::of_width(to.due_at().since(from.due_at())), from, to })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::Shard;

    proptest! {
        #[test]
        fn a_batch_begins_within_reach_of_each_of_its_ids(
            dues in proptest::collection::vec((0_i64..(1 << 48), 0_u16..4096, any::<u64>()), 1..20),
            squeeze in 0_u32..48,
        ) {
            let ids: Vec<TaskId> = dues
                .iter()
                .map(|&(due, shard, random)| {
                    TaskId::new(Timestamp::from_millis(due >> squeeze), Shard::new(shard), random)
                })
                .collect();
            let reach = Reach::of(ids.iter().copied()).unwrap();
            for id in ids {
                prop_assert!(reach.width_class.lowest_start(id) <= reach.from.uuid());
                prop_assert!(reach.from <= id && id <= reach.to);
            }
        }
    }

    #[test]
    fn a_batch_within_a_millisecond_is_of_the_first_class() {
        let id = |ms| TaskId::new(Timestamp::from_millis(ms), Shard::new(0), 0);
        let width_class =
            |ms| Reach::of([id(0), id(ms)].into_iter()).unwrap().width_class.as_smallint();
        assert_eq!(
            [
                width_class(0),
                width_class(1),
                width_class(2),
                width_class(4),
                width_class(5),
                width_class(900_000),
                width_class(i64::MAX >> 15)
            ],
            [0, 0, 1, 1, 2, 10, 16]
        );
        assert_eq!(Reach::of(std::iter::empty()), None);
    }
}
