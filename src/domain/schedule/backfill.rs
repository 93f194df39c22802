//! The instants of the past for which a caller asks runs.
//!
//! A backfill makes the missing runs, so a backfill may be repeated. The row of each run outlives
//! [`AGE_MAX`], and proves the run.

use std::time::Duration;

use super::timing::{SpecificationError, Timing};
use crate::domain::Timestamp;

/// The most runs of one backfill.
pub const RUNS_MAX: usize = 1_000;
/// The most bytes of the records of one backfill, unless there is only one.
pub const BYTES_MAX: usize = 16 << 20;
/// How far a backfill reaches back.
pub const AGE_MAX: Duration = Duration::from_hours(7 * 24);

/// Returns the instants of a schedule from `from` to before `to`. It is unknown which runs were
/// made before `known_from`.
///
/// # Errors
/// When the range is empty, reaches too far back or into the future, or has too many instants.
pub fn instants(
    timing: &Timing,
    (from, to): (Timestamp, Timestamp),
    known_from: Timestamp,
    now: Timestamp,
) -> Result<Vec<Timestamp>, SpecificationError> {
    if to <= from {
        let reason = format!("the end, {to}, is not after from, {from}");
        return Err(SpecificationError::new("to", reason));
    }
    if to > now {
        let reason = "a backfill is of the past; the schedule itself makes later runs";
        return Err(SpecificationError::new("to", reason));
    }
    if from < now.minus(AGE_MAX) {
        let reason = format!("expected {} or later: at most 7 days ago", now.minus(AGE_MAX));
        return Err(SpecificationError::new("from", reason));
    }
    if from < known_from {
        let reason = format!(
            "expected {known_from} or later: runs before that were made by an older version, which \
             did not keep note of them"
        );
        return Err(SpecificationError::new("from", reason));
    }
    // The search ends at the first instant that is not of the range.
    let found: Vec<Timestamp> = timing
        .instants_after(from.minus(Duration::from_millis(1)))
        .skip_while(|at| *at < from)
        .take_while(|at| *at < to)
        .take(RUNS_MAX + 1)
        .collect();
    if found.len() > RUNS_MAX {
        let reason = format!("the range has more than {RUNS_MAX} runs; backfill it in parts");
        return Err(SpecificationError::new("to", reason));
    }
    Ok(found)
}

/// Refuses runs whose records, of `record_bytes` each, are too large together.
///
/// # Errors
/// Says how many runs may be made at once.
pub fn check_bytes(runs: usize, record_bytes: usize) -> Result<(), SpecificationError> {
    let runs_max = (BYTES_MAX / record_bytes.max(1)).max(1);
    if runs <= runs_max {
        return Ok(());
    }
    let reason = format!(
        "the range has {runs} runs of {record_bytes} bytes; expected {BYTES_MAX} bytes at most, or \
         {runs_max} runs; backfill it in parts"
    );
    Err(SpecificationError::new("to", reason))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::schedule::cron::Cron;
    use crate::domain::schedule::timing::{Gap, Overlap, Recurrence};
    use crate::domain::schedule::zone::Zone;

    const NOW: i64 = 1_800_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis((NOW + second) * 1000)
    }

    fn secondly(from: i64, to: i64) -> Result<Vec<Timestamp>, &'static str> {
        let recurrence = Recurrence::every(Duration::from_secs(1), Duration::ZERO).unwrap();
        let timing = Timing::new(recurrence, None, None, BTreeSet::new()).unwrap();
        instants(&timing, (at(from), at(to)), at(-86_400 * 8), at(0)).map_err(|error| error.field)
    }

    #[test]
    fn a_range_has_its_first_instant_and_not_its_end() {
        assert_eq!(secondly(-3, -1), Ok(vec![at(-3), at(-2)]));
        assert_eq!(secondly(-1000, 0).map(|found| found.len()), Ok(1_000));
    }

    #[test]
    fn a_range_that_is_empty_or_too_long_or_not_of_the_last_days_is_refused() {
        assert_eq!(secondly(-1, -1), Err("to"));
        assert_eq!(secondly(-1, 1), Err("to"));
        assert_eq!(secondly(-1_001, 0), Err("to"));
        assert_eq!(secondly(-7 * 86_400 - 1, -7 * 86_400), Err("from"));
        assert!(secondly(-7 * 86_400, 1 - 7 * 86_400).is_ok());
    }

    #[test]
    fn the_records_of_a_range_have_a_limited_size_and_one_run_is_always_made() {
        let mib = 1 << 20;
        assert!(check_bytes(RUNS_MAX, 0).is_ok() && check_bytes(16, mib).is_ok());
        let error = check_bytes(17, mib).unwrap_err();
        assert!(error.field == "to" && error.reason.contains("16 runs"), "{}", error.reason);
        assert!(check_bytes(1, 100 * mib).is_ok() && check_bytes(2, 100 * mib).is_err());
    }

    #[test]
    fn a_range_that_begins_within_a_millisecond_leaves_out_its_instant() {
        let recurrence = Recurrence::every(Duration::from_secs(1), Duration::ZERO).unwrap();
        let timing = Timing::new(recurrence, None, None, BTreeSet::new()).unwrap();
        let from = at(-3).plus(Duration::from_micros(500));
        assert_eq!(instants(&timing, (from, at(-1)), at(-9), at(0)).unwrap(), [at(-2)]);
        let count_from = |second: i64| {
            let from = at(second).plus(Duration::from_micros(500));
            instants(&timing, (from, at(0)), at(-9_999), at(0)).map(|found| found.len())
        };
        assert_eq!(count_from(-1_001), Ok(1_000));
        assert!(count_from(-1_002).is_err(), "the last run of the range is not left out silently");
    }

    #[test]
    fn a_range_between_two_rare_instants_has_none() {
        let cron = Cron::parse("0 0 29 2 *", false).unwrap();
        let zone = Zone::named("UTC").unwrap();
        let (gap, overlap) = (Gap::default(), Overlap::default());
        let recurrence = Recurrence::Cron { cron, zone, gap, overlap };
        let timing = Timing::new(recurrence, None, None, BTreeSet::new()).unwrap();
        let found = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|text| Timestamp::of_rfc3339(text).unwrap());
            instants(&timing, (from, to), Timestamp::EPOCH, to).unwrap().len()
        };
        assert_eq!(found("2027-01-18T00:00:00Z", "2027-01-20T00:00:00Z"), 0);
        assert_eq!(found("2028-02-28T00:00:00Z", "2028-03-02T00:00:00Z"), 1);
    }

    #[test]
    fn runs_of_which_no_note_was_kept_are_not_made_again() {
        let recurrence = Recurrence::every(Duration::from_secs(1), Duration::ZERO).unwrap();
        let timing = Timing::new(recurrence, None, None, BTreeSet::new()).unwrap();
        let from = |known: i64| {
            instants(&timing, (at(-5), at(0)), at(known), at(0)).map_err(|error| error.field)
        };
        assert_eq!(from(-4), Err("from"));
        assert_eq!(from(-5).map(|found| found.len()), Ok(5));
    }
}
