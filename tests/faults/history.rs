//! The history of a run, as the oracle sees it: requests and answers, arrived records, the final
//! execlog, and the operations on the servers. Plain data. Times are milliseconds since the epoch.
//! Due times are by Postgres's clock. All other times are by the machine's clock, which is Kafka's.
//! `clock` translates between the two.

use std::collections::HashMap;

use uuid::Uuid;

use super::clock::PostgresClock;
use super::deliveries::Delivered;
use super::door_history::Doors;
use super::plan::Operation;
use super::schedule_history::{Command, MadeRun, RunHeaders};

/// The topics of a run by their indexes: one topic that no operation touches, one for each
/// operation on a topic or on its pauses, one for the runs of schedules, two that only callbacks
/// consume, one for the records of dead tasks alone, and two for the doors.
pub const STEADY: usize = 0;
pub const UNAVAILABLE: usize = 1;
pub const DELETED: usize = 2;
pub const LIMITED: usize = 3;
/// The topic that is paused. It has a policy, too.
pub const PAUSED: usize = 4;
/// The runs of schedules.
pub const SCHEDULED: usize = 5;
/// The service that is broken gets the tasks of this topic, and nobody else does.
pub const SERVED: usize = 6;
/// The service that nothing is done to gets the tasks of this topic.
pub const PROMPT: usize = 7;
pub const DEAD: usize = 8;
/// The topics of the tasks that come through the outbox, and through the intake topic.
pub const BY_SQL: usize = 9;
pub const BY_RECORD: usize = 10;

/// The back-off of a tracked task doubles with each attempt, up to this.
pub const BACKOFF_MAX_MS: i64 = 4000;

/// The whole history of a run.
#[derive(Debug, Default)]
pub struct History {
    pub submits: Vec<Submit>,
    pub cancels: Vec<Cancel>,
    pub moves: Vec<Move>,
    pub calls: Vec<Call>,
    /// What consumers without Kafka have got.
    pub delivered: Vec<Delivered>,
    pub commands: Vec<Command>,
    /// The runs of schedules in the end.
    pub runs: Vec<MadeRun>,
    /// The history of the doors beside REST.
    pub doors: Doors,
    pub records: Vec<Arrival>,
    pub lines: Vec<Line>,
    /// Tasks in `task` or `task_far` at the end, by their first ids, with their due times.
    pub pending: HashMap<Uuid, i64>,
    /// Operations as they were carried out.
    pub spans: Vec<Span>,
    pub topics: Vec<Topic>,
    pub clock: PostgresClock,
    /// Answers that no request should get, such as a 500.
    pub oddities: Vec<String>,
    /// When each node process, by name, first reported that it cannot publish.
    pub unable: Vec<(String, i64)>,
    pub started_at: i64,
    /// When the execlog was read.
    pub ended_at: i64,
}

/// A requested task, by POST (alone or in a bulk submit) or by PUT.
#[derive(Clone, Debug)]
pub struct Submit {
    /// The header `serial` of the record. It tells which submit a record came from when the answer
    /// was lost.
    pub serial: u64,
    pub node: u8,
    pub sent_at: i64,
    pub answered_at: i64,
    pub topic: usize,
    pub name: Option<String>,
    pub is_put: bool,
    /// The condition of a PUT.
    pub when: Option<When>,
    /// The requested due time.
    pub due_at: i64,
    pub key: Option<String>,
    pub payload_hash: u64,
    pub size: usize,
    /// From when on the task is not published, if the submit names a time. By Postgres's clock.
    pub expires_at: Option<i64>,
    /// `None` for an untracked task.
    pub tracked: Option<Tracked>,
    pub outcome: Outcome,
}

/// The wishes of a submitter for the answers of consumers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tracked {
    pub ttr_ms: i64,
    pub attempts_max: u16,
    /// The wait after the first attempt.
    pub backoff_ms: i64,
    pub dead_topic: Option<usize>,
}

/// The pending task that a PUT with `?when=` may replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    Absent,
    /// By a task that is due earlier.
    Earlier,
    /// By a task that is due later.
    Later,
}

