//! The results of runs: distributions, the report, its pictures. Also converts whole numbers to
//! fractions. The conversion is exact up to 2^53, which no number here reaches.

pub mod quantiles;
pub mod report;
pub mod svg;

/// Converts `number` to a fraction.
pub fn float(number: u64) -> f64 {
    let low = u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    let high = u32::try_from(number >> 32).unwrap_or(u32::MAX);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

pub fn float_of(count: usize) -> f64 {
    float(u64::try_from(count).unwrap_or(u64::MAX))
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
