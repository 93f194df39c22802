//! Rule 7: a record may be in its topic twice only where an acknowledgement was lost or a node
//! seemed dead. Each duplicate is therefore attributed to an operation that can cause duplicates
//! and was going on at the time. A duplicate that no operation explains is a bug of the program.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::history::{Arrival, History, Span};
use super::oracle::{Rule, Violation};
use super::plan::Kind;

/// The effects of an operation end a little after it: clients reconnect, and delayed answers
/// arrive.
const AFTERMATH_MS: i64 = 2000;
/// Records sent during a slow operation may be acknowledged after the nodes' publish deadline (8
/// s).
const DEADLINE_AFTERMATH_MS: i64 = 10_000;
/// After a quota has ended, the broker still throttles clients over the quota, for as long as the
/// quota would have needed for their data. Records of a dead node arrive equally late.
pub const QUOTA_AFTERMATH_MS: i64 = 60_000;

/// Counts the records beyond the first of each task by the kind of operation that explains them.
/// Also returns the unexplained duplicates, as violations.
pub fn attribute(history: &History) -> (BTreeMap<Kind, usize>, Vec<Violation>) {
    // The attempts of a tracked task are no duplicates of each other.
    let mut by_task: HashMap<(Uuid, usize, Option<u16>, bool), Vec<&Arrival>> = HashMap::new();
    for record in &history.records {
        let key = (record.id, record.topic, record.attempt, record.is_dead_letter);
        by_task.entry(key).or_default().push(record);
    }
    let (mut explained, mut unexplained) = (BTreeMap::new(), Vec::new());
    for ((id, ..), mut records) in by_task.into_iter().filter(|(_, records)| records.len() > 1) {
        records.sort_by_key(|record| record.at);
        for pair in records.windows(2) {
            match cause(history, pair[0], pair[1].at) {
                Some(span) => *explained.entry(span.operation.kind).or_default() += 1,
                None => {
                    let what = format!(
                        "appended at {} and again at {}, and nothing explains it",
                        pair[0].at, pair[1].at
                    );
                    unexplained.push(Violation { rule: Rule::Unattributed, task: Some(id), what });
                }
            }
        }
    }
    (explained, unexplained)
}

/// Returns the operation that explains why `record` was published again by `until`. If several can,
/// returns the one that began last, and a stall only if nothing else can.
pub fn cause<'a>(history: &'a History, record: &Arrival, until: i64) -> Option<&'a Span> {
    let topic = history.topics.get(record.topic);
    let explains = |span: &&Span| {
        let is_of_topic = match span.operation.kind {
            Kind::TopicDeleted => topic.is_some_and(|topic| !topic.absences.is_empty()),
            Kind::TopicUnavailable => record.topic == super::history::UNAVAILABLE,
            Kind::TopicLimit => record.topic == super::history::LIMITED,
            _ => true,
        };
        let goes_on = span.begin <= until && record.at <= aftermath_end(history, span);
        span.operation.kind.may_duplicate() && is_of_topic && goes_on
    };
    let rank = |span: &&Span| (!span.operation.kind.is_observed(), span.begin);
    history.spans.iter().filter(explains).max_by_key(rank)
}

/// Returns true when an operation after this moment, or shortly before it, may have caused a
/// duplicate.
pub fn may_be_sent_twice(history: &History, since: i64) -> bool {
    let lasts = |span: &Span| aftermath_end(history, span) >= since;
    history.spans.iter().any(|span| span.operation.kind.may_duplicate() && lasts(span))
}

/// Returns when all effects of an operation have ended. A quota explains no duplicate, but it
/// delays records sent before an operation.
fn aftermath_end(history: &History, span: &Span) -> i64 {
    let is_slow = span.operation.kind.is_slow_afterwards();
    let end = span.end + if is_slow { DEADLINE_AFTERMATH_MS } else { AFTERMATH_MS };
    let quotas = history.spans.iter().filter(|quota| quota.operation.kind == Kind::Quota);
    let held_back = quotas.map(|quota| (quota.begin, quota.end + QUOTA_AFTERMATH_MS));
    held_back
        .filter(|(begin, until)| *begin <= end && span.begin <= *until)
        .map(|(_, until)| until)
        .fold(end, i64::max)
}
