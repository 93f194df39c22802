//! Feedback as a state machine: a tracked task, its attempts, and consumers that finish, fail or
//! extend the task at any time. Unlike in `protocol`, a transaction takes several steps here: one
//! for each statement that may wait for a lock. `docs/testing.md` lists the scope.
//!
//! There are no moments of time. A pending row may be claimed at any step, and a batch adopted at
//! any step, so each order that times could cause is among those searched.

mod calls;
mod nodes;
mod properties;
mod removal;
mod scopes;
mod state;
mod table;
mod tests;

use std::collections::BTreeSet;
use std::sync::Mutex;

use punctual::domain::task::feedback::{AttemptRow, Call, Place, Verdict};

use scopes::Scope;
use state::{
    CALLS, Database, FIRST, Found, Lines, Node, OpenCall, Phase, Progress, ROWS, Removal, SLOTS,
    Set, State, bit,
};
use table::Cell;

use super::checker::Model;

pub const BROKEN_TABLE: &str = "each call gets the verdict of the table";
pub const FINISHED_IS_OVER: &str = "no attempt is claimed after `finished` was answered";
pub const HEARD_IS_OVER: &str = "an attempt that was failed or extended is not claimed again";
pub const ONE_FINAL_LINE: &str = "each task ends in exactly one final line";
pub const IN_ONE_PLACE: &str =
    "a task without a final line is in exactly one place: a table, or an unsettled batch";
pub const ATTEMPTS_MAX: &str = "no more attempts than attempts_max reach the topic";
pub const DEAD_IN_TIME: &str = "a verdict row comes after the last attempt, or after `final`";
pub const COUNTED: &str = "an attempt follows only on one that was published or perhaps sent";
pub const CANCELLED_UNSENT: &str = "a cancelled task is never published";
pub const ONE_OF_A_NAME: &str = "a name has one live task";

/// A deliberate mistake, which is a control of the checker. Each breaks a property.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// A finish reads the row of `task_follow` and does not lock it.
    FinishWithoutLock,
    /// Calls leave out the row of a task deferred before it was ever sent.
    LockOnlyWhatMayBeSent,
    /// A call deletes in both tables with one snapshot.
    FarAndNearInOneStatement,
    SettleIgnoresTheMark,
    /// A settle asks `not exists` for the mark.
    SettleReadsTheMarkInItsSnapshot,
    /// A settle clears the note of a failed attempt, which can then be failed once more.
    SettleForgetsAFail,
    /// A settle takes `next_id` wherever there is a note, also where it is null.
    OldNoteIsTakenForANewOne,
    /// A call looks for the unsettled batch before it inserts the mark, and not after.
    NoCheckAfterTheMark,
    /// A repeated settle does not require that the batch is unsettled.
    FollowUpTwice,
    VerdictRowIsPublished,
    OldFailCounts,
    /// A record without an acknowledgement does not make its attempt the current one.
    PerhapsSentIsNotCounted,
    /// A settle makes an attempt of the row that a final fail asked for.
    FinalIsForgotten,
    /// A verdict row that was claimed and deferred can be finished.
    DeferredVerdictIsOpen,
    /// A call that changes nothing locks the entry of the name.
    NameIsAlwaysLocked,
    CallsDoNotWaitForTheDisk,
    /// A settle publishes an attempt again that its consumer has failed or extended meanwhile.
    NoteIsNoEvidence,
    /// The verdict row comes in the place of the last attempt.
    OneAttemptTooFew,
    /// A record that was certainly not sent uses an attempt up.
    DeferralIsCounted,
    /// The dead letter of an attempt failed in flight does not count that attempt.
    DeathForgetsTheNote,
    RemovalTakesWhatMayBeSent,
    /// A replacement takes an awaiting task for a final one.
    AwaitingLooksFinal,
}