/// The answer to a submit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// 201, or 200 to a PUT that has replaced another task.
    Accepted { id: Uuid, due_at: i64, has_replaced: bool },
    /// 200 to a POST: the name was known.
    Known { id: Uuid },
    /// 409 to a PUT: the task of the name is on its way.
    TooLate { id: Uuid },
    /// 412 to a PUT: its condition does not let it replace this task.
    Kept { id: Uuid },
    /// Committed at a door beside REST, which gives no answer.
    Committed,
    /// Certainly no task was stored. `why` is the end of the problem's type, or `connect`.
    Refused { why: String },
    /// No answer, or an answer that says that the result is unknown.
    Unknown { why: String },
}

/// A request to cancel a task.
#[derive(Clone, Debug)]
pub struct Cancel {
    pub node: u8,
    pub sent_at: i64,
    pub answered_at: i64,
    pub target: Target,
    pub verdict: Verdict,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Id(Uuid),
    Name(usize, String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Cancelled {
        id: Option<Uuid>,
    },
    /// With the partition and the offset of the receipt, if the answer had one.
    TooLate {
        id: Option<Uuid>,
        receipt: Option<(i32, i64)>,
    },
    /// The answer to a cancel by id: a PUT has replaced this task.
    Replaced {
        id: Option<Uuid>,
        by: Option<Uuid>,
    },
    NotFound,
    /// The request certainly had no effect.
    Refused {
        why: String,
    },
    Unknown {
        why: String,
    },
}

/// A request to give a task another due time, alone or with others.
#[derive(Clone, Debug)]
pub struct Move {
    pub node: u8,
    pub sent_at: i64,
    pub answered_at: i64,
    pub id: Uuid,
    /// The requested due time. A time in the past is due at once.
    pub due_at: i64,
    pub verdict: MoveVerdict,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveVerdict {
    Moved {
        due_at: i64,
    },
    /// Also the verdict on all tasks of a request that has moved none.
    TooLate,
    NotFound,
    /// The request certainly had no effect.
    Refused {
        why: String,
    },
    /// Also the verdict on each task of a request that has moved some.
    Unknown {
        why: String,
    },
}

/// The word of a consumer about an attempt, and the answer.
#[derive(Clone, Debug)]
pub struct Call {
    pub node: u8,
    pub sent_at: i64,
    pub answered_at: i64,
    pub id: Uuid,
    /// `None` for a finish that names no attempt.
    pub attempt: Option<u16>,
    pub kind: CallKind,
    pub verdict: CallVerdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    Finish,
    Fail {
        /// Milliseconds. `None`: the back-off decides.
        retry_in: Option<i64>,
        is_final: bool,
    },
    Extend {
        by: i64,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallVerdict {
    Finished {
        in_flight: bool,
    },
    /// Takes effect with the settle.
    Noted,
    /// With the due time of the next attempt, if the answer had one.
    Retrying {
        at: Option<i64>,
    },
    /// The dead letter is next.
    Dying,
    Extended,
    /// 404 or 409, with the verdict.
    Refused(String),
    /// The request certainly had no effect.
    NotTaken {
        why: String,
    },
    Unknown {
        why: String,
    },
}

/// A record as it was consumed.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub id: Uuid,
    pub topic: usize,
    /// The incarnation of the topic. A topic that was deleted and created again has a new one.
    pub incarnation: usize,
    pub partition: i32,
    pub offset: i64,
    /// The broker's append time.
    pub at: i64,
    pub key: Option<Vec<u8>>,
    pub payload_hash: Option<u64>,
    pub serial: Option<u64>,
    /// The due time in the record's headers.
    pub due_header: Option<i64>,
    /// The expiry in the record's headers.
    pub expires_header: Option<i64>,
    /// The number of the attempt. `None` for an untracked task.
    pub attempt: Option<u16>,
    /// The headers of a run. `None` for a task that no schedule has made.
    pub run: Option<RunHeaders>,
    /// True for the record of a task that was given up, in its dead topic.
    pub is_dead_letter: bool,
}

/// A line of the execlog.
#[derive(Clone, Debug)]
pub struct Line {
    pub id: Uuid,
    pub topic: Option<String>,
    pub due_at: i64,
    pub state: String,
    pub published_at: Option<i64>,
    pub position: Option<(i32, i64)>,
    pub lateness: Option<i64>,
    /// When the row was claimed, by Postgres's clock. For `finished` and `cancelled` the time of
    /// the end.
    pub claimed_at: Option<i64>,
    /// Why a dead task is dead.
    pub reason: Option<String>,
    /// `None` unless the task is expired.
    pub expiry: Option<Expiry>,
}

/// The end of an expired task, by Postgres's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expiry {
    /// The time from which the task was not to be published.
    pub expires_at: i64,
    /// When its end was stored.
    pub settled_at: i64,
}

/// An operation as carried out: from just before the start to just after the undo (a server answers
/// again, a node is ready).
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub operation: Operation,
    pub begin: i64,
    pub end: i64,
}

/// A topic of the run.
#[derive(Clone, Debug, Default)]
pub struct Topic {
    pub name: String,
    /// From just before it was deleted to just after it existed again.
    pub absences: Vec<(i64, i64)>,
    /// From just before its size limit was lowered to just after the limit was restored.
    pub limits: Vec<(i64, i64)>,
    /// When it certainly accepted no records.
    pub refusals: Vec<(i64, i64)>,
    /// From the answer to a pause to the request that ended the pause.
    pub pauses: Vec<(i64, i64)>,
    /// The policy of the topic: tasks without an expiry of their own expire this long after their
    /// due times, in ms.
    pub expire_after: Option<i64>,
}

impl History {
    /// Returns the topic of a line by its index.
    pub fn topic_of(&self, line: &Line) -> Option<usize> {
        self.topics.iter().position(|topic| Some(topic.name.as_str()) == line.topic.as_deref())
    }
}

/// A record appended within this time before the topic was deleted may never have reached the
/// consumer. The receipt then judges the record.
const UNREAD_MAX_MS: i64 = 15_000;

impl Topic {
    /// Returns true when the topic was deleted so soon after `at` that the consumer may not have
    /// read the record. Time during which Kafka was down does not count.
    pub fn may_be_unread(&self, at: i64, spans: &[Span]) -> bool {
        let stops = spans.iter().filter(|span| span.operation.kind.takes_brokers_away());
        let away = |until: i64| -> i64 {
            stops.clone().map(|span| (span.end.min(until) - span.begin.max(at)).max(0)).sum()
        };
        self.absences
            .iter()
            .any(|(begin, end)| at <= *end && *begin - at - away(*begin) < UNREAD_MAX_MS)
    }
}

impl Line {
    /// Returns true for a line of a final state.
    pub fn is_final(&self) -> bool {
        matches!(self.state.as_str(), "published" | "finished" | "cancelled" | "dead" | "expired")
    }

