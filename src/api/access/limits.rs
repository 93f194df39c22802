//! The limits of a principal, as requests meet them.

use std::collections::BTreeMap;
use std::iter;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use az::SaturatingAs as _;
use parking_lot::Mutex;

use super::required::Access;
use crate::access::limits::{Exceeded, InProgress, Limited, Limits, Needed};
use crate::access::pattern::Pattern;
use crate::access::{Caller, Policy, PolicyHandle};
use crate::api::openapi::operation::Operation;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::api::problems::refusal::FieldOrigin;
use crate::clock;
use crate::domain::time::duration::spelled;
use crate::domain::{Record, Throttle, Timestamp, TopicName};
use crate::node::messages::{Draft, Due};

/// The shortest interval between two log lines about reached limits.
const LOG_EXCEEDED_EVERY: Duration = Duration::from_secs(60);
static EXCEEDED_LOG: Mutex<Throttle> = Mutex::new(Throttle::new(LOG_EXCEEDED_EVERY));

/// How a request counts as a read of its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// Not at all.
    No,
    Always,
    /// A change of something that the caller names. It is a look-up when there is no such thing,
    /// or when that cannot be changed any more.
    IfUnchanged,
}

impl Reading {
    /// Returns how a request counts.
    pub fn of(operation: Option<&Operation>, method: &Method) -> Self {
        let Some(operation) = operation else { return Self::No };
        let is_of_many = matches!(operation.access, Access::OnMany(_) | Access::EachTask(_));
        let is_absent = |problem: &ProblemType| problem.status() == StatusCode::NOT_FOUND;
        match operation.access {
            Access::Open | Access::Known => Self::No,
            _ if matches!(*method, Method::GET | Method::HEAD) => Self::Always,
            _ if is_of_many || operation.problems.iter().any(is_absent) => Self::IfUnchanged,
            _ => Self::No,
        }
    }
}

/// Marks the answer to a change of many things that has changed none, or not all of them.
#[derive(Clone, Copy, Debug)]
pub struct Unchanged;

/// Counts a request until the returned value is dropped, and a read for good.
///
/// # Errors
/// 429 when the caller has used up its limits.
pub fn begin(
    policy: &PolicyHandle,
    caller: &Caller,
    reading: Reading,
) -> Result<Option<InProgress>, Problem> {
    let (limited, now) = (caller.principal.limited(), clock::monotonic());
    let refuse = |exceeded: Exceeded| refused(&exceeded);
    let in_progress = policy.quotas().begin(limited, now).map_err(refuse)?;
    match reading {
        Reading::No => {}
        Reading::Always => policy.quotas().take_read(limited, now).map_err(refuse)?,
        Reading::IfUnchanged => policy.quotas().check_debt(limited, now).map_err(refuse)?,
    }
    Ok(in_progress)
}

/// Makes the problem of a request at a limit. Logs whose limit it is, once a minute at most.
fn refused(exceeded: &Exceeded) -> Problem {
    if EXCEEDED_LOG.lock().lets_through(clock::monotonic()) {
        tracing::warn!(
            whose = %exceeded.whose,
            limit = exceeded.limit,
            "a principal or a topic has reached its limit; a request was refused (logged once a \
             minute at most; the metric counts all)"
        );
    }
    Problem::quota_exceeded(exceeded)
}

/// Counts a dry run, which is a read of its caller.
///
/// # Errors
/// 429 when the caller has used up its reads.
pub fn charge_dry_run(policy: &PolicyHandle, caller: &Caller) -> Result<(), Problem> {
    let taken = policy.quotas().take_read(caller.principal.limited(), clock::monotonic());
    taken.map_err(|exceeded| refused(&exceeded))
}

/// Counts a change that has only told the caller something, as a read. Before the answer nobody
/// knows that, so the next such request waits instead.
pub fn charge_unchanged(policy: &PolicyHandle, caller: &Caller, response: &Response) {
    use StatusCode as S;
    let is_told = matches!(response.status(), S::NOT_FOUND | S::CONFLICT | S::PRECONDITION_FAILED);
    if !is_told && response.extensions().get::<Unchanged>().is_none() {
        return;
    }
    owe_reads(policy, caller, 1);
}

/// Counts look-ups of tasks that are not there for the caller, as reads. One request may have
/// thousands of them, and the next one waits until they are paid off.
pub fn owe_reads(policy: &PolicyHandle, caller: &Caller, count: usize) {
    if count == 0 {
        return;
    }
    let (limited, now) = (caller.principal.limited(), clock::monotonic());
    if let Err(exceeded) = policy.quotas().owe_reads(limited, count.saturating_as(), now) {
        tracing::debug!(limit = exceeded.limit, count, "reads are not counted");
    }
}

/// Charges a submit to the limits of the caller and of the topics. All readable tasks count, the
/// ones refused afterwards included: each costs a look at a topic.
///
/// # Errors
/// 429 when a limit leaves too little for all tasks. Then nothing is charged.
pub fn charge<'a>(
    policy: &PolicyHandle,
    caller: &Caller,
    records: impl Iterator<Item = &'a Record>,
) -> Result<(), Problem> {
    take(policy, caller, records).map_err(|exceeded| refused(&exceeded))
}

