//! Operations of topics.

use axum::http::StatusCode;

use super::parameters::LIMIT;
use crate::access::Action;
use crate::api::access::required::Access;
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, Parameter, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

const TOPIC: Parameter = Parameter::path("topic", "The topic.", "TopicName");
const IF_MATCH: Parameter = Parameter::header(
    "If-Match",
    "Act only if the topic has this `ETag`, else 412; `*` for any policy or pause.",
    "RevisionTag",
);
const IF_NONE_MATCH: Parameter = Parameter::header(
    "If-None-Match",
    "Only `*`: act only if the topic has neither a policy nor a pause, else 412.",
    "AnyRevision",
);
const ON_TOPIC: Access = Access::OnTopic(&[Action::Operate]);
const REASON: RequestBody = RequestBody {
    schema: "TopicReason",
    is_required: false,
    examples: &[Example {
        name: "reason",
        summary: "With a reason, for people",
        json: r#"{"reason":"the consumer fails on each record"}"#,
    }],
};

pub const LIST: Operation = Operation {
    id: "listTopics",
    tag: Tag::Topics,
    access: Access::OnTopicOrAll(Action::Read),
    summary: "List topics",
    description: "Topics with pending tasks, dead letters, a policy or a pause, in the order of \
                  their names. Repeat with `after` set to `next_after` until that is null. Where \
                  the counts are estimates, a topic with few pending tasks may be missing.",
    parameters: &[Parameter::query("after", "Begin after this topic.", "TopicName"), LIMIT],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Topics", "A page of topics.")],
    problems: &[P::InvalidValue, P::DuplicateField, P::Unavailable],
    sample: ShellSample { before: "", path: "/v1/topics" },
};

pub const LOOK_UP: Operation = Operation {
    id: "getTopic",
    tag: Tag::Topics,
    access: Access::OnTopic(&[Action::Read]),
    summary: "Look up a topic",
    description: "The policy and the pause of a topic, and its tasks. `in_flight` tasks are \
                  claimed: a pause does not stop them. `ETag` is the revision, if the topic has a \
                  policy or is paused.",
    parameters: &[TOPIC],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Topic", "The topic.")],
    problems: &[P::InvalidValue, P::TopicNotFound, P::Unavailable],
    sample: ShellSample { before: "", path: "/v1/topics/demo" },
};

pub const PUT_POLICY: Operation = Operation {
    id: "putTopicPolicy",
    tag: Tag::Topics,
    access: ON_TOPIC,
    summary: "Set the policy of a topic",
    description: "The whole policy. Tasks take it at their submit, so a change does not alter \
                  stored tasks. All nodes use it within a second or two. Without `paused`, the \
                  topic stays paused or not. Repeating changes nothing.",
    parameters: &[TOPIC, IF_MATCH, IF_NONE_MATCH],
    body: Some(RequestBody {
        schema: "TopicPolicyRequest",
        is_required: true,
        examples: &[Example {
            name: "tracked",
            summary: "Tasks are tracked, due within 90 days, and at most five million",
            json: r#"{"ttr":"30s","retry":{"attempts_max":5},"delay_max":"90d","pending_max":5000000}"#,
        }],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Topic", "The topic with the policy.")],
    problems: &[
        P::TopicNotFound,
        P::PreconditionFailed,
        P::MissingField,
        P::UnknownTopic,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: "", path: "/v1/topics/demo/policy" },
};

pub const DELETE_POLICY: Operation = Operation {
    id: "deleteTopicPolicy",
    tag: Tag::Topics,
    access: ON_TOPIC,
    summary: "Take the policy of a topic away",
    description: "Stored tasks keep what they have of it. A paused topic stays paused. Repeating \
                  changes nothing.",
    parameters: &[TOPIC, IF_MATCH, IF_NONE_MATCH],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Topic", "The topic without a policy.")],
    problems: &[
        P::TopicNotFound,
        P::RequestTimeout,
        P::PreconditionFailed,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: "", path: "/v1/topics/demo/policy" },
};

pub const PAUSE: Operation = Operation {
    id: "pauseTopic",
    tag: Tag::Topics,
    access: ON_TOPIC,
    summary: "Pause a topic",
    description: "From now on no node claims tasks of the topic. Submits are accepted. `in_flight` \
                  tasks were claimed before and may still be published; claims that run at this \
                  moment may add theirs. Repeating changes nothing.",
    parameters: &[TOPIC],
    body: Some(REASON),
    answers: &[OperationAnswer::json(StatusCode::OK, "Topic", "The paused topic.")],
    problems: &[P::UnknownTopic, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/topics/demo/pause" },
};

pub const RESUME: Operation = Operation {
    id: "resumeTopic",
    tag: Tag::Topics,
    access: ON_TOPIC,
    summary: "Resume a topic",
    description: "Overdue tasks are published as a backlog: other topics stay on time. Repeating \
                  changes nothing.",
    parameters: &[TOPIC],
    body: Some(REASON),
    answers: &[OperationAnswer::json(StatusCode::OK, "Topic", "The topic.")],
    problems: &[P::TopicNotFound, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/topics/demo/resume" },
};
