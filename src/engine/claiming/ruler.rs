//! Measures ranges of ids so the tasks of one instant are spread evenly.
//!
//! Ids have gaps. A loop has only a few of the 4,096 shards that an id can name, and the random
//! bits behind the variant fill only a quarter of the numbers of a shard. If the width of a claim
//! were a plain difference of ids, claims would find nothing and far too much in turns: a hotspot
//! of 100,000 tasks over 64 shards took 57 claims with rows, 36 claims that were too large and 119
//! empty claims. The ruler leaves out the gaps. A millisecond keeps its width, and this width is
//! divided evenly among the shards of the loop.

use az::SaturatingAs as _;
use uuid::Uuid;

use crate::domain::{Shard, TaskId, Timestamp};

/// The width of one millisecond of ids.
pub(super) const MILLISECOND: u128 = 1 << 80;
/// Number of low bits of an id, behind the variant.
const RANDOM_BITS: u32 = 62;
/// The id's version.
const VERSION: usize = 8;
/// Shift that makes the low bits of one shard one millisecond wide.
const FINENESS: u32 = 80 - RANDOM_BITS;

/// Measures the ids of a set of shards.
#[derive(Clone, Debug)]
pub(super) struct Ruler {
    /// Sorted, at least one.
    shards: Vec<Shard>,
}

impl Ruler {
    pub(super) fn new(shards: impl IntoIterator<Item = Shard>) -> Self {
        let mut shards: Vec<Shard> = shards.into_iter().collect();
        shards.sort_unstable();
        if shards.is_empty() {
            shards.push(Shard::new(0));
        }
        Self { shards }
    }

    /// Returns the width between two ids.
    pub(super) fn width(&self, from: Uuid, to: Uuid) -> u128 {
        self.position(to).saturating_sub(self.position(from))
    }

    /// Returns the id `width` above `from`, and at least the next id.
    pub(super) fn above(&self, from: Uuid, width: u128) -> Uuid {
        let next = Uuid::from_u128(from.as_u128().saturating_add(1));
        self.id_at(self.position(from).saturating_add(width)).max(next)
    }

    fn count(&self) -> u128 {
        self.shards.len().saturating_as::<u128>()
    }

    fn position(&self, id: Uuid) -> u128 {
        let millisecond = id.as_u128() & !(MILLISECOND - 1);
        let index_of = |found: usize| found.saturating_as::<u128>() << RANDOM_BITS;
        let before = match id.get_version_num() {
            // The floor of a millisecond lies below all ids of the millisecond.
            ..VERSION => 0,
            VERSION => match self.shards.binary_search(&TaskId::from_uuid(id).shard()) {
                // The next shard follows the last id of a shard.
                Ok(index) => {
                    index_of(index)
                        + u128::from(
                            id.as_u64_pair().1.saturating_sub(1 << 63).min(1 << RANDOM_BITS),
                        )
                }
                Err(index) => index_of(index),
            },
            _ => self.count() << RANDOM_BITS,
        };
        millisecond.saturating_add((before << FINENESS).div_ceil(self.count()))
    }

