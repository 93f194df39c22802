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
    description: "In the order of their due time, with the reason of each. Headers and payload are not listed; a look-up of the task shows them.",
    parameters: &[OF_TOPIC, DUE_FROM, DUE_TO, LIMIT, CURSOR],
    body: None,
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "Page",
        "A page; a cursor of null is the end.",
    )],
    problems: &[P::DuplicateField, P::InvalidValue, P::Unavailable],
    sample: ShellSample { before: "", path: "/v1/dead?topic=demo&limit=10" },
};

/// Shell lines that take the id of a dead letter from the list. Without one, the sample asks for no
/// more.
const A_DEAD_LETTER: &str = r#"id=$(curl --silent --show-error --fail "http://127.0.0.1:7070/v1/dead?topic=demo&limit=1" | sed -n 's/.*"id":"\([^"]*\)".*/\1/p')
test -n "$id" &&"#;

pub const REDRIVE: Operation = Operation {
    id: "redriveDead",
    tag: Tag::Dead,
    access: Access::OnTask(Action::Redrive),
    summary: "Put a dead letter back",
    description: "The task is due at once, with its next attempt, under the same id. It can no longer be cancelled: an earlier attempt may be in the topic.",
    parameters: &[ID],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Task", "The task that was put back.")],
    problems: &[P::TaskNotFound, P::RequestTimeout, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: A_DEAD_LETTER, path: "/v1/dead/$id/redrive" },
};

/// A dry run: a call for many that only counts and changes nothing.
const DRY: &[Example] = &[Example {
    name: "dry",
    summary: "How many there would be",
    json: r#"{"topic":"demo","due_from":"2026-01-01T00:00:00Z","due_to":"2026-02-01T00:00:00Z","dry_run":true}"#,
}];

pub const REDRIVE_MANY: Operation = Operation {
    id: "redriveManyDead",
    tag: Tag::Dead,
    access: Access::OnMany(Action::Redrive),
    summary: "Put many dead letters back",
    description: "Those of a topic and a range of due times, 10,000 in a call at most: `more` says whether there are more, and the next call goes on with \
                  the `cursor`. With `dry_run` they are counted, and nothing is done.",
    parameters: &[],
    body: Some(RequestBody { schema: "Range", examples: DRY }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Redriven", "How many, exactly.")],
    problems: &[P::MissingField, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/dead/redrive" },
};

pub const DROP: Operation = Operation {
    id: "dropDead",
    tag: Tag::Dead,
    access: Access::OnTask(Action::Drop),
    summary: "Drop a dead letter",
    description: "For good: it cannot be put back any more, and why it died is gone. The task can still be looked up, with what it carried until that is forgotten.",
    parameters: &[ID, IF_MATCH_OF_ID, IF_NONE_MATCH_OF_ID],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Task", "The dead letter that was dropped.")],
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
    access: Access::OnMany(Action::Drop),
    summary: "Drop many dead letters",
    description: "For good. Those of a topic and a range of due times, 10,000 in a call at most: `more` says whether there are more, and the next call \
                  goes on with the `cursor`. With `dry_run` they are counted, and nothing is done.",
    parameters: &[],
    body: Some(RequestBody { schema: "Range", examples: DRY }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Dropped", "How many, exactly.")],
    problems: &[P::MissingField, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/dead/drop" },
};
