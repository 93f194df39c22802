//! The steps of an answer of a consumer: find the task, make the call, tell the verdict.

use crate::domain::task::feedback::{Call, Verdict};
use crate::domain::{IdRange, PrincipalName, TaskId, TaskState, TaskView, Timestamp};
use crate::node::messages::answers::{ConsumerCall, Heard, Target};
use crate::node::messages::{Due, Unavailable};
use crate::node::requests::connections::principal_turns::{CallKind, PrincipalTurns};
use crate::node::requests::postgres_failures::unavailable_of_read;
use crate::node::shared::NodeShared;
use crate::postgres::tasks::answers::{AnswerCall, AnswerTerms, Answered, GROUP_MAX};
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::Names;

/// Returns the ids of the tasks that are meant. `None` for a name without a task.
pub async fn ids_of(
    names: &Names,
    look_up: &LookUp,
    targets: &[&Target],
) -> Result<Vec<Option<TaskId>>, Unavailable> {
    let mut ids: Vec<Option<TaskId>> = Vec::with_capacity(targets.len());
    let mut named = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        match target {
            Target::Id(permit) => ids.push(Some(permit.id())),
            Target::Name(permit, name) => {
                named.push((index, (permit.topic().as_str(), name.as_str())));
                ids.push(None);
            }
        }
    }
    for some in named.chunks(GROUP_MAX) {
        let wanted: Vec<(&str, &str)> = some.iter().map(|(_index, name)| *name).collect();
        let entries = names.entries(&wanted).await;
        let entries = entries.map_err(unavailable_of_read)?;
        for ((index, _name), entry) in some.iter().zip(entries) {
            ids[*index] = match entry {
                Some(entry) if entry.is_expired => pending(look_up, entry.id).await?,
                entry => entry.map(|entry| entry.id),
            };
        }
    }
    Ok(ids)
}

/// Returns the task of an expired name, which still has it while the task is pending.
async fn pending(look_up: &LookUp, id: TaskId) -> Result<Option<TaskId>, Unavailable> {
    let view = look_up.task(id).await.map_err(unavailable_of_read)?;
    Ok(view.filter(TaskView::is_pending).map(|view| view.id))
}

/// Returns the verdict on a call of `by`. `None`: the task was between two places. A look-up, if
/// one is needed, waits for its turn among `turns`.
pub async fn heard(
    look_up: &LookUp,
    turns: Option<&PrincipalTurns>,
    (call, by): (&AnswerCall, &PrincipalName),
    answered: Option<Answered>,
) -> Result<Option<Heard>, Unavailable> {
    let is_busy = matches!(&answered, Some(Answered { verdict: Verdict::Busy, .. }));
    let verdict = match answered {
        // For a call for one topic, a task of another topic looks busy, too. The look-up below
        // tells them apart.
        Some(Answered { verdict: Verdict::Busy, .. }) if call.topic.is_none() => return Ok(None),
        Some(Answered { verdict, view: Some(mut view), .. }) => {
            let finished = view.tracked.as_mut().and_then(|view| view.finished.as_mut());
            if let Some(finished) = finished.filter(|_finished| !by.is_anonymous()) {
                finished.by = Some(by.clone());
            }
            return Ok(Some(Heard::Tracked(verdict, view)));
        }
        Some(Answered { verdict, view: None, .. }) => Some(verdict),
        None => None,
    };
    let _turn = match turns {
        Some(turns) => Some(turns.take_by_name(by, CallKind::LookUps).await?),
        None => None,
    };
    let view = match look_up.task(call.first).await {
        // The look-up only excludes a task of another topic. If it fails, the call is repeated, as
        // for any busy task.
        Err(_failed) if is_busy => return Ok(None),
        view => view,
    };
    let Some(view) = view.map_err(unavailable_of_read)? else {
        return Ok(Some(Heard::NotFound));
    };
    if !call.is_for(view.topic.as_str()) {
        return Ok(Some(Heard::NotFound));
    }
    if is_busy {
        return Ok(None);
    }
    // Cancelled tasks and dropped dead letters have left no record that tells they were tracked.
    let is_dropped = view.state == TaskState::Dead && view.actors.dropped.is_some();
    if view.state == TaskState::Cancelled || is_dropped {
        let verdict = verdict_of_state(call.call, view.state);
        return Ok(verdict.map(|verdict| Heard::Tracked(verdict, Box::new(view))));
    }
    if view.tracked.is_none() {
        return Ok(Some(Heard::NotTracked(Box::new(view))));
    }
    let shown = (view.state, view.tracked.as_ref().map_or(0, |tracked| tracked.attempt));
    let verdict = match verdict {
        Some(verdict) => Some(verdict_as_shown(verdict, call.call, shown)),
        None => verdict_of_state(call.call, view.state),
    };
    Ok(verdict.map(|verdict| Heard::Tracked(verdict, Box::new(view))))
}