    /// Returns the highest id of the shards that is not above `position`.
    fn id_at(&self, position: u128) -> Uuid {
        let (millisecond, within) = (position & !(MILLISECOND - 1), position & (MILLISECOND - 1));
        let before = (within * self.count()) >> FINENESS;
        let index = (before >> RANDOM_BITS).saturating_as::<usize>().min(self.shards.len() - 1);
        let random = (before & ((1 << RANDOM_BITS) - 1)).saturating_as::<u64>();
        let due_at = Timestamp::from_millis((millisecond / MILLISECOND).saturating_as::<i64>());
        TaskId::new(due_at, self.shards[index], random).uuid()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::ids::floor_of;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn the_width_between_milliseconds_is_what_it_is_by_number() {
        let ruler = Ruler::new([3, 9, 700].map(Shard::new));
        assert_eq!(ruler.width(floor_of(at(5)), floor_of(at(12))), 7 * MILLISECOND);
        assert_eq!(
            ruler.above(floor_of(at(5)), 7 * MILLISECOND),
            TaskId::new(at(12), Shard::new(3), 0).uuid()
        );
    }

    #[test]
    fn a_loop_without_shards_measures_all_the_same() {
        let ruler = Ruler::new([]);
        assert_eq!(ruler.width(floor_of(at(0)), floor_of(at(1))), MILLISECOND);
    }

    #[test]
    fn the_tasks_of_an_instant_lie_evenly() {
        // The shards of one of two loops, on one of two nodes.
        let shards: Vec<Shard> = (0..64).step_by(4).map(Shard::new).collect();
        let ruler = Ruler::new(shards.clone());
        let count = 1 << 14;
        let ids: BTreeSet<Uuid> = (0..count)
            .map(|number: u64| {
                TaskId::new(
                    at(7),
                    shards[usize::try_from(number % 16).unwrap()],
                    (number / 16) << 52,
                )
                .uuid()
            })
            .collect();
        let mut from = floor_of(at(7));
        for piece in 0..64 {
            let to = ruler.above(from, MILLISECOND / 64);
            assert_eq!(
                ids.range(from..to).count(),
                usize::try_from(count).unwrap() / 64,
                "piece {piece}"
            );
            from = to;
        }
        assert_eq!(from, TaskId::new(at(8), shards[0], 0).uuid());
    }

    proptest! {
        #[test]
        fn a_step_goes_on_and_comes_as_far_as_it_is_wide(
            shards in proptest::collection::btree_set(0_u16..4096, 0..70),
            id: u128,
            width in 0_u128..(3 * MILLISECOND),
        ) {
            let ruler = Ruler::new(shards.into_iter().map(Shard::new));
            // The ruler measures any number, whether or not a task can have it as its id.
            let from = Uuid::from_u128(id % (1 << 120));
            let to = ruler.above(from, width);
            prop_assert!(to > from);
            let unit = (1_u128 << FINENESS) + 1;
            prop_assert!(ruler.width(from, to) <= width.max(unit));
            prop_assert!(ruler.width(from, to) + unit >= width);
        }

        #[test]
        fn the_smallest_steps_come_from_one_id_to_the_next(
            shards in proptest::collection::btree_set(0_u16..4096, 1..70),
            id: u128,
        ) {
            let ruler = Ruler::new(shards.into_iter().map(Shard::new));
            // From any start, a few steps reach ids with a width between them: claims do not creep
            // through numbers that no task can have.
            let mut from = Uuid::from_u128(id % (1 << 100));
            (0..3).for_each(|_| from = ruler.above(from, 1));
            let to = ruler.above(from, 1);
            prop_assert!(ruler.width(from, to) > 0);
        }

        #[test]
        fn what_lies_higher_is_not_measured_lower(
            shards in proptest::collection::btree_set(0_u16..4096, 0..70),
            a: u128,
            b: u128,
        ) {
            let ruler = Ruler::new(shards.into_iter().map(Shard::new));
            // Both ids lie within one millisecond in half of the cases.
            let [a, b] = [a, b].map(|id| Uuid::from_u128(id % (1 << 81)));
            prop_assert_eq!(ruler.width(a.max(b), a.min(b)), 0);
        }

        #[test]
        fn each_id_of_a_shard_has_a_place_of_its_own(
            shards in proptest::collection::btree_set(0_u16..4096, 1..70),
            random: u64,
            pick: usize,
        ) {
            let shards: Vec<Shard> = shards.into_iter().map(Shard::new).collect();
            let ruler = Ruler::new(shards.clone());
            let id = TaskId::new(at(9), shards[pick % shards.len()], random | 1).uuid();
            prop_assert_eq!(ruler.id_at(ruler.position(id)), id);
        }
    }
}
