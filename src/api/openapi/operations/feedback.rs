//! Operations of consumers that answer for tracked tasks.

use axum::http::StatusCode;

use super::parameters::{ID, NAME, TOPIC};
use crate::access::Action;
use crate::api::access::required::Access;
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, Parameter, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

/// Shell lines that submit a tracked task, take the path from the header `Location`, and wait for
/// the publish of the first attempt.
const A_TASK: &str = r#"task=$(curl --silent --show-error --fail --output /dev/null \
  --write-out '%header{location}' "http://127.0.0.1:7070/v1/tasks" \
  --header 'content-type: application/json' \
  --data '{"topic":"demo","delay":"0s","payload":1,"ttr":"30s"}')
until curl --silent --show-error --fail "http://127.0.0.1:7070$task" \
  | grep '"state":"awaiting"' > /dev/null; do sleep 0.1; done"#;
/// The same for a task with a name.
macro_rules! a_task_named {
    ($name:literal) => {
        concat!(
            "curl --silent --show-error --fail --output /dev/null \\\n",
            "  \"http://127.0.0.1:7070/v1/tasks\" --header 'content-type: application/json' \\\n",
            "  --data '{\"topic\":\"demo\",\"name\":\"",
            $name,
            "\",\"delay\":\"0s\",\"payload\":1,\"ttr\":\"30s\"}'\n",
            "until curl --silent --show-error --fail \\\n",
            "  \"http://127.0.0.1:7070/v1/topics/demo/tasks/",
            $name,
            "\" \\\n",
            "  | grep '\"state\":\"awaiting\"' > /dev/null; do sleep 0.1; done",
        )
    };
}

const FINISH: &str = "The work is done: no further attempt is made. `finished` (200) is final: no \
                      attempt is claimed after the answer. `in_flight`: an attempt that was \
                      claimed before may still reach the topic. `superseded`: a later attempt was \
                      made meanwhile. A finish may be early (before the node knows that its record \
                      was published), late, and repeated.";
const FAIL: &str = "The attempt has failed. `retrying` (200): the next attempt is due at \
                    `retry_at` of the task. That is when the call says, or after the back-off of \
                    its retry policy, at least 1 s. `dead` (200): `final` was said, or this was \
                    the last attempt. `noted` (200): it takes effect once the node knows that the \
                    record was published. Repeating the call changes nothing.";
const EXTEND: &str = "The work takes longer: the consumer has until now plus `by`, or plus the \
                      time to run of the task, at most 7 days after the record was published. \
                      `extended` (200), or `noted` (200): it takes effect once the node knows that \
                      the record was published.";