/// Returns the verdict on a call that has changed nothing. The answer shows the task as it is now:
/// in `state`, after its attempt `shown`. If the task has gone on since the call, the retry that it
/// shows is not the one after the attempt of the call.
fn verdict_as_shown(verdict: Verdict, call: Call, (state, shown): (TaskState, u16)) -> Verdict {
    match (verdict, call) {
        // A noted call that has changed something has its own view, and never comes here.
        (Verdict::RetryingAsBefore | Verdict::Noted, Call::Fail { attempt, .. })
            if shown > attempt =>
        {
            Verdict::AttemptSuperseded
        }
        (Verdict::RetryingAsBefore | Verdict::Noted, Call::Fail { .. })
            if state != TaskState::Scheduled =>
        {
            verdict_of_state(call, state).unwrap_or(verdict)
        }
        _ => verdict,
    }
}

/// Returns the verdict on a call about a task of which no attempt is with a consumer. `None` means
/// that there is one after all: the task has moved meanwhile.
fn verdict_of_state(call: Call, state: TaskState) -> Option<Verdict> {
    match (state, call) {
        (TaskState::Scheduled, _) => Some(Verdict::NotPublishedYet),
        (TaskState::Finished, Call::Finish { .. }) => Some(Verdict::Finished),
        (TaskState::Finished, _) => Some(Verdict::AlreadyFinished),
        (TaskState::Dead | TaskState::Expired, _) => Some(Verdict::Dead),
        (TaskState::Cancelled, _) => Some(Verdict::Cancelled),
        (
            TaskState::Claimed | TaskState::Awaiting | TaskState::Retrying | TaskState::Published,
            _,
        ) => None,
    }
}

/// Returns a call about the task `first`. A delay counts from `arrived_at`.
pub fn call_of(first: TaskId, call: ConsumerCall, arrived_at: Timestamp) -> AnswerCall {
    let blank = |call| AnswerCall {
        first,
        topic: None,
        call,
        retry_at: None,
        by: None,
        reason: None,
        principal: None,
    };
    match call {
        ConsumerCall::Finish { attempt } => blank(Call::Finish { attempt }),
        ConsumerCall::Fail { attempt, retry, is_final, reason } => AnswerCall {
            retry_at: retry.map(|retry| match retry {
                Due::At(at) => at,
                Due::After(span) => arrived_at.plus(span),
            }),
            reason,
            ..blank(Call::Fail { attempt, is_final })
        },
        ConsumerCall::Extend { attempt, by } => {
            AnswerCall { by, ..blank(Call::Extend { attempt }) }
        }
    }
}

/// Counts a call that has changed a task, and has the claims look after the new row.
pub fn observe(shared: &NodeShared, call: &AnswerCall, answered: Option<&Answered>) {
    let Some(answered) = answered.filter(|answered| answered.view.is_some()) else { return };
    let metrics = &shared.metrics;
    match call.call {
        Call::Finish { .. } => metrics.tracked.finished.inc(),
        Call::Fail { .. } => metrics.tracked.failed.inc(),
        Call::Extend { .. } => metrics.tracked.extended.inc(),
    };
    if let Some(ran_for) = answered.ran_for {
        metrics.tracked.time_to_finish.observe(ran_for.as_secs_f64());
    }
    // A row that is due now may lie behind the watermark of the claims.
    shared.claim_late(IdRange::spanning(answered.row));
}

pub fn terms(shared: &NodeShared) -> AnswerTerms {
    AnswerTerms {
        now: shared.clock.at_most().unwrap_or_else(|| shared.now()),
        leaves_end: shared.leaves.end().unwrap_or_default(),
        window: shared.cluster.window,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_fail_is_told_what_the_task_beside_it_shows() {
        let call = Call::Fail { attempt: 1, is_final: false };
        let told =
            |state, attempt| verdict_as_shown(Verdict::RetryingAsBefore, call, (state, attempt));
        assert_eq!(told(TaskState::Retrying, 1), Verdict::RetryingAsBefore);
        assert_eq!(told(TaskState::Claimed, 1), Verdict::RetryingAsBefore);
        for state in [TaskState::Awaiting, TaskState::Retrying, TaskState::Finished] {
            assert_eq!(told(state, 2), Verdict::AttemptSuperseded);
        }
        assert_eq!(told(TaskState::Finished, 1), Verdict::AlreadyFinished);
        assert_eq!(told(TaskState::Cancelled, 1), Verdict::Cancelled);
        let other = verdict_as_shown(Verdict::AlreadyFailed, call, (TaskState::Awaiting, 2));
        assert_eq!(other, Verdict::AlreadyFailed);
    }
}
