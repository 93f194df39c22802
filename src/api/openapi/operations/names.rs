//! Operations of tasks by name.

use axum::http::StatusCode;

use super::parameters::{IF_MATCH, IF_NONE_MATCH, NAME, NOT_AFTER, TOPIC, WHEN};
use crate::access::Action;
use crate::api::access::required::{Access, MOVE_RIGHTS};
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

const A_NAMED_TASK: &str = r#"curl --silent --show-error --fail --output /dev/null \
  --request PUT "http://127.0.0.1:7070/v1/topics/demo/tasks/order-20" \
  --header 'content-type: application/json' --data '{"delay":"1h","payload":1}'"#;
const PATH: &str = "/v1/topics/demo/tasks/order-20";

pub const REPLACE: Operation = Operation {
    id: "putTask",
    tag: Tag::Names,
    access: Access::OnTopic(&[Action::Submit, Action::Cancel]),
    summary: "Create or replace the task of a name",
    description: "Moves a task to another time, or changes its payload. One transaction cancels \
                  the old task for good and stores the new one under an id of its own. If the old \
                  task is already claimed, nothing is changed (409). If it is final, or the name \
                  is unknown, a new task is created (201). Repeating is safe until the task is \
                  due. `If-None-Match: *` only creates; `If-Match` only replaces the task it \
                  names; `when` compares the due times. The same transaction checks all of them.",
    parameters: &[TOPIC, NAME, WHEN, NOT_AFTER, IF_MATCH, IF_NONE_MATCH],
    body: Some(RequestBody {
        schema: "NamedTaskRequest",
        is_required: true,
        examples: &[Example {
            name: "later",
            summary: "Two hours from now",
            json: r#"{"delay":"2h","key":"order-20","payload":{"remind":"order-20"}}"#,
        }],
    }),
    answers: &[
        OperationAnswer::created("The new task. The name was unknown, or its task was final."),
        OperationAnswer::json(
            StatusCode::OK,
            "Task",
            "The new task. It has replaced the pending one.",
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
        P::ExpiresTooEarly,
        P::RefusedValue,
        P::TooManyPending,
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
    description: "The task that the name stands for now, as if looked up by id.",
    parameters: &[TOPIC, NAME],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Task", "The task.")],
    problems: &[P::InvalidValue, P::TaskNotFound, P::Unavailable],
    sample: ShellSample { before: A_NAMED_TASK, path: PATH },
};

pub const MOVE: Operation = Operation {
    id: "moveTaskByName",
    tag: Tag::Names,
    access: Access::OnTopic(MOVE_RIGHTS),
    summary: "Move the task of a name to another due time",
    description: "Moves the task that the name stands for now. Its id and its record stay. The \
                  verdicts are those of a move by id, without `replaced`, because the name always \
                  means the newest task. With `If-Match`, only that task is moved.",
    parameters: &[TOPIC, NAME, IF_MATCH, IF_NONE_MATCH],
    body: Some(RequestBody {
        schema: "MoveRequest",
        is_required: true,
        examples: &[Example {
            name: "later",
            summary: "In two hours from now",
            json: r#"{"delay":"2h"}"#,
        }],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Moved", "The task, with its new due time.")],
    problems: &[
        P::InvalidValue,
        P::MissingField,
        P::ConflictingFields,
        P::TaskNotFound,
        P::TooLate,
        P::PreconditionFailed,
        P::TooFarAhead,
        P::ExpiresTooEarly,
        P::RefusedValue,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: A_NAMED_TASK, path: PATH },
};

pub const CANCEL: Operation = Operation {
    id: "cancelTaskByName",
    tag: Tag::Names,
    access: Access::OnTopic(&[Action::Cancel]),
    summary: "Cancel the task of a name",
    description: "Cancels the task that the name stands for now. The verdicts are those of a \
                  cancel by id, without `replaced`, because the name always means the newest task. \
                  With `If-Match`, only that task is cancelled.",
    parameters: &[TOPIC, NAME, IF_MATCH, IF_NONE_MATCH],
    body: None,
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "Cancelled",
        "The task is cancelled, by this request or before.",
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
