//! Parameters that several operations have.

use crate::api::openapi::operation::Parameter;

pub const ID: Parameter = Parameter::path("id", "The id of the task.", "TaskId");
pub const TOPIC: Parameter = Parameter::path("topic", "The topic of the task.", "TopicName");
pub const NAME: Parameter = Parameter::path(
    "name",
    "The name of the task, percent-encoded: `a/b` is `a%2Fb`. (The names `.` and `..` cannot be written in a path: most clients take them out of it.)",
    "NameInPath",
);

pub const OF_TOPIC: Parameter = Parameter::query("topic", "Of this topic alone.", "TopicName");
pub const DUE_FROM: Parameter = Parameter::query("due_from", "Due then or later; as `due_at` of a task.", "DueAt");
pub const DUE_TO: Parameter = Parameter::query("due_to", "Due before then; as `due_at` of a task.", "DueAt");
pub const LIMIT: Parameter = Parameter::query("limit", "How many a page has at most.", "Limit");
pub const CURSOR: Parameter = Parameter::query("cursor", "That of the page before, with the same filters.", "Cursor");
