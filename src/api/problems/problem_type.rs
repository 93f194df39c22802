//! The table of problem types: for each its title, its status, when it is answered, and the advice
//! to callers. docs/problems.md and the pages below `/problems` are generated from it.
//!
//! A request that is wrong on any cluster gets 400. A request that only this cluster refuses gets
//! 422: for its topics, their limits, or its longest delay. 429 is for overload by the caller
//! itself, 503 for causes outside of the caller. Both carry `Retry-After`, and `retry_after`
//! (seconds) as a member, so that the problem of one item of a bulk submit has it, too.

use axum::http::{HeaderValue, StatusCode};

/// The beginning of every `type`. A type is a name that is the same on every node for ever. It is
/// not an address, because a node cannot know its own. The header `Link` (rel="help") of each
/// problem leads to its page.
pub(in crate::api) const TYPE_PREFIX: &str = "urn:punctual:problem:";

/// One row of the table: the description of a problem type.
#[derive(Debug)]
pub struct ProblemRow {
    /// The last part of the `type`.
    pub slug: &'static str,
    pub status: u16,
    pub title: &'static str,
    /// The situation in which it is answered.
    pub when: &'static str,
    /// The advice to the caller.
    pub then: &'static str,
}

macro_rules! problem_types {
    ($($kind:ident($status:literal, $slug:literal, $title:literal) { when: $when:literal, then: $then:literal })*) => {
        /// The types of problems. Callers decide by them, so their meaning never changes.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum ProblemType { $($kind),* }

        impl ProblemType {
            /// All types, by status.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            pub(in crate::api) const fn row(self) -> ProblemRow {
                match self {
                    $(Self::$kind => ProblemRow { slug: $slug, status: $status, title: $title, when: $when, then: $then },)*
                }
            }

            /// Returns the header `Link` to the page of this type.
            pub(in crate::api) const fn help(self) -> HeaderValue {
                match self {
                    $(Self::$kind => HeaderValue::from_static(concat!("</problems/", $slug, ">; rel=\"help\"")),)*
                }
            }
        }
    };
}

