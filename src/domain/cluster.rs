//! Settings that all nodes of a cluster must agree on.

use std::time::Duration;

use thiserror::Error;

use super::ShardCount;
use super::time::duration::spelled;

/// Settings of the whole cluster: given to `migrate`, stored in the database, and the same on all
/// nodes. `shards` and `leaf` never change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterSettings {
    pub shards: ShardCount,
    /// Width of a leaf: whole seconds, from 1 s to 1 day, and a divisor of a day.
    pub leaf: Duration,
    /// How far ahead leaves exist: at least one leaf and twice the window, at most 300 leaves.
    pub horizon: Duration,
    /// How far ahead of their due time tasks are claimed: 20 ms to 10 s.
    pub window: Duration,
}

/// The settings passed to `migrate`. `None` keeps the stored value, or takes the default in a new
/// database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClusterWishes {
    pub shards: Option<ShardCount>,
    /// Whole milliseconds, like the next two.
    pub leaf: Option<Duration>,
    pub horizon: Option<Duration>,
    pub window: Option<Duration>,
}

const DAY: Duration = Duration::from_secs(86_400);
const LEAF_MIN: Duration = Duration::from_secs(1);
/// Every leaf costs planning time and locks: 2,000 leaves cost 14 ms per claim with a generic plan.
pub const LEAVES_MAX: u32 = 300;
const WINDOW_MIN: Duration = Duration::from_millis(20);
pub const WINDOW_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ClusterSettingsError {
    #[error("--leaf: must be 1 s to 1 day, in whole seconds, and divide a day; not \
             {}", spelled(*.0))]
    Leaf(Duration),
    #[error(
        "--horizon: must be at most {LEAVES_MAX} leaves, that is {}; not {}",
        spelled(*horizon_max),
        spelled(*horizon)
    )]
    HorizonTooFar { horizon: Duration, horizon_max: Duration },
    #[error(
        "--horizon: must be at least one leaf and twice the window, that is {}; not {}",
        spelled(*horizon_min),
        spelled(*horizon)
    )]
    HorizonTooNear { horizon: Duration, horizon_min: Duration },
    #[error(
        "--window: must be {WINDOW_MIN:?} to {WINDOW_MAX:?} in whole milliseconds; not {}",
        spelled(*.0)
    )]
    Window(Duration),
}

impl ClusterSettings {
    pub const DEFAULT: Self = Self {
        shards: ShardCount::DEFAULT,
        leaf: Duration::from_secs(15 * 60),
        horizon: Duration::from_secs(3 * 86_400),
        window: Duration::from_millis(200),
    };

    /// Returns these settings with the requested changes, or every problem of the result.
    pub fn with(self, wishes: ClusterWishes) -> Result<Self, Vec<ClusterSettingsError>> {
        let mut problems = Vec::new();
        let settings = Self {
            shards: wishes.shards.unwrap_or(self.shards),
            leaf: wishes.leaf.unwrap_or(self.leaf),
            horizon: wishes.horizon.unwrap_or(self.horizon),
            window: wishes.window.unwrap_or(self.window),
        };
        settings.find_problems(&mut problems);
        if problems.is_empty() { Ok(settings) } else { Err(problems) }
    }

    fn find_problems(&self, problems: &mut Vec<ClusterSettingsError>) {
        let Self { leaf, horizon, window, .. } = *self;
        let is_leaf = is_leaf(leaf);
        if !is_leaf {
            problems.push(ClusterSettingsError::Leaf(leaf));
        }
        if window < WINDOW_MIN
            || window > WINDOW_MAX
            || !window.subsec_nanos().is_multiple_of(1_000_000)
        {
            problems.push(ClusterSettingsError::Window(window));
        }
        let horizon_max = leaf.saturating_mul(LEAVES_MAX);
        let horizon_min = leaf.max(window.saturating_mul(2));
        if is_leaf && horizon > horizon_max {
            problems.push(ClusterSettingsError::HorizonTooFar { horizon, horizon_max });
        }
        if is_leaf && horizon < horizon_min {
            problems.push(ClusterSettingsError::HorizonTooNear { horizon, horizon_min });
        }
    }
}

/// Returns true if a leaf may have this width: whole seconds, from 1 s to 1 day, and a divisor of a
/// day.
pub fn is_leaf(width: Duration) -> bool {
    width >= LEAF_MIN
        && width <= DAY
        && width.subsec_nanos() == 0
        && DAY.as_secs().is_multiple_of(width.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_the_limits() {
        assert_eq!(
            ClusterSettings::DEFAULT.with(ClusterWishes::default()),
            Ok(ClusterSettings::DEFAULT)
        );
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let wishes = ClusterWishes {
            leaf: Some(Duration::from_secs(7)),
            window: Some(Duration::from_secs(11)),
            ..ClusterWishes::default()
        };
        let problems = ClusterSettings::DEFAULT.with(wishes).unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn a_horizon_has_at_most_300_leaves_and_at_least_one() {
        let horizon = |seconds| ClusterWishes {
            leaf: Some(Duration::from_secs(2)),
            horizon: Some(Duration::from_secs(seconds)),
            ..ClusterWishes::default()
        };
        assert!(ClusterSettings::DEFAULT.with(horizon(600)).is_ok());
        assert!(ClusterSettings::DEFAULT.with(horizon(2)).is_ok());
        for seconds in [1, 601] {
            assert!(ClusterSettings::DEFAULT.with(horizon(seconds)).is_err());
        }
    }
}
