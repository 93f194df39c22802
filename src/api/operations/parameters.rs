//! Parameters that several operations have.

use crate::api::operation::Parameter;

pub const ID: Parameter = Parameter::path("id", "The id of the task.", "TaskId");
pub const TOPIC: Parameter = Parameter::path("topic", "The topic of the task.", "TopicName");
pub const NAME: Parameter = Parameter::path(
    "name",
    "The name of the task, percent-encoded: `a/b` is `a%2Fb`. (The names `.` and `..` cannot be written in a path: most clients take them out of it.)",
    "NameInPath",
);
