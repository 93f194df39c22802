//! Decides which partitions must exist, and which may be dropped. The catalog of Postgres is the
//! authority on existing partitions.
//!
//! ```text
//!          past: may go            now          contiguous, attached             end
//!   ---|--------|--------|----------|----|-----|-----|-----|-----|-----|-----|----|--- - - -
//!                         <- grace ->     insert and mover stay within              task_far
//! ```
//!
//! A partition is named after table and start, for example `task_20261121_091500`. All partitions
//! of a table have the same width, so the name describes the partition completely.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use az::SaturatingAs as _;

use super::{ClusterSettings, Timestamp};

/// A table that is partitioned by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Parent {
    Task,
    ExeclogBatch,
    ExeclogPayload,
    ExeclogCancelled,
    ExeclogRedriven,
    ExeclogEnded,
    ExeclogDropped,
    ExeclogFinished,
    ExeclogAttempt,
}

impl Parent {
    pub const ALL: [Self; 9] = [
        Self::Task,
        Self::ExeclogBatch,
        Self::ExeclogPayload,
        Self::ExeclogCancelled,
        Self::ExeclogRedriven,
        Self::ExeclogEnded,
        Self::ExeclogDropped,
        Self::ExeclogFinished,
        Self::ExeclogAttempt,
    ];

    pub const fn table(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::ExeclogBatch => "execlog_batch",
            Self::ExeclogPayload => "execlog_payload",
            Self::ExeclogCancelled => "execlog_cancelled",
            Self::ExeclogRedriven => "execlog_redriven",
            Self::ExeclogEnded => "execlog_ended",
            Self::ExeclogDropped => "execlog_dropped",
            Self::ExeclogFinished => "execlog_finished",
            Self::ExeclogAttempt => "execlog_attempt",
        }
    }
}

/// A partition: a leaf, a day or an hour.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Partition {
    pub parent: Parent,
    pub start: Timestamp,
}

impl Partition {
    pub fn name(self) -> String {
        let seconds = self.start.as_millis().div_euclid(1000);
        let (year, month, day) = date_of(seconds.div_euclid(86_400));
        let second = seconds.rem_euclid(86_400);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let mut name = String::with_capacity(40);
        // Writing to a `String` never fails.
        let written = write!(
            name,
            "{}_{year:04}{month:02}{day:02}_{hour:02}{minute:02}{:02}",
            self.parent.table(),
            second % 60
        );
        debug_assert!(written.is_ok());
        name
    }

    /// Returns the partition of `parent` with this name, or `None` when the name is not one of
    /// ours.
    pub fn of_name(parent: Parent, name: &str) -> Option<Self> {
        let (date, time) = name.strip_prefix(parent.table())?.strip_prefix('_')?.split_once('_')?;
        let number = |text: &str, from: usize, to: usize| {
            text.get(from..to).and_then(|digits| digits.parse::<i64>().ok())
        };
        let (month_at, hours) = (date.len().checked_sub(4)?, number(time, 0, 2)?);
        let (year, month, day) = (
            number(date, 0, month_at)?,
            number(date, month_at, month_at + 2)?,
            number(date, month_at + 2, date.len())?,
        );
        let seconds = days_of(year, month, day) * 86_400
            + hours * 3600
            + number(time, 2, 4)? * 60
            + number(time, 4, time.len())?;
        let partition = Self { parent, start: Timestamp::from_millis(seconds.checked_mul(1000)?) };
        // Every partition has exactly one spelling.
        (partition.name() == name).then_some(partition)
    }
}

/// Converts days since the epoch to year, month and day (Gregorian), after Howard Hinnant's
/// `civil_from_days`. Years begin in March, so that a leap day ends a year.
fn date_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The inverse of [`date_of`].
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let march_year = if month <= 2 { year - 1 } else { year };
    let era = march_year.div_euclid(400);
    let year_of_era = march_year.rem_euclid(400);
    let march_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Widths of partitions, how far ahead they are created, and how long they are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    pub leaf: Duration,
    pub horizon: Duration,
    /// How long a leaf is kept after its end. Longer than the deadline of any insert: an inserted
    /// task is due when its statement began, at the earliest.
    pub leaf_grace: Duration,
    /// How long payloads are kept after the end of their hour. A setting of the node, like the next
    /// one; without the setting, for ever.
    pub payload_retention: Duration,
    /// How long receipts are kept after the end of their day.
    pub receipt_retention: Duration,
    /// Limits how far ahead partitions are created. Without a limit, an outage of days does no
    /// harm.
    pub ahead_max: Duration,
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
/// A node's estimate of the cluster's clock is behind by less than this, so its batches may belong
/// to the previous partition.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

