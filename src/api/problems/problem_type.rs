//! The table of problem types: title, status, cause, and the advice to callers. docs/problems.md
//! and the pages below `/problems` are generated from this table.
//!
//! A request that is wrong on any cluster gets 400. A request refused only by this cluster gets
//! 422: because of a topic, a topic's limits, or the longest delay. 429 is for overload by the
//! caller, 503 for causes outside of the caller. Both carry `Retry-After`, and `retry_after`
//! (seconds) as a member, so that the problem of one item of a bulk submit has the figure, too.

use axum::http::{HeaderValue, StatusCode};

/// The beginning of every `type`. A type is a name, the same on every node for ever, and no
/// address, because a node cannot know its own address. The header `Link` (rel="help") of each
/// problem leads to a page about the type.
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
    ($($kind:ident($status:literal, $slug:literal, $title:literal) {
        when: $when:literal, then: $then:literal
    })*) => {
        /// The types of problems. Callers decide by them, so their meaning never changes.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum ProblemType { $($kind),* }

        impl ProblemType {
            /// All types, by status.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            pub(in crate::api) const fn row(self) -> ProblemRow {
                match self {
                    $(Self::$kind => ProblemRow {
                        slug: $slug,
                        status: $status,
                        title: $title,
                        when: $when,
                        then: $then,
                    },)*
                }
            }

            /// Returns the header `Link` to the page of this type.
            pub(in crate::api) const fn help(self) -> HeaderValue {
                match self {
                    $(Self::$kind => HeaderValue::from_static(
                        concat!("</problems/", $slug, ">; rel=\"help\"")
                    ),)*
                }
            }
        }
    };
}

