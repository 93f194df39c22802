//! Operations of tasks by id.

use axum::http::StatusCode;

use super::parameters::{ID, IDEMPOTENCY_KEY, IF_MATCH_OF_ID, IF_NONE_MATCH_OF_ID};
use crate::access::Action;
use crate::api::access::required::Access;
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

pub const SUBMIT: Operation = Operation {
    id: "submitTask",
    tag: Tag::Tasks,
    access: Access::OnTopic(&[Action::Submit]),
    summary: "Submit a task",
    description: "The answer comes when the task is durable. A task without a name is a new one each time; with a name that is known, the first task of the \
                  name is answered, whatever the body says, so that a submit can be repeated: 200 does not say that it will be published, its `state` does (a task that \
                  was cancelled stays so; PUT by name schedules anew). A task that is due within the window (200 ms unless set \
                  otherwise) is `claimed` from the start and can no longer be cancelled.",
    parameters: &[IDEMPOTENCY_KEY],
    body: Some(RequestBody {
        schema: "NewTask",
        examples: &[
            Example {
                name: "reminder",
                summary: "JSON, in five seconds",
                json: r#"{"topic":"demo","delay":"5s","key":"order-17","payload":{"remind":"order-17"}}"#,
            },
            Example {
                name: "named",
                summary: "With a name, at a moment",
                json: r#"{"topic":"demo","name":"order-18","due_at":"2027-01-31T09:30:00.250+01:00","payload_text":"pay order 18","headers":{"source":"orders"}}"#,
            },
            Example {
                name: "bytes",
                summary: "Bytes, in milliseconds",
                json: r#"{"topic":"demo","delay":1800000,"key_base64":"/w==","payload_base64":"AAEC"}"#,
            },
            Example {
                name: "tombstone",
                summary: "A null value, which deletes a key from a compacted topic",
                json: r#"{"topic":"demo","delay":"PT30M","key":"order-17","tombstone":true}"#,
            },
        ],
    }),
    answers: &[
        OperationAnswer::created("The new task."),
        OperationAnswer::json(
            StatusCode::OK,
            "Task",
            "The name is known: the first task of it, which `state` may call cancelled or dead. Nothing was changed.",
        ),
    ],
    problems: &[
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
    sample: ShellSample { before: "", path: "/v1/tasks" },
};

pub const SUBMIT_BATCH: Operation = Operation {
    id: "submitBatch",
    tag: Tag::Tasks,
    access: Access::EachItem(Action::Submit),
    summary: "Submit up to 10,000 tasks",
    description: "Each task is answered on its own, in order, as a POST of it alone would be: the good ones are accepted, also beside bad ones. The batch is \
                  refused as a whole only where its tasks cannot be told apart, or when there are too many. `field` of a problem says which task it is: \
                  `tasks[3].due_at`.",
    parameters: &[],
    body: Some(RequestBody {
        schema: "NewBatch",
        examples: &[Example {
            name: "two",
            summary: "Two tasks",
            json: r#"{"tasks":[{"topic":"demo","delay":"1h","payload":1},{"topic":"demo","delay":"2h","name":"order-19","payload":{"remind":"order-19"}}]}"#,
        }],
    }),
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "BatchAnswer",
        "What became of each task, in order.",
    )],
    problems: &[P::MissingField, P::BatchTooLarge, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/tasks/batch" },
};

/// Shell lines that submit a task for a sample, and take its path from the header `Location`.
const A_TASK: &str = r#"task=$(curl --silent --show-error --fail --output /dev/null --write-out '%header{location}' "http://127.0.0.1:7070/v1/tasks" \
  --header 'content-type: application/json' --data '{"topic":"demo","delay":"1h","payload":1}')"#;

pub const LOOK_UP: Operation = Operation {
    id: "getTask",
    tag: Tag::Tasks,
    access: Access::OnTask(Action::Read),
    summary: "Look a task up",
    description: "Its state, and its receipt once it was published; headers and payload while they are kept. A task can be looked up for days after its end \
                  (`--receipt-retention`), also when it was cancelled. Of one that a PUT by name has replaced, `replaced_by` names the task in its place.",
    parameters: &[ID],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Task", "The task.")],
    problems: &[P::TaskNotFound, P::Unavailable],
    sample: ShellSample { before: A_TASK, path: "$task" },
};

pub const CANCEL: Operation = Operation {
    id: "cancelTask",
    tag: Tag::Tasks,
    access: Access::OnTask(Action::Cancel),
    summary: "Cancel a task",
    description: "The answer has a verdict. `cancelled` (200): no record of the task exists, or ever will; a repeated cancel says so again. `too_late` (409): it \
                  was published, is on its way, is a dead letter, or waits for another attempt while an earlier one may be in its topic. `replaced` \
                  (409): a PUT by name has put another task in its place, which `replaced_by` names and which was not cancelled. `not_found` (404).",
    parameters: &[ID, IF_MATCH_OF_ID, IF_NONE_MATCH_OF_ID],
    body: None,
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "Cancelled",
        "It is cancelled, now or before.",
    )],
    problems: &[
        P::TaskNotFound,
        P::RequestTimeout,
        P::TooLate,
        P::Replaced,
        P::PreconditionFailed,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: A_TASK, path: "$task" },
};

pub const CANCEL_MANY: Operation = Operation {
    id: "cancelTasks",
    tag: Tag::Tasks,
    access: Access::OnMany(Action::Cancel),
    summary: "Cancel many tasks",
    description: "Those that wait, of a topic and a range of due times, 10,000 in a call at most: `more` says whether there may be more. Each one ends as \
                  `cancelled`, with its line in the execlog. What is on its way already is left. With `dry_run` they are counted, and nothing is done.",
    parameters: &[],
    body: Some(RequestBody {
        schema: "Range",
        examples: &[Example {
            name: "dry",
            summary: "How many there would be",
            json: r#"{"topic":"demo","due_from":"2027-01-01T00:00:00Z","due_to":"2027-02-01T00:00:00Z","dry_run":true}"#,
        }],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "CancelledMany", "How many, exactly.")],
    problems: &[P::MissingField, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/tasks/cancel" },
};