    /// Returns true for the line of a task that was given up because it was too late, and a record
    /// may be in its topic.
    pub fn is_too_late(&self) -> bool {
        let reason = self.reason.as_deref().unwrap_or_default();
        self.state == "dead" && reason.starts_with("the task expired at ")
    }

    /// Returns true for the line of a task that was given up because no consumer finished it.
    pub fn is_exhausted(&self) -> bool {
        let reason = self.reason.as_deref().unwrap_or_default();
        self.state == "dead" && reason.starts_with("attempt ")
    }
}

impl Tracked {
    /// Returns the shortest wait after an attempt whose consumer is silent. A wait over a second is
    /// shortened by up to a quarter.
    pub fn backoff_after(self, attempt: u16) -> i64 {
        let doublings = u32::from(attempt.saturating_sub(1)).min(16);
        let full = (self.backoff_ms << doublings).min(BACKOFF_MAX_MS);
        if full > 1000 { full - full / 4 } else { full }
    }
}

impl Call {
    /// Returns true when the call has taken effect, or may have done so.
    pub fn may_count(&self) -> bool {
        !matches!(self.verdict, CallVerdict::Refused(_) | CallVerdict::NotTaken { .. })
    }

    /// Returns true when the call has certainly taken effect, or an equal one before it.
    pub fn counts(&self) -> bool {
        self.may_count() && !matches!(self.verdict, CallVerdict::Unknown { .. })
    }
}

impl Submit {
    /// Returns the task that this submit certainly made.
    pub fn accepted(&self) -> Option<Uuid> {
        match self.outcome {
            Outcome::Accepted { id, .. } => Some(id),
            _ => None,
        }
    }
}
