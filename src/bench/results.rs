//! The results of runs: distributions, the report, its pictures. Also converts whole numbers to
//! fractions. The conversion is exact up to 2^53, which no number here reaches.

use az::SaturatingAs as _;

pub mod quantiles;
pub mod report;
pub mod svg;

/// Converts `number` to a fraction.
pub fn float(number: u64) -> f64 {
    let low = (number & u64::from(u32::MAX)).saturating_as::<u32>();
    let high = (number >> 32).saturating_as::<u32>();
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

pub fn float_of(count: usize) -> f64 {
    float(count.saturating_as::<u64>())
}

/// Returns `count` divided by `of`, or zero when `of` is zero.
pub fn ratio(count: f64, of: f64) -> f64 {
    if of > 0.0 { count / of } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_stay_what_they_are() {
        assert_eq!(float(7 + (5 << 32)), 21_474_836_487.0);
    }
}
