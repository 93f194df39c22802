//! Limits of principals and of topics, and how much of them is used. `pending` has those on pending
//! tasks.
//!
//! Limits count on each node alone, by the monotonic clock. A rate is a bucket that refills all the
//! time (GCRA), and holds one number: the time when the bucket is full again. A request takes all
//! or nothing. A request larger than the whole bucket, such as one record larger than the bytes of
//! a second, waits until the bucket is full, and the next requests wait.

pub mod pending;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::Mutex;

use self::pending::{COUNT_EVERY, PendingFigures, PendingOf};
use super::pattern::Pattern;
use crate::domain::{Monotonic, PrincipalName};

/// The most principals and topic patterns with limits whose use is counted at a time.
const PRINCIPALS_MAX: usize = 10_000;
/// How long a principal beyond them waits.
const FULL_WAIT: Duration = Duration::from_secs(1);
const NANOS: u128 = 1_000_000_000;
/// The limit on pending tasks in the auth file.
const PENDING_MAX: &str = "pending_max";

/// The limits of a principal, or of the topics of a pattern. `None` is no limit.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Limits {
    pub tasks: Option<Rate>,
    pub bytes: Option<Rate>,
    pub reads: Option<Rate>,
    /// Requests in progress.
    pub requests: Option<usize>,
    /// The longest time from the submit to the due time. It does not extend that of the node.
    pub delay_max: Option<Duration>,
    /// The most bytes of a record: key, payload and headers.
    pub record_max: Option<usize>,
    /// The most pending tasks, in the whole cluster. See [`pending`].
    pub pending_max: Option<u64>,
}

impl Limits {
    fn is_counted(&self) -> bool {
        let rates = [&self.tasks, &self.bytes, &self.reads];
        self.requests.is_some() || rates.into_iter().any(Option::is_some)
    }
}

/// An amount per second, and the largest amount at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    pub per_second: u64,
    pub burst: u64,
}

/// Whose use is counted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Limited {
    Principal(PrincipalName),
    /// All callers together, on all topics of the pattern.
    Topics(Pattern),
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Principal(name) => write!(f, "principal {name}"),
            Self::Topics(pattern) => write!(f, "topics {pattern}"),
        }
    }
}

/// The need of a submit from one set of limits.
#[derive(Debug)]
pub struct Needed<'a> {
    pub whose: Limited,
    pub limits: &'a Limits,
    pub tasks: usize,
    pub bytes: usize,
}

impl Needed<'_> {
    /// Counts one task more.
    pub fn add(&mut self, bytes: usize) {
        self.tasks = self.tasks.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A reached limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exceeded {
    pub whose: Limited,
    /// Its name in the auth file.
    pub limit: &'static str,
    /// After this time the same request fits, if the principal asks for nothing else meanwhile.
    pub retry_after: Duration,
}

impl Exceeded {
    /// Returns true if too many tasks are pending, in the whole cluster.
    pub fn is_of_pending(&self) -> bool {
        self.limit == PENDING_MAX
    }
}

/// The use of a rate. Times are in nanoseconds, multiplied by the rate, so all of them are whole
/// numbers.
#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    rate: Option<Rate>,
    full_at: u128,
}

impl Bucket {
    /// Returns the time when the bucket is full after `amount` was taken, or how long to wait until
    /// it can be taken.
    fn after(&mut self, rate: Rate, amount: u64, now: Monotonic) -> Result<u128, Duration> {
        if self.rate != Some(rate) {
            *self = Self { rate: Some(rate), full_at: 0 };
        }
        let per_second = u128::from(rate.per_second.max(1));
        let full_at = self.full_after(rate, amount, now);
        let now = now.since_start().as_nanos().saturating_mul(per_second);
        let room = u128::from(rate.burst.max(amount)).saturating_mul(NANOS);
        let wait = full_at.saturating_sub(now).saturating_sub(room).div_ceil(per_second);
        if wait == 0 { Ok(full_at) } else { Err(Duration::from_nanos(wait.saturating_as())) }
    }

    fn full_after(&self, rate: Rate, amount: u64, now: Monotonic) -> u128 {
        let now = now.since_start().as_nanos().saturating_mul(rate.per_second.max(1).into());
        let needed = u128::from(amount).saturating_mul(NANOS);
        self.full_at.max(now).saturating_add(needed)
    }

    /// Takes `amount`, although there may be less. The debt is paid off before anything is taken.
    fn owe(&mut self, rate: Rate, amount: u64, now: Monotonic) {
        if self.rate != Some(rate) {
            *self = Self { rate: Some(rate), full_at: 0 };
        }
        self.full_at = self.full_after(rate, amount, now);
    }

