//! Rule 11: the cluster recovers. A task may be late during an operation, and for a limited time
//! afterwards. A long unexplained wait is a bug.

use super::duplicates::QUOTA_AFTERMATH_MS;
use super::history::{History, PAUSED, Span};
use super::plan::{Kind, Server};

/// The longest wait without a reason, on a machine that also does other work.
pub const UNEXPLAINED_MAX_MS: i64 = 15_000;
/// The time until a restarted server is reached again and the backlog is published.
const RECOVERY_MS: i64 = 15_000;
/// A record that was sent and not acknowledged is deferred by up to a minute.
const DEFERRED_RECOVERY_MS: i64 = 90_000;
/// The longest step of a node's clock.
const CLOCK_STEP_MAX_MS: i64 = 20_000;
/// An effective quota makes a third of all records at least this late.
const HELD_BACK_MS: i64 = 1000;
/// With fewer records a quota may have no effect.
const HELD_BACK_RECORDS_MIN: usize = 300;

/// Returns how long after its end an operation of the kind explains a late task. `None`: the
/// operation should delay no task.
const fn recovery_ms(kind: Kind, was_deferred: bool) -> Option<i64> {
    match kind {
        Kind::Quota => Some(QUOTA_AFTERMATH_MS),
        Kind::ClockStep | Kind::PostgresClock => None,
        Kind::EtcdStop | Kind::EtcdKill | Kind::EtcdEmptied | Kind::EtcdLeases => None,
        Kind::Cut(Server::Etcd) | Kind::Delay(Server::Etcd) | Kind::HalfOpen(Server::Etcd) => None,
        Kind::Cut(Server::Shop) | Kind::Delay(Server::Shop) | Kind::HalfOpen(Server::Shop) => None,
        Kind::ShopStop | Kind::ShopFreeze | Kind::IntakePartitions => None,
        Kind::Service(_) | Kind::KillCallers => None,
        _ if was_deferred && kind.may_duplicate() => Some(DEFERRED_RECOVERY_MS),
        _ => Some(RECOVERY_MS),
    }
}

/// Returns the longest time between two moments that no operation explains, in milliseconds. A
/// pause explains only that tasks of its topic are late.
pub fn unexplained(
    spans: &[Span],
    topic: Option<usize>,
    wait: (i64, i64),
    was_deferred: bool,
) -> i64 {
    let of_topic = |span: &&Span| span.operation.kind != Kind::Pause || topic == Some(PAUSED);
    let reasons = spans.iter().filter(of_topic).filter_map(|span| {
        let recovery = recovery_ms(span.operation.kind, was_deferred)?;
        Some((span.begin, span.end + recovery))
    });
    longest_without(reasons, wait)
}

/// Returns the longest time between two moments, in milliseconds, for which no operation explains
/// that a record was handed to a Kafka client and not appended.
pub fn not_held_back(spans: &[Span], wait: (i64, i64)) -> i64 {
    let reasons = spans.iter().filter_map(|span| {
        let aftermath = match span.operation.kind {
            Kind::Quota => QUOTA_AFTERMATH_MS,
            kind if kind.takes_brokers_away() => RECOVERY_MS,
            Kind::FreezeNode => RECOVERY_MS,
            Kind::TopicUnavailable | Kind::TopicDeleted | Kind::TopicLimit => RECOVERY_MS,
            Kind::Cut(Server::Kafka) | Kind::Delay(Server::Kafka) => RECOVERY_MS,
            Kind::HalfOpen(Server::Kafka) | Kind::Stall(Server::Kafka) => RECOVERY_MS,
            _ => return None,
        };
        Some((span.begin, span.end + aftermath))
    });
    longest_without(reasons, wait)
}

/// Returns the longest time between two moments, in milliseconds, for which no operation explains
/// that a record was in its topic, and not sent to its service. Nothing was done to either.
pub fn not_called(spans: &[Span], wait: (i64, i64)) -> i64 {
    let reasons = spans.iter().filter_map(|span| {
        let recovery = match span.operation.kind {
            Kind::TopicUnavailable | Kind::TopicDeleted | Kind::TopicLimit | Kind::Pause => None,
            Kind::AuthRewritten => None,
            // librdkafka waits by the wall clock.
            Kind::ClockStep => Some(RECOVERY_MS + CLOCK_STEP_MAX_MS),
            kind => recovery_ms(kind, false),
        }?;
        Some((span.begin, span.end + recovery))
    });
    longest_without(reasons, wait)
}

/// Returns the longest time between two moments that none of the reasons covers.
fn longest_without(reasons: impl Iterator<Item = (i64, i64)>, (from, to): (i64, i64)) -> i64 {
    let mut reasons: Vec<(i64, i64)> =
        reasons.filter(|(begin, end)| *begin < to && *end > from).collect();
    reasons.sort_unstable();
    let (mut longest, mut explained_until) = (0, from);
    for (begin, end) in reasons {
        longest = longest.max(begin - explained_until);
        explained_until = explained_until.max(end);
    }
    longest.max(to - explained_until)
}

/// Returns true when there were quotas with enough records, and they delayed hardly any record. A
/// busy machine alone makes some records late. A quota of a quarter of the traffic makes most of
/// them late.
pub fn is_quota_without_effect(history: &History) -> bool {
    let (mut due_count, mut held_back) = (0, 0);
    for quota in history.spans.iter().filter(|span| span.operation.kind == Kind::Quota) {
        // Later attempts are due later than their headers say.
        let due = history
            .records
            .iter()
            .filter(|record| record.attempt.is_none())
            .filter_map(|record| Some((history.clock.reached(record.due_header?), record.at)));
        for (due_at, at) in due.filter(|(due_at, _)| (quota.begin..quota.end).contains(due_at)) {
            due_count += 1;
            held_back += usize::from(at - due_at >= HELD_BACK_MS);
        }
    }
    due_count >= HELD_BACK_RECORDS_MIN && held_back * 3 < due_count
}
