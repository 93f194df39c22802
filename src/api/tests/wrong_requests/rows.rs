//! Wrong requests, each with the exact status, problem type and field of any node. The unit tests
//! send them to a model. The integration tests send them to a node with real servers, where `t`
//! stands for an existing topic.

/// Status, end of the `type`, and `field`.
pub type WantedProblem = (u16, &'static str, &'static str);
/// A body, and the expected answer.
pub type WrongBody = (&'static str, u16, &'static str, &'static str);
/// Method, path, content type, and the expected answer.
pub type RequestRow = (&'static str, &'static str, Option<&'static str>, WantedProblem);
/// Topic of the path, a body, and the expected answer.
pub type WrongBodyOfTopic = (&'static str, &'static str, u16, &'static str, &'static str);

pub const NO_FIELD: &str = "";
pub const TASK: &str = r#"{"topic":"t","delay":1,"payload":1}"#;
const JSON: Option<&str> = Some("application/json");

/// Body of a `POST /v1/tasks`, and the expected answer.
pub const TASKS: &[WrongBody] = &[
    // Not JSON, or not an object.
    ("", 400, "malformed-json", NO_FIELD),
    ("{", 400, "malformed-json", NO_FIELD),
    ("{}x", 400, "malformed-json", NO_FIELD),
    ("{\"topic\":\"t\",}", 400, "malformed-json", NO_FIELD),
    ("{'topic':'t'}", 400, "malformed-json", NO_FIELD),
    ("{\"topic\":\"a\u{1}\"}", 400, "malformed-json", NO_FIELD),
    ("\u{feff}{}", 400, "malformed-json", NO_FIELD),
    ("{\"topic\":NaN}", 400, "malformed-json", NO_FIELD),
    ("[]", 400, "invalid-value", NO_FIELD),
    ("null", 400, "invalid-value", NO_FIELD),
    ("\"task\"", 400, "invalid-value", NO_FIELD),
    // Fields.
    ("{}", 400, "missing-field", "topic"),
    (r#"{"delay":1,"payload":1}"#, 400, "missing-field", "topic"),
    (r#"{"topic":"__consumer_offsets","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"t","delay":1,"payload":1,"dely":2}"#, 400, "unknown-field", "dely"),
    (r#"{"topic":"t","delay":1,"payload":1,"Topic":"u"}"#, 400, "unknown-field", "Topic"),
    (r#"{"topic":"t","topic":"t","delay":1,"payload":1}"#, 400, "duplicate-field", "topic"),
    (r#"{"topic":"t","delay":1,"payload":1,"\u0064elay":1}"#, 400, "duplicate-field", "delay"),
    // Topics.
    (r#"{"topic":"","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"a b","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"..","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"a\u0000","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"\ud800","delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":7,"delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":null,"delay":1,"payload":1}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"no-such-topic","delay":1,"payload":1}"#, 422, "unknown-topic", "topic"),
    // Times.
    (r#"{"topic":"t","payload":1}"#, 400, "missing-field", "due_at"),
    (
        r#"{"topic":"t","due_at":"2030-01-01T00:00:00Z","delay":1,"payload":1}"#,
        400,
        "conflicting-fields",
        "delay",
    ),
    (r#"{"topic":"t","due_at":"2030-01-01T00:00:00","payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":"soon","payload":1}"#, 400, "invalid-value", "due_at"),
    (
        r#"{"topic":"t","due_at":"1900-01-01T00:00:00Z","payload":1}"#,
        400,
        "invalid-value",
        "due_at",
    ),
    (
        r#"{"topic":"t","due_at":"2030-02-30T00:00:00Z","payload":1}"#,
        400,
        "invalid-value",
        "due_at",
    ),
    (r#"{"topic":"t","due_at":-1,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":1893456000,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":1893456000000.5,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":1e300,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":9223372036854775808,"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":{},"payload":1}"#, 400, "invalid-value", "due_at"),
    (r#"{"topic":"t","due_at":null,"payload":1}"#, 400, "invalid-value", "due_at"),
    (
        r#"{"topic":"t","due_at":"2040-01-01T00:00:00Z","payload":1}"#,
        422,
        "too-far-ahead",
        "due_at",
    ),
    (r#"{"topic":"t","delay":-1,"payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":1.5,"payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"1 month","payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"P1Y","payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"-30m","payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"30","payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":true,"payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":99999999999999999999,"payload":1}"#, 400, "invalid-value", "delay"),
    (r#"{"topic":"t","delay":"2000d","payload":1}"#, 422, "too-far-ahead", "delay"),
    // Payloads.
    (r#"{"topic":"t","delay":1}"#, 400, "missing-field", "payload"),
    (r#"{"topic":"t","delay":1,"tombstone":false}"#, 400, "missing-field", "payload"),
    (
        r#"{"topic":"t","delay":1,"payload":null,"payload_text":"a"}"#,
        400,
        "conflicting-fields",
        "payload_text",
    ),
    (
        r#"{"topic":"t","delay":1,"payload_text":"a","payload_base64":"YQ=="}"#,
        400,
        "conflicting-fields",
        "payload_base64",
    ),
    (r#"{"topic":"t","delay":1,"payload_text":{"a":1}}"#, 400, "invalid-value", "payload_text"),
    (r#"{"topic":"t","delay":1,"payload_text":null}"#, 400, "invalid-value", "payload_text"),
    (r#"{"topic":"t","delay":1,"payload_base64":"a!=="}"#, 400, "invalid-value", "payload_base64"),
    (r#"{"topic":"t","delay":1,"payload_base64":"YQ"}"#, 400, "invalid-value", "payload_base64"),
    (r#"{"topic":"t","delay":1,"payload_base64":1}"#, 400, "invalid-value", "payload_base64"),
    (r#"{"topic":"t","delay":1,"tombstone":true}"#, 400, "missing-field", "key"),
    (
        r#"{"topic":"t","delay":1,"tombstone":true,"key":"k","payload":null}"#,
        400,
        "conflicting-fields",
        "tombstone",
    ),
    (r#"{"topic":"t","delay":1,"tombstone":"yes","key":"k"}"#, 400, "invalid-value", "tombstone"),
    // Keys, names, headers.
    (
        r#"{"topic":"t","delay":1,"payload":1,"key":"a","key_base64":"YQ=="}"#,
        400,
        "conflicting-fields",
        "key_base64",
    ),
    (r#"{"topic":"t","delay":1,"payload":1,"key":17}"#, 400, "invalid-value", "key"),
    (r#"{"topic":"t","delay":1,"payload":1,"key_base64":"*"}"#, 400, "invalid-value", "key_base64"),
    (r#"{"topic":"t","delay":1,"payload":1,"name":""}"#, 400, "invalid-value", "name"),
    (r#"{"topic":"t","delay":1,"payload":1,"name":"a\u0000"}"#, 400, "invalid-value", "name"),
    (r#"{"topic":"t","delay":1,"payload":1,"name":17}"#, 400, "invalid-value", "name"),
    (r#"{"topic":"t","delay":1,"payload":1,"headers":[]}"#, 400, "invalid-value", "headers"),
    (r#"{"topic":"t","delay":1,"payload":1,"headers":{"a":1}}"#, 400, "invalid-value", "headers.a"),
    (
        r#"{"topic":"t","delay":1,"payload":1,"headers":{"a":"1","a":"2"}}"#,
        400,
        "duplicate-field",
        "headers.a",
    ),
    (
        r#"{"topic":"t","delay":1,"payload":1,"headers":{"":"1"}}"#,
        400,
        "invalid-value",
        "headers[\"\"]",
    ),
    (
        r#"{"topic":"t","delay":1,"payload":1,"headers":{"ok":"1","Punctual-X":"1"}}"#,
        400,
        "invalid-value",
        "headers.Punctual-X",
    ),
];

/// Body of a `POST /v1/tasks/batch`, and the expected answer as a whole.
pub const BATCHES: &[WrongBody] = &[
    ("[]", 400, "invalid-value", NO_FIELD),
    ("{}", 400, "missing-field", "tasks"),
    (r#"{"tasks":{}}"#, 400, "invalid-value", "tasks"),
    (r#"{"tasks":null}"#, 400, "invalid-value", "tasks"),
    (r#"{"tasks":[],"dry_run":true}"#, 400, "unknown-field", "dry_run"),
    (r#"{"tasks":[],"tasks":[]}"#, 400, "duplicate-field", "tasks"),
    (r#"{"tasks":[{]}"#, 400, "malformed-json", NO_FIELD),
];

/// One of three tasks of a bulk submit, and the expected result.
pub const ITEMS: &[WrongBody] = &[
    ("7", 400, "invalid-value", "tasks[1]"),
    ("{}", 400, "missing-field", "tasks[1].topic"),
    (r#"{"topic":"t","due_at":"soon","payload":1}"#, 400, "invalid-value", "tasks[1].due_at"),
    (
        r#"{"topic":"t","delay":1,"payload":1,"headers":{"punctual-x":""}}"#,
        400,
        "invalid-value",
        "tasks[1].headers.punctual-x",
    ),
    (r#"{"topic":"no-such-topic","delay":1,"payload":1}"#, 422, "unknown-topic", "tasks[1].topic"),
    (r#"{"topic":"t","delay":"2000d","payload":1}"#, 422, "too-far-ahead", "tasks[1].delay"),
];

/// Method, path and content type of a request, and the expected answer. The body is [`TASK`] with a
/// content type, and empty without one.
pub const REQUESTS: &[RequestRow] = &[
    ("POST", "/v1/tasks", None, (415, "unsupported-media-type", "content-type")),
    ("POST", "/v1/tasks", Some("text/plain"), (415, "unsupported-media-type", "content-type")),
    (
        "POST",
        "/v1/tasks",
        Some("application/x-www-form-urlencoded"),
        (415, "unsupported-media-type", "content-type"),
    ),
    (
        "POST",
        "/v1/tasks",
        Some("application/json; charset=utf-16"),
        (415, "unsupported-media-type", "content-type"),
    ),
    (
        "POST",
        "/v1/tasks/batch",
        Some("application/jsonl"),
        (415, "unsupported-media-type", "content-type"),
    ),
    ("POST", "/v1/tasks?dry_run=true", JSON, (400, "unknown-field", "dry_run")),
    ("GET", "/", None, (404, "not-found", NO_FIELD)),
    ("GET", "/v1", None, (404, "not-found", NO_FIELD)),
    ("GET", "/v2/tasks", None, (404, "not-found", NO_FIELD)),
    ("POST", "/v1/dead//redrive", None, (404, "not-found", NO_FIELD)),
    ("GET", "/v1/topics//tasks/order-17", None, (404, "not-found", NO_FIELD)),
    ("POST", "/v1/tasks/", JSON, (404, "not-found", NO_FIELD)),
    ("DELETE", "/v1/tasks", None, (405, "method-not-allowed", NO_FIELD)),
    ("GET", "/v1/tasks?dry_run=true", None, (400, "unknown-field", "dry_run")),
    ("GET", "/v1/tasks?topic=a&topic=a", None, (400, "duplicate-field", "topic")),
    ("GET", "/v1/tasks?topic=a%20b", None, (400, "invalid-value", "topic")),
    ("GET", "/v1/tasks?limit=0", None, (400, "invalid-value", "limit")),
    ("GET", "/v1/tasks?limit=1001", None, (400, "invalid-value", "limit")),
    ("GET", "/v1/tasks?due_from=soon", None, (400, "invalid-value", "due_from")),
    ("GET", "/v1/tasks?due_to=2030-01-01T00:00:00", None, (400, "invalid-value", "due_to")),
    ("GET", "/v1/tasks?cursor=AAAA", None, (400, "invalid-value", "cursor")),
    ("GET", "/v1/tasks/counts?due_to=1", None, (400, "unknown-field", "due_to")),
    ("POST", "/v1/tasks/cancel", None, (415, "unsupported-media-type", "content-type")),
    ("POST", "/v1/tasks/cancel?dry_run=true", JSON, (400, "unknown-field", "dry_run")),
    ("GET", "/v1/tasks/cancel", None, (405, "method-not-allowed", NO_FIELD)),
    ("GET", "/v1/dead?due_to=1", None, (400, "invalid-value", "due_to")),
    ("GET", "/v1/dead?dry_run=true", None, (400, "unknown-field", "dry_run")),
    ("GET", "/v1/dead?cursor=", None, (400, "invalid-value", "cursor")),
    ("GET", "/v1/dead/17", None, (405, "method-not-allowed", NO_FIELD)),
    ("DELETE", "/v1/dead/17", None, (404, "task-not-found", "id")),
    (
        "DELETE",
        "/v1/dead/01b977ea-f4c0-8003-8000-000000000007",
        None,
        (404, "task-not-found", "id"),
    ),
    (
        "DELETE",
        "/v1/dead/01b977ea-f4c0-8003-8000-000000000007?dry_run=true",
        None,
        (400, "unknown-field", "dry_run"),
    ),
    ("POST", "/v1/dead/17/redrive", None, (404, "task-not-found", "id")),
    (
        "POST",
        "/v1/dead/01b977ea-f4c0-8003-8000-000000000007/redrive",
        None,
        (404, "task-not-found", "id"),
    ),
    (
        "POST",
        "/v1/dead/01b977ea-f4c0-8003-8000-000000000007/redrive?dry_run=true",
        None,
        (400, "unknown-field", "dry_run"),
    ),
    // Requests that take no body.
    (
        "POST",
        "/v1/dead/01b977ea-f4c0-8003-8000-000000000007/redrive",
        JSON,
        (400, "unknown-field", "topic"),
    ),
    (
        "DELETE",
        "/v1/dead/01b977ea-f4c0-8003-8000-000000000007",
        JSON,
        (400, "unknown-field", "topic"),
    ),
    (
        "DELETE",
        "/v1/tasks/01b977ea-f4c0-8003-8000-000000000007",
        JSON,
        (400, "unknown-field", "topic"),
    ),
    ("DELETE", "/v1/topics/t/tasks/n", JSON, (400, "unknown-field", "topic")),
    ("POST", "/v1/dead/redrive?dry_run=true", JSON, (400, "unknown-field", "dry_run")),
    ("GET", "/problems/none", None, (404, "not-found", NO_FIELD)),
    ("GET", "/problems?all", None, (400, "unknown-field", "all")),
    ("POST", "/openapi.json", JSON, (405, "method-not-allowed", NO_FIELD)),
    ("PUT", "/v1/tasks", JSON, (405, "method-not-allowed", NO_FIELD)),
    ("GET", "/v1/tasks/batch", None, (405, "method-not-allowed", NO_FIELD)),
    (
        "PATCH",
        "/v1/tasks/01b977ea-f4c0-8003-8000-000000000007",
        JSON,
        (405, "method-not-allowed", NO_FIELD),
    ),
    ("POST", "/v1/cluster", JSON, (405, "method-not-allowed", NO_FIELD)),
    ("DELETE", "/livez", None, (405, "method-not-allowed", NO_FIELD)),
    ("GET", "/v1/tasks/17", None, (404, "task-not-found", "id")),
    ("GET", "/v1/tasks/%ff", None, (404, "task-not-found", "id")),
    ("GET", "/v1/tasks/%zz", None, (400, "invalid-value", NO_FIELD)),
    ("DELETE", "/v1/tasks/%zz", None, (400, "invalid-value", NO_FIELD)),
    ("POST", "/v1/dead/%zz/redrive", None, (400, "invalid-value", NO_FIELD)),
    ("GET", "/problems/%zz", None, (400, "invalid-value", NO_FIELD)),
    ("GET", "/v1/tasks/01934b2e-7d3c-4017-9f2b-6a1c0e4d5b7f", None, (404, "task-not-found", "id")),
    ("GET", "/v1/tasks/01b977ea-f4c0-8003-8000-000000000007", None, (404, "task-not-found", "id")),
    ("DELETE", "/v1/tasks/17", None, (404, "task-not-found", "id")),
    (
        "DELETE",
        "/v1/tasks/01b977ea-f4c0-8003-8000-000000000007",
        None,
        (404, "task-not-found", "id"),
    ),
    (
        "DELETE",
        "/v1/tasks/01b977ea-f4c0-8003-8000-000000000007?dry_run=true",
        None,
        (400, "unknown-field", "dry_run"),
    ),
    ("GET", "/v1/topics/t/tasks/n", None, (404, "task-not-found", "name")),
    ("DELETE", "/v1/topics/t/tasks/n", None, (404, "task-not-found", "name")),
    ("GET", "/v1/topics/a%20b/tasks/n", None, (400, "invalid-value", "topic")),
    ("GET", "/v1/topics/t/tasks/a%00", None, (400, "invalid-value", "name")),
    ("DELETE", "/v1/topics/t/tasks/%ff", None, (400, "invalid-value", "name")),
    ("DELETE", "/v1/topics/t/tasks/n?dry_run=true", None, (400, "unknown-field", "dry_run")),
    ("PUT", "/v1/topics/t/tasks/n", None, (415, "unsupported-media-type", "content-type")),
    ("PUT", "/v1/topics/t/tasks/n?dry_run=true", JSON, (400, "unknown-field", "dry_run")),
    ("PUT", "/v1/topics/a%20b/tasks/n", JSON, (400, "invalid-value", "topic")),
    ("PUT", "/v1/topics/t/tasks/n", JSON, (400, "unknown-field", "topic")),
    ("POST", "/v1/topics/t/tasks/n", JSON, (405, "method-not-allowed", NO_FIELD)),
    ("GET", "/v1/topics/t/tasks/", None, (404, "not-found", NO_FIELD)),
    ("GET", "/v1/topics/t/tasks/n/m", None, (404, "not-found", NO_FIELD)),
    ("GET", "/v1/cluster?all", None, (400, "unknown-field", "all")),
];

/// Topic of a `PUT` by name, body, and the expected answer.
pub const REPLACEMENTS: &[WrongBodyOfTopic] = &[
    ("t", "[]", 400, "invalid-value", NO_FIELD),
    ("t", "{}", 400, "missing-field", "due_at"),
    ("t", r#"{"delay":1,"payload":1,"name":"n"}"#, 400, "unknown-field", "name"),
    ("t", r#"{"delay":1}"#, 400, "missing-field", "payload"),
    ("t", r#"{"delay":"2000d","payload":1}"#, 422, "too-far-ahead", "delay"),
    ("no-such-topic", r#"{"delay":1,"payload":1}"#, 422, "unknown-topic", "topic"),
];

/// Body of a bulk change, and the expected answer.
pub const BULKS: &[WrongBody] = &[
    ("[]", 400, "invalid-value", NO_FIELD),
    ("{", 400, "malformed-json", NO_FIELD),
    ("{}", 400, "missing-field", "topic"),
    (r#"{"topic":"a b"}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":null}"#, 400, "invalid-value", "topic"),
    (r#"{"topic":"t","topic":"t"}"#, 400, "duplicate-field", "topic"),
    (r#"{"topic":"t","name":"n"}"#, 400, "unknown-field", "name"),
    (r#"{"topic":"t","dry_run":"yes"}"#, 400, "invalid-value", "dry_run"),
    (r#"{"topic":"t","dry_run":null}"#, 400, "invalid-value", "dry_run"),
    (r#"{"topic":"t","due_from":"soon"}"#, 400, "invalid-value", "due_from"),
    (r#"{"topic":"t","due_to":1893456000}"#, 400, "invalid-value", "due_to"),
    (r#"{"topic":"t","cursor":"AAAA"}"#, 400, "invalid-value", "cursor"),
    (r#"{"topic":"t","cursor":false}"#, 400, "invalid-value", "cursor"),
];
