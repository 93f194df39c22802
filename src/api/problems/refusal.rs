//! Maps the refusals of the service to problems. No other place gives a refusal its type.

use super::problem::Problem;
use super::problem_type::ProblemType;
use crate::domain::Choice;
use crate::domain::time::duration::spelled;
use crate::node::messages::{Refusal, Unavailable};

/// The fields that the parts of a task came from, so that a refusal can name the right one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldOrigin {
    pub due: &'static str,
    pub payload: &'static str,
}

/// Returns the problem of a task that the service did not store.
pub fn of_refusal(refusal: Refusal, origin: FieldOrigin) -> Problem {
    match refusal {
        Refusal::UnknownTopic => Problem::new(
            ProblemType::UnknownTopic,
            "Kafka has no topic of this name; correct the name, or create the topic (Punctual sees \
             it within seconds; `punctual dev` creates those of `--topic`)",
        )
        .at("topic"),
        Refusal::TooLarge { size, size_max } => Problem::new(
            ProblemType::RecordTooLarge,
            format!(
                "the record takes up to {size} bytes, with its headers and after compression, if \
                 any; its topic takes at most {size_max} (max.message.bytes)"
            ),
        )
        .at(origin.payload),
        Refusal::NoKey => Problem::new(
            ProblemType::KeyRequired,
            "the topic is compacted (cleanup.policy), and Kafka refuses records without a key \
             there; give the task a key",
        )
        .at("key"),
        Refusal::OfDeadTopic(refusal) => of_refusal(*refusal, origin).at("retry.dead_topic"),
        Refusal::TooFar { delay_max } => Problem::new(
            ProblemType::TooFarAhead,
            format!(
                "a task may be due at most {} ahead (`--delay-max` of the node, or `delay_max` in \
                 the policy of the topic)",
                spelled(delay_max)
            ),
        )
        .at(origin.due),
        Refusal::ExpiresTooEarly { due_at } => Problem::new(
            ProblemType::ExpiresTooEarly,
            format!("the task is due at {due_at}, and must expire later"),
        )
        .at("expires_at"),
        Refusal::TooManyPending { task_count, pending_max } => Problem::too_many_pending(&format!(
            "the topic has about {task_count} pending tasks, and may have {pending_max} \
                 (`pending_max` of its policy)"
        )),
        Refusal::NodesWithoutTracking { node_count } => old_nodes(node_count, "tasks with a `ttr`"),
        Refusal::NodesWithoutExpiry { node_count } => {
            old_nodes(node_count, "tasks that expire or are spread")
        }
        Refusal::BadValue { reason } => Problem::new(
            ProblemType::RefusedValue,
            format!("the database refused the task: {reason}"),
        ),
        Refusal::Busy { limit } => Problem::busy(limit),
        Refusal::Draining => Problem::draining(),
        Refusal::TopicDenied { reason } | Refusal::ServerAway { reason } => {
            Problem::new(ProblemType::Unavailable, format!("nothing is stored: {reason}"))
        }
        Refusal::Unknown { reason } => Problem::submit_unknown(&reason),
    }
}

/// Returns the problem of a task that nodes of an older version would handle wrongly.
fn old_nodes(node_count: usize, unknown: &str) -> Problem {
    let (nodes, are) = if node_count == 1 { ("node", "is") } else { ("nodes", "are") };
    Problem::new(
        ProblemType::Unavailable,
        format!(
            "nothing is stored: {node_count} {nodes} of the cluster {are} of an older version, \
             which does not know {unknown}; such tasks are taken once all nodes are upgraded (GET \
             /v1/cluster shows their versions)"
        ),
    )
}

/// Returns the problem of a call without an answer. `unknown` makes it when the call may have taken
/// effect.
pub fn of_unavailable(unavailable: Unavailable, unknown: impl FnOnce(&str) -> Problem) -> Problem {
    match unavailable {
        Unavailable::Busy { limit } => Problem::busy(limit),
        Unavailable::ServerAway { reason } => Problem::unavailable(&reason),
        Unavailable::Unknown { reason } => unknown(&reason),
        Unavailable::Draining => Problem::draining(),
        Unavailable::TooManyNames => Problem::invalid(
            "name_prefix",
            format!(
                "nothing was done: more than {} names of the topic begin with it, those of ended \
                 tasks included; give a longer prefix",
                Choice::PREFIXED_MAX
            ),
        ),
    }
}
