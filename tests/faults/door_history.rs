//! The history of the doors beside REST: the outbox in the database of an application, and the
//! intake topic. Plain data, completed when the run has ended: only then it is known of each
//! transaction whether it was committed.

use uuid::Uuid;

/// A way in beside REST.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Door {
    /// The SQL functions and the table of the outbox.
    Sql,
    /// Records of the intake topic.
    Record,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Submit,
    Replace,
    Cancel,
    Finish,
}

/// A row or a record. Those of one name are in the order in which they were committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Also the header `serial` of the task.
    pub serial: u64,
    pub door: Door,
    pub op: Op,
    /// The topic of the task.
    pub topic: usize,
    pub name: Option<String>,
    /// The due time; for a delay, a lower bound of it. 0 for a cancel and a finish.
    pub due_at: i64,
    pub is_exact: bool,
    /// Made so that it must be rejected.
    pub is_wrong: bool,
    pub sent_at: i64,
    /// When the runner knew the end of its transaction.
    pub ended_at: i64,
    pub is_committed: bool,
    /// By then it had certainly taken effect, or was rejected.
    pub taken_by: Option<i64>,
    /// The task and the attempt of a finish that names them.
    pub finishes: Option<(Uuid, u16)>,
}

/// A row of `outbox_rejected`, or a record of the rejected topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection {
    pub serial: u64,
    pub reason: String,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Doors {
    pub requests: Vec<Request>,
    pub rejections: Vec<Rejection>,
    /// The operations that are still in the outbox or the intake topic at the end.
    pub left: Vec<String>,
    /// How often a node was killed after it had stored rows and before it had deleted them.
    pub kills_at_store: usize,
}

impl Doors {
    /// Returns the numbers of a run in one line.
    pub fn figures(&self) -> String {
        let of = |door: Door| {
            let all = || self.requests.iter().filter(move |request| request.door == door);
            let committed = || all().filter(|request| request.is_committed);
            let ops = [Op::Submit, Op::Replace, Op::Cancel, Op::Finish]
                .map(|op| committed().filter(|request| request.op == op).count());
            let rejected = committed().filter(|request| self.is_rejected(request.serial)).count();
            format!(
                "{} committed ({} submits, {} replacements, {} cancels, {} finishes; {rejected} \
                 rejected), {} rolled back",
                committed().count(),
                ops[0],
                ops[1],
                ops[2],
                ops[3],
                all().filter(|request| !request.is_committed).count(),
            )
        };
        format!(
            "sql: {}; records: {}; nodes killed at a store: {}",
            of(Door::Sql),
            of(Door::Record),
            self.kills_at_store
        )
    }

    fn is_rejected(&self, serial: u64) -> bool {
        self.rejections.iter().any(|rejection| rejection.serial == serial)
    }
}