problem_types! {
    MalformedJson(400, "malformed-json", "The body is not JSON in UTF-8") {
        when: "The body is empty, is not valid JSON, or is not UTF-8. `detail` gives the line and \
               the column where it can.",
        then: "Correct the body. Remove byte order marks and trailing commas."
    }
    MalformedEncoding(400, "malformed-encoding", "The body does not match its encoding") {
        when: "The body does not match its `Content-Encoding` or its `Transfer-Encoding`, or ends \
               too early.",
        then: "Correct the client. To check the rest of the request, send the body without \
               compression."
    }
    UnknownField(400, "unknown-field", "There is no such field") {
        when: "The body has an unknown field, the query has an unknown parameter, or the request \
               has a body where none is allowed. `field` names it. Punctual ignores nothing, so \
               that no mistake goes unnoticed.",
        then: "Correct the name. `detail` lists the valid names."
    }
    DuplicateField(400, "duplicate-field", "A field is given twice") {
        when: "An object has the same field twice, or the query the same parameter. `field` names \
               it.",
        then: "Give it once."
    }
    MissingField(400, "missing-field", "A required field is missing") {
        when: "A required field is missing, or every field of a set of which one is required, such \
               as `due_at` and `delay`. `field` names it.",
        then: "Add the field."
    }
    ConflictingFields(400, "conflicting-fields", "Only one of these fields may be given") {
        when: "Two fields say the same thing, such as `due_at` and `delay`, or exclude each other, \
               such as `tombstone` and a payload.",
        then: "Give one of them. `detail` names both."
    }
    InvalidValue(400, "invalid-value", "A field has an invalid value") {
        when: "A field has a value of the wrong type, or one that no cluster accepts: a topic name \
               that Kafka does not allow, a time without a zone, a delay in months. `field` names \
               it, as a path from the top of the body (`tasks[3].headers.a`). `field` is missing \
               when the body itself is wrong.",
        then: "Correct the value. `detail` says which values are valid."
    }
    Unauthenticated(401, "unauthenticated", "The caller is not known") {
        when: "The node has an auth file, and the request has no `Authorization` header, or its \
               token is malformed, unknown, expired or withdrawn. All of these get the same \
               answer. Nothing was done.",
        then: "Send `Authorization: Bearer` and a token. With `error=\"invalid_token\"` in \
               `WWW-Authenticate`, ask the operator for another token."
    }
    Forbidden(403, "forbidden", "The caller has no right to this") {
        when: "The caller is known but lacks the right that `action` names, on the topic that \
               `topic` names if there is one. No server was asked, so the answer does not tell \
               whether the topic exists. Or a browser sent the request for a page of another \
               origin. Nothing was done.",
        then: "Ask the operator for the right; `GET /v1/whoami` shows the rights you have. A list \
               without a topic needs the right on `*`: name a topic."
    }
    NotFound(404, "not-found", "There is no such path") {
        when: "The API has no such path.",
        then: "Correct the path. `GET /openapi.json` lists all paths. Names in a path are \
               percent-encoded: `a/b` is `a%2Fb`."
    }
    TaskNotFound(404, "task-not-found", "There is no such task") {
        when: "No task has this id or name: there never was one, its receipt has expired, or the \
               name is free again. For dead letters: the task was redriven or dropped, or never \
               was a dead letter. A cancel has the member `verdict`: `not_found`.",
        then: "Check the id, or the topic and the name. If they are right, a cancel has nothing to \
               stop: the task ended long ago, or never existed."
    }
    ScheduleNotFound(404, "schedule-not-found", "There is no such schedule") {
        when: "The topic has no schedule of this name: there never was one, or it was deleted.",
        then: "Check the topic and the name; `GET /v1/schedules/{topic}` lists all schedules of a \
               topic. A repeated DELETE gets this answer, too, and has nothing left to do."
    }
    CallbackNotFound(404, "callback-not-found", "The topic has no callback") {
        when: "No callback was set for the topic, or it was deleted.",
        then: "Check the topic; `PUT /v1/topics/{topic}/callback` sets one. A repeated DELETE gets \
               this answer, too, and has nothing left to do."
    }
    TopicNotFound(404, "topic-not-found", "There is no such topic") {
        when: "Kafka has no topic of this name. A look-up also found no task, dead letter or \
               policy of it. For a resume or a `DELETE`, the topic never had a policy or a pause.",
        then: "Check the name. `GET /v1/topics` lists the topics that have tasks or a policy."
    }
    MethodNotAllowed(405, "method-not-allowed", "The path does not take this method") {
        when: "The path exists, but not with this method.",
        then: "Use one of the methods in the header `Allow`."
    }
    RequestTimeout(408, "request-timeout", "The request did not arrive in time") {
        when: "The body did not arrive before the deadline (`--request-timeout`), or ended early. \
               Nothing was done.",
        then: "Repeat the request: it is safe."
    }
    TooLate(409, "too-late", "It is too late to change the task") {
        when: "The task cannot be cancelled: it is published, claimed, or a dead letter, or an \
               earlier attempt may be in the topic already. Or it cannot be replaced by a PUT: it \
               is claimed, or an earlier attempt may be in the topic. Or it cannot be moved by a \
               PATCH, for one of these reasons, or because it is cancelled. Nothing changed. The \
               member `verdict` is `too_late`, and `task` is the task, with its receipt if there \
               is one.",
        then: "Look at the `state` of `task`. A `dead` task is not due any more; it can be \
               redriven or dropped. In every other state, assume that the record is or will be \
               published, and let the consumers undo it. Cancels are possible until one window \
               (200 ms by default) before the due time."
    }
    Replaced(409, "replaced", "Another task has replaced this one") {
        when: "The id to cancel belongs to a task that a PUT by name has replaced. That task is \
               cancelled, but the task in its place is not: nothing was changed. The member \
               `verdict` is `replaced`, `task` is the task of the id, and `replaced_by` is the \
               newest task in its place.",
        then: "To stop the newest task, cancel the id in `replaced_by`, or cancel by name. If you \
               did not mean the newest task, do nothing: the old one is never published."
    }
    NotPublishedYet(409, "not-published-yet", "No attempt of the task was published yet") {
        when: "A consumer answers for a task whose record was certainly never sent. Nothing was \
               changed. The member `verdict` is `not_published_yet`, and `task` is the task.",
        then: "To withdraw the task before it is published, cancel it. A consumer answers only \
               for records that it has."
    }
    AttemptTooHigh(409, "attempt-too-high", "The task has not come to this attempt") {
        when: "`attempt` is above the current attempt of the task. Nothing was changed. The member \
               `verdict` is `attempt_too_high`, and `task` shows the current `attempt`.",
        then: "Send the number in the header `punctual-attempt` of the record."
    }
    AttemptSuperseded(409, "attempt-superseded", "A later attempt has superseded this one") {
        when: "A fail or an extend names an attempt whose time to run was over: the next attempt \
               is on its way or published. Nothing was changed. The member `verdict` is \
               `attempt_superseded`, and `task` shows the current `attempt`.",
        then: "Stop the work, or finish it and call finish, which an earlier attempt may, too. A \
               later fail or extend is up to the consumer of the later attempt."
    }
    AlreadyFailed(409, "already-failed", "The attempt has failed already") {
        when: "An extend names an attempt that was failed before. The next attempt has its due \
               time. The member `verdict` is `already_failed`, and `task` is the task.",
        then: "Stop the work, or finish it and call finish before the next attempt is due."
    }
    AlreadyFinished(409, "already-finished", "The task is finished") {
        when: "A fail or an extend names a task that is finished. Nothing was changed. The member \
               `verdict` is `already_finished`, and `task` is the task.",
        then: "Do nothing: the work is done. A repeated finish is answered 200."
    }
    Dead(409, "dead", "The task is dead") {
        when: "A consumer answers for a task that is a dead letter, or about to be one: `final` \
               was said, or its last attempt failed or was not finished in time. Nothing was \
               changed. The member `verdict` is `dead`, and `task` is the task.",
        then: "Redrive the dead letter if the work is still to be done, or drop it."
    }
    Cancelled(409, "cancelled", "The task is cancelled") {
        when: "A consumer answers for a task that is cancelled. Nothing was changed. The member \
               `verdict` is `cancelled`, and `task` is the task.",
        then: "Do nothing: no record of the task exists or ever will."
    }
    NotTracked(409, "not-tracked", "The task has no time to run") {
        when: "A consumer answers for a task that was submitted without `ttr`. It ends when it is \
               published. The member `verdict` is `not_tracked`, and `task` is the task.",
        then: "Submit tasks with `ttr` if their consumers are to answer."
    }
    PreconditionFailed(412, "precondition-failed", "A precondition of the request does not hold") {
        when: "`If-Match` of a PUT, PATCH or DELETE does not name the current task, or \
               `If-None-Match` names it; `If-None-Match: *` fails whenever there is a task. Or \
               `when` of a PUT keeps the pending task, whose due time it compares. The check and \
               the change are one transaction. Nothing was changed. The member `current_id` is \
               the current task of the name, and is missing when there is none.",
        then: "Somebody else has replaced the task, or it is gone. Look the name up, decide again, \
               and repeat the request with the `ETag` of that answer."
    }
    BodyTooLarge(413, "body-too-large", "The body is too large") {
        when: "The body is over the limit of the node (`--body-max`), compressed or uncompressed. \
               The node did not read all of it, and did nothing.",
        then: "Send the tasks in several bulk submits. A single record of this size would also be \
               over the limit of its topic."
    }
    BatchTooLarge(413, "batch-too-large", "The request has too many tasks") {
        when: "A bulk submit has more tasks than the limit (`--batch-max`), or a request has more \
               than 10,000 outcomes. Nothing was done.",
        then: "Send several smaller ones."
    }
    UnsupportedMediaType(415, "unsupported-media-type", "The body is not of a supported type") {
        when: "`Content-Type` is missing, is not `application/json`, or names a charset other than \
               UTF-8.",
        then: "Send `content-type: application/json`."
    }
    UnsupportedEncoding(415, "unsupported-encoding", "The body has an unsupported compression") {
        when: "`Content-Encoding` is neither `gzip` nor `zstd`, or names several encodings. \
               `Accept-Encoding` of the answer lists the supported ones.",
        then: "Use a supported encoding, or none."
    }
    WrongHost(421, "wrong-host", "This node does not have that name") {
        when: "The host of the request is not one of this node's names (`--host`), or the request \
               has no host, or several. The check protects against web pages that point their own \
               name at the node. Nothing was done.",
        then: "Use an address of the node, or `localhost`. The operator can add another name with \
               `--host`. `/livez` and `/readyz` answer to any name."
    }
    UnknownTopic(422, "unknown-topic", "Kafka has no such topic") {
        when: "Kafka says that there is no such topic. Punctual never creates one.",
        then: "Correct the name, or create the topic: Punctual sees it within seconds, without a \
               restart."
    }
    RecordTooLarge(422, "record-too-large", "The record is larger than its topic takes") {
        when: "The whole record (key, payload, all headers and Kafka's framing) is larger than \
               `max.message.bytes` of its topic. If the node compresses (`compression.type`), the \
               compressed size counts.",
        then: "Make the record smaller, or raise the topic's limit."
    }
    KeyRequired(422, "key-required", "The topic takes no record without a key") {
        when: "The task has no key, and its topic is compacted (`cleanup.policy`). Kafka refuses \
               records without a key there.",
        then: "Give the task a `key`, or send it to another topic."
    }
    TooFarAhead(422, "too-far-ahead", "The due time is too far ahead") {
        when: "The due time is further ahead than this node (`--delay-max`), the policy of the \
               topic, or the auth file (`delay_max`) allows, or than a consumer may retry (7 \
               days), or than a schedule may begin (36,500 days). `detail` names the limit.",
        then: "Correct the due time. The usual mistakes are a timestamp given as `delay`, and \
               nanoseconds given as milliseconds. Otherwise ask the operator for a higher limit: \
               those of retries and schedules are fixed."
    }
    ExpiresTooEarly(422, "expires-too-early", "The task expires before it is due") {
        when: "`expires_at` is not after the due time, or not after the new time of a move.",
        then: "Correct one of the times, or leave `expires_at` out: a task without one does not \
               expire, unless the policy of its topic says so."
    }
    TooManySchedules(422, "too-many-schedules", "The cluster has too many schedules") {
        when: "The schedule would be new, and the cluster has as many as the node allows \
               (`--schedules-max`); `detail` has the number. Nothing was stored.",
        then: "Delete schedules that are not needed, or ask the operator for a higher limit. \
               Schedules that exist can still be changed."
    }
    RefusedValue(422, "refused-value", "The database refused a value") {
        when: "Postgres refused one of the task's values. The API should refuse every such value \
               itself.",
        then: "Report it as a bug, with `detail`."
    }
    TooManyRequests(429, "too-many-requests", "The caller has too many requests in progress") {
        when: "The caller (an IP address) has too many requests in progress \
               (`--caller-requests-max`; 16 for `/metrics`, and 16 for `/livez` and `/readyz`), or \
               too many open connections (`--caller-connections-max`), or has sent over 20 tokens \
               within a minute whose issuer has no keys yet. Nothing was done.",
        then: "Wait for answers before sending more: use bulk submits, fewer requests at a time, \
               and few connections that stay open. Repeating is safe. A proxy in front of a node \
               is one caller: the operator should raise its limits to `--requests-max` and \
               `--connections-max`."
    }
    QuotaExceeded(429, "quota-exceeded", "A limit of this caller is reached") {
        when: "The principal, or the topic, has used up one of its `limits` in the auth file on \
               this node; `detail` names it. A bulk submit is taken as a whole or not at all, and \
               tasks that are refused count as well. Nothing was done.",
        then: "Repeat the request after `Retry-After` seconds: it is safe, and it passes if the \
               principal asks for nothing else meanwhile. Ask the operator for a higher limit."
    }
    TooManyPending(429, "too-many-pending", "Too many tasks are pending") {
        when: "The topic, the principal, or the topics of a pattern together have as many pending \
               tasks as `pending_max` allows, in the policy of the topic or in the auth file; \
               `detail` says which. The tasks are counted, or their number is estimated, every ten \
               seconds. Nothing was stored.",
        then: "Repeat the request later: it is safe. It passes once tasks have left: published, \
               cancelled or finished. Ask the operator for a higher `pending_max`."
    }
    DeniedTooOften(429, "denied-too-often", "The caller was denied too often") {
        when: "The caller (an IP address) was denied 20 times within a minute without a valid \
               credential (401, 403 or 421), or all such callers 1,000 times. A valid token or \
               certificate passes all the same. Nothing was done.",
        then: "Correct the token or the host first. The same request is denied again after \
               `Retry-After` seconds."
    }
    HeaderTooLarge(431, "header-too-large", "The header of the request is too large") {
        when: "The header of the request, plus 32 bytes for each field, is over the limit \
               (`--header-max`). Nothing was done.",
        then: "Send fewer or smaller fields. Cookies and tokens for other services are the usual \
               cause."
    }
    Internal(500, "internal", "The node failed to answer") {
        when: "The node hit a bug. Whether anything was done is unknown.",
        then: "Report it, with the node's log. Repeating the request is as safe as after \
               `outcome-unknown`."
    }
    Busy(503, "busy", "A limit of this node is reached") {
        when: "A limit of this node is reached: requests, bodies or answers in flight, \
               connections, or a queue. `detail` names it. Nothing was done.",
        then: "Repeat the request after `Retry-After` seconds, or ask another node: it is safe. \
               The metric `punctual_api_rejected_total` shows the operator which limit is reached, \
               and how often."
    }
    Draining(503, "draining", "The node is shutting down") {
        when: "The node is shutting down and takes no more requests. Nothing was done.",
        then: "Ask another node, or this one after `Retry-After` seconds: it is safe."
    }
    Unavailable(503, "unavailable", "A required server is unavailable") {
        when: "Postgres is unavailable; or Kafka is, and this node has not seen the topic before; \
               or Kafka does not let this node see the topic; or the answer took too long; or the \
               task has a `ttr`, and some nodes are not upgraded yet. `detail` says which. Nothing \
               was done.",
        then: "Repeat the request after `Retry-After` seconds: it is safe. If `detail` mentions \
               authorization, check the topic's name and the node's right to describe the topic \
               instead."
    }
    OutcomeUnknown(503, "outcome-unknown", "Whether it was done is unknown") {
        when: "The database's answer was lost or took too long: the request may have been done, or \
               may still be done.",
        then: "Repeat the request after `Retry-After` seconds. Two repeated requests may publish \
               a task twice: a submit without a name, and a PUT whose task has become due \
               meanwhile, because the PUT then schedules another task. Before you repeat one of \
               these, look whether the task exists. All other requests are safe to repeat: a \
               submit with a name makes no second task, a dead letter that is already redriven or \
               dropped gets 404, and a bulk change goes on with the rest."
    }
    NotReady(503, "not-ready", "The node is not ready") {
        when: "`GET /readyz` of a node that cannot claim and publish now. The member `missing` \
               lists the missing parts, with reasons.",
        then: "Send requests to another node. The node recovers by itself when the missing server \
               is back."
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
            | Self::QuotaExceeded
            | Self::TooManyPending
            | Self::Busy
            | Self::Draining
            | Self::Unavailable
            | Self::NotReady => "yes",
            Self::Internal | Self::OutcomeUnknown => "with a name",
            Self::TaskNotFound
            | Self::ScheduleNotFound
            | Self::CallbackNotFound
            | Self::TooLate
            | Self::Replaced
            | Self::NotPublishedYet
            | Self::AttemptSuperseded
            | Self::AlreadyFailed
            | Self::AlreadyFinished
            | Self::Dead
            | Self::Cancelled
            | Self::NotTracked => "no use",
            _ => "after a correction",
        }
    }

    /// Returns the seconds after which a retry makes sense. All types of 429 and 503 have them.
    pub(in crate::api) const fn retry_after(self) -> Option<u32> {
        match self {
            Self::Busy | Self::TooManyRequests | Self::QuotaExceeded => Some(1),
            Self::Unavailable | Self::OutcomeUnknown | Self::NotReady => Some(2),
            // The next count.
            Self::TooManyPending => Some(10),
            // A load balancer needs this long to see that the node is no longer ready.
            Self::Draining => Some(5),
            // The longest wait. Each problem has its own.
            Self::DeniedTooOften => Some(60),
            _ => None,
        }
    }
}
