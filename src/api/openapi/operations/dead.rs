//! Operations of dead letters: list, redrive, drop.

use axum::http::StatusCode;

use super::parameters::{
    CURSOR, DUE_FROM, DUE_TO, ID, IF_MATCH_OF_ID, IF_NONE_MATCH_OF_ID, LIMIT, OF_TOPIC,
};
use crate::access::Action;
use crate::api::access::required::Access;
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

pub const LIST: Operation = Operation {
    id: "listDead",
    tag: Tag::Dead,
    access: Access::OnTopicOrAll(Action::Read),
    summary: "List dead letters",
    description: "In the order of their first due times, each with its reason, and a tracked task \
                  with the latest 10 lines of its `attempts`. A moved task is selected by its new \
                  due time, which `due_at` shows. Headers and payload are not listed; look the \
                  task up to see them.",
    parameters: &[OF_TOPIC, DUE_FROM, DUE_TO, LIMIT, CURSOR],
    body: None,
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "Page",
        "A page. A cursor of null marks the end.",
    )],
    problems: &[P::DuplicateField, P::InvalidValue, P::Unavailable],
    sample: ShellSample { before: "", path: "/v1/dead?topic=demo&limit=10" },
};

/// Shell lines that take the id of a dead letter from the list. Without one, the sample asks for no
/// more.
const A_DEAD_LETTER: &str = concat!(
    r#"id=$(curl --silent --show-error --fail "http://127.0.0.1:7070/v1/dead?topic=demo&limit=1""#,
    r#" | sed -n 's/.*"id":"\([^"]*\)".*/\1/p')"#,
    "\ntest -n \"$id\" &&",
);

pub const REDRIVE: Operation = Operation {
    id: "redriveDead",
    tag: Tag::Dead,
    access: Access::OnTask(&[Action::Redrive]),
    summary: "Redrive a dead letter",
    description: "The task becomes due at once, with its next attempt and the same id. It can no \
                  longer be cancelled, because an earlier attempt may be in the topic. With \
                  `to_topic`, it goes to another topic, and has no name any more; that needs \
                  `submit` on the topic, and `read-payload` on the former one. A record that the \
                  topic does not take is refused, and the dead letter stays.",
    parameters: &[ID],
    body: Some(RequestBody {
        schema: "RedriveRequest",
        is_required: false,
        examples: &[Example {
            name: "other",
            summary: "To another topic",
            json: r#"{"to_topic":"demo"}"#,
        }],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Task", "The task, scheduled again.")],
    problems: &[
        P::TaskNotFound,
        P::UnknownTopic,
        P::RecordTooLarge,
        P::KeyRequired,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: A_DEAD_LETTER, path: "/v1/dead/$id/redrive" },
};

/// A dry run: a call for many that only counts and changes nothing.
const DRY: &[Example] = &[Example {
    name: "dry",
    summary: "Only count",
    json: concat!(
        r#"{"topic":"demo","due_from":"2026-01-01T00:00:00Z","#,
        r#""due_to":"2026-02-01T00:00:00Z","dry_run":true}"#,
    ),
}];

pub const REDRIVE_MANY: Operation = Operation {
    id: "redriveManyDead",
    tag: Tag::Dead,
    access: Access::OnMany(&[Action::Redrive]),
    summary: "Redrive many dead letters",
    description: "Redrives the dead letters of a topic in a range of due times, at most 10,000 per \
                  call. If `more` is true, repeat the call with the `cursor`. With `dry_run`, only \
                  counts them. With `to_topic`, they go to another topic, as for one dead letter, \
                  but without a check of their records: those that the topic does not take become \
                  dead letters there.",
    parameters: &[],
    body: Some(RequestBody { schema: "RedriveRange", is_required: true, examples: DRY }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Redriven", "The exact number.")],
    problems: &[P::MissingField, P::UnknownTopic, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/dead/redrive" },
};

pub const DROP: Operation = Operation {
    id: "dropDead",
    tag: Tag::Dead,
    access: Access::OnTask(&[Action::Drop]),
    summary: "Drop a dead letter",
    description: "Deletes the record of the dead letter for good; it can no longer be redriven. \
                  While receipts are kept, the task can still be looked up, with its reason and \
                  who dropped it, but without key, headers and payload.",
    parameters: &[ID, IF_MATCH_OF_ID, IF_NONE_MATCH_OF_ID],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Task", "The dropped dead letter.")],
    problems: &[
        P::TaskNotFound,
        P::RequestTimeout,
        P::PreconditionFailed,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: A_DEAD_LETTER, path: "/v1/dead/$id" },
};

pub const DROP_MANY: Operation = Operation {
    id: "dropManyDead",
    tag: Tag::Dead,
    access: Access::OnMany(&[Action::Drop]),
    summary: "Drop many dead letters",
    description: "Deletes the dead letters of a topic in a range of due times for good, at most \
                  10,000 per call. If `more` is true, repeat the call with the `cursor`. With \
                  `dry_run`, only counts them.",
    parameters: &[],
    body: Some(RequestBody { schema: "DeadRange", is_required: true, examples: DRY }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Dropped", "The exact number.")],
    problems: &[P::MissingField, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/dead/drop" },
};
