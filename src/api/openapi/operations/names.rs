//! Operations of tasks by name.

use axum::http::StatusCode;

use super::parameters::{IF_MATCH, IF_NONE_MATCH, NAME, TOPIC};
use crate::access::Action;
use crate::api::access::required::Access;
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

const A_NAMED_TASK: &str = r#"curl --silent --show-error --fail --output /dev/null --request PUT "http://127.0.0.1:7070/v1/topics/demo/tasks/order-20" \
  --header 'content-type: application/json' --data '{"delay":"1h","payload":1}'"#;
const PATH: &str = "/v1/topics/demo/tasks/order-20";

pub const REPLACE: Operation = Operation {
    id: "putTask",
    tag: Tag::Names,
    access: Access::OnTopic(&[Action::Submit, Action::Cancel]),
    summary: "Create or replace the task of a name",
    description: "The way to move a task to another time, or to change its payload. In one transaction the old task is withdrawn for good (it ends as \
                  `cancelled`) and the new one, with an id of its own, is there. When the old one is on its way already, nothing is changed (409). When it is \
                  final, or the name is unknown, a new task is created (201). Repeating it is safe until the task is due. `If-None-Match: *` only creates, \
                  `If-Match` only replaces the task that is meant; which task the name stands for is decided in that same transaction.",
    parameters: &[TOPIC, NAME, IF_MATCH, IF_NONE_MATCH],
    body: Some(RequestBody {
        schema: "NewNamedTask",
        examples: &[Example {
            name: "later",
            summary: "Two hours from now",
            json: r#"{"delay":"2h","key":"order-20","payload":{"remind":"order-20"}}"#,
        }],
    }),
    answers: &[
        OperationAnswer::created("The new task: the name was unknown, or its task was final."),
        OperationAnswer::json(
            StatusCode::OK,
            "Task",
            "The new task, in the place of the one that waited.",
        ),
    ],
    problems: &[
        P::TooLate,
        P::PreconditionFailed,
        P::MissingField,
        P::ConflictingFields,
        P::UnknownTopic,
        P::RecordTooLarge,
        P::KeyRequired,
        P::TooFarAhead,
        P::RefusedValue,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: "", path: PATH },
};

pub const LOOK_UP: Operation = Operation {
    id: "getTaskByName",
    tag: Tag::Names,
    access: Access::OnTopic(&[Action::Read]),
    summary: "Look up the task of a name",
    description: "The task that the name stands for at that moment, as by its id.",
    parameters: &[TOPIC, NAME],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Task", "The task.")],
    problems: &[P::InvalidValue, P::TaskNotFound, P::Unavailable],
    sample: ShellSample { before: A_NAMED_TASK, path: PATH },
};

pub const CANCEL: Operation = Operation {
    id: "cancelTaskByName",
    tag: Tag::Names,
    access: Access::OnTopic(&[Action::Cancel]),
    summary: "Cancel the task of a name",
    description: "The task that the name stands for at that moment, with the same verdicts as by its id, but for `replaced`: the task in \
                  the place of another is the one that is meant. With `If-Match`, only if it is that task.",
    parameters: &[TOPIC, NAME, IF_MATCH, IF_NONE_MATCH],
    body: None,
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "Cancelled",
        "It is cancelled, now or before.",
    )],
    problems: &[
        P::InvalidValue,
        P::TaskNotFound,
        P::RequestTimeout,
        P::TooLate,
        P::PreconditionFailed,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: A_NAMED_TASK, path: PATH },
};
