//! How a tracked task is retried: its time to run, the number of its attempts, and the wait between
//! two of them.

use std::time::Duration;

use thiserror::Error;

const SECOND: Duration = Duration::from_secs(1);
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
pub const ATTEMPTS_MAX: u16 = 1_000;
pub const FACTOR_MAX: u16 = 100;

/// The time that a consumer has for an attempt, from the append on. A task with it is tracked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ttr(Duration);

#[derive(Debug, Error, PartialEq, Eq)]
#[error("a time to run is 1 s to 7 d, not {} ms", .0.as_millis())]
pub struct TtrError(Duration);

impl Ttr {
    /// # Errors
    /// When `span` is not within 1 s and 7 d.
    pub fn new(span: Duration) -> Result<Self, TtrError> {
        if span < SECOND || span > WEEK { Err(TtrError(span)) } else { Ok(Self(span)) }
    }

    pub fn as_duration(self) -> Duration {
        self.0
    }

    /// Returns how long after the append a deadline is that a consumer extends by `by`, `since` the
    /// append. The limit is 7 d.
    pub fn extended(since: Duration, by: Duration) -> Duration {
        since.saturating_add(by).min(WEEK)
    }
}

/// The number of attempts, and the wait between them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RetryPolicy {
    attempts_max: u16,
    backoff_min: Duration,
    backoff_max: Duration,
    backoff_factor: u16,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum RetryPolicyError {
    #[error("attempts_max is 1 to {ATTEMPTS_MAX}, not {0}")]
    Attempts(u16),
    #[error("backoff_factor is 1 to {FACTOR_MAX}, not {0}")]
    Factor(u16),
    #[error("backoff_max is at most 7 d, not {} ms", .0.as_millis())]
    TooLong(Duration),
    #[error("backoff_min ({} ms) is above backoff_max ({} ms)", min.as_millis(), max.as_millis())]
    Reversed { min: Duration, max: Duration },
}

impl RetryPolicy {
    /// 16 attempts, without a wait after the time to run.
    pub const DEFAULT: Self = Self {
        attempts_max: 16,
        backoff_min: Duration::ZERO,
        backoff_max: Duration::from_secs(3600),
        backoff_factor: 2,
    };

    /// # Errors
    /// When a value is outside its limits.
    pub fn new(
        attempts_max: u16,
        backoff_min: Duration,
        backoff_max: Duration,
        backoff_factor: u16,
    ) -> Result<Self, RetryPolicyError> {
        match () {
            () if !(1..=ATTEMPTS_MAX).contains(&attempts_max) => {
                Err(RetryPolicyError::Attempts(attempts_max))
            }
            () if !(1..=FACTOR_MAX).contains(&backoff_factor) => {
                Err(RetryPolicyError::Factor(backoff_factor))
            }
            () if backoff_max > WEEK => Err(RetryPolicyError::TooLong(backoff_max)),
            () if backoff_min > backoff_max => {
                Err(RetryPolicyError::Reversed { min: backoff_min, max: backoff_max })
            }
            () => Ok(Self { attempts_max, backoff_min, backoff_max, backoff_factor }),
        }
    }

    pub fn attempts_max(self) -> u16 {
        self.attempts_max
    }

    pub fn backoff_min(self) -> Duration {
        self.backoff_min
    }

    pub fn backoff_max(self) -> Duration {
        self.backoff_max
    }

    pub fn backoff_factor(self) -> u16 {
        self.backoff_factor
    }

    /// Returns the wait after attempt number `attempt`, from 1 on, which was not answered:
    /// `backoff_min` x `backoff_factor`^(attempt - 1), at most `backoff_max`. A wait over 1 s is
    /// shortened by up to a quarter. `jitter` (0 to 255) says by how much of that, so that the
    /// tasks of one outage do not come back all at once.
    pub fn wait_after_silence(self, attempt: u16, jitter: u8) -> Duration {
        let mut full = self.backoff_min;
        for _ in 1..attempt {
            if full.is_zero() || full >= self.backoff_max {
                break;
            }
            full = full.saturating_mul(u32::from(self.backoff_factor));
            if self.backoff_factor == 1 {
                break;
            }
        }
        let full = full.min(self.backoff_max);
        if full > SECOND { full - full / 4 / 255 * u32::from(jitter) } else { full }
    }

