//! What has happened in a run, as the oracle sees it: who asked for what and what was answered,
//! what arrived, what the execlog says in the end, and what was done to the servers meanwhile.
//! Plain data; times are milliseconds since the epoch. Due times are by Postgres's clock, all the
//! others by the machine's, which is Kafka's; `clock` translates between them.

use std::collections::HashMap;

use uuid::Uuid;

use super::clock::PostgresClock;
use super::plan::{Kind, Operation};

/// The topics of a run, by their indexes: one that nothing is done to, and one for each operation
/// on a topic.
pub const STEADY: usize = 0;
pub const UNAVAILABLE: usize = 1;
pub const DELETED: usize = 2;
pub const LIMITED: usize = 3;

/// All of a run.
#[derive(Debug, Default)]
pub struct History {
    pub submits: Vec<Submit>,
    pub cancels: Vec<Cancel>,
    pub records: Vec<Arrival>,
    pub lines: Vec<Line>,
    /// Tasks that stand in `task` or `task_far` in the end, by their first ids, with their due
    /// times.
    pub pending: HashMap<Uuid, i64>,
    /// Operations as they were carried out.
    pub spans: Vec<Span>,
    pub topics: Vec<Topic>,
    pub clock: PostgresClock,
    /// Answers that no request should get, such as a 500.
    pub oddities: Vec<String>,
    /// When each process of a node, by its name, first said that it cannot publish.
    pub unable: Vec<(String, i64)>,
    pub started_at: i64,
    /// When the execlog was read.
    pub ended_at: i64,
}

/// A task that somebody asked for, by POST (alone or in a batch) or by PUT.
#[derive(Clone, Debug)]
pub struct Submit {
    /// In the header `serial` of its record: tells which submit a record came from when the answer
    /// was lost.
    pub serial: u64,
    pub node: u8,
    pub sent_at: i64,
    pub answered_at: i64,
    pub topic: usize,
    pub name: Option<String>,
    pub is_put: bool,
    /// As asked for.
    pub due_at: i64,
    pub key: Option<String>,
    pub payload_hash: u64,
    pub size: usize,
    pub outcome: Outcome,
}

/// What a submit was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// 201, or 200 to a PUT, which has then put it in the place of another.
    Accepted { id: Uuid, due_at: i64, has_replaced: bool },
    /// 200 to a POST: the name was known.
    Known { id: Uuid },
    /// 409 to a PUT: the task of the name is on its way.
    TooLate { id: Uuid },
    /// Certainly nothing was stored; the end of the problem's type, or `connect`.
    Refused { why: String },
    /// No answer, or one that says that it is not known.
    Unknown { why: String },
}

/// Somebody wanted a task withdrawn.
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
    /// With the partition and the offset of the receipt, if it had one.
    TooLate {
        id: Option<Uuid>,
        receipt: Option<(i32, i64)>,
    },
    /// Of a cancel by id: a PUT has put another task in the place of this one.
    Replaced {
        id: Option<Uuid>,
        by: Option<Uuid>,
    },
    NotFound,
    /// Certainly nothing was done.
    Refused {
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
    /// Which topic of this name: one that was deleted and made again is another.
    pub incarnation: usize,
    pub partition: i32,
    pub offset: i64,
    /// The broker's append time.
    pub at: i64,
    pub key: Option<Vec<u8>>,
    pub payload_hash: Option<u64>,
    pub serial: Option<u64>,
    /// What its headers say of when it is due.
    pub due_header: Option<i64>,
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
}

/// An operation as it was carried out: from just before it was done to just after it was undone (a
/// server answers again, a node is ready).
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
    /// From just before it was deleted to just after it was there again.
    pub absences: Vec<(i64, i64)>,
    /// From just before it took smaller records only to just after it took all again.
    pub limits: Vec<(i64, i64)>,
    /// When it took nothing for certain.
    pub refusals: Vec<(i64, i64)>,
}

/// A record of a topic that was deleted so long after it was appended may never have reached the
/// consumer: it is judged by its receipt.
const UNREAD_MAX_MS: i64 = 15_000;

impl Topic {
    /// True when the topic was deleted so soon after `at` that the consumer may not have come to
    /// it, not counting the time that Kafka was away.
    pub fn may_be_unread(&self, at: i64, spans: &[Span]) -> bool {
        let stops = spans.iter().filter(|span| matches!(span.operation.kind, Kind::KafkaStop | Kind::KafkaKill));
        let away = |until: i64| -> i64 { stops.clone().map(|span| (span.end.min(until) - span.begin.max(at)).max(0)).sum() };
        self.absences.iter().any(|(begin, end)| at <= *end && *begin - at - away(*begin) < UNREAD_MAX_MS)
    }
}

impl Line {
    /// True when nothing comes after it.
    pub fn is_final(&self) -> bool {
        matches!(self.state.as_str(), "published" | "cancelled" | "dead")
    }
}

impl Submit {
    /// The task that was made by it, for certain.
    pub fn accepted(&self) -> Option<Uuid> {
        match self.outcome {
            Outcome::Accepted { id, .. } => Some(id),
            _ => None,
        }
    }
}
