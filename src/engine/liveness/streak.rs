//! Decides when claims have failed for so long that the node is not ready and other nodes must get
//! its shards.

use std::time::Duration;

use crate::domain::Monotonic;

/// How long consecutive claims may fail. Longer than the lock timeout, and longer than a server
/// takes to restart a session.
pub const FAILING_MAX: Duration = Duration::from_secs(5);
/// Failures further apart than this are unrelated: a loop tries again within a second, and waits at
/// most 10 s for an answer.
const APART_MAX: Duration = Duration::from_secs(15);
/// Claims of nothing succeed also on a full disk. They end a streak only when none has failed for
/// so long. A loop tries again within a second.
const FULL_QUIET: Duration = Duration::from_secs(3);
/// A loop without shards after failed claims tries an empty claim after this pause. Each relapse
/// doubles the pause, because an empty claim proves little.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A claim may notice an outage of Postgres this much earlier than a heartbeat.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);

/// Which nodes a failure affects. Failures that may affect one node alone come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FailureCause {
    /// Perhaps the node alone: no session, or a missing right.
    Unclear,
    /// All nodes: the server's disk is full.
    Full,
    /// All nodes: the server does not finish in time.
    Slow,
    /// All nodes: a lock.
    Lock,
}

/// A streak of failed claims of one loop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failing {
    pub since: Monotonic,
    last_at: Monotonic,
    /// The reason of the last failure.
    pub why: String,
    pub cause: FailureCause,
}

/// The record of one loop's claims.
#[derive(Debug)]
pub struct Streak {
    failing: Option<Failing>,
    pause: Duration,
}

impl Default for Streak {
    fn default() -> Self {
        Self { failing: None, pause: PAUSE }
    }
}

impl Failing {
    /// Returns true when the streak is long enough, from the first to the last failure. A single
    /// failure says little, however old.
    fn lasts(&self) -> bool {
        self.last_at.since(self.since) >= FAILING_MAX
    }
}