    fn is_full(&self, now: Monotonic) -> bool {
        let per_second = u128::from(self.rate.map_or(1, |rate| rate.per_second.max(1)));
        self.full_at <= now.since_start().as_nanos().saturating_mul(per_second)
    }
}

/// The use of the limits by one principal.
#[derive(Clone, Copy, Default, Debug)]
struct Used {
    tasks: Bucket,
    bytes: Bucket,
    reads: Bucket,
    requests: usize,
}

impl Used {
    fn is_nothing(&self, now: Monotonic) -> bool {
        self.requests == 0 && [self.tasks, self.bytes, self.reads].iter().all(|b| b.is_full(now))
    }
}

/// The use of all limits on the node. It outlives changes of the auth file.
#[derive(Default, Debug)]
pub struct Quotas {
    used: Mutex<HashMap<Limited, Used>>,
    pending: Arc<PendingFigures>,
}

impl Quotas {
    /// Returns the numbers of pending tasks.
    pub const fn pending(&self) -> &Arc<PendingFigures> {
        &self.pending
    }

    /// Checks the limits on pending tasks.
    fn check_pending(&self, needed: &Needed<'_>, now: Monotonic) -> Result<(), Exceeded> {
        let Some(pending_max) = needed.limits.pending_max else { return Ok(()) };
        let of = match &needed.whose {
            Limited::Principal(name) => PendingOf::Principal(name),
            Limited::Topics(pattern) => PendingOf::Topics(pattern),
        };
        match self.pending.reached(of, pending_max, now) {
            None => Ok(()),
            Some(_task_count) => {
                let whose = needed.whose.clone();
                Err(Exceeded { whose, limit: PENDING_MAX, retry_after: COUNT_EVERY })
            }
        }
    }