/// The actions. `slot` is a node, and `connection` one of a consumer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    // Consumers.
    Ask {
        connection: u8,
        call: Call,
    },
    Look {
        connection: u8,
    },
    CallAborted {
        connection: u8,
    },
    // The client that cancels or replaces.
    Remove,
    // Nodes.
    Claim {
        slot: u8,
    },
    Publish {
        slot: u8,
        row: u8,
    },
    Acknowledge {
        slot: u8,
        row: u8,
    },
    Unacknowledged {
        slot: u8,
        row: u8,
    },
    NotSent {
        slot: u8,
        row: u8,
    },
    RefusedForGood {
        slot: u8,
        row: u8,
    },
    /// The outcome of a verdict row.
    Verdict {
        slot: u8,
        row: u8,
    },
    SettleBegins {
        slot: u8,
        row: u8,
    },
    SettleUpserts {
        slot: u8,
    },
    SettleEnds {
        slot: u8,
    },
    SettleUnanswered {
        slot: u8,
    },
    SettleAborted {
        slot: u8,
    },
    Adopt {
        slot: u8,
    },
    Move,
    MoveEnds,
    PostgresCrash,
    Redrive,
}

/// A cell of the table that was met: the state, the call, and the verdict.
pub type Met = (Cell, &'static str, Option<u16>, Verdict);

pub struct Feedback {
    pub scope: Scope,
    pub mistake: Option<Mistake>,
    pub met: Mutex<BTreeSet<Met>>,
}

impl Feedback {
    pub fn new(scope: Scope, mistake: Option<Mistake>) -> Self {
        Self { scope, mistake, met: Mutex::default() }
    }

    pub fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub fn meet(&self, cell: Cell, call: Call, verdict: Verdict) {
        let what = match call {
            Call::Finish { .. } => "finish",
            Call::Fail { is_final: false, .. } => "fail",
            Call::Fail { is_final: true, .. } => "fail for good",
            Call::Extend { .. } => "extend",
        };
        self.met.lock().unwrap().insert((cell, what, table::attempt_of(call), verdict));
    }

    /// Returns true when another transaction has deleted or locked the row.
    pub fn is_row_locked(&self, state: &State, row: u8, except: Option<u8>) -> bool {
        let is_taken = |(index, open): (usize, &Option<OpenCall>)| {
            let is_other = except.is_none_or(|except| usize::from(except) != index);
            let takes = Phase::Naming(Found::At(Place::Pending));
            is_other && open.is_some_and(|open| open.phase == takes)
        };
        state.is_moving && state.db.far & bit(row) != 0
            || matches!(state.removal, Removal::Following { row: taken } if taken == row)
            || state.calls.iter().enumerate().any(is_taken)
    }

    /// Returns true when another transaction holds the row of `task_follow`.
    pub fn is_follow_locked(&self, state: &State, except: Option<u8>) -> bool {
        self.holds_follow(state, except, |phase| match phase {
            Phase::LookingFar | Phase::LookingNear | Phase::LookingOld | Phase::Naming(_) => true,
            Phase::Asking => !self.is(Mistake::NoCheckAfterTheMark),
            Phase::Locking | Phase::Marking | Phase::Seeking => false,
        })
    }

    /// Returns true when another transaction has inserted or changed the row of `task_follow`.
    pub fn is_follow_written(&self, state: &State, except: Option<u8>) -> bool {
        self.holds_follow(state, except, |phase| match phase {
            Phase::Asking => !self.is(Mistake::NoCheckAfterTheMark),
            phase => phase == Phase::Naming(Found::New),
        })
    }

    fn holds_follow(
        &self,
        state: &State,
        except: Option<u8>,
        is_meant: impl Fn(Phase) -> bool,
    ) -> bool {
        let is_settling = |node: &Node| node.settle.is_some_and(|settle| settle.has_upserted);
        let is_calling = |index: u8| {
            let open = state.calls[usize::from(index)];
            except != Some(index)
                && !self.goes_without_lock(state, index)
                && open.is_some_and(|open| is_meant(open.phase))
        };
        state.nodes.iter().any(is_settling) || (0..CALLS as u8).any(is_calling)
    }

    /// Returns true while a replacement holds the entry of the name.
    pub fn is_name_locked(&self, state: &State) -> bool {
        matches!(
            state.removal,
            Removal::LookingFar { .. } | Removal::LookingNear { .. } | Removal::Following { .. }
        )
    }
}

impl Model for Feedback {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        let node = Node { progress: [Progress::Unknown; ROWS], maybe_sent: 0, settle: None };
        let mut rows = [AttemptRow::default(); ROWS];
        rows[usize::from(FIRST)].attempt = 1;
        let (far, near) = if self.scope.is_far { (bit(FIRST), 0) } else { (0, bit(FIRST)) };
        let db = Database {
            far,
            near,
            rows,
            batches: [None; ROWS],
            follow: None,
            lines: Lines::default(),
            settled_attempt: 0,
            was_verdict_claimed: false,
            dead_attempt: 0,
        };
        State {
            db,
            undo: None,
            nodes: [node; SLOTS],
            is_moving: false,
            calls: [None; CALLS],
            calls_left: self.scope.call_count,
            redrives_left: self.scope.redrive_count,
            attempts_max: self.scope.attempts_max,
            removal: if self.scope.is_removed { Removal::NotAsked } else { Removal::Done },
            is_succeeded: false,
            sent: 0,
            is_finished: false,
            heard: 0,
            failed: 0,
            is_dead_said: false,
            faults: self.scope.faults,
            broken: None,
        }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for connection in 0..self.scope.connection_count {
            if state.calls[usize::from(connection)].is_some() {
                actions.extend([Action::Look { connection }, Action::CallAborted { connection }]);
                continue;
            }
            // The connections are alike, so the first free one stands for all.
            let is_first = state.calls[..usize::from(connection)].iter().all(Option::is_some);
            if is_first {
                let calls = self.scope.calls.iter();
                actions.extend(calls.map(|&call| Action::Ask { connection, call }));
            }
        }
        if state.redrives_left > 0 {
            actions.push(Action::Redrive);
        }
        if state.removal != Removal::Done {
            actions.push(Action::Remove);
        }
        for slot in 0..self.scope.slot_count {
            self.node_actions(state, slot, actions);
        }
        actions.push(if state.is_moving { Action::MoveEnds } else { Action::Move });
        if state.undo.is_some() {
            actions.push(Action::PostgresCrash);
        }
    }

    fn step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Ask { connection, call } => self.begin(&mut next, connection, call)?,
            Action::Look { connection } => self.look(&mut next, connection)?,
            Action::CallAborted { connection } => self.call_aborted(&mut next, connection)?,
            Action::Remove => self.remove(&mut next)?,
            Action::Redrive => self.redrive(&mut next)?,
            Action::Move => self.move_begins(&mut next)?,
            Action::MoveEnds => self.move_ends(&mut next)?,
            Action::PostgresCrash => self.postgres_crash(&mut next)?,
            _ => self.node_step(&mut next, action)?,
        }
        forget_what_does_not_matter(&mut next);
        Some(next)
    }

    fn kind(&self, action: Action) -> &'static str {
        kind_of(action)
    }

    fn is_progress(&self, action: Action) -> bool {
        !matches!(
            action,
            Action::CallAborted { .. }
                | Action::Unacknowledged { .. }
                | Action::NotSent { .. }
                | Action::RefusedForGood { .. }
                | Action::SettleUnanswered { .. }
                | Action::SettleAborted { .. }
                | Action::PostgresCrash
        )
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        self.broken_property(state)
    }

    /// One final line, and nothing left over or waits.
    fn is_end(&self, state: &State) -> bool {
        state.db.lines.count() == 1
            && state.db.pending() | state.db.claimed() == 0
            && state.db.follow.is_none()
            && state.calls.iter().all(Option::is_none)
            && matches!(state.removal, Removal::Done | Removal::NotAsked)
    }
}

