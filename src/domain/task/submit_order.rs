//! The order of submits, as it stands in the ids of tasks of one key that are due at the same time.
//!
//! An id has 56 bits for it, in which a later submit is the higher number. They tell how far ahead of its due time a task was submitted, the far ones first:
//!
//! ```text
//!   6 bits    the power of two of that span (in 1/512 us, from 2^16 on), inverted
//!   50 bits   what the span is beyond that power, inverted: as many bits as the power has, the rest is random
//! ```
//!
//! So a task that is due soon has many random bits, and one that is due in years has none but those of its moment: of the 1/512 us, 9 bits are random.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::domain::Timestamp;

/// Bits of an id that say when its task was submitted.
pub(in crate::domain) const ORDER_BITS: u32 = 56;
const SPAN_BITS: u32 = 50;
/// A moment is counted in microseconds and so many random bits.
const CHANCE_BITS: u32 = 9;
/// The least span that is told apart: 128 us.
const SPAN_MIN: u32 = 16;
/// Spans are measured to so much after the due time: what is overdue is due in the millisecond of its submit, which may have begun before.
const MARGIN: Duration = Duration::from_micros(1 << 16);
/// Submits of one moment follow each other by three times so much at most: an eighth of a microsecond.
const STEP_MIN: u64 = 64;
/// The order runs ahead of the clock by so much at most. It does when more than four million tasks are submitted in a second, or the clock was set back.
const AHEAD_MAX: u64 = 32_000 << CHANCE_BITS;

/// Where a submit stands in the order of all: its moment of the cluster's clock in 1/512 us.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position(u64);

/// Gives each submit of a node a position above those of all before.
#[derive(Debug, Default)]
pub struct SubmitOrder {
    last: AtomicU64,
}

impl SubmitOrder {
    /// The position of a task that is submitted `now` and due at `due_at`: above all before, and by so much that two tasks due at the same time never have the
    /// same order in their ids.
    pub fn next(&self, now: Timestamp, due_at: Timestamp, random: u64) -> Position {
        let fresh = (micros(now) << CHANCE_BITS) | (random & ((1 << CHANCE_BITS) - 1));
        let coarse = span_of(due_at, Position(fresh)).ilog2().saturating_sub(SPAN_BITS);
        let step_min = STEP_MIN.max(1 << coarse);
        let step = step_min + (random >> CHANCE_BITS) % (2 * step_min);
        let next = |last: u64| {
            let has_run_ahead = last > fresh.saturating_add(AHEAD_MAX);
            if has_run_ahead { fresh } else { fresh.max(last.saturating_add(step)) }
        };
        // Nothing else is handed over by it.
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        Position(next(last.unwrap_or_else(|last| last)))
    }
}

/// The order of a task due at `due_at` among those due then: [`ORDER_BITS`] bits, of which the lowest may be from `random`.
pub(in crate::domain) fn order_of(due_at: Timestamp, position: Position, random: u64) -> u64 {
    let span = span_of(due_at, position);
    let power = span.ilog2();
    let beyond = span - (1 << power);
    let (beyond, free) = match SPAN_BITS.checked_sub(power) {
        Some(free) => (beyond << free, (1_u64 << free) - 1),
        None => (beyond >> (power - SPAN_BITS), 0),
    };
    let span = (u64::from(power - SPAN_MIN) << SPAN_BITS) | u64::try_from(beyond).unwrap_or(0);
    let inverted = !span & ((1 << ORDER_BITS) - 1);
    (inverted & !free) | (random & free)
}

/// How far ahead of its due time a task has its position, in 1/512 us: 2^16 at least, less than 2^69.
fn span_of(due_at: Timestamp, position: Position) -> u128 {
    let end = u128::from(micros(due_at.plus(MARGIN))) << CHANCE_BITS;
    end.saturating_sub(u128::from(position.0)).max(1 << SPAN_MIN)
}

