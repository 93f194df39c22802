//! Operations of lists of tasks, and of counts.

use axum::http::StatusCode;

use super::parameters::{
    CURSOR, DUE_FROM, DUE_TO, IDS, KEY, KEY_BASE64, LIMIT, NAME_PREFIX, NAMES, OF_TOPIC, STATE,
    SUBMITTED_BY,
};
use crate::access::Action;
use crate::api::access::required::Access;
use crate::api::openapi::operation::{Operation, OperationAnswer, ShellSample, Tag};
use crate::api::problems::problem_type::ProblemType as P;

pub const TASKS: Operation = Operation {
    id: "listTasks",
    tag: Tag::Tasks,
    access: Access::OnTopicOrAll(Action::Read),
    summary: "List pending tasks",
    description: "In order of due time. The work per page is limited, so a page may be short or \
                  even empty and still have a cursor. Repeat the request with the cursor and the \
                  same filters until the cursor is null. A task that is pending all the time is \
                  listed exactly once, whatever is submitted meanwhile. Headers and payload are \
                  not listed. Without `topic`, or with two choices, `ids`, `names`, \
                  `name_prefix`, `key` and `key_base64` are refused.",
    parameters: &[
        OF_TOPIC,
        SUBMITTED_BY,
        STATE,
        DUE_FROM,
        DUE_TO,
        IDS,
        NAMES,
        NAME_PREFIX,
        KEY,
        KEY_BASE64,
        LIMIT,
        CURSOR,
    ],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Page", "A page.")],
    problems: &[
        P::MissingField,
        P::ConflictingFields,
        P::DuplicateField,
        P::InvalidValue,
        P::Unavailable,
    ],
    sample: ShellSample {
        before: "",
        path: "/v1/tasks?topic=demo&due_from=2026-01-01T00:00:00Z&limit=10",
    },
};

pub const COUNTS: Operation = Operation {
    id: "countTasks",
    tag: Tag::Tasks,
    access: Access::OnTopicOrAll(Action::Read),
    summary: "Count pending tasks",
    description: "The number of pending tasks: in total, by topic, by minute of the next two \
                  hours, and by day of the next 30 days. Each figure says whether it is exact or \
                  an estimate.",
    parameters: &[OF_TOPIC, STATE],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Counts", "The figures.")],
    problems: &[P::DuplicateField, P::InvalidValue, P::Unavailable],
    sample: ShellSample { before: "", path: "/v1/tasks/counts?topic=demo" },
};
