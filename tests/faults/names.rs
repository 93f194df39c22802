//! Rule 4 for names: the requests of one name come one after another. The answer to each follows
//! from the earlier requests, until a request has no answer.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::history::{Cancel, History, Outcome, Submit, Target, Verdict, When};
use super::oracle::{Rule, Violation};

enum Request<'a> {
    Submit(&'a Submit),
    Cancel(&'a Cancel),
}

/// The knowledge about a name at some moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Unknown. A request without an answer may take effect at any later moment.
    Nothing,
    Free,
    /// The name stands for this task.
    Task(Uuid),
}

/// Checks the requests of each name in order. `state` returns the final state of a task.
pub fn check<'a>(history: &History, state: impl Fn(Uuid) -> Option<&'a str>) -> Vec<Violation> {
    let mut names: HashMap<(usize, &str), Vec<(i64, Request<'_>)>> = HashMap::new();
    for submit in &history.submits {
        if let Some(name) = &submit.name {
            names
                .entry((submit.topic, name))
                .or_default()
                .push((submit.sent_at, Request::Submit(submit)));
        }
    }
    for cancel in &history.cancels {
        if let Target::Name(topic, name) = &cancel.target {
            names
                .entry((*topic, name))
                .or_default()
                .push((cancel.sent_at, Request::Cancel(cancel)));
        }
    }
    let mut arrived: HashMap<u64, HashSet<Uuid>> = HashMap::new();
    for record in &history.records {
        arrived.entry(record.serial.unwrap_or_default()).or_default().insert(record.id);
    }
    let due_times: HashMap<Uuid, i64> = history
        .submits
        .iter()
        .filter_map(|submit| match submit.outcome {
            Outcome::Accepted { id, due_at, .. } => Some((id, due_at)),
            _ => None,
        })
        .collect();
    let mut violations = Vec::new();
    for ((_, name), mut requests) in names {
        requests.sort_by_key(|(sent_at, _)| *sent_at);
        violations.extend(check_one_task(name, &requests, &arrived));
        let mut known = Known::Free;
        for (_, request) in requests {
            let (after, wrong) = match request {
                Request::Submit(submit) => {
                    let shown = history.clock.latest(submit.answered_at);
                    let wrong = check_condition(submit, known, (&due_times, shown));
                    let (after, other) = after_submit(submit, known, &state);
                    (after, other.or(wrong))
                }
                Request::Cancel(cancel) => after_cancel(cancel, known),
            };
            let after = if known == Known::Nothing { known } else { after };
            if let Some((task, what)) = wrong {
                violations.push(Violation {
                    rule: Rule::WrongVerdict,
                    task: Some(task),
                    what: format!("name {name}: {what}"),
                });
            }
            known = after;
        }
    }
    violations
}

/// Checks that a name used only in POSTs stands for one task, even if many of its submits had no
/// answer and were retried.
fn check_one_task(
    name: &str,
    requests: &[(i64, Request<'_>)],
    arrived: &HashMap<u64, HashSet<Uuid>>,
) -> Option<Violation> {
    let mut tasks: HashSet<Uuid> = HashSet::new();
    for (_, request) in requests {
        let Request::Submit(submit) = request else { continue };
        if submit.is_put {
            return None;
        }
        match submit.outcome {
            Outcome::Accepted { id, .. } | Outcome::Known { id } => _ = tasks.insert(id),
            _ => tasks.extend(arrived.get(&submit.serial).into_iter().flatten()),
        }
    }
    let what = format!("name {name} was only POSTed, and has {} tasks: {tasks:?}", tasks.len());
    (tasks.len() > 1).then(|| Violation {
        rule: Rule::Stranger,
        task: tasks.iter().next().copied(),
        what,
    })
}

type Wrong = Option<(Uuid, String)>;

fn after_submit<'a>(
    submit: &Submit,
    known: Known,
    state: impl Fn(Uuid) -> Option<&'a str>,
) -> (Known, Wrong) {
    match &submit.outcome {
        Outcome::Accepted { id, has_replaced, .. } => {
            let wrong = match known {
                Known::Task(former) if !submit.is_put => {
                    Some(format!("a POST made a second task beside {former}"))
                }
                Known::Task(former) if *has_replaced && state(former) != Some("cancelled") => {
                    Some(format!("told that it replaced {former}, which is {:?}", state(former)))
                }
                Known::Task(former) if !*has_replaced && state(former).is_none() => {
                    Some(format!("told that it is new, but {former} has not ended"))
                }
                Known::Free if *has_replaced => {
                    Some("told that it replaced a task, and there was none".to_owned())
                }
                _ => None,
            };
            (Known::Task(*id), wrong.map(|what| (*id, what)))
        }
        Outcome::Known { id } | Outcome::TooLate { id } | Outcome::Kept { id } => {
            let wrong = match known {
                Known::Task(former) if former != *id => {
                    Some(format!("stands for {former}, and {id} was shown"))
                }
                Known::Free => Some(format!("was free, and {id} was shown")),
                _ => None,
            };
            (Known::Task(*id), wrong.map(|what| (*id, what)))
        }
        Outcome::Refused { .. } => (known, None),
        // Its effect depends on when a node takes it.
        Outcome::Unknown { .. } | Outcome::Committed => (Known::Nothing, None),
    }
}

/// Checks that a PUT with a condition, answered when Postgres's clock showed `shown` at the latest,
/// has replaced the task of its name only if its condition allows that, and otherwise did.
fn check_condition(
    submit: &Submit,
    known: Known,
    (due_times, shown): (&HashMap<Uuid, i64>, i64),
) -> Wrong {
    let Known::Task(former) = known else { return None };
    let former_due = *due_times.get(&former)?;
    match (&submit.outcome, submit.when) {
        (Outcome::Accepted { id, due_at, has_replaced: true }, Some(when)) => {
            let is_allowed = match when {
                When::Absent => false,
                When::Earlier => *due_at < former_due,
                When::Later => *due_at > former_due,
            };
            let what = || format!("replaced {former}, due at {former_due}, in spite of {when:?}");
            (!is_allowed).then(|| (*id, what()))
        }
        (Outcome::Kept { id }, when) => {
            // A time in the past is due at once.
            let is_right = match when {
                Some(When::Absent) => true,
                Some(When::Earlier) => submit.due_at.max(shown) >= former_due,
                Some(When::Later) => submit.due_at <= former_due,
                None => false,
            };
            let what = || format!("not replaced, due at {former_due}, and {when:?} allows it");
            (!is_right).then(|| (*id, what()))
        }
        _ => None,
    }
}

fn after_cancel(cancel: &Cancel, known: Known) -> (Known, Wrong) {
    match (&cancel.verdict, known) {
        (
            Verdict::Cancelled { id: Some(id) } | Verdict::TooLate { id: Some(id), .. },
            Known::Task(former),
        ) if *id != former => (
            Known::Task(*id),
            Some((*id, format!("stands for {former}, and a cancel was about {id}"))),
        ),
        (Verdict::Cancelled { id: Some(id) } | Verdict::TooLate { id: Some(id), .. }, _) => {
            (Known::Task(*id), None)
        }
        (Verdict::NotFound, Known::Task(former)) => {
            (known, Some((former, "told `not_found`, and the name is known".to_owned())))
        }
        (Verdict::NotFound, Known::Nothing) => (Known::Nothing, None),
        _ => (known, None),
    }
}
