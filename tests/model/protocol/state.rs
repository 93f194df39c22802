//! The state of the model: Postgres, two nodes, the topic and the clients. All fields are small
//! numbers and bits, because the search holds millions of states.

pub const TASKS: usize = 3;
/// The number of rows that one task may become, one after another.
pub const ATTEMPTS: usize = 3;
pub const ROWS: usize = TASKS * ATTEMPTS;
pub const BATCHES: usize = 5;
/// The number of node starts: every start has a new identity.
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

/// The progress of a task of a batch, in the memory of a node or in a settled batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Progress {
    #[default]
    Waiting,
    /// Handed over to the producer.
    Queued,
    /// In the topic; the acknowledgement is on its way.
    Appended,
    Published,
    Deferred {
        maybe_sent: bool,
        /// The due time of the follow-up.
        due: u8,
    },
    Dead,
    Expired,
}

impl Progress {
    pub fn is_outcome(self) -> bool {
        matches!(self, Self::Published | Self::Deferred { .. } | Self::Dead | Self::Expired)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Batch {
    /// Empty when there is no such batch.
    pub rows: Rows,
    pub owner: u8,
    pub is_settled: bool,
    pub outcomes: [Progress; TASKS],
}

/// The leaf whose time passes.
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

/// The contents of Postgres.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Database {
    pub far: Rows,
    pub near: Rows,
    /// The due time of each row, past or present: the row's id contains it.
    pub due: [u8; ROWS],
    pub leaf: Leaf,
    pub batches: [Batch; BATCHES],
    /// The number of `cancelled` lines of each task.
    pub cancelled: [u8; TASKS],
    /// The task that replaced each task. 0 means none, because the first task of a name replaces no
    /// other.
    pub replaced_by: [u8; TASKS],
    pub dead_letters: Set,
    pub follow: [Option<Follow>; TASKS],
    /// The row that the entry of the only name points at.
    pub entry: Option<u8>,
    pub hearts: [Heart; IDENTITIES],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    Down,
    Running,
    Paused,
}

/// The state of a batch in a node's registry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegistryEntry {
    None,
    InFlight,
    Settled,
    /// Settled, and a heartbeat has succeeded since.
    Durable,
}

/// The answer to a node's query for its own unsettled batches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Check {
    pub own: Set,
    /// The settles that were durable when the query was sent.
    pub durable: Set,
    pub clears_doubt: bool,
}

/// A node that is to be declared dead, unless it has sent a heartbeat since.
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
    /// 1: the node does not know whether its batches are still its own. 2: again, since the last
    /// query.
    pub doubt: u8,
    pub registry: [RegistryEntry; BATCHES],
    /// Batches that another node may have published.
    pub maybe_sent: Set,
    pub progress: [[Progress; TASKS]; BATCHES],
    pub check: Option<Check>,
    /// Entries that changed since the query.
    pub fresh: Set,
    pub suspects: Set,
    pub to_load: Set,
    /// Settles to retry.
    pub undone: Set,
    pub declare: Option<Declare>,
    /// Follow-ups that are to be inserted after the settle, which only a mistake causes.
    pub owed: Rows,
}

/// A statement that may still take effect after the node has given up waiting.
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

/// A cancel in progress.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cancel {
    NotAsked,
    Looking { row: u8, look: Look, round: u8, was_too_late: bool },
    Answered,
}

/// The moves of a task to another due time, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Moving {
    /// No move is in progress, and `moves` have ended.
    Idle { moves: u8, looks: u8 },
    /// `task_follow` is locked, and the row is not in the far table.
    LookedFar { row: u8, moves: u8, looks: u8 },
    /// The row could not be moved. A look-up tells why.
    Gone { moves: u8, looks: u8 },
}

/// A replacement in progress.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Put {
    NotAsked,
    /// The entry is locked, and its row is not in the far table.
    LookedFar {
        row: u8,
    },
    /// The row could not be taken out. A look-up tells why.
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
    /// A node has a key exactly while it runs.
    Right,
    Away,
    /// etcd has lost all keys.
    Empty,
    /// etcd still has the keys of dead nodes.
    Stuck,
}