    /// Takes the needs of a submit from all applicable limits. No two limits are of the same
    /// principal or pattern.
    ///
    /// # Errors
    /// When one of the limits is reached. Then nothing is taken.
    pub fn take_submit(&self, needed: &[Needed<'_>], now: Monotonic) -> Result<(), Exceeded> {
        needed.iter().try_for_each(|needed| self.check_pending(needed, now))?;
        let is_counted = |limits: &Limits| limits.tasks.is_some() || limits.bytes.is_some();
        let needed: Vec<_> = needed.iter().filter(|needed| is_counted(needed.limits)).collect();
        if needed.is_empty() {
            return Ok(());
        }
        let mut all = self.used.lock();
        let mut taken = Vec::with_capacity(needed.len());
        for Needed { whose, limits, tasks, bytes } in needed {
            make_room(&mut all, whose, now)?;
            let mut used = all.get(whose).copied().unwrap_or_default();
            for (bucket, rate, amount, limit) in [
                (&mut used.tasks, limits.tasks, *tasks, "tasks_per_second"),
                (&mut used.bytes, limits.bytes, *bytes, "bytes_per_second"),
            ] {
                let Some(rate) = rate else { continue };
                let full_at = bucket.after(rate, amount.saturating_as(), now);
                bucket.full_at = full_at.map_err(|retry_after| Exceeded {
                    whose: whose.clone(),
                    limit,
                    retry_after,
                })?;
            }
            taken.push((whose.clone(), used));
        }
        all.extend(taken);
        Ok(())
    }

    /// Takes what one request that reads needs.
    pub fn take_read(
        &self,
        limited: (&PrincipalName, &Limits),
        now: Monotonic,
    ) -> Result<(), Exceeded> {
        self.take_reads(limited, 1, now)
    }

    /// Checks that the principal owes no read. Reads alone never make a debt, so they slow no
    /// changes.
    pub fn check_debt(
        &self,
        limited: (&PrincipalName, &Limits),
        now: Monotonic,
    ) -> Result<(), Exceeded> {
        self.take_reads(limited, 0, now)
    }

    fn take_reads(
        &self,
        (name, limits): (&PrincipalName, &Limits),
        amount: u64,
        now: Monotonic,
    ) -> Result<(), Exceeded> {
        let Some(rate) = limits.reads else { return Ok(()) };
        self.change((name, limits), now, |used| {
            let full_at = used.reads.after(rate, amount, now);
            used.reads.full_at = full_at.map_err(|retry_after| {
                let whose = Limited::Principal(name.clone());
                Exceeded { whose, limit: "reads_per_second", retry_after }
            })?;
            Ok(())
        })
    }

    /// Counts reads that were made already.
    ///
    /// # Errors
    /// When the use of too many principals is counted.
    pub fn owe_reads(
        &self,
        (name, limits): (&PrincipalName, &Limits),
        count: u64,
        now: Monotonic,
    ) -> Result<(), Exceeded> {
        let Some(rate) = limits.reads else { return Ok(()) };
        self.change((name, limits), now, |used| {
            used.reads.owe(rate, count, now);
            Ok(())
        })
    }

    /// Counts a request in progress, until the returned value is dropped.
    pub fn begin(
        self: &Arc<Self>,
        (name, limits): (&PrincipalName, &Limits),
        now: Monotonic,
    ) -> Result<Option<InProgress>, Exceeded> {
        let Some(requests_max) = limits.requests else { return Ok(None) };
        self.change((name, limits), now, |used| {
            if used.requests >= requests_max {
                let whose = Limited::Principal(name.clone());
                return Err(Exceeded { whose, limit: "requests", retry_after: FULL_WAIT });
            }
            used.requests = used.requests.saturating_add(1);
            Ok(())
        })?;
        let whose = Limited::Principal(name.clone());
        Ok(Some(InProgress { quotas: Arc::clone(self), whose }))
    }

    fn change(
        &self,
        (name, limits): (&PrincipalName, &Limits),
        now: Monotonic,
        change: impl FnOnce(&mut Used) -> Result<(), Exceeded>,
    ) -> Result<(), Exceeded> {
        if !limits.is_counted() {
            return Ok(());
        }
        let mut all = self.used.lock();
        let whose = Limited::Principal(name.clone());
        make_room(&mut all, &whose, now)?;
        change(all.entry(whose).or_default())
    }
}

/// Ensures that there is room for an entry of `whose`.
fn make_room(
    all: &mut HashMap<Limited, Used>,
    whose: &Limited,
    now: Monotonic,
) -> Result<(), Exceeded> {
    if all.len() >= PRINCIPALS_MAX && !all.contains_key(whose) {
        all.retain(|_, used| !used.is_nothing(now));
        if all.len() >= PRINCIPALS_MAX {
            let whose = whose.clone();
            return Err(Exceeded { whose, limit: "principals", retry_after: FULL_WAIT });
        }
    }
    Ok(())
}

/// A request in progress that counts against the limit of its principal.
#[derive(Debug)]
pub struct InProgress {
    quotas: Arc<Quotas>,
    whose: Limited,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        if let Some(used) = self.quotas.used.lock().get_mut(&self.whose) {
            used.requests = used.requests.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::pending::PendingCount;
    use super::*;

    /// A principal, and what it may use.
    struct Holder(PrincipalName, Limits);

    impl Holder {
        fn parts(&self) -> (&PrincipalName, &Limits) {
            (&self.0, &self.1)
        }
    }

    fn principal(name: &str, limits: Limits) -> Holder {
        Holder(PrincipalName::new(name).unwrap(), limits)
    }

    /// Takes for a principal alone.
    fn submit(
        quotas: &Quotas,
        holder: &Holder,
        (tasks, bytes): (usize, usize),
        now: Monotonic,
    ) -> Result<(), Exceeded> {
        let whose = Limited::Principal(holder.0.clone());
        quotas.take_submit(&[Needed { whose, limits: &holder.1, tasks, bytes }], now)
    }

    fn tasks(per_second: u64, burst: u64) -> Limits {
        Limits { tasks: Some(Rate { per_second, burst }), ..Limits::default() }
    }

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(1_000_000 + millis))
    }

    #[test]
    fn a_burst_passes_and_one_task_more_waits_for_exactly_its_time() {
        let (quotas, ann) = (Quotas::default(), principal("ann", tasks(10, 100)));
        let take = |tasks, millis| submit(&quotas, &ann, (tasks, 0), at(millis));
        assert_eq!(take(99, 0), Ok(()));
        assert_eq!(take(1, 0), Ok(()), "the whole burst");
        let exceeded = take(1, 0).unwrap_err();
        assert_eq!(exceeded.whose.to_string(), "principal ann");
        assert_eq!(exceeded.limit, "tasks_per_second");
        assert_eq!(exceeded.retry_after, Duration::from_millis(100));
        assert!(take(1, 99).is_err());
        assert_eq!(take(1, 100), Ok(()), "a refused request has taken nothing");
        assert_eq!(take(100, 100).unwrap_err().retry_after, Duration::from_secs(10));
        assert_eq!(take(100, 10_100), Ok(()));
    }

