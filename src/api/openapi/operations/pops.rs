//! The operation of consumers without Kafka.

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