/// All kinds of actions.
pub const KINDS: [&str; 21] = [
    "Ask",
    "Look",
    "CallAborted",
    "Remove",
    "Claim",
    "Publish",
    "Acknowledge",
    "Unacknowledged",
    "NotSent",
    "RefusedForGood",
    "Verdict",
    "SettleBegins",
    "SettleUpserts",
    "SettleEnds",
    "SettleUnanswered",
    "SettleAborted",
    "Adopt",
    "Move",
    "MoveEnds",
    "PostgresCrash",
    "Redrive",
];

/// Returns the name of an action without its arguments.
fn kind_of(action: Action) -> &'static str {
    match action {
        Action::Ask { .. } => "Ask",
        Action::Look { .. } => "Look",
        Action::CallAborted { .. } => "CallAborted",
        Action::Remove => "Remove",
        Action::Claim { .. } => "Claim",
        Action::Publish { .. } => "Publish",
        Action::Acknowledge { .. } => "Acknowledge",
        Action::Unacknowledged { .. } => "Unacknowledged",
        Action::NotSent { .. } => "NotSent",
        Action::RefusedForGood { .. } => "RefusedForGood",
        Action::Verdict { .. } => "Verdict",
        Action::SettleBegins { .. } => "SettleBegins",
        Action::SettleUpserts { .. } => "SettleUpserts",
        Action::SettleEnds { .. } => "SettleEnds",
        Action::SettleUnanswered { .. } => "SettleUnanswered",
        Action::SettleAborted { .. } => "SettleAborted",
        Action::Adopt { .. } => "Adopt",
        Action::Move => "Move",
        Action::MoveEnds => "MoveEnds",
        Action::PostgresCrash => "PostgresCrash",
        Action::Redrive => "Redrive",
    }
}