    #[test]
    fn a_principal_that_floods_slows_no_other() {
        let quotas = Quotas::default();
        let [ann, bob] = ["ann", "bob"].map(|name| principal(name, tasks(10, 10)));
        let refused = (0..1000).filter(|_| submit(&quotas, &ann, (1, 0), at(0)).is_err());
        assert_eq!(refused.count(), 990);
        for millis in [0, 1, 2] {
            assert_eq!(submit(&quotas, &bob, (3, 0), at(millis)), Ok(()));
        }
    }

    #[test]
    fn more_than_the_burst_waits_until_all_of_it_is_there() {
        let bytes =
            Limits { bytes: Some(Rate { per_second: 1000, burst: 1000 }), ..Limits::default() };
        let (quotas, ann) = (Quotas::default(), principal("ann", bytes));
        let take = |bytes, millis| submit(&quotas, &ann, (1, bytes), at(millis));
        assert_eq!(take(5000, 0), Ok(()));
        let exceeded = take(1, 0).unwrap_err();
        assert_eq!(exceeded.limit, "bytes_per_second");
        assert_eq!(exceeded.retry_after, Duration::from_millis(4001));
        assert_eq!(take(1000, 4999).unwrap_err().retry_after, Duration::from_millis(1));
        assert_eq!(take(1000, 5000), Ok(()));
    }

    #[test]
    fn a_submit_takes_from_both_limits_or_from_none() {
        let limits = Limits { bytes: Some(Rate { per_second: 10, burst: 10 }), ..tasks(10, 10) };
        let (quotas, ann) = (Quotas::default(), principal("ann", limits));
        assert_eq!(submit(&quotas, &ann, (1, 10), at(0)), Ok(()));
        assert_eq!(submit(&quotas, &ann, (9, 1), at(0)).unwrap_err().limit, "bytes_per_second");
        assert_eq!(submit(&quotas, &ann, (9, 0), at(0)), Ok(()));
    }

    #[test]
    fn limits_of_topics_hold_for_all_principals_together_and_take_all_or_nothing() {
        let (quotas, limits) = (Quotas::default(), tasks(1, 10));
        let pattern = Pattern::new("orders.*").unwrap();
        let take = |name: &str, count| {
            let holder = principal(name, tasks(1, 100));
            let needed = |whose, limits| Needed { whose, limits, tasks: count, bytes: 0 };
            let own = needed(Limited::Principal(holder.0.clone()), &holder.1);
            let topics = needed(Limited::Topics(pattern.clone()), &limits);
            quotas.take_submit(&[own, topics], at(0))
        };
        assert_eq!(take("ann", 6), Ok(()));
        let exceeded = take("bob", 5).unwrap_err();
        assert_eq!(exceeded.whose, Limited::Topics(pattern.clone()));
        assert_eq!(exceeded.whose.to_string(), "topics orders.*");
        assert_eq!(exceeded.retry_after, Duration::from_secs(1));
        assert_eq!(take("bob", 4), Ok(()));
        let bob = principal("bob", tasks(1, 100));
        assert_eq!(submit(&quotas, &bob, (96, 0), at(0)), Ok(()), "the refusal took nothing");
        assert!(submit(&quotas, &bob, (1, 0), at(0)).is_err());
    }

    #[test]
    fn a_principal_with_too_many_pending_tasks_waits_for_the_next_count() {
        let (quotas, limits) = (Quotas::default(), tasks(1, 10));
        let ann = principal("ann", Limits { pending_max: Some(5), ..limits.clone() });
        let bob = principal("bob", Limits { pending_max: Some(6), ..limits });
        let count = |count| PendingCount {
            task_counts: [&ann, &bob].map(|holder| (holder.0.clone(), count)).into(),
            is_exact: true,
            at: at(0),
        };
        assert_eq!(submit(&quotas, &ann, (1, 0), at(0)), Ok(()), "nothing is counted yet");
        quotas.pending().take_principals(count(5));
        let exceeded = submit(&quotas, &ann, (1, 0), at(0)).unwrap_err();
        assert!(exceeded.is_of_pending() && exceeded.retry_after == COUNT_EVERY, "{exceeded:?}");
        assert_eq!(submit(&quotas, &bob, (10, 0), at(0)), Ok(()));
        quotas.pending().take_principals(count(4));
        assert_eq!(submit(&quotas, &ann, (9, 0), at(0)), Ok(()), "the refusal took nothing");
    }