    /// Returns the wait after a failed attempt: as after silence, and at least 1 s, so that a
    /// consumer that fails at once makes no hot loop.
    pub fn wait_after_failure(self, attempt: u16, jitter: u8) -> Duration {
        self.wait_after_silence(attempt, jitter).max(SECOND)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_time_to_run_is_a_second_to_a_week() {
        for good in [SECOND, WEEK] {
            assert_eq!(Ttr::new(good).map(Ttr::as_duration), Ok(good));
        }
        for bad in [Duration::ZERO, Duration::from_millis(999), WEEK + Duration::from_nanos(1)] {
            assert_eq!(Ttr::new(bad), Err(TtrError(bad)));
        }
        assert_eq!(TtrError(seconds(0)).to_string(), "a time to run is 1 s to 7 d, not 0 ms");
    }

    #[test]
    fn a_deadline_is_extended_to_a_week_after_the_append_at_most() {
        assert_eq!(Ttr::extended(seconds(5), seconds(30)), seconds(35));
        assert_eq!(Ttr::extended(WEEK - SECOND, seconds(30)), WEEK);
        assert_eq!(Ttr::extended(seconds(1), Duration::MAX), WEEK);
    }

    #[test]
    fn a_policy_outside_its_limits_is_refused() {
        let policy = |attempts, min, max, factor| {
            RetryPolicy::new(attempts, seconds(min), seconds(max), factor).err()
        };
        assert_eq!(policy(1, 0, 0, 1), None);
        assert_eq!(policy(1_000, 604_800, 604_800, 100), None);
        assert_eq!(policy(0, 0, 1, 2), Some(RetryPolicyError::Attempts(0)));
        assert_eq!(policy(1_001, 0, 1, 2), Some(RetryPolicyError::Attempts(1_001)));
        assert_eq!(policy(1, 0, 1, 0), Some(RetryPolicyError::Factor(0)));
        assert_eq!(policy(1, 0, 1, 101), Some(RetryPolicyError::Factor(101)));
        assert_eq!(policy(1, 0, 604_801, 2), Some(RetryPolicyError::TooLong(seconds(604_801))));
        let reversed = RetryPolicyError::Reversed { min: seconds(2), max: seconds(1) };
        assert_eq!(policy(1, 2, 1, 2), Some(reversed));
        let RetryPolicy { attempts_max, backoff_min, backoff_max, backoff_factor } =
            RetryPolicy::DEFAULT;
        let default = RetryPolicy::new(attempts_max, backoff_min, backoff_max, backoff_factor);
        assert_eq!(default, Ok(RetryPolicy::DEFAULT));
    }

    #[test]
    fn the_wait_grows_by_the_factor_up_to_its_limit() {
        let policy = RetryPolicy::new(16, seconds(2), seconds(60), 3).unwrap();
        let waits = [1, 2, 3, 4, 5, 1_000].map(|attempt| policy.wait_after_silence(attempt, 0));
        assert_eq!(waits, [2, 6, 18, 54, 60, 60].map(seconds));
        let constant = RetryPolicy::new(16, seconds(2), seconds(60), 1).unwrap();
        assert_eq!(constant.wait_after_silence(1_000, 0), seconds(2));
    }

    #[test]
    fn a_failure_without_a_back_off_waits_a_second_and_silence_does_not() {
        assert_eq!(RetryPolicy::DEFAULT.wait_after_failure(7, 255), SECOND);
        assert_eq!(RetryPolicy::DEFAULT.wait_after_silence(7, 255), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_wait_is_within_a_quarter_below_the_formula(
            attempt in 1_u16..=1_000,
            min_ms in 0_u64..=10_000,
            more_ms in 0_u64..=604_790_000,
            factor in 1_u16..=100,
            jitter in any::<u8>(),
        ) {
            let min = Duration::from_millis(min_ms);
            let max = min + Duration::from_millis(more_ms);
            let policy = RetryPolicy::new(16, min, max, factor).unwrap();
            let growth = f64::from(factor).powi(i32::from(attempt) - 1).min(1e12);
            let exact = (min.as_secs_f64() * growth).min(max.as_secs_f64());
            let wait = policy.wait_after_silence(attempt, jitter);
            let lower = if exact > 1.0 { exact * 0.75 } else { exact };
            let waited = wait.as_secs_f64();
            prop_assert!(waited <= exact * (1.0 + 1e-9), "{waited} > {exact}");
            prop_assert!(waited >= lower * (1.0 - 1e-9), "{waited} < {lower}");
            prop_assert!(policy.wait_after_failure(attempt, jitter) >= SECOND);
        }
    }
}
