//! Problems of requests whose outcome is unknown. Each says whether repeating is safe.

use super::Problem;
use crate::api::problems::problem_type::ProblemType;

impl Problem {
    /// Makes the problem of a request whose outcome is unknown because its answer was lost.
    pub fn answer_lost(limit: &'static str) -> Self {
        let detail = format!(
            "the request may have been done, or not: the limit {limit} left no room for the \
             answer. Look before you repeat it"
        );
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    pub fn submit_unknown(reason: &str) -> Self {
        let detail = format!(
            "the task may be stored, or not: {reason}. Repeating is safe with a name: the same \
             name makes no second task. Without a name, repeating may publish the task twice"
        );
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    pub fn replace_unknown(reason: &str) -> Self {
        let detail = format!(
            "the task may be replaced, or not: {reason}. Repeating is safe until the task is due: \
             a name never has two pending tasks. After that, look first: a PUT after the task was \
             published schedules another one"
        );
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    pub fn move_unknown(reason: &str) -> Self {
        let detail = format!(
            "the task may be moved, or not: {reason}. Repeating is safe with due_at; with delay, \
             the time counts from the repetition"
        );
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    pub fn cancel_unknown(reason: &str) -> Self {
        let detail = format!("the task may be cancelled, or not: {reason}. Repeating is safe");
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    /// The answer to a change of a schedule was lost.
    pub fn schedule_unknown(reason: &str) -> Self {
        let detail = format!("the schedule may or may not have been changed: {reason}");
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    /// The answer to a change of a topic was lost.
    pub fn topic_unknown(reason: &str) -> Self {
        let detail =
            format!("the topic may or may not have been changed: {reason}. Repeating is safe");
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    /// Makes the problem of a change of one dead letter whose outcome is unknown. `done` names the
    /// change, such as `dropped`.
    pub fn dead_unknown(done: &str, reason: &str) -> Self {
        let detail = format!(
            "the dead letter may be {done}, or not: {reason}. Repeating is safe: if it was, the \
             answer is 404"
        );
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    /// Makes the problem of a change of many tasks whose outcome is unknown. `done` names the
    /// change, such as `cancelled`.
    pub fn bulk_unknown(done: &str, reason: &str) -> Self {
        let detail = format!(
            "some of the tasks may be {done}, or none: {reason}. Repeating is safe: it goes on \
             with the remaining tasks, and counts only these"
        );
        Self::new(ProblemType::OutcomeUnknown, detail)
    }

    /// Makes the problem of a consumer's call whose outcome is unknown.
    pub fn outcome_of_call_unknown(reason: &str) -> Self {
        let detail = format!("the call may have taken effect, or not: {reason}. Repeating is safe");
        Self::new(ProblemType::OutcomeUnknown, detail)
    }
}
