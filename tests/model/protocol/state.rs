//! What the world of the model is made of: Postgres, two nodes, the topic, and those who ask. Small
//! numbers and bits, for there are millions of it.

pub const TASKS: usize = 3;
/// Rows that one task may be, one after another.
pub const ATTEMPTS: usize = 3;
pub const ROWS: usize = TASKS * ATTEMPTS;
pub const BATCHES: usize = 5;
/// Starts of nodes: an identity is new at every start.
pub const IDENTITIES: usize = 3;
pub const SLOTS: usize = 2;
pub const PUTS: usize = 2;
/// No identity.
pub const NOBODY: u8 = 9;

/// A set of rows; row `r` is attempt `r % ATTEMPTS` of task `r / ATTEMPTS`.
pub type Rows = u16;
/// A set of tasks, batches or identities.
pub type Set = u8;

pub const fn row_of(task: usize, attempt: usize) -> usize {
    task * ATTEMPTS + attempt
}

pub const fn task_of(row: usize) -> usize {
    row / ATTEMPTS
}

pub const fn bit(number: usize) -> u8 {
    1 << number
}

pub const fn row_bit(row: usize) -> Rows {
    1 << row
}

pub fn each(set: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |number| set >> number & 1 == 1)
}

/// How far a task of a batch has come in the memory of a node, or in a settled batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Progress {
    #[default]
    Waiting,
    /// With the producer.
    Queued,
    /// In the topic, and the acknowledgement is on its way.
    Appended,
    Published,
    Deferred {
        maybe_sent: bool,
        /// The due time of the follow-up.
        due: u8,
    },
    Dead,
}

impl Progress {
    pub fn is_outcome(self) -> bool {
        matches!(self, Self::Published | Self::Deferred { .. } | Self::Dead)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Batch {
    /// None: there is no such batch.
    pub rows: Rows,
    pub owner: u8,
    pub is_settled: bool,
    pub outcomes: [Progress; TASKS],
}

/// A leaf whose time passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Leaf {
    Attached,
    Detaching,
    Orphan,
    Dropped,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Heart {
    None,
    Alive,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Follow {
    pub row: u8,
    pub maybe_sent: bool,
}

/// What Postgres has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Database {
    pub far: Rows,
    pub near: Rows,
    /// The due time of each row that there is or was: it is in the row's id.
    pub due: [u8; ROWS],
    pub leaf: Leaf,
    pub batches: [Batch; BATCHES],
    /// Lines of cancelled tasks.
    pub cancelled: [u8; TASKS],
    /// The task that was put in the place of each; 0: none, for the first task of a name replaces
    /// nothing.
    pub replaced_by: [u8; TASKS],
    pub dead_letters: Set,
    pub follow: [Option<Follow>; TASKS],
    /// The entry of the one name: its row.
    pub entry: Option<u8>,
    pub hearts: [Heart; IDENTITIES],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    Down,
    Running,
    Paused,
}

/// What a node's registry say of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Book {
    None,
    Held,
    Settled,
    /// Settled, and a heartbeat has been answered since.
    Durable,
}

/// A question after the node's own unsettled batches, as it was answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Check {
    pub own: Set,
    /// Settles that were durable when it was asked.
    pub durable: Set,
    pub clears_doubt: bool,
}

/// A node that is to be declared dead, provided that it has not beaten since.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Declare {
    pub node: u8,
    pub is_outdated: bool,
}

/// A node and its memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub identity: u8,
    pub status: Status,
    /// It does not know whether its batches are still its own; 2: again, since it asked.
    pub doubt: u8,
    pub registry: [Book; BATCHES],
    /// Batches that somebody else may have published.
    pub maybe_sent: Set,
    pub progress: [[Progress; TASKS]; BATCHES],
    pub check: Option<Check>,
    /// Entries that changed since the question.
    pub fresh: Set,
    pub suspects: Set,
    pub to_load: Set,
    /// Settles to repeat.
    pub undone: Set,
    pub declare: Option<Declare>,
    /// Follow-ups that are to be inserted after the settle; only by mistake.
    pub owed: Rows,
}

/// A statement whose node has given up waiting for it, and which may yet take effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Late {
    Claim { slot: u8, identity: u8, kind: u8, batch: u8 },
    Submit { task: u8, is_far: bool },
    SubmitClaimed { task: u8, identity: u8, batch: u8 },
    Settle { identity: u8, batch: u8, outcomes: [Progress; TASKS] },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Look {
    First,
    Second,
    Follow,
}

/// A cancel under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cancel {
    NotAsked,
    Looking { row: u8, look: Look, round: u8, was_too_late: bool },
    Answered,
}

/// A replacement under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Put {
    NotAsked,
    /// The entry is locked, its row is not in the far table.
    LookedFar {
        row: u8,
    },
    /// The row was not to be had: a look-up tells.
    Gone {
        row: u8,
        looks: u8,
    },
    Again {
        over: Option<u8>,
        looks: u8,
    },
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Etcd {
    /// Who runs has a key, who does not has none.
    Right,
    Away,
    /// It has lost all keys.
    Empty,
    /// It still has the keys of the dead.
    Stuck,
}

/// The one who retires the leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Retirer {
    Nobody,
    /// It has seen that the leaf is empty.
    Prepared(u8),
    Detaching(u8),
    /// The detach has ended, and its lock is not given back yet.
    Holding(u8),
}

/// What may still go wrong, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Crashes and pauses of nodes.
    pub nodes: u8,
    /// Statements whose answer is lost.
    pub answers: u8,
    /// Acknowledgements that do not come.
    pub acknowledgements: u8,
    /// Records that are not sent.
    pub refusals: u8,
    /// Records that are refused for good.
    pub refusals_for_good: u8,
    /// Crashes of Postgres.
    pub postgres: u8,
    /// Nodes that do not get a heartbeat through.
    pub heartbeats: u8,
    pub etcd: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub db: Database,
    /// Postgres as a crash would leave it: settles do not wait for the disk.
    pub undo: Option<Database>,
    pub nodes: [Node; SLOTS],
    /// How long no heartbeat of an identity has come: 0 lately, 1 longer than it may trust itself,
    /// 2 a TTL, 3 three TTL.
    pub age: [u8; IDENTITIES],
    pub started: u8,
    pub tick: u8,
    pub accepted: Set,
    pub next_batch: u8,
    /// Records of each task in the topic.
    pub sent: [u8; TASKS],
    /// Records of dead producers that may yet reach the topic.
    pub ghosts: [u8; TASKS],
    /// Tasks of which an acknowledgement was lost or an owner was declared dead.
    pub excused: Set,
    pub late: Option<Late>,
    pub cancel: Cancel,
    pub puts: [Put; PUTS],
    pub retirer: Retirer,
    pub etcd: Etcd,
    pub faults: Faults,
    /// A property that the last step broke.
    pub broken: Option<Property>,
}

/// What a step, not a state, can break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Property {
    /// A record was handed over that is in no unsettled batch of its node.
    NotClaimed,
    /// A cancel said too late of a task that was pending all the time.
    UntrueVerdict,
    /// The bounds of the model are too narrow for it.
    OutOfBounds,
}
