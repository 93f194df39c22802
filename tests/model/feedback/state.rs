//! The state of the model: the tables, two nodes, the consumer's connections, and a client that
//! cancels or replaces the task. There is one task. All fields are small numbers and bits, because
//! the search holds millions of states.

use punctual::domain::task::feedback::{AttemptRow, Call, Delivery, Follow, Place};

/// The number of row ids. A row id is used again once nothing refers to it.
pub const ROWS: usize = 8;
pub const SLOTS: usize = 2;
/// The number of connections of consumers.
pub const CALLS: usize = 2;
/// The row of the submit. Its id is the first id of the task.
pub const FIRST: u8 = 0;

/// A set of rows, or of attempts.
pub type Set = u8;

pub const fn bit(number: u8) -> Set {
    1 << number
}

/// The batch of one row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Batch {
    pub owner: u8,
    pub is_settled: bool,
}

/// The row of `task_follow`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Followed {
    pub row: u8,
    /// The row that the settle is to insert.
    pub next: Option<u8>,
    pub follow: Follow,
}

/// The numbers of final lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lines {
    pub finished: u8,
    pub dead: u8,
    pub cancelled: u8,
}

impl Lines {
    pub fn count(self) -> u8 {
        self.finished + self.dead + self.cancelled
    }
}

/// The contents of Postgres.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Database {
    pub far: Set,
    pub near: Set,
    pub rows: [AttemptRow; ROWS],
    pub batches: [Option<Batch>; ROWS],
    pub follow: Option<Followed>,
    pub lines: Lines,
    /// The highest attempt that a settled batch says was published or perhaps sent.
    pub settled_attempt: u16,
    /// A verdict row was claimed, and then deferred.
    pub was_verdict_claimed: bool,
    /// The attempt that the dead letter has as its last one.
    pub dead_attempt: u16,
}

impl Database {
    pub fn pending(&self) -> Set {
        self.far | self.near
    }

    /// Returns the rows of unsettled batches.
    pub fn claimed(&self) -> Set {
        self.batches_with(|batch| !batch.is_settled)
    }

    pub fn batches_with(&self, is_meant: impl Fn(&Batch) -> bool) -> Set {
        let is_one = |row: &u8| self.batches[usize::from(*row)].as_ref().is_some_and(&is_meant);
        (0..ROWS as u8).filter(is_one).fold(0, |all, row| all | bit(row))
    }

    /// Returns the rows that a table, a batch or `task_follow` refers to.
    pub fn known(&self) -> Set {
        let follow = self.follow.map_or(0, |follow| bit(follow.row) | follow.next.map_or(0, bit));
        self.pending() | self.batches_with(|_| true) | follow | bit(FIRST)
    }
}

/// The progress of a batch in the memory of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Progress {
    #[default]
    Unknown,
    Waiting,
    /// In the topic. The acknowledgement is on its way.
    Sent,
    Done(Delivery),
    /// Settled, as the node knows.
    Settled(Delivery),
}

/// A settle, between its statements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Settle {
    pub row: u8,
    /// True after the upsert of `task_follow`, which takes the lock of that row.
    pub has_upserted: bool,
    /// The note in the snapshot of the statement, which only a mistake uses.
    pub saw_finished: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub progress: [Progress; ROWS],
    /// Batches that another node may have published.
    pub maybe_sent: Set,
    pub settle: Option<Settle>,
}

/// The changes that a call is to write, once its row is found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Found {
    At(Place),
    /// Without a row of `task_follow`, and in an unsettled batch.
    New,
}

/// The next statement of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Transaction 1: lock the row of `task_follow`.
    Locking,
    LookingFar,
    LookingNear,
    /// The far table was locked while the statement waited. Only a mistake comes here.
    LookingOld,
    /// All rows are locked or deleted. The entry of the name is next, then the commit.
    Naming(Found),
    /// Transaction 2: insert the mark.
    Marking,
    /// The mark is inserted. Is the task in an unsettled batch?
    Asking,
    /// Look the task up.
    Seeking,
}

/// A call in progress.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpenCall {
    pub call: Call,
    pub phase: Phase,
    /// The number of times that transaction 1 found nothing and something was there all the same.
    pub round: u8,
    /// The row of `task_follow` as it was read without a lock, which only a mistake does.
    pub seen: Option<Followed>,
}

/// A cancel or a replacement by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Removal {
    NotAsked,
    LookingFar {
        row: u8,
    },
    LookingNear {
        row: u8,
    },
    /// The row is deleted. `task_follow` is next, then the commit.
    Following {
        row: u8,
    },
    Done,
}

/// The faults that may still occur, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Adoptions. The node that had the batch may live on as a zombie, or do nothing more.
    pub adoptions: u8,
    /// Transactions that are rolled back, or that commit without an answer.
    pub answers: u8,
    /// Acknowledgements that do not arrive.
    pub acknowledgements: u8,
    /// Records that are not sent.
    pub refusals: u8,
    pub refusals_for_good: u8,
    /// Crashes of Postgres, which undo the settles since the last synchronous commit.
    pub postgres: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub db: Database,
    /// Postgres as a crash would leave it.
    pub undo: Option<Database>,
    pub nodes: [Node; SLOTS],
    /// A far row is being moved. Its transaction holds the lock of the row.
    pub is_moving: bool,
    pub calls: [Option<OpenCall>; CALLS],
    pub calls_left: u8,
    /// The number of times that the dead letter may still be put back.
    pub redrives_left: u8,
    /// The last attempt of the task. A redrive adds as many as the task had.
    pub attempts_max: u16,
    pub removal: Removal,
    /// A replacement has put another task in the place of this one.
    pub is_succeeded: bool,
    /// The attempts in the topic.
    pub sent: Set,
    /// `finished` was answered.
    pub is_finished: bool,
    /// The highest attempt that a fail or an extend was answered for.
    pub heard: u16,
    /// The highest attempt that a fail was answered for.
    pub failed: u16,
    /// A fail of the last attempt, or a final one, was answered.
    pub is_dead_said: bool,
    pub faults: Faults,
    /// The property that the last step broke.
    pub broken: Option<&'static str>,
}