impl Streak {
    /// Records a failed claim.
    pub fn failed(&mut self, why: String, cause: FailureCause, now: Monotonic) {
        let apart = self.pause + APART_MAX;
        let before = self.failing.take().filter(|failing| now.since(failing.last_at) < apart);
        let lasted = before.as_ref().is_some_and(Failing::lasts);
        let failing = Failing {
            since: before.map_or(now, |failing| failing.since),
            last_at: now,
            why,
            cause,
        };
        if failing.lasts() && !lasted {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        self.failing = Some(failing);
    }

    /// Records a successful claim. A loop without shards only sweeps the shards of other nodes, so
    /// its empty claims prove little: they end a long streak only after the pause.
    pub fn claimed(&mut self, has_taken: bool, has_shards: bool, now: Monotonic) {
        let is_proof = |failing: &Failing| {
            let quiet =
                if failing.cause == FailureCause::Full { FULL_QUIET } else { Duration::ZERO };
            let is_quiet = now.since(failing.last_at) >= quiet;
            has_taken
                || (is_quiet && (has_shards || !failing.lasts() || self.is_over(failing, now)))
        };
        if self.failing.as_ref().is_some_and(is_proof) {
            self.failing = None;
        }
        if has_taken {
            self.pause = PAUSE;
        }
    }

    /// Forgives the failures since `since`, when an outage of Postgres began. The pause after the
    /// next relapse is kept.
    pub fn forgive(&mut self, since: Monotonic) {
        if self.failing.as_ref().is_some_and(|failing| since.since(failing.since) <= NOTICED_WITHIN)
        {
            self.failing = None;
        }
    }

    /// Returns true when claims have failed and a trial claim is due although the loop has no
    /// shards.
    pub fn is_to_try(&self, now: Monotonic) -> bool {
        self.failing.as_ref().is_some_and(|failing| self.is_over(failing, now))
    }

    /// Returns the failed claims, if they have failed for longer than [`FAILING_MAX`].
    pub fn failing(&self, now: Monotonic) -> Option<&Failing> {
        self.failing.as_ref().filter(|failing| {
            failing.lasts() && now.since(failing.last_at) < self.pause + APART_MAX
        })
    }

    fn is_over(&self, failing: &Failing, now: Monotonic) -> bool {
        now.since(failing.last_at) >= self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    /// Fails every second for five seconds.
    fn relapse(streak: &mut Streak, from: u64) {
        (from..=from + 5).for_each(|second| {
            streak.failed("too many connections".to_owned(), FailureCause::Unclear, at(second))
        });
    }

    #[test]
    fn claims_that_fail_for_five_seconds_count_until_one_takes_something() {
        let mut streak = Streak::default();
        for second in 10..15 {
            streak.failed("connection refused".to_owned(), FailureCause::Unclear, at(second));
            assert_eq!(streak.failing(at(second)), None);
        }
        streak.failed("too many connections".to_owned(), FailureCause::Unclear, at(15));
        let failing = streak.failing(at(15)).unwrap();
        assert_eq!((failing.since, failing.why.as_str()), (at(10), "too many connections"));
        streak.claimed(true, true, at(15));
        assert_eq!(streak.failing(at(15)), None);
    }

    #[test]
    fn a_loop_with_shards_is_well_at_its_first_success() {
        for cause in [FailureCause::Unclear, FailureCause::Slow, FailureCause::Lock] {
            let mut streak = Streak::default();
            relapse(&mut streak, 10);
            streak.failed(String::new(), cause, at(15));
            streak.claimed(false, true, at(15));
            assert_eq!(streak.failing(at(15)), None);
        }
    }

    #[test]
    fn claims_of_nothing_do_not_hide_a_full_disk() {
        let mut streak = Streak::default();
        for second in 10..30 {
            // The claims of some ranges fail, and others find nothing.
            streak.failed("No space left".to_owned(), FailureCause::Full, at(second));
            streak.claimed(false, true, at(second));
        }
        assert_eq!(streak.failing(at(30)).unwrap().since, at(10));
        streak.claimed(false, true, at(31));
        assert!(streak.failing(at(31)).is_some(), "the last failure is 2 s old");
        streak.claimed(false, true, at(32));
        assert_eq!(streak.failing(at(32)), None);
        streak.failed(String::new(), FailureCause::Full, at(40));
        streak.failed(String::new(), FailureCause::Full, at(46));
        streak.claimed(true, true, at(46));
        assert_eq!(streak.failing(at(46)), None, "it takes tasks");
    }

    #[test]
    fn a_failure_now_and_then_is_none_that_lasts() {
        let mut streak = Streak::default();
        streak.failed(String::new(), FailureCause::Lock, at(10));
        assert_eq!(streak.failing(at(16)), None, "nothing was tried since");
        streak.failed(String::new(), FailureCause::Lock, at(40));
        streak.failed(String::new(), FailureCause::Lock, at(41));
        assert_eq!(streak.failing(at(41)), None);
        streak.claimed(false, false, at(41));
        streak.failed(String::new(), FailureCause::Lock, at(46));
        assert_eq!(streak.failing(at(46)), None, "it began anew");
    }

    #[test]
    fn a_claim_of_nothing_without_shards_ends_what_has_lasted_when_the_pause_is_over() {
        let mut streak = Streak::default();
        relapse(&mut streak, 10);
        streak.claimed(false, false, at(16));
        assert!(streak.failing(at(16)).is_some());
        streak.claimed(false, false, at(17));
        assert_eq!(streak.failing(at(17)), None);
    }

    #[test]
    fn whoever_relapses_waits_longer_until_it_has_taken_something() {
        let mut streak = Streak::default();
        let pause_from = |streak: &Streak, second: u64| {
            (0..100).find(|pause| streak.is_to_try(at(second + pause))).unwrap()
        };
        let mut pauses = Vec::new();
        for second in (0..800).step_by(100) {
            relapse(&mut streak, second);
            let pause = pause_from(&streak, second + 5);
            assert!(
                streak.failing(at(second + 5 + pause)).is_some(),
                "until it tries it goes on failing"
            );
            streak.claimed(false, false, at(second + 5 + pause));
            pauses.push(pause);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
        relapse(&mut streak, 900);
        streak.forgive(at(904));
        assert!(streak.failing(at(905)).is_some(), "it failed before Postgres was away");
        streak.forgive(at(902));
        assert_eq!(streak.failing(at(905)), None);
        relapse(&mut streak, 1000);
        assert_eq!(pause_from(&streak, 1005), 60, "forgiven, not forgotten");
        streak.claimed(true, true, at(1100));
        relapse(&mut streak, 1200);
        assert_eq!(pause_from(&streak, 1205), 2);
    }
}