problem_types! {
    MalformedJson(400, "malformed-json", "The body is not JSON in UTF-8") {
        when: "The body is empty or no JSON, or its bytes are not UTF-8. `detail` has the line and the column, if there are any.",
        then: "Correct the body. A byte order mark and trailing commas are no JSON."
    }
    MalformedEncoding(400, "malformed-encoding", "The body is not what its encoding says") {
        when: "The body is not what its `Content-Encoding` says, or ends before its end, or its chunks are not what its `Transfer-Encoding` says.",
        then: "Correct the client. Send the body as it is to find out whether the rest is right."
    }
    UnknownField(400, "unknown-field", "There is no such field") {
        when: "The body has an unknown field, the query an unknown parameter, or there is a body where none is taken; `field` names it. Nothing is ignored: what you meant would be lost in silence.",
        then: "Correct the name. `detail` has the names that there are."
    }
    DuplicateField(400, "duplicate-field", "A field is given twice") {
        when: "An object has a field twice, or the query a parameter; `field` names it.",
        then: "Give it once."
    }
    MissingField(400, "missing-field", "A required field is missing") {
        when: "A required field is missing, or all of a set of which one is required, such as `due_at` and `delay`; `field` names it.",
        then: "Add it."
    }
    ConflictingFields(400, "conflicting-fields", "Only one of these fields may be given") {
        when: "Two fields are given that say the same thing in two ways, such as `due_at` and `delay`, or that exclude each other, such as `tombstone` and a payload.",
        then: "Give one of them. `detail` names both."
    }
    InvalidValue(400, "invalid-value", "A field has a value that it cannot have") {
        when: "A field has a value of the wrong type, or one that it cannot have on any cluster: a name of a topic that Kafka would not take, a time without a zone, a delay in months. `field` names it, as a path from the top of the body (`tasks[3].headers.a`), and is missing where it is the body itself.",
        then: "Correct the value. `detail` says what would be right."
    }
    Unauthenticated(401, "unauthenticated", "The caller is not known") {
        when: "The node has an auth file, and the request has no `Authorization`, or a token that is none, unknown, expired or withdrawn. All of these get the same answer. Nothing was done.",
        then: "Send `Authorization: Bearer` and a token. With `error=\"invalid_token\"` in `WWW-Authenticate`, ask the operator for another token."
    }
    Forbidden(403, "forbidden", "The caller has no right to this") {
        when: "The caller is known and lacks the right that `action` names, on the topic that `topic` names if there is one. No server was asked, so the answer does not tell whether the topic exists. Or a browser sent the request for a page of another origin. Nothing was done.",
        then: "Ask the operator for the right; `GET /v1/whoami` shows those you have. A list without a topic needs the right on `*`: name a topic."
    }
    NotFound(404, "not-found", "There is no such path") {
        when: "The path is none of this API.",
        then: "Correct the path. `GET /openapi.json` has all of them. A name in a path is percent-encoded: `a/b` is `a%2Fb`."
    }
    TaskNotFound(404, "task-not-found", "There is no such task") {
        when: "No task has the id, or what was known of it is no longer kept; or the id is none; or no task has the name, or the name is free again; or there is no dead letter of this id: it was put back, or dropped. For a cancel, the member `verdict` is `not_found`.",
        then: "Check the id, or the topic and the name. If they are right, a cancel has nothing to stop: the task is long over, or never was."
    }
    MethodNotAllowed(405, "method-not-allowed", "The path does not take this method") {
        when: "The path is there, the method is not for it.",
        then: "Use one of the methods that the header `Allow` names."
    }
    RequestTimeout(408, "request-timeout", "The request did not arrive in time") {
        when: "The body did not arrive before the deadline of the request (`--request-timeout`), or ended early. Nothing was done.",
        then: "Repeat the request: it is safe."
    }
    TooLate(409, "too-late", "The task can no longer be stopped") {
        when: "A cancel came when the task was published already, is on its way, is a dead letter, or waits for another attempt while an earlier one may be in its topic; or a PUT by name when its task is on its way, or waits so. Nothing was changed. The member `verdict` is `too_late`, and `task` is the task, with its receipt if there is one yet.",
        then: "Look at the `state` of `task`: of one that is `dead` nothing is due any more, and it may be put back or dropped. Of any other take it that the record is published, or will be. What must undo it is a matter of the consumers. A cancel is possible until the window (200 ms unless set otherwise) before the due time."
    }
    Replaced(409, "replaced", "Another task has taken the place of this one") {
        when: "A cancel by id of a task that a PUT by name has replaced. The task itself is cancelled, but the one in its place is not: nothing was changed. The member `verdict` is `replaced`, `task` is the task that was meant, and `replaced_by` the last of those that took its place.",
        then: "To stop what stands there now, cancel the task that `replaced_by` names, or cancel by the name. If you did not mean the new task, there is nothing left to do: the old one is never published."
    }
    PreconditionFailed(412, "precondition-failed", "The name does not stand for that task") {
        when: "The header `If-Match` of a PUT or a DELETE does not name the task of the path, or `If-None-Match` does; for `If-None-Match: *` it is enough that there is one. It was decided together with the change, and nothing was changed. The member `current_id` is the task that the name stands for, and is missing when it stands for none.",
        then: "Somebody else has put another task there, or none is left. Look the name up, decide again, and repeat the request with the `ETag` of that answer."
    }
    BodyTooLarge(413, "body-too-large", "The body is too large") {
        when: "The body is over the limit of the node (`--body-max`), as it came or unpacked. It was refused without being read to its end, and nothing was done.",
        then: "Send the tasks in several batches. One record that large is refused by its topic, too."
    }
    BatchTooLarge(413, "batch-too-large", "The batch has too many tasks") {
        when: "A batch has more tasks than it may have (`--batch-max`). Nothing of it was done.",
        then: "Send several."
    }
    UnsupportedMediaType(415, "unsupported-media-type", "The body is not of a supported type") {
        when: "`Content-Type` is not `application/json`, names another charset than UTF-8, or is missing.",
        then: "Send `content-type: application/json`."
    }
    UnsupportedEncoding(415, "unsupported-encoding", "The body is compressed in an unsupported way") {
        when: "`Content-Encoding` is neither `gzip` nor `zstd`, or names several. `Accept-Encoding` of the answer lists what the node unpacks.",
        then: "Use one of these, or none."
    }
    WrongHost(421, "wrong-host", "This node does not have that name") {
        when: "The host of the request is none of this node's names (`--host`), or the request names no host, or several. It protects against web pages that point a name of their own at the node. Nothing was done.",
        then: "Use an address of the node, or `localhost`. For another name, the operator adds it: `--host`. `/livez` and `/readyz` answer to any name."
    }
    UnknownTopic(422, "unknown-topic", "Kafka has no such topic") {
        when: "Kafka says that there is no such topic. Punctual never creates one.",
        then: "Correct the name, or create the topic: Punctual knows it within seconds, without a restart."
    }
    RecordTooLarge(422, "record-too-large", "The record is larger than its topic takes") {
        when: "The whole record (key, payload, headers, those of Punctual included, and what goes around them) is larger than `max.message.bytes` of its topic. Where the node compresses (`compression.type`), its size after compression counts.",
        then: "Make it smaller, or raise the topic's limit."
    }
    KeyRequired(422, "key-required", "The topic takes no record without a key") {
        when: "The task has no key, and its topic is compacted (`cleanup.policy`): Kafka refuses a record without one there.",
        then: "Give the task a `key`, or send it to another topic."
    }
    TooFarAhead(422, "too-far-ahead", "The due time is too far ahead") {
        when: "The due time is further ahead than this node takes (`--delay-max`).",
        then: "Correct the due time; a moment since the epoch that was given as `delay`, or nanoseconds that are taken for milliseconds, are the usual reasons. Else ask the operator for a longer one."
    }
    RefusedValue(422, "refused-value", "The database refused a value") {
        when: "Postgres refused the task for one of its values. No value that the API lets through is known to do that.",
        then: "Report it as a bug, with `detail`."
    }
    TooManyRequests(429, "too-many-requests", "This caller asks too much at a time") {
        when: "Too many requests of this caller, which is an address, are in progress (`--caller-requests-max`; 16 of `/metrics`, and 16 of `/livez` and `/readyz`), or too many connections of it are open (`--caller-connections-max`). Nothing was done.",
        then: "Wait for answers before asking more: batches instead of many requests, fewer at a time, over few connections that are kept. Repeating is safe. A proxy in front of a node is one caller: the operator should give it what `--requests-max` and `--connections-max` say."
    }
    HeaderTooLarge(431, "header-too-large", "The header of the request is too large") {
        when: "The header of the request, with 32 bytes for each of its fields, is over the limit (`--header-max`). Nothing was done.",
        then: "Send less of it: cookies and tokens of others are the usual reason."
    }
    Internal(500, "internal", "The node failed to answer") {
        when: "The node met a bug. Whether anything was done is unknown.",
        then: "Report it, with what the log of the node says. To repeat the request is as safe as after `outcome-unknown`."
    }
    Busy(503, "busy", "A limit of this node is reached") {
        when: "A limit of this node is reached: requests, bodies or answers in flight, connections, or a queue; `detail` names it. Nothing was done.",
        then: "Repeat the request after `Retry-After` seconds, or ask another node: it is safe. When it happens often, the operator sees which limit it is in `punctual_api_rejected_total`."
    }
    Draining(503, "draining", "The node is about to leave") {
        when: "The node was told to end, and takes no more requests. Nothing was done.",
        then: "Ask another node, or this one after `Retry-After` seconds: it is safe."
    }
    Unavailable(503, "unavailable", "A server that is needed is away") {
        when: "Postgres is away, or Kafka is and the topic is not known to this node, or Kafka does not let this node see the topic, or the answer took too long; `detail` says which. Nothing was done.",
        then: "Repeat the request after `Retry-After` seconds: it is safe. Where `detail` speaks of authorization that does not help: check the topic's name, and the node's right to describe it."
    }
    OutcomeUnknown(503, "outcome-unknown", "Whether it was done is unknown") {
        when: "The answer of the database was lost, or took too long: what was asked for may have been done, or may be done yet.",
        then: "Repeat it after `Retry-After` seconds. That is safe for everything but two things, after which a task may be published twice: a submit without a name; and a PUT whose task has become due meanwhile, for it schedules anew what was published. Look first there, if that matters. Else a name makes no second task; a dead letter that was put back or dropped is answered 404 then; a call for many goes on with what is left."
    }
    NotReady(503, "not-ready", "The node is not ready") {
        when: "`GET /readyz` of a node that cannot claim and publish just now. The member `missing` says what is missing, and why.",
        then: "Send requests to another node. A node heals by itself once the server that it waits for is back."
    }
}

impl ProblemType {
    /// Returns the last part of the `type`.
    pub const fn slug(self) -> &'static str {
        self.row().slug
    }

    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the column "safe to retry?" of docs/problems.md, for the same request sent again.
    pub(super) const fn safe_to_retry(self) -> &'static str {
        match self {
            Self::RequestTimeout
            | Self::TooManyRequests
            | Self::Busy
            | Self::Draining
            | Self::Unavailable
            | Self::NotReady => "yes",
            Self::Internal | Self::OutcomeUnknown => "with a name",
            Self::TaskNotFound | Self::TooLate | Self::Replaced => "no use",
            _ => "after a correction",
        }
    }

    /// Returns the seconds after which a retry makes sense. All types of 429 and 503 have them.
    pub(in crate::api) const fn retry_after(self) -> Option<u32> {
        match self {
            Self::Busy | Self::TooManyRequests => Some(1),
            Self::Unavailable | Self::OutcomeUnknown | Self::NotReady => Some(2),
            // A load balancer needs this long to see that the node is no longer ready.
            Self::Draining => Some(5),
            _ => None,
        }
    }
}