const FINISH_BODY: RequestBody = RequestBody {
    schema: "Finish",
    is_required: false,
    examples: &[Example { name: "finish", summary: "The first attempt", json: r#"{"attempt":1}"# }],
};
const FAIL_BODY: RequestBody = RequestBody {
    schema: "Fail",
    is_required: true,
    examples: &[
        Example {
            name: "later",
            summary: "Again in five minutes",
            json: r#"{"attempt":1,"retry_in":"5m","reason":"the bank does not answer"}"#,
        },
        Example {
            name: "final",
            summary: "Never again",
            json: r#"{"attempt":1,"final":true,"reason":"there is no such order"}"#,
        },
    ],
};
const EXTEND_BODY: RequestBody = RequestBody {
    schema: "Extend",
    is_required: true,
    examples: &[Example {
        name: "extend",
        summary: "Five more minutes",
        json: r#"{"attempt":1,"by":"5m"}"#,
    }],
};

const ANSWERS: &[OperationAnswer] =
    &[OperationAnswer::json(StatusCode::OK, "Heeded", "The call took effect, now or before.")];

const FINISH_PROBLEMS: &[P] = &[
    P::TaskNotFound,
    P::NotPublishedYet,
    P::AttemptTooHigh,
    P::Dead,
    P::Cancelled,
    P::NotTracked,
    P::Unavailable,
    P::OutcomeUnknown,
];
const FAIL_PROBLEMS: &[P] = &[
    P::MissingField,
    P::ConflictingFields,
    P::TaskNotFound,
    P::NotPublishedYet,
    P::AttemptTooHigh,
    P::AttemptSuperseded,
    P::AlreadyFinished,
    P::Dead,
    P::Cancelled,
    P::NotTracked,
    P::TooFarAhead,
    P::Unavailable,
    P::OutcomeUnknown,
];
const EXTEND_PROBLEMS: &[P] = &[
    P::MissingField,
    P::TaskNotFound,
    P::NotPublishedYet,
    P::AttemptTooHigh,
    P::AttemptSuperseded,
    P::AlreadyFailed,
    P::AlreadyFinished,
    P::Dead,
    P::Cancelled,
    P::NotTracked,
    P::Unavailable,
    P::OutcomeUnknown,
];

const BY_ID: &[Parameter] = &[ID];
const BY_NAME: &[Parameter] = &[TOPIC, NAME];

pub const FINISH_TASK: Operation = Operation {
    id: "finishTask",
    tag: Tag::Feedback,
    access: Access::OnTask(&[Action::Finish]),
    summary: "Finish a task",
    description: FINISH,
    parameters: BY_ID,
    body: Some(FINISH_BODY),
    answers: ANSWERS,
    problems: FINISH_PROBLEMS,
    sample: ShellSample { before: A_TASK, path: "$task/finish" },
};

pub const FAIL_TASK: Operation = Operation {
    id: "failTask",
    tag: Tag::Feedback,
    access: Access::OnTask(&[Action::Finish]),
    summary: "Fail an attempt of a task",
    description: FAIL,
    parameters: BY_ID,
    body: Some(FAIL_BODY),
    answers: ANSWERS,
    problems: FAIL_PROBLEMS,
    sample: ShellSample { before: A_TASK, path: "$task/fail" },
};

pub const EXTEND_TASK: Operation = Operation {
    id: "extendTask",
    tag: Tag::Feedback,
    access: Access::OnTask(&[Action::Finish]),
    summary: "Extend the time to run of an attempt",
    description: EXTEND,
    parameters: BY_ID,
    body: Some(EXTEND_BODY),
    answers: ANSWERS,
    problems: EXTEND_PROBLEMS,
    sample: ShellSample { before: A_TASK, path: "$task/extend" },
};

pub const FINISH_NAMED: Operation = Operation {
    id: "finishTaskByName",
    tag: Tag::Feedback,
    access: Access::OnTopic(&[Action::Finish]),
    summary: "Finish the task of a name",
    description: FINISH,
    parameters: BY_NAME,
    body: Some(FINISH_BODY),
    answers: ANSWERS,
    problems: FINISH_PROBLEMS,
    sample: ShellSample {
        before: a_task_named!("order-21"),
        path: "/v1/topics/demo/tasks/order-21/finish",
    },
};

pub const FAIL_NAMED: Operation = Operation {
    id: "failTaskByName",
    tag: Tag::Feedback,
    access: Access::OnTopic(&[Action::Finish]),
    summary: "Fail an attempt of the task of a name",
    description: FAIL,
    parameters: BY_NAME,
    body: Some(FAIL_BODY),
    answers: ANSWERS,
    problems: FAIL_PROBLEMS,
    sample: ShellSample {
        before: a_task_named!("order-22"),
        path: "/v1/topics/demo/tasks/order-22/fail",
    },
};

pub const EXTEND_NAMED: Operation = Operation {
    id: "extendTaskByName",
    tag: Tag::Feedback,
    access: Access::OnTopic(&[Action::Finish]),
    summary: "Extend the time to run of an attempt, by name",
    description: EXTEND,
    parameters: BY_NAME,
    body: Some(EXTEND_BODY),
    answers: ANSWERS,
    problems: EXTEND_PROBLEMS,
    sample: ShellSample {
        before: a_task_named!("order-23"),
        path: "/v1/topics/demo/tasks/order-23/extend",
    },
};

pub const OUTCOMES: Operation = Operation {
    id: "sendOutcomes",
    tag: Tag::Feedback,
    access: Access::EachTask(Action::Finish),
    summary: "Finish, fail or extend up to 10,000 tasks",
    description: "Each outcome gets its own result, in order, as if it were sent alone. The whole \
                  request is refused only if its outcomes cannot be told apart, or are too many. \
                  Tasks are shown without headers, payload and attempts. Repeating is safe.",
    parameters: &[],
    body: Some(RequestBody {
        schema: "Outcomes",
        is_required: true,
        examples: &[Example {
            name: "two",
            summary: "A finish and a failure",
            json: concat!(
                r#"{"outcomes":[{"topic":"demo","name":"order-24","outcome":"finish"},"#,
                r#"{"id":"01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f","outcome":"fail","attempt":2,"#,
                r#""retry_in":"5m"}]}"#,
            ),
        }],
    }),
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "OutcomesAnswer",
        "The result of each outcome, in order.",
    )],
    problems: &[P::MissingField, P::BatchTooLarge, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/outcomes" },
};
