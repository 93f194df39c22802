//! Parameters that several operations share.

use crate::api::openapi::operation::Parameter;

pub const ID: Parameter = Parameter::path("id", "The id of the task.", "TaskId");
pub const TOPIC: Parameter = Parameter::path("topic", "The topic of the task.", "TopicName");
pub const NAME: Parameter = Parameter::path(
    "name",
    "The name of the task, percent-encoded: `a/b` is `a%2Fb`. (The names `.` and `..` cannot be written in a path: most clients take them out of it.)",
    "NameInPath",
);

pub const IF_MATCH: Parameter = Parameter::header(
    "If-Match",
    "Only if the name stands for one of these tasks, else 412: ids in quotes, as `ETag` has them, or `*` for any task.",
    "EntityTags",
);
pub const IF_NONE_MATCH: Parameter = Parameter::header(
    "If-None-Match",
    "Only if the name stands for none of these tasks, else 412: ids in quotes, or `*` for any task, so that a PUT only creates.",
    "EntityTags",
);
/// The tag of a task is its id.
pub const IF_MATCH_OF_ID: Parameter = Parameter::header(
    "If-Match",
    "Only if the id is one of these, in quotes, or `*`, else 412.",
    "EntityTags",
);
pub const IF_NONE_MATCH_OF_ID: Parameter = Parameter::header(
    "If-None-Match",
    "Only if the id is none of these, in quotes, else 412; `*` is any.",
    "EntityTags",
);
pub const IDEMPOTENCY_KEY: Parameter = Parameter::header(
    "Idempotency-Key",
    "The name of the task, if its body has none; with both they must be the same. In quotes (a string of RFC 8941) or bare.",
    "IdempotencyKey",
);

pub const OF_TOPIC: Parameter = Parameter::query("topic", "Of this topic alone.", "TopicName");
pub const DUE_FROM: Parameter =
    Parameter::query("due_from", "Due then or later; as `due_at` of a task.", "DueAt");
pub const DUE_TO: Parameter =
    Parameter::query("due_to", "Due before then; as `due_at` of a task.", "DueAt");
pub const LIMIT: Parameter = Parameter::query("limit", "How many a page has at most.", "Limit");
pub const CURSOR: Parameter =
    Parameter::query("cursor", "That of the page before, with the same filters.", "Cursor");