    #[test]
    fn requests_count_while_they_are_in_progress() {
        let limits = Limits { requests: Some(2), ..Limits::default() };
        let (quotas, ann) = (Arc::new(Quotas::default()), principal("ann", limits));
        let first = quotas.begin(ann.parts(), at(0)).unwrap();
        let second = quotas.begin(ann.parts(), at(0)).unwrap();
        assert_eq!(quotas.begin(ann.parts(), at(0)).unwrap_err().limit, "requests");
        drop(first);
        assert!(quotas.begin(ann.parts(), at(0)).unwrap().is_some());
        drop(second);
        let everybody = principal("bob", Limits::default());
        assert!(quotas.begin(everybody.parts(), at(0)).unwrap().is_none());
        assert!(quotas.used.lock().len() == 1, "without limits nothing is counted");
    }

    #[test]
    fn reads_have_a_rate_of_their_own_and_another_rate_begins_anew() {
        let reads = |per_second| Limits {
            reads: Some(Rate { per_second, burst: per_second }),
            ..Limits::default()
        };
        let quotas = Quotas::default();
        let ann = principal("ann", reads(2));
        let read = |ann: &Holder| quotas.take_read(ann.parts(), at(0)).is_ok();
        assert!(read(&ann) && read(&ann) && !read(&ann));
        let more = principal("ann", reads(3));
        assert!(read(&more), "the auth file has changed");
    }

    #[test]
    fn reads_that_were_made_are_paid_off_before_the_next_change() {
        let rate = Rate { per_second: 2, burst: 2 };
        let reads = Limits { reads: Some(rate), ..Limits::default() };
        let (quotas, ann) = (Quotas::default(), principal("ann", reads));
        assert_eq!(quotas.owe_reads(ann.parts(), 2, at(0)), Ok(()));
        assert_eq!(quotas.check_debt(ann.parts(), at(0)), Ok(()), "as many as at once");
        assert_eq!(quotas.owe_reads(ann.parts(), 10_000, at(0)), Ok(()));
        let exceeded = quotas.check_debt(ann.parts(), at(0)).unwrap_err();
        assert_eq!(exceeded.retry_after, Duration::from_secs(5_000));
        assert!(quotas.check_debt(ann.parts(), at(4_999_999)).is_err());
        assert_eq!(quotas.check_debt(ann.parts(), at(5_000_000)), Ok(()));
    }

    #[test]
    fn principals_that_use_nothing_make_room_for_others() {
        let quotas = Quotas::default();
        for number in 0..PRINCIPALS_MAX {
            let one = principal(&format!("p{number}"), tasks(1, 1));
            assert_eq!(submit(&quotas, &one, (1, 0), at(0)), Ok(()));
        }
        let more = principal("more", tasks(1, 1));
        assert_eq!(submit(&quotas, &more, (1, 0), at(0)).unwrap_err().limit, "principals");
        assert_eq!(submit(&quotas, &more, (1, 0), at(1000)), Ok(()));
        assert_eq!(quotas.used.lock().len(), 1);
    }

    proptest! {
        #[test]
        fn never_more_than_the_burst_and_the_rate_and_the_wait_is_enough(
            per_second in 1_u64..1000, burst in 1_u64..100,
            asks in prop::collection::vec((0_u64..500, 1_usize..100), 1..100),
        ) {
            let (quotas, ann) = (Quotas::default(), principal("ann", tasks(per_second, burst)));
            let (mut now, mut taken) = (0, 0_u64);
            for (pause, amount) in asks {
                now += pause;
                let amount = amount.min(usize::try_from(burst).unwrap());
                match submit(&quotas, &ann, (amount, 0), at(now)) {
                    Ok(()) => taken += u64::try_from(amount).unwrap(),
                    Err(exceeded) => {
                        let later = Monotonic::from_start(
                            at(now).since_start() + exceeded.retry_after,
                        );
                        let earlier = Monotonic::from_start(
                            at(now).since_start() + exceeded.retry_after - Duration::from_nanos(1),
                        );
                        prop_assert!(submit(&quotas, &ann, (amount, 0), earlier).is_err());
                        prop_assert!(submit(&quotas, &ann, (amount, 0), later).is_ok());
                        taken += u64::try_from(amount).unwrap();
                        now += u64::try_from(exceeded.retry_after.as_millis()).unwrap() + 1;
                    }
                }
                prop_assert!(taken * 1000 <= burst * 1000 + per_second * now);
            }
        }
    }
}
