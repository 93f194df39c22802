//! The arithmetic of a sample: how many pages of each leaf it reads, and which ones.

use az::SaturatingAs as _;

/// The golden ratio. Its multiples are spread evenly, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Returns the share of `budget` for `pages` out of `all`, at least one.
pub(super) fn share_of(pages: u64, all: u64, budget: u64) -> u64 {
    let share = u128::from(pages) * u128::from(budget) / u128::from(all.max(1));
    share.saturating_as::<u64>().clamp(1, pages.max(1)).min(pages)
}

/// Returns the start of a stratum's sample, from 0 to 1. Leaves that were filled in the same order
/// are alike, so with one start for all, their errors would add up.
pub(super) fn chance_of(stratum: usize, chance: f64) -> f64 {
    (chance + GOLDEN * real(stratum.saturating_as())).fract()
}

/// Returns `count` evenly spread numbers below `pages`.
pub(super) fn spread(pages: u64, count: u64, chance: f64) -> impl Iterator<Item = u64> {
    // Calculated in thousandths of a page, in whole numbers.
    let shift = u128::from(whole(chance.clamp(0.0, 0.999) * 1000.0));
    let place = move |index: u64| {
        (u128::from(index) * 1000 + shift) * u128::from(pages) / (u128::from(count.max(1)) * 1000)
    };
    (0..count).map(move |index| place(index).saturating_as::<u64>())
}

#[expect(
    clippy::as_conversions,
    reason = "a count of tasks is far below 2^53, where a float ceases to be exact"
)]
pub(super) fn real(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float becomes the nearest whole number, and no negative one comes here"
)]
pub(super) fn whole(count: f64) -> u64 {
    count.round() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_of_a_sample_are_different_ones_of_the_table(
            pages in 1_u64..5_000_000,
            budget in 1_u64..2000,
            chance in 0.0..1.0,
        ) {
            let share = share_of(pages, pages, budget);
            let chosen: Vec<u64> = spread(pages, share, chance).collect();
            prop_assert_eq!(u64::try_from(chosen.len()), Ok(budget.min(pages)));
            prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(chosen.iter().all(|page| *page < pages));
        }
    }

    /// Leaves of 100 pages: the first 50 have 2 rows each, the others none. Three are read.
    #[test]
    fn leaves_that_are_alike_do_not_add_their_errors_up() {
        for start in [0.0, 0.3, 0.6, 0.9] {
            let rows_of = |leaf| {
                let pages = spread(100, 3, chance_of(leaf, start));
                pages.filter(|page| *page < 50).count() * 2 * 100 / 3
            };
            let rows: usize = (0..32).map(rows_of).sum();
            assert!(rows.abs_diff(32 * 100) < 32 * 100 / 20, "{rows} rows from {start}");
        }
    }

    #[test]
    fn each_stratum_is_seen_and_no_more_than_all_of_it() {
        assert_eq!(
            (share_of(0, 10, 5), share_of(1, 1_000_000, 5), share_of(3, 3, 1000)),
            (0, 1, 3)
        );
        assert_eq!(share_of(500_000, 1_000_000, 1000), 500);
    }
}
