//! Operations of tasks by id.

use axum::http::StatusCode;

use super::parameters::{ID, IDEMPOTENCY_KEY, IF_MATCH_OF_ID, IF_NONE_MATCH_OF_ID};
use crate::access::Action;
use crate::api::access::required::{Access, MOVE_RIGHTS};
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

pub const SUBMIT: Operation = Operation {
    id: "submitTask",
    tag: Tag::Tasks,
    access: Access::OnTopic(&[Action::Submit]),
    summary: "Submit a task",
    description: "The answer comes when the task is durable. Without a name, each submit makes a \
                  new task. With a known name, the answer is 200 and the first task of that name, \
                  whatever the body says, so that a submit can be repeated. Look at its `state`: a \
                  cancelled task stays cancelled, and a PUT by name schedules a new one. A task \
                  due within the window (200 ms by default) is `claimed` at once and cannot be \
                  cancelled.",
    parameters: &[IDEMPOTENCY_KEY],
    body: Some(RequestBody {
        schema: "TaskRequest",
        is_required: true,
        examples: &[
            Example {
                name: "reminder",
                summary: "JSON, in five seconds",
                json: concat!(
                    r#"{"topic":"demo","delay":"5s","key":"order-17","#,
                    r#""payload":{"remind":"order-17"}}"#,
                ),
            },
            Example {
                name: "named",
                summary: "With a name and a due time",
                json: concat!(
                    r#"{"topic":"demo","name":"order-18","#,
                    r#""due_at":"2027-01-31T09:30:00.250+01:00","#,
                    r#""payload_text":"pay order 18","headers":{"source":"orders"}}"#,
                ),
            },
            Example {
                name: "bytes",
                summary: "Bytes, with a delay in seconds",
                json: concat!(
                    r#"{"topic":"demo","delay":"1800s","#,
                    r#""key_base64":"/w==","payload_base64":"AAEC"}"#,
                ),
            },
            Example {
                name: "tracked",
                summary: "Tried again until its consumer finishes it, at most five times",
                json: concat!(
                    r#"{"topic":"demo","delay":"30m","payload":{"cancel":"order-17"},"#,
                    r#""ttr":"30s","retry":{"attempts_max":5,"backoff_min":"10s"}}"#,
                ),
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
            "The name is known: the first task of that name, whose `state` may be cancelled or \
             dead. Nothing was changed.",
        ),
    ],
    problems: &[
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
    sample: ShellSample { before: "", path: "/v1/tasks" },
};

pub const SUBMIT_BATCH: Operation = Operation {
    id: "submitBatch",
    tag: Tag::Tasks,
    access: Access::EachItem(Action::Submit),
    summary: "Submit up to 10,000 tasks",
    description: "Each task gets its own result, in order, as if it were submitted alone: bad \
                  tasks do not stop good ones. The whole request is refused only if the tasks \
                  cannot be told apart, or are too many. `field` of a problem names the task: \
                  `tasks[3].due_at`.",
    parameters: &[],
    body: Some(RequestBody {
        schema: "BatchRequest",
        is_required: true,
        examples: &[Example {
            name: "two",
            summary: "Two tasks",
            json: concat!(
                r#"{"tasks":[{"topic":"demo","delay":"1h","payload":1},"#,
                r#"{"topic":"demo","delay":"2h","name":"order-19","#,
                r#""payload":{"remind":"order-19"}}]}"#,
            ),
        }],
    }),
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "BatchAnswer",
        "The result of each task, in order.",
    )],
    problems: &[P::MissingField, P::BatchTooLarge, P::TooManyPending, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/tasks/batch" },
};

/// Shell lines that submit a task for a sample, and take its path from the header `Location`.
const A_TASK: &str = r#"task=$(curl --silent --show-error --fail --output /dev/null \
  --write-out '%header{location}' "http://127.0.0.1:7070/v1/tasks" \
  --header 'content-type: application/json' --data '{"topic":"demo","delay":"1h","payload":1}')"#;

pub const LOOK_UP: Operation = Operation {
    id: "getTask",
    tag: Tag::Tasks,
    access: Access::OnTask(&[Action::Read]),
    summary: "Look a task up",
    description: "The state, the receipt once the task is published, and headers and payload while \
                  they are kept. Tasks can be looked up for days after their end \
                  (`--receipt-retention`), cancelled ones, too. If a PUT by name has replaced the \
                  task, `replaced_by` names the task in its place.",
    parameters: &[ID],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Task", "The task.")],
    problems: &[P::TaskNotFound, P::Unavailable],
    sample: ShellSample { before: A_TASK, path: "$task" },
};

pub const MOVE: Operation = Operation {
    id: "moveTask",
    tag: Tag::Tasks,
    access: Access::OnTask(MOVE_RIGHTS),
    summary: "Move a task to another due time",
    description: "The id, the name and the record stay. The answer has a verdict. `moved` (200): \
                  the task is due at the new time, and is never published before it. `too_late` \
                  (409): the task is claimed, published, cancelled or a dead letter, or an earlier \
                  attempt may be in its topic. `replaced` (409): a PUT by name has replaced the \
                  task; move the id in `replaced_by` instead. `not_found` (404). A time in the \
                  past is due at once. A time that is not before the `expires_at` of the task is \
                  refused. Repeating is safe with `due_at`.",
    parameters: &[ID, IF_MATCH_OF_ID, IF_NONE_MATCH_OF_ID],
    body: Some(RequestBody {
        schema: "MoveRequest",
        is_required: true,
        examples: &[
            Example { name: "later", summary: "In two hours from now", json: r#"{"delay":"2h"}"# },
            Example {
                name: "at",
                summary: "At another time",
                json: r#"{"due_at":"2027-01-31T09:30:00+01:00"}"#,
            },
        ],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Moved", "The task, with its new due time.")],
    problems: &[
        P::MissingField,
        P::ConflictingFields,
        P::TaskNotFound,
        P::TooLate,
        P::Replaced,
        P::PreconditionFailed,
        P::TooFarAhead,
        P::ExpiresTooEarly,
        P::RefusedValue,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: A_TASK, path: "$task" },
};

pub const CANCEL: Operation = Operation {
    id: "cancelTask",
    tag: Tag::Tasks,
    access: Access::OnTask(&[Action::Cancel]),
    summary: "Cancel a task",
    description: "The answer has a verdict. `cancelled` (200): no record of the task exists or \
                  ever will; repeating the cancel gives the same answer. `too_late` (409): the \
                  task is published, claimed or a dead letter, or an earlier attempt may be in its \
                  topic. `replaced` (409): a PUT by name has replaced the task; the task in its \
                  place, `replaced_by`, is not cancelled. `not_found` (404).",
    parameters: &[ID, IF_MATCH_OF_ID, IF_NONE_MATCH_OF_ID],
    body: None,
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "Cancelled",
        "The task is cancelled, by this request or before.",
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

pub const MOVE_MANY: Operation = Operation {
    id: "moveTasks",
    tag: Tag::Tasks,
    access: Access::OnMany(MOVE_RIGHTS),
    summary: "Move many tasks to other due times",
    description: "Moves the pending tasks of a topic in a range of due times, `by` a span or `to` \
                  a time, at most 10,000 per call; `more` says whether there may be more. Their \
                  ids, names and records stay. Claimed tasks are left alone, and so are tasks with \
                  an `expires_at` that is not after the new time. With `dry_run`, only counts \
                  tasks, also those that would expire. The new times must lie outside of the \
                  range, so that no task is met twice, except for chosen tasks. With a key, `read` \
                  and `read-payload` are needed as well.",
    parameters: &[],
    body: Some(RequestBody {
        schema: "MoveRange",
        is_required: true,
        examples: &[
            Example {
                name: "later",
                summary: "Count those of an hour that are to be an hour later",
                json: concat!(
                    r#"{"topic":"demo","due_from":"2027-01-01T09:00:00Z","#,
                    r#""due_to":"2027-01-01T10:00:00Z","by":"1h","dry_run":true}"#,
                ),
            },
            Example {
                name: "now",
                summary: "Publish the tasks of a day at another time",
                json: concat!(
                    r#"{"topic":"demo","due_from":"2027-01-01T00:00:00Z","#,
                    r#""due_to":"2027-01-02T00:00:00Z","to":"2027-01-02T08:00:00Z"}"#,
                ),
            },
        ],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "MovedMany", "The exact number.")],
    problems: &[
        P::MissingField,
        P::ConflictingFields,
        P::TooFarAhead,
        P::RefusedValue,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: "", path: "/v1/tasks/move" },
};

pub const CANCEL_MANY: Operation = Operation {
    id: "cancelTasks",
    tag: Tag::Tasks,
    access: Access::OnMany(&[Action::Cancel]),
    summary: "Cancel many tasks",
    description: "Cancels the pending tasks of a topic, of a submitter, or of both in a range of \
                  due times, at most 10,000 per call; `more` says whether there may be more. One \
                  of `ids`, `names`, `name_prefix` and `key` chooses among the tasks of the topic. \
                  Each one ends as `cancelled`, with a line in the execlog. Claimed tasks are left \
                  alone. With `dry_run`, only counts them; with a key, that needs \
                  `read-payload` as well. Without a topic, the right is needed on `*`.",
    parameters: &[],
    body: Some(RequestBody {
        schema: "CancelRange",
        is_required: true,
        examples: &[
            Example {
                name: "dry",
                summary: "Only count",
                json: concat!(
                    r#"{"topic":"demo","due_from":"2027-01-01T00:00:00Z","#,
                    r#""due_to":"2027-02-01T00:00:00Z","dry_run":true}"#,
                ),
            },
            Example {
                name: "names",
                summary: "Count those of an order",
                json: r#"{"topic":"demo","name_prefix":"order-17/","dry_run":true}"#,
            },
            Example {
                name: "submitter",
                summary: "Count all that a principal has submitted",
                json: r#"{"submitted_by":"order-service","dry_run":true}"#,
            },
        ],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "CancelledMany", "The exact number.")],
    problems: &[P::MissingField, P::ConflictingFields, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/tasks/cancel" },
};