fn micros(at: Timestamp) -> u64 {
    // Until the year 3111; after that all submits are of one moment.
    u64::try_from(at.as_micros()).unwrap_or(0).min(u64::MAX >> CHANCE_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_800_000_000_000_000;
    const YEAR: i64 = 365 * 86_400_000_000;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    /// How far ahead: of any power of two, up to 36 years.
    fn ahead() -> impl Strategy<Value = i64> {
        (0_u32..=50).prop_flat_map(|power| 0..=(1_i64 << power)).prop_map(|ahead| ahead.min(36 * YEAR))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn a_later_submit_is_higher_among_those_due_at_the_same_time(
            ahead in ahead(),
            // Microseconds between one submit and the next: none in a bulk.
            gaps in prop::collection::vec(prop_oneof![3 => Just(0_i64), 2 => 0_i64..100, 1 => 0_i64..1_000_000_000], 2..60),
        ) {
            let order = SubmitOrder::default();
            let due_at = at(NOW + ahead).floor_millis();
            let (mut now, mut before) = (NOW, None);
            for gap in gaps {
                now += gap;
                // What is overdue is due in the millisecond of its submit.
                if at(now).floor_millis() > due_at {
                    break;
                }
                let own = order_of(due_at, order.next(at(now), due_at, rand::random()), rand::random());
                prop_assert!(own < 1 << ORDER_BITS);
                prop_assert!(before < Some(own), "{before:?} before {own}");
                before = Some(own);
            }
        }

        #[test]
        fn a_submit_two_microseconds_later_on_another_node_is_higher(ahead in 1_000_i64..5 * YEAR, random: [u64; 4]) {
            let due_at = at(NOW + ahead).ceil_millis();
            let order = |now, random: &[u64]| order_of(due_at, SubmitOrder::default().next(at(now), due_at, random[0]), random[1]);
            // Within a microsecond, a moment is random.
            prop_assert!(order(NOW, &random[..2]) < order(NOW + 2, &random[2..]));
        }
    }

    #[test]
    fn ten_thousand_of_one_moment_run_ahead_of_the_clock_by_milliseconds_and_are_all_different() {
        for ahead in [0, 1_000_000, YEAR, 5 * YEAR, 30 * YEAR] {
            let (order, due_at) = (SubmitOrder::default(), at(NOW + ahead));
            let positions: Vec<Position> = (0..10_000).map(|_| order.next(at(NOW), due_at, rand::random())).collect();
            let orders: BTreeSet<u64> = positions.iter().map(|position| order_of(due_at, *position, 0)).collect();
            assert_eq!(orders.len(), positions.len(), "{ahead}");
            assert!(orders.iter().copied().eq(positions.iter().map(|position| order_of(due_at, *position, 0))));
            let ran_ahead = (positions[9_999].0 >> CHANCE_BITS) - micros(at(NOW));
            assert!(ran_ahead < 16_000, "by {ran_ahead} us");
        }
    }

    #[test]
    fn after_the_clock_was_set_back_the_order_follows_it() {
        let order = SubmitOrder::default();
        let before = order.next(at(NOW), at(NOW), 7);
        assert!(order.next(at(NOW - 20_000), at(NOW), 7) > before, "by little: it is still the order of the submits");
        let after = order.next(at(NOW - 5_000_000), at(NOW), 7);
        assert_eq!(after.0 >> CHANCE_BITS, micros(at(NOW - 5_000_000)));
    }

    /// Random bits that are left in the id of a task, to somebody who knows the microsecond of its submit.
    fn chance_of(ahead: i64) -> u32 {
        let power = span_of(at(NOW + ahead), Position(micros(at(NOW)) << CHANCE_BITS)).ilog2();
        SPAN_BITS + CHANCE_BITS - power
    }

    #[test]
    fn what_is_claimed_as_it_is_inserted_keeps_32_random_bits_and_what_is_due_in_five_years_three() {
        assert_eq!(
            [0, 200_000, 60_000_000, 3_600_000_000, 86_400_000_000, YEAR, 5 * YEAR].map(chance_of),
            [34, 32, 25, 19, 14, 6, 3]
        );
    }
}