impl Rules {
    pub fn new(cluster: &ClusterSettings) -> Self {
        Self {
            leaf: cluster.leaf,
            horizon: cluster.horizon,
            leaf_grace: Duration::from_secs(60),
            payload_retention: Duration::MAX,
            receipt_retention: Duration::MAX,
            ahead_max: Duration::MAX,
        }
    }

    pub fn width(&self, parent: Parent) -> Duration {
        match parent {
            Parent::Task => self.leaf,
            Parent::ExeclogPayload => HOUR,
            Parent::ExeclogBatch
            | Parent::ExeclogCancelled
            | Parent::ExeclogRedriven
            | Parent::ExeclogEnded
            | Parent::ExeclogDropped
            | Parent::ExeclogFinished
            | Parent::ExeclogAttempt => DAY,
        }
    }

    /// Returns how often partitions are maintained: every minute, or as often as a leaf ends.
    pub fn interval(&self) -> Duration {
        self.leaf.min(Duration::from_secs(60))
    }

    /// Returns how far ahead of now partitions must exist.
    pub fn ahead(&self, parent: Parent) -> Duration {
        let ahead = match parent {
            // An hour more than the horizon. With short leaves four leaves more, but at least two
            // minutes, because a follow-up is due up to a minute ahead.
            Parent::Task => self.horizon + (self.leaf * 4).clamp(Duration::from_secs(120), HOUR),
            Parent::ExeclogPayload => DAY,
            Parent::ExeclogBatch
            | Parent::ExeclogCancelled
            | Parent::ExeclogRedriven
            | Parent::ExeclogEnded
            | Parent::ExeclogDropped
            | Parent::ExeclogFinished
            | Parent::ExeclogAttempt => DAY * 3,
        };
        ahead.min(self.ahead_max)
    }

    /// Returns how long a partition is kept after its end.
    pub fn kept(&self, parent: Parent) -> Duration {
        match parent {
            Parent::Task => self.leaf_grace,
            Parent::ExeclogPayload => self.payload_retention.max(CLOCK_SLACK),
            Parent::ExeclogBatch
            | Parent::ExeclogCancelled
            | Parent::ExeclogRedriven
            | Parent::ExeclogEnded
            | Parent::ExeclogDropped
            | Parent::ExeclogFinished
            | Parent::ExeclogAttempt => self.receipt_retention.max(CLOCK_SLACK),
        }
    }

    /// Returns the partition that contains `at`.
    pub fn partition_of(&self, parent: Parent, at: Timestamp) -> Partition {
        let width = micros(self.width(parent));
        Partition {
            parent,
            start: Timestamp::from_micros(at.as_micros().div_euclid(width) * width),
        }
    }

    pub fn end_of(&self, partition: Partition) -> Timestamp {
        partition.start.plus(self.width(partition.parent))
    }

    /// Returns the partitions that must exist at `now` and are not attached, in the order of their
    /// creation: after an interruption, the attached ones have no gap.
    pub fn missing(
        &self,
        parent: Parent,
        attached: &BTreeSet<Timestamp>,
        now: Timestamp,
    ) -> Vec<Partition> {
        let back = if parent == Parent::Task { self.leaf_grace } else { CLOCK_SLACK };
        let end = now.plus(self.ahead(parent));
        let first = self.partition_of(parent, now.minus(back));
        std::iter::successors(Some(first), |partition| {
            Some(Partition { parent, start: self.end_of(*partition) })
        })
        .take_while(|partition| partition.start < end)
        .filter(|partition| !attached.contains(&partition.start))
        .collect()
    }

    /// Returns the partitions that are no longer written and no longer needed, oldest first. The
    /// caller checks for rows, or for unsettled ones.
    pub fn past(
        &self,
        parent: Parent,
        attached: &BTreeSet<Timestamp>,
        now: Timestamp,
    ) -> Vec<Partition> {
        let kept = self.kept(parent);
        attached
            .iter()
            .map(|&start| Partition { parent, start })
            .filter(|partition| self.end_of(*partition).plus(kept) < now)
            .collect()
    }