/// The node that retires the leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Retirer {
    Nobody,
    /// The node has seen that the leaf is empty.
    Prepared(u8),
    Detaching(u8),
    /// The detach has ended, and the node still holds its lock.
    Holding(u8),
}

/// The faults that may still occur, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Crashes and pauses of nodes.
    pub nodes: u8,
    /// Statements whose answer is lost.
    pub answers: u8,
    /// Acknowledgements that do not arrive.
    pub acknowledgements: u8,
    /// Records that are not sent.
    pub refusals: u8,
    /// Records that are refused permanently.
    pub refusals_for_good: u8,
    /// Crashes of Postgres.
    pub postgres: u8,
    /// Nodes whose heartbeats do not get through.
    pub heartbeats: u8,
    pub etcd: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub db: Database,
    /// Postgres as a crash would leave it, because settles do not wait for the disk.
    pub undo: Option<Database>,
    pub nodes: [Node; SLOTS],
    /// The time since the last heartbeat of each identity. 0: recent. 1: longer than the node may
    /// trust itself. 2: one TTL. 3: three TTLs.
    pub age: [u8; IDENTITIES],
    pub started: u8,
    pub tick: u8,
    pub accepted: Set,
    pub next_batch: u8,
    /// The number of records of each task in the topic.
    pub sent: [u8; TASKS],
    /// The number of records of dead producers that may still reach the topic.
    pub ghosts: [u8; TASKS],
    /// Tasks whose acknowledgement was lost or whose owner was declared dead.
    pub excused: Set,
    pub late: Option<Late>,
    pub cancel: Cancel,
    pub puts: [Put; PUTS],
    pub moving: Moving,
    /// The row of the last move. 0: none.
    pub moved_to: u8,
    pub retirer: Retirer,
    pub etcd: Etcd,
    pub faults: Faults,
    /// The property that the last step broke.
    pub broken: Option<Property>,
}

/// The properties that a step can break, in contrast to a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Property {
    /// A node handed over a record in none of its unsettled batches.
    NotClaimed,
    /// A node handed over a record after its expiry.
    TooLate,
    /// A cancel returned "too late" for a task that was pending all the time.
    UntrueVerdict,
    /// The limits of the model are too narrow for the scope.
    OutOfBounds,
}

/// Makes states equal that can never be told apart, so there are fewer states to visit.
pub fn forget_what_does_not_matter(state: &mut State) {
    let can_be_undone = state.faults.postgres > 0;
    if !can_be_undone {
        state.undo = None;
    }
    for batch in &mut state.db.batches {
        for outcome in &mut batch.outcomes {
            if let Progress::Deferred { maybe_sent, due } = outcome {
                (*maybe_sent, *due) = (false, 0);
            }
        }
    }
    for node in &mut state.nodes {
        if node.check.is_none() {
            node.fresh = 0;
        }
        for batch in 0..BATCHES {
            // If Postgres will not crash again, only settles that an earlier crash has undone can
            // be missing.
            let found = &state.db.batches[batch];
            let is_missed = !found.is_settled && found.owner == node.identity;
            let is_asked_for = node.check.is_some_and(|check| check.own >> batch & 1 == 1)
                || node.undone >> batch & 1 == 1;
            let is_over =
                matches!(node.registry[batch], RegistryEntry::Settled | RegistryEntry::Durable);
            if is_over && !can_be_undone && !is_missed && !is_asked_for {
                node.registry[batch] = RegistryEntry::None;
            }
            if node.registry[batch] == RegistryEntry::None {
                node.progress[batch] = [Progress::Waiting; TASKS];
                node.maybe_sent &= !bit(batch);
            }
        }
    }
    for identity in 0..IDENTITIES {
        let is_gone = state.nodes.iter().all(|node| usize::from(node.identity) != identity);
        if is_gone && state.db.hearts[identity] == Heart::Dead {
            state.age[identity] = 0;
        }
    }
}
