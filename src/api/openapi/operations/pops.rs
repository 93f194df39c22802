//! The operations of consumers without Kafka: pops and callbacks.

use axum::http::StatusCode;

use super::parameters::TOPIC;
use crate::access::Action;
use crate::api::access::required::Access;
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

pub const POP: Operation = Operation {
    id: "popTasks",
    tag: Tag::Feedback,
    access: Access::OnTopic(&[Action::Pop, Action::ReadPayload]),
    summary: "Take tracked tasks for a consumer without Kafka",
    description: "Waits until a tracked task is published to the topic, or until the wait is over, \
                  and returns tasks that no other caller of the group has. Each node that is asked \
                  reads its share of the partitions as a member of the consumer group of this \
                  name, and a new group begins at the first record of the topic. Finish, fail or \
                  extend each task; one that is not finished by `finish_by` comes again, as its \
                  next attempt. Delivery is at least once: after the end of a node, its last tasks \
                  may be given to another caller as well. Untracked tasks are passed over.",
    parameters: &[TOPIC],
    body: Some(RequestBody {
        schema: "Pop",
        is_required: true,
        examples: &[Example {
            name: "wait",
            summary: "Up to ten tasks, after up to a second",
            json: r#"{"group":"mailer","wait":"1s","max":10}"#,
        }],
    }),
    answers: &[OperationAnswer::json(
        StatusCode::OK,
        "Popped",
        "The tasks: none when the wait is over.",
    )],
    problems: &[P::MissingField, P::TopicNotFound, P::Unavailable],
    sample: ShellSample { before: "", path: "/v1/topics/demo/pop" },
};

/// The node of the sample needs `--callback-host '*.example.com'`.
const A_CALLBACK: &str = r#"curl --silent --show-error --fail-with-body --request PUT \
  "http://127.0.0.1:7070/v1/topics/demo/callback" --header "content-type: application/json" \
  --data '{"url":"https://jobs.example.com/orders","paused":true}' > /dev/null"#;
const ON_CALLBACK: Access = Access::OnTopic(&[Action::Callback, Action::ReadPayload]);

pub const PUT_CALLBACK: Operation = Operation {
    id: "putCallback",
    tag: Tag::Feedback,
    access: ON_CALLBACK,
    summary: "Have a service called for each tracked task of a topic",
    description: "From now on nodes POST each tracked task that is published to the topic to this \
                  URL, and take the answer as that of its consumer: 2xx finishes the task; 429 and \
                  503 with `Retry-After` fail the attempt, and the next one is due when they say; \
                  410 pauses the callback; any other answer, and none within `timeout`, fails the \
                  attempt. Requests are signed, in the header `punctual-signature`. The callback \
                  is stored as a whole, and all nodes use it within a second or two. Delivery is at \
                  least once. Nodes call only what their operators allow: hosts of \
                  `--callback-host`, at public addresses or in `--callback-network`.",
    parameters: &[TOPIC],
    body: Some(RequestBody {
        schema: "CallbackRequest",
        is_required: true,
        examples: &[Example {
            name: "service",
            summary: "At most 20 requests at a time",
            json: r#"{"url":"https://jobs.example.com/orders","concurrency":20}"#,
        }],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Callback", "The callback.")],
    problems: &[P::MissingField, P::UnknownTopic, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: "", path: "/v1/topics/demo/callback" },
};

pub const GET_CALLBACK: Operation = Operation {
    id: "getCallback",
    tag: Tag::Feedback,
    access: ON_CALLBACK,
    summary: "Look up the callback of a topic",
    description: "The values of its headers are not shown.",
    parameters: &[TOPIC],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Callback", "The callback.")],
    problems: &[P::InvalidValue, P::CallbackNotFound, P::Unavailable],
    sample: ShellSample { before: A_CALLBACK, path: "/v1/topics/demo/callback" },
};

pub const DELETE_CALLBACK: Operation = Operation {
    id: "deleteCallback",
    tag: Tag::Feedback,
    access: ON_CALLBACK,
    summary: "Delete the callback of a topic",
    description: "Requests that are under way get their answers. Tasks that are not finished come \
                  again by their time to run, to whoever reads the topic then.",
    parameters: &[TOPIC],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Callback", "The callback that was deleted.")],
    problems: &[P::RequestTimeout, P::CallbackNotFound, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: A_CALLBACK, path: "/v1/topics/demo/callback" },
};