    /// Returns the end of the attached partitions without a gap, starting with the one of `now`.
    /// Returns `now` when that one is missing.
    pub fn end_of_run(
        &self,
        parent: Parent,
        attached: &BTreeSet<Timestamp>,
        now: Timestamp,
    ) -> Timestamp {
        let mut next = self.partition_of(parent, now);
        while attached.contains(&next.start) {
            next.start = self.end_of(next);
        }
        next.start.max(now.floor_millis())
    }
}

fn micros(span: Duration) -> i64 {
    span.as_micros().saturating_as::<i64>().max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules() -> Rules {
        Rules::new(&ClusterSettings::DEFAULT)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn a_partition_is_named_after_its_start() {
        let leaf = Partition { parent: Parent::Task, start: at(1_795_252_500) };
        assert_eq!(leaf.name(), "task_20261121_091500");
        let leap_day = Partition { parent: Parent::ExeclogBatch, start: at(951_782_400) };
        assert_eq!(leap_day.name(), "execlog_batch_20000229_000000");
    }

    #[test]
    fn other_tables_are_no_partitions() {
        for name in [
            "task_far",
            "task_name",
            "task_",
            "task_20261121",
            "task_20261121_0915",
            "task_20261399_091500",
            "task_20261121_091500_old",
        ] {
            assert_eq!(Partition::of_name(Parent::Task, name), None, "{name}");
        }
    }

    #[test]
    fn a_new_database_gets_all_that_a_node_needs() {
        let missing = |parent| rules().missing(parent, &BTreeSet::new(), at(1_795_252_500)).len();
        // The expected numbers include the previous leaf, for inserts that are running. Three days
        // and an hour are 292 leaves.
        assert_eq!(Parent::ALL.map(missing), [1 + 292, 4, 25, 4, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn after_a_long_outage_the_leaves_of_the_past_are_not_made() {
        let attached = BTreeSet::from([at(900), at(1800)]);
        let now = at(1_795_252_500);
        let missing = rules().missing(Parent::Task, &attached, now);
        assert_eq!(
            missing.first().map(|leaf| leaf.start),
            Some(now.minus(Duration::from_secs(900)))
        );
        assert_eq!(rules().end_of_run(Parent::Task, &attached, now), now);
    }

    #[test]
    fn only_what_is_attached_without_a_gap_counts() {
        let attached = BTreeSet::from([at(0), at(900), at(2700)]);
        assert_eq!(rules().end_of_run(Parent::Task, &attached, at(100)), at(1800));
    }

    #[test]
    fn nothing_of_the_execlog_goes_before_somebody_has_said_when() {
        let attached = BTreeSet::from([at(0)]);
        for parent in Parent::ALL.into_iter().filter(|parent| *parent != Parent::Task) {
            assert!(rules().past(parent, &attached, at(1_795_252_500)).is_empty(), "{parent:?}");
        }
    }

    #[test]
    fn a_leaf_may_go_when_no_insert_can_reach_it() {
        let attached = BTreeSet::from([at(0), at(900)]);
        let past = |now| rules().past(Parent::Task, &attached, now).len();
        assert_eq!([past(at(900)), past(at(960)), past(at(961)), past(at(1861))], [0, 0, 1, 2]);
    }

    proptest! {
        #[test]
        fn a_name_tells_its_partition(seconds in 0_i64..253_402_300_799, which in 0_usize..6) {
            let partition = Partition { parent: Parent::ALL[which], start: at(seconds) };
            prop_assert_eq!(
                Partition::of_name(partition.parent, &partition.name()),
                Some(partition)
            );
        }

        #[test]
        fn nothing_goes_that_must_exist(
            now in 100_000_000_i64..4_000_000_000,
            leaf in prop::sample::select(vec![1_u64, 2, 60, 900, 86_400]),
        ) {
            let rules = Rules {
                leaf: Duration::from_secs(leaf),
                horizon: Duration::from_secs(leaf * 10),
                ..rules()
            };
            for parent in Parent::ALL {
                let made: BTreeSet<_> = rules
                    .missing(parent, &BTreeSet::new(), at(now))
                    .iter()
                    .map(|partition| partition.start)
                    .collect();
                prop_assert!(rules.past(parent, &made, at(now)).is_empty());
                prop_assert!(rules.missing(parent, &made, at(now)).is_empty());
                prop_assert!(
                    rules.end_of_run(parent, &made, at(now)) >= at(now).plus(rules.ahead(parent))
                );
            }
        }
    }
}
