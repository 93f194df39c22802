//! The order of submits, encoded in the ids of tasks of one key due at the same time.
//!
//! An id has 56 bits for the order, and a later submit has the higher number. The bits say how far
//! ahead of its due time a task was submitted. The tasks submitted furthest ahead come first:
//!
//! ```text
//!   6 bits    the power of two of that span (in 1/512 us, from 2^16 on), inverted
//!   50 bits   the rest of the span beyond that power, inverted: as many bits as the power has.
//!             The other bits are random
//! ```
//!
//! So a task that is due soon has many random bits. A task due in years has only the random bits of
//! its moment: 9 bits of the 1/512 us are random.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::domain::Timestamp;

/// Number of bits of an id that encode the time of the submit.
pub(in crate::domain) const ORDER_BITS: u32 = 56;
const SPAN_BITS: u32 = 50;
/// Number of random bits that extend the microseconds of a moment.
const CHANCE_BITS: u32 = 9;
/// The smallest span that is distinguished, as a power of two of 1/512 us: 128 us.
const SPAN_MIN: u32 = 16;
/// Spans end this long after the due time. An overdue task is due in the millisecond of the submit,
/// and the millisecond may have begun before.
const MARGIN: Duration = Duration::from_micros(1 << 16);
/// Minimum step between two submits of one moment: an eighth of a microsecond. A step is at most
/// three times as long.
const STEP_MIN: u64 = 64;
/// Maximum lead of the order over the clock. The order runs ahead when more than four million tasks
/// are submitted in a second, or when the clock was set back.
const AHEAD_MAX: u64 = 32_000 << CHANCE_BITS;

/// The position of a submit in the order of all submits: its moment of the cluster's clock in 1/512
/// us.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position(u64);

/// Gives each submit of a node a position above all earlier positions.
#[derive(Debug, Default)]
pub struct SubmitOrder {
    last: AtomicU64,
}

impl SubmitOrder {
    /// Returns the position of a task submitted `now` and due at `due_at`, above all earlier
    /// positions. The distance is large enough for two tasks with the same due time to have
    /// different orders in their ids.
    pub fn next(&self, now: Timestamp, due_at: Timestamp, random: u64) -> Position {
        let fresh = (micros(now) << CHANCE_BITS) | (random & ((1 << CHANCE_BITS) - 1));
        let coarse = span_of(due_at, Position(fresh)).ilog2().saturating_sub(SPAN_BITS);
        let step_min = STEP_MIN.max(1 << coarse);
        let step = step_min + (random >> CHANCE_BITS) % (2 * step_min);
        let next = |last: u64| {
            let has_run_ahead = last > fresh.saturating_add(AHEAD_MAX);
            if has_run_ahead { fresh } else { fresh.max(last.saturating_add(step)) }
        };
        // Relaxed is enough: the atomic publishes no other data.
        let last =
            self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        Position(next(last.unwrap_or_else(|last| last)))
    }
}

/// Returns the order of a task among the tasks due at `due_at`: [`ORDER_BITS`] bits, of which the
/// lowest may come from `random`.
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

/// Returns how far ahead of its due time a task has its position, in 1/512 us: at least 2^16, less
/// than 2^69.
fn span_of(due_at: Timestamp, position: Position) -> u128 {
    let end = u128::from(micros(due_at.plus(MARGIN))) << CHANCE_BITS;
    end.saturating_sub(u128::from(position.0)).max(1 << SPAN_MIN)
}

fn micros(at: Timestamp) -> u64 {
    // Valid until the year 3111. After that all submits have the same moment.
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

    /// Distances to the due time, of any power of two, up to 36 years.
    fn ahead() -> impl Strategy<Value = i64> {
        (0_u32..=50)
            .prop_flat_map(|power| 0..=(1_i64 << power))
            .prop_map(|ahead| ahead.min(36 * YEAR))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn a_later_submit_is_higher_among_those_due_at_the_same_time(
            ahead in ahead(),
            // Microseconds between one submit and the next. The gap is 0 in a bulk submit.
            gaps in prop::collection::vec(
                prop_oneof![3 => Just(0_i64), 2 => 0_i64..100, 1 => 0_i64..1_000_000_000],
                2..60,
            ),
        ) {
            let order = SubmitOrder::default();
            let due_at = at(NOW + ahead).floor_millis();
            let (mut now, mut before) = (NOW, None);
            for gap in gaps {
                now += gap;
                // An overdue task is due in the millisecond of its submit.
                if at(now).floor_millis() > due_at {
                    break;
                }
                let own =
                    order_of(due_at, order.next(at(now), due_at, rand::random()), rand::random());
                prop_assert!(own < 1 << ORDER_BITS);
                prop_assert!(before < Some(own), "{before:?} before {own}");
                before = Some(own);
            }
        }

        #[test]
        fn a_submit_two_microseconds_later_on_another_node_is_higher(
            ahead in 1_000_i64..5 * YEAR,
            random: [u64; 4],
        ) {
            let due_at = at(NOW + ahead).ceil_millis();
            let order = |now, random: &[u64]| {
                order_of(due_at, SubmitOrder::default().next(at(now), due_at, random[0]), random[1])
            };
            // Within a microsecond, a moment is random.
            prop_assert!(order(NOW, &random[..2]) < order(NOW + 2, &random[2..]));
        }
    }

    #[test]
    fn ten_thousand_of_one_moment_run_ahead_of_the_clock_by_milliseconds_and_are_all_different() {
        for ahead in [0, 1_000_000, YEAR, 5 * YEAR, 30 * YEAR] {
            let (order, due_at) = (SubmitOrder::default(), at(NOW + ahead));
            let positions: Vec<Position> =
                (0..10_000).map(|_| order.next(at(NOW), due_at, rand::random())).collect();
            let orders: BTreeSet<u64> =
                positions.iter().map(|position| order_of(due_at, *position, 0)).collect();
            assert_eq!(orders.len(), positions.len(), "{ahead}");
            assert!(
                orders
                    .iter()
                    .copied()
                    .eq(positions.iter().map(|position| order_of(due_at, *position, 0)))
            );
            let ran_ahead = (positions[9_999].0 >> CHANCE_BITS) - micros(at(NOW));
            assert!(ran_ahead < 16_000, "by {ran_ahead} us");
        }
    }

    #[test]
    fn after_the_clock_was_set_back_the_order_follows_it() {
        let order = SubmitOrder::default();
        let before = order.next(at(NOW), at(NOW), 7);
        assert!(
            order.next(at(NOW - 20_000), at(NOW), 7) > before,
            "by little: it is still the order of the submits"
        );
        let after = order.next(at(NOW - 5_000_000), at(NOW), 7);
        assert_eq!(after.0 >> CHANCE_BITS, micros(at(NOW - 5_000_000)));
    }

    /// Returns how many bits of a task's id stay random to an observer who knows the microsecond of
    /// its submit.
    fn chance_of(ahead: i64) -> u32 {
        let power = span_of(at(NOW + ahead), Position(micros(at(NOW)) << CHANCE_BITS)).ilog2();
        SPAN_BITS + CHANCE_BITS - power
    }

    #[test]
    fn what_is_claimed_as_it_is_inserted_keeps_32_random_bits_and_what_is_due_in_five_years_three()
    {
        assert_eq!(
            [0, 200_000, 60_000_000, 3_600_000_000, 86_400_000_000, YEAR, 5 * YEAR].map(chance_of),
            [34, 32, 25, 19, 14, 6, 3]
        );
    }
}