/// Charges a submit as [`charge`] does. The submit waits at a limit and is not refused, so the log
/// says nothing.
///
/// # Errors
/// When a limit leaves too little for all tasks. Then nothing is charged.
pub fn take<'a>(
    policy: &PolicyHandle,
    caller: &Caller,
    records: impl Iterator<Item = &'a Record>,
) -> Result<(), Exceeded> {
    let current = policy.current();
    let (name, limits) = caller.principal.limited();
    let mut own = Needed { whose: Limited::Principal(name.clone()), limits, tasks: 0, bytes: 0 };
    let mut of_topics: BTreeMap<&Pattern, Needed<'_>> = BTreeMap::new();
    for record in records {
        let bytes = record.bytes();
        own.add(bytes);
        for (pattern, limits) in current.topic_limits(&record.topic) {
            let whose = || Limited::Topics(pattern.clone());
            let needed = || Needed { whose: whose(), limits, tasks: 0, bytes: 0 };
            of_topics.entry(pattern).or_insert_with(needed).add(bytes);
        }
    }
    if own.tasks == 0 {
        return Ok(());
    }
    let needed: Vec<Needed<'_>> = iter::once(own).chain(of_topics.into_values()).collect();
    policy.quotas().take_submit(&needed, clock::monotonic())
}

/// Checks one task against the limits of its caller and of its topic.
pub fn check(
    policy: &Policy,
    caller: &Caller,
    draft: &Draft,
    origin: FieldOrigin,
    arrived_at: Option<Timestamp>,
) -> Result<(), Problem> {
    for (limits, whose) in limits_of(policy, caller, Some(&draft.record.topic)) {
        check_record((limits, whose), &draft.record, origin)?;
        check_delay((limits, whose), draft.due, origin, arrived_at)?;
    }
    Ok(())
}

/// Checks the new due time of a task against the limits of the caller who moves it, and of the
/// task's topic. The request arrived at the second part of `due`.
pub fn check_due(
    policy: &Policy,
    caller: &Caller,
    topic: Option<&TopicName>,
    (due, arrived_at): (Due, Option<Timestamp>),
    origin: FieldOrigin,
) -> Result<(), Problem> {
    limits_of(policy, caller, topic)
        .try_for_each(|limits| check_delay(limits, due, origin, arrived_at))
}

/// Returns the limits of a caller and of a topic, each with a word for whose they are.
fn limits_of<'a>(
    policy: &'a Policy,
    caller: &'a Caller,
    topic: Option<&'a TopicName>,
) -> impl Iterator<Item = (&'a Limits, &'static str)> {
    let of_topic = topic.into_iter().flat_map(|topic| policy.topic_limits(topic));
    iter::once((&caller.principal.limits, "caller"))
        .chain(of_topic.map(|(_pattern, limits)| (limits, "topic")))
}

fn check_record(
    (limits, whose): (&Limits, &str),
    record: &Record,
    origin: FieldOrigin,
) -> Result<(), Problem> {
    let bytes = record.bytes();
    if let Some(record_max) = limits.record_max.filter(|record_max| bytes > *record_max) {
        let detail = format!(
            "key, payload and headers have {bytes} bytes; for this {whose} a record has at most \
             {record_max} (`record_max`)"
        );
        return Err(Problem::new(ProblemType::RecordTooLarge, detail).at(origin.payload));
    }
    Ok(())
}

fn check_delay(
    (limits, whose): (&Limits, &str),
    due: Due,
    origin: FieldOrigin,
    arrived_at: Option<Timestamp>,
) -> Result<(), Problem> {
    let delay = match due {
        Due::After(delay) => delay,
        // While the time is not known, the node stores nothing.
        Due::At(at) => arrived_at.map(|now| at.since(now)).unwrap_or_default(),
    };
    if let Some(delay_max) = limits.delay_max.filter(|delay_max| delay > *delay_max) {
        let longest = spelled(delay_max);
        let detail =
            format!("a task of this {whose} may be due at most {longest} ahead (`delay_max`)");
        return Err(Problem::new(ProblemType::TooFarAhead, detail).at(origin.due));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::access::{CredentialId, Principal, PrincipalCounts};
    use crate::domain::{Headers, PrincipalName, Record, TopicName};

    #[test]
    fn a_task_is_as_large_and_as_late_as_its_caller_may_have_it() {
        let limits = Limits {
            delay_max: Some(Duration::from_secs(60)),
            record_max: Some(10),
            ..Limits::default()
        };
        let name = PrincipalName::new("ann").unwrap();
        let (rights, counts) = (Arc::default(), PrincipalCounts::default());
        let principal = Arc::new(Principal { name, rights, limits, counts });
        let caller = Caller { principal, credential: CredentialId::Anonymous, until: None };
        let now = Timestamp::from_millis(1_000_000);
        let kind = |due, bytes: usize| {
            let record = Record {
                topic: TopicName::new("t").unwrap(),
                key: None,
                payload: Some(vec![0; bytes].into()),
                headers: Headers::default(),
            };
            let tracking = None;
            let draft = Draft { record, name: None, due, tracking, expiry: None, spread: None };
            let origin = FieldOrigin { due: "delay", payload: "payload" };
            check(&Policy::open(), &caller, &draft, origin, Some(now))
                .err()
                .map(|problem| problem.kind())
        };
        let minute = Duration::from_secs(60);
        assert_eq!(kind(Due::After(minute), 10), None);
        assert_eq!(kind(Due::At(now.plus(minute)), 10), None);
        assert_eq!(kind(Due::At(Timestamp::EPOCH), 0), None);
        let later = minute + Duration::from_millis(1);
        assert_eq!(kind(Due::After(later), 0), Some(ProblemType::TooFarAhead));
        assert_eq!(kind(Due::At(now.plus(later)), 0), Some(ProblemType::TooFarAhead));
        assert_eq!(kind(Due::After(minute), 11), Some(ProblemType::RecordTooLarge));
    }
}
