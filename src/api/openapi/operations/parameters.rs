//! Parameters that several operations share.

use crate::api::openapi::operation::Parameter;

pub const ID: Parameter = Parameter::path("id", "The id of the task.", "TaskId");
pub const TOPIC: Parameter = Parameter::path("topic", "The topic of the task.", "TopicName");
pub const NAME: Parameter = Parameter::path(
    "name",
    "The name of the task, percent-encoded: `a/b` is `a%2Fb`. The names `.` and `..` cannot be \
     used in a path, because most clients remove them.",
    "NameInPath",
);

pub const IF_MATCH: Parameter = Parameter::header(
    "If-Match",
    "Act only if the name stands for one of these tasks, else 412: ids in quotes, as in `ETag`, or \
     `*` for any task.",
    "EntityTags",
);
pub const IF_NONE_MATCH: Parameter = Parameter::header(
    "If-None-Match",
    "Act only if the name stands for none of these tasks, else 412: ids in quotes, or `*` for any \
     task, so that a PUT only creates.",
    "EntityTags",
);
/// The tag of a task is its id.
pub const IF_MATCH_OF_ID: Parameter = Parameter::header(
    "If-Match",
    "Act only if the id is one of these, in quotes, or `*`, else 412.",
    "EntityTags",
);
pub const IF_NONE_MATCH_OF_ID: Parameter = Parameter::header(
    "If-None-Match",
    "Act only if the id is none of these, in quotes, else 412; `*` is any id.",
    "EntityTags",
);
pub const IDEMPOTENCY_KEY: Parameter = Parameter::header(
    "Idempotency-Key",
    "The name of the task, in quotes (a string of RFC 8941) or bare. If the body has a name, too, \
     both must be equal.",
    "IdempotencyKey",
);

pub const OF_TOPIC: Parameter = Parameter::query("topic", "Only tasks of this topic.", "TopicName");
pub const SUBMITTED_BY: Parameter = Parameter::query(
    "submitted_by",
    "Only tasks that this principal has submitted. Tasks of anonymous callers have no submitter.",
    "Principal",
);
pub const STATE: Parameter = Parameter::query(
    "state",
    "Only tasks in this state. `awaiting` is with a consumer, `retrying` was failed by one.",
    "PendingState",
);
pub const DUE_FROM: Parameter = Parameter::query(
    "due_from",
    "Only tasks due at or after this time, written like `due_at`.",
    "DueAt",
);
pub const DUE_TO: Parameter =
    Parameter::query("due_to", "Only tasks due before this time, written like `due_at`.", "DueAt");
pub const WHEN: Parameter = Parameter::query(
    "when",
    "Replace a pending task only under this condition, else 412. `absent`: never. `earlier`, \
     `later`: if the new task is due earlier, or later, than it.",
    "When",
);
pub const NOT_AFTER: Parameter = Parameter::query(
    "not_after",
    "The latest due time of the new task, written like `due_at`. Only with `when=later`: each PUT \
     puts the task off, up to this time.",
    "DueAt",
);
pub const IDS: Parameter = Parameter::query(
    "ids",
    "Only the tasks with these ids; repeat the parameter for each. Needs `topic`. Of `ids`, \
     `names`, `name_prefix`, `key` and `key_base64`, only one may be given.",
    "TaskIds",
);
pub const NAMES: Parameter = Parameter::query(
    "names",
    "Only the tasks with these names; repeat the parameter for each. Needs `topic`.",
    "TaskNames",
);
pub const NAME_PREFIX: Parameter = Parameter::query(
    "name_prefix",
    "Only tasks whose names begin with this text. Needs `topic`, of which at most 10,000 names may \
     begin with it.",
    "NamePrefix",
);
pub const KEY: Parameter = Parameter::query(
    "key",
    "Only tasks with this key. Needs `topic`, and the right `read-payload` on it.",
    "KeyText",
);
pub const KEY_BASE64: Parameter = Parameter::query("key_base64", "As `key`, in base64.", "Base64");
pub const LIMIT: Parameter =
    Parameter::query("limit", "The maximum number of tasks of a page.", "Limit");
pub const CURSOR: Parameter = Parameter::query(
    "cursor",
    "The cursor of the previous page; keep the filters the same.",
    "Cursor",
);