/// Returns the rows that anything refers to.
fn known(state: &State) -> Set {
    let of_node = |node: &Node| {
        let of_progress = (0..ROWS as u8)
            .filter(|row| node.progress[usize::from(*row)] != Progress::Unknown)
            .fold(0, |all, row| all | bit(row));
        of_progress | node.settle.map_or(0, |settle| bit(settle.row))
    };
    let of_removal = match state.removal {
        Removal::LookingFar { row } | Removal::LookingNear { row } | Removal::Following { row } => {
            bit(row)
        }
        Removal::NotAsked | Removal::Done => 0,
    };
    let of_nodes = state.nodes.iter().fold(0, |all, node| all | of_node(node));
    state.db.known() | state.undo.map_or(0, |undo| undo.known()) | of_nodes | of_removal
}

/// Makes states equal that can never be told apart, so there are fewer states to visit.
fn forget_what_does_not_matter(state: &mut State) {
    if state.faults.postgres == 0 {
        state.undo = None;
    }
    let can_be_undone = state.undo.is_some();
    for node in &mut state.nodes {
        for row in 0..ROWS {
            let progress = &mut node.progress[row];
            if matches!(progress, Progress::Settled(_)) && !can_be_undone {
                *progress = Progress::Unknown;
            }
            if *progress == Progress::Unknown {
                node.maybe_sent &= !bit(row as u8);
            }
        }
    }
    for row in 0..ROWS {
        let is_in_memory = state.nodes.iter().any(|node| node.progress[row] != Progress::Unknown);
        let is_settled = state.db.batches[row].is_some_and(|batch| batch.is_settled);
        if is_settled && !is_in_memory && !can_be_undone {
            state.db.batches[row] = None;
        }
    }
    let known = known(state);
    for row in 0..ROWS {
        if known & bit(row as u8) == 0 {
            state.db.rows[row] = AttemptRow::default();
        }
    }
}

fn no_more(count: &mut u8) -> Option<()> {
    *count = count.checked_sub(1)?;
    Some(())
}
