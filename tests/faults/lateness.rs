//! Rule 11: the cluster recovers. A task may be late while an operation holds it up, and for a
//! bounded time after it. A stretch of waiting that no operation explains is a fault when it is
//! long.

use super::duplicates::QUOTA_AFTERMATH_MS;
use super::history::{History, Span};
use super::plan::{Kind, Server};

/// What a task may wait without a reason, on a machine that has other things to do.
pub const UNEXPLAINED_MAX_MS: i64 = 15_000;
/// Until a server that is back is reached again, and the backlog is out.
const RECOVERY_MS: i64 = 15_000;
/// What was sent and had no answer is put off, by up to a minute.
const DEFERRED_RECOVERY_MS: i64 = 90_000;
/// A quota that does its work makes a third of all records this late, and more.
const HELD_BACK_MS: i64 = 1000;
/// With fewer records a quota may have nothing to hold back.
const HELD_BACK_RECORDS_MIN: usize = 300;

/// How long after its end an operation of this kind explains that a task is late; `None` when it
/// explains nothing, for it should hold up nobody.
const fn recovery_ms(kind: Kind, was_deferred: bool) -> Option<i64> {
    match kind {
        Kind::Quota => Some(QUOTA_AFTERMATH_MS),
        Kind::ClockStep | Kind::PostgresClock => None,
        Kind::EtcdStop | Kind::EtcdKill | Kind::EtcdEmptied | Kind::EtcdLeases => None,
        Kind::Cut(Server::Etcd) | Kind::Delay(Server::Etcd) | Kind::HalfOpen(Server::Etcd) => None,
        _ if was_deferred && kind.may_duplicate() => Some(DEFERRED_RECOVERY_MS),
        _ => Some(RECOVERY_MS),
    }
}

/// The longest stretch between two moments that no operation explains, in milliseconds.
pub fn unexplained(spans: &[Span], (from, to): (i64, i64), was_deferred: bool) -> i64 {
    let reasons = spans.iter().filter_map(|span| {
        let recovery = recovery_ms(span.operation.kind, was_deferred)?;
        Some((span.begin, span.end + recovery))
    });
    let mut reasons: Vec<(i64, i64)> = reasons.filter(|(begin, end)| *begin < to && *end > from).collect();
    reasons.sort_unstable();
    let (mut longest, mut explained_until) = (0, from);
    for (begin, end) in reasons {
        longest = longest.max(begin - explained_until);
        explained_until = explained_until.max(end);
    }
    longest.max(to - explained_until)
}

/// True when there were quotas with enough to send under them, and they held hardly anybody back. A
/// machine that is busy makes some records late by itself, a quota of a quarter of the traffic
/// most.
pub fn is_quota_without_effect(history: &History) -> bool {
    let (mut due_count, mut held_back) = (0, 0);
    for quota in history.spans.iter().filter(|span| span.operation.kind == Kind::Quota) {
        let due = history.records.iter().filter_map(|record| Some((history.clock.reached(record.due_header?), record.at)));
        for (due_at, at) in due.filter(|(due_at, _)| (quota.begin..quota.end).contains(due_at)) {
            due_count += 1;
            held_back += usize::from(at - due_at >= HELD_BACK_MS);
        }
    }
    due_count >= HELD_BACK_RECORDS_MIN && held_back * 3 < due_count
}
