//! The protocol of an outbox: two nodes drain three rows. The first row is a submit that commits at
//! any time, also after later rows were drained. The second is a submit, and the third its cancel.
//!
//! A session of the user's database may end without its node knowing. An answer may be lost after
//! its commit. A node may die anywhere. A look for entries whose rows are gone is one step.
//!
//! A node may refuse the second row, and decide otherwise when it reads the row again. The refusal
//! is durable when the row is deleted.

use crate::checker::{Model, NEVER_LOST};
use crate::searches::{ScopeSearches, unnoticed};

const ONCE: &str = "a row takes effect once";
const IN_ORDER: &str = "a cancel never overtakes its submit";
const REJECTED: &str = "a rejected row takes no effect";

const NODES: usize = 2;
const ROWS: usize = 3;
const ALL: u8 = (1 << ROWS) - 1;
const SUBMIT: usize = 1;
const CANCEL: usize = 2;
/// The faults of a run.
const FAULTS_MAX: u8 = 2;

/// A deliberate mistake, which is a control of the checker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// Stores do not write entries.
    NoEntries,
    /// Stores do not hold the epoch.
    NoEpoch,
    /// A node that lost its epoch takes the next one for rows that it has read before.
    EpochAfterRead,
    /// Entries are removed without a look whether their rows are gone.
    ForgetsUnseen,
    /// Rows are read behind the last one that was drained.
    Cursor,
    /// Cancels do not wait for submits.
    Lanes,
    /// A cancel does not wait until the refusal of its submit is durable.
    BehindRefusal,
    /// A node that lost its epoch reads and refuses rows.
    StaleRead,
}

const CONTROLS: [(Mistake, &str); 8] = [
    (Mistake::NoEntries, ONCE),
    (Mistake::NoEpoch, REJECTED),
    (Mistake::EpochAfterRead, REJECTED),
    (Mistake::ForgetsUnseen, ONCE),
    (Mistake::Cursor, NEVER_LOST),
    (Mistake::Lanes, IN_ORDER),
    (Mistake::BehindRefusal, IN_ORDER),
    (Mistake::StaleRead, REJECTED),
];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// Knows nothing, and has no epoch.
    Fresh,
    Idle,
    /// Has read these rows, and stores them.
    Stores {
        rows: u8,
        left: u8,
    },
    /// Has deleted these rows, and forgets their entries.
    Forgets {
        rows: u8,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Node {
    phase: Phase,
    /// No other node has begun an epoch since this one did.
    is_current: bool,
    /// The transaction in the user's database is open, with its lock.
    has_session: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    /// Rows that the user has committed.
    committed: u8,
    /// Rows in the outbox.
    outbox: u8,
    entries: u8,
    /// How often each row has taken effect.
    effects: [u8; ROWS],
    /// The submit was refused, and its row is gone.
    is_rejected: bool,
    is_overtaken: bool,
    /// The last row that was drained, for a mistake.
    cursor: u8,
    nodes: [Node; NODES],
    faults: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Commit(usize),
    BeginEpoch(usize),
    Read(usize),
    Store(usize, usize),
    /// Refuses the submit, and leaves its cancel to the next read.
    Refuse(usize),
    /// Stored, and the answer is lost.
    StoreUnanswered(usize, usize),
    Delete(usize),
    /// Deleted, and the answer is lost.
    DeleteUnanswered(usize),
    Forget(usize),
    /// Looks for entries whose rows are gone.
    Search(usize),
    /// The server ends the transaction, and the node does not know.
    LoseSession(usize),
    Die(usize),
}

const KINDS: [&str; 12] = [
    "commit",
    "begin epoch",
    "read",
    "store",
    "refuse",
    "store without an answer",
    "delete",
    "delete without an answer",
    "forget",
    "search",
    "lose the session",
    "die",
];

struct Outbox {
    mistake: Option<Mistake>,
}

const fn bit(row: usize) -> u8 {
    1 << row
}

impl Outbox {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Reads all rows. A node that lost its epoch sees so, and begins anew.
    fn read(&self, state: &mut State, node: usize) -> Option<()> {
        let is_locked = state.nodes.iter().any(|node| node.has_session);
        let mut rows = state.outbox;
        if self.is(Mistake::Cursor) {
            rows &= !(bit(usize::from(state.cursor)) - 1);
        }
        if state.nodes[node].phase != Phase::Idle || is_locked || rows == 0 {
            return None;
        }
        if state.nodes[node].is_current || self.is(Mistake::StaleRead) {
            state.nodes[node].phase = Phase::Stores { rows, left: rows };
            state.nodes[node].has_session = true;
        } else {
            state.nodes[node] = FRESH;
        }
        Some(())
    }

    /// Refuses the submit, and leaves its cancel to the next read.
    fn refuse(&self, state: &mut State, node: usize) -> Option<()> {
        let Phase::Stores { rows, left } = state.nodes[node].phase else { return None };
        let is_next = left & (bit(SUBMIT) - 1) == 0 && left & bit(SUBMIT) != 0;
        if !is_next || state.entries & bit(SUBMIT) != 0 {
            return None;
        }
        let held = if self.is(Mistake::BehindRefusal) { 0 } else { bit(CANCEL) };
        let left = left & !bit(SUBMIT) & !held;
        state.nodes[node].phase = Phase::Stores { rows: rows & !held, left };
        Some(())
    }

    /// Stores a row in one transaction of Punctual's database. Returns false when another node has
    /// the next epoch.
    fn store(&self, state: &mut State, node: usize, row: usize) -> bool {
        if !state.nodes[node].is_current && !self.is(Mistake::NoEpoch) {
            return false;
        }
        if state.entries & bit(row) == 0 {
            state.effects[row] = state.effects[row].saturating_add(1).min(2);
            let has_ended = state.effects[SUBMIT] > 0 || state.is_rejected;
            state.is_overtaken |= row == CANCEL && !has_ended;
            if !self.is(Mistake::NoEntries) {
                state.entries |= bit(row);
            }
        }
        true
    }

    fn forget(state: &mut State, node: usize, rows: u8) {
        if state.nodes[node].is_current {
            state.entries &= !rows;
        }
    }
}

/// The node begins anew.
const FRESH: Node = Node { phase: Phase::Fresh, is_current: false, has_session: false };

impl Model for Outbox {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        State {
            committed: 0,
            outbox: 0,
            entries: 0,
            effects: [0; ROWS],
            is_rejected: false,
            is_overtaken: false,
            cursor: 0,
            nodes: [FRESH; NODES],
            faults: 0,
        }
    }

    fn actions(&self, _state: &State, actions: &mut Vec<Action>) {
        actions.extend((0..ROWS).map(Action::Commit));
        for node in 0..NODES {
            actions.extend([
                Action::BeginEpoch(node),
                Action::Read(node),
                Action::Refuse(node),
                Action::Delete(node),
                Action::DeleteUnanswered(node),
                Action::Forget(node),
                Action::Search(node),
                Action::LoseSession(node),
                Action::Die(node),
            ]);
            for row in 0..ROWS {
                actions.extend([Action::Store(node, row), Action::StoreUnanswered(node, row)]);
            }
        }
    }

    fn step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        if !self.is_progress(action) {
            next.faults += 1;
            if next.faults > FAULTS_MAX {
                return None;
            }
        }
        match action {
            Action::Commit(row) => {
                let is_early = row == CANCEL && state.committed & bit(SUBMIT) == 0;
                if state.committed & bit(row) != 0 || is_early {
                    return None;
                }
                next.committed |= bit(row);
                next.outbox |= bit(row);
            }
            Action::BeginEpoch(node) => {
                let phase = state.nodes[node].phase;
                let keeps =
                    self.is(Mistake::EpochAfterRead) && matches!(phase, Phase::Stores { .. });
                if !(phase == Phase::Fresh || keeps && !state.nodes[node].is_current) {
                    return None;
                }
                next.nodes.iter_mut().for_each(|other| other.is_current = false);
                next.nodes[node].is_current = true;
                if phase == Phase::Fresh {
                    next.nodes[node].phase = Phase::Idle;
                }
            }
            Action::Read(node) => self.read(&mut next, node)?,
            Action::Store(node, row) | Action::StoreUnanswered(node, row) => {
                let Phase::Stores { rows, left } = state.nodes[node].phase else { return None };
                let is_first = left & (bit(row) - 1) == 0 || self.is(Mistake::Lanes);
                if left & bit(row) == 0 || !is_first {
                    return None;
                }
                let is_stored = self.store(&mut next, node, row);
                if matches!(action, Action::StoreUnanswered(..)) {
                    next.nodes[node] = FRESH;
                } else if is_stored {
                    next.nodes[node].phase = Phase::Stores { rows, left: left & !bit(row) };
                } else if !self.is(Mistake::EpochAfterRead) {
                    next.nodes[node] = FRESH;
                }
            }
            Action::Refuse(node) => self.refuse(&mut next, node)?,
            Action::Delete(node) | Action::DeleteUnanswered(node) => {
                let Phase::Stores { rows, left: 0 } = state.nodes[node].phase else { return None };
                next.nodes[node] = FRESH;
                if state.nodes[node].has_session {
                    next.outbox &= !rows;
                    let is_gone = state.outbox & rows & bit(SUBMIT) != 0;
                    next.is_rejected |= is_gone && state.effects[SUBMIT] == 0;
                    let drained = u8::BITS - rows.leading_zeros();
                    next.cursor = next.cursor.max(u8::try_from(drained).unwrap());
                    if matches!(action, Action::Delete(_)) {
                        let phase = Phase::Forgets { rows };
                        next.nodes[node] = Node { phase, has_session: false, ..state.nodes[node] };
                    }
                }
            }
            Action::Forget(node) => {
                let Phase::Forgets { rows } = state.nodes[node].phase else { return None };
                Self::forget(&mut next, node, rows);
                next.nodes[node].phase = Phase::Idle;
            }
            Action::Search(node) => {
                if state.nodes[node].phase != Phase::Idle {
                    return None;
                }
                let looks = !self.is(Mistake::ForgetsUnseen);
                let gone = if looks { state.entries & !state.outbox } else { state.entries };
                Self::forget(&mut next, node, gone);
                if !state.nodes[node].is_current {
                    next.nodes[node] = FRESH;
                }
            }
            Action::LoseSession(node) => {
                if !state.nodes[node].has_session {
                    return None;
                }
                next.nodes[node].has_session = false;
            }
            Action::Die(node) => next.nodes[node] = FRESH,
        }
        Some(next)
    }

    fn kind(&self, action: Action) -> &'static str {
        KINDS[match action {
            Action::Commit(_) => 0,
            Action::BeginEpoch(_) => 1,
            Action::Read(_) => 2,
            Action::Store(..) => 3,
            Action::Refuse(_) => 4,
            Action::StoreUnanswered(..) => 5,
            Action::Delete(_) => 6,
            Action::DeleteUnanswered(_) => 7,
            Action::Forget(_) => 8,
            Action::Search(_) => 9,
            Action::LoseSession(_) => 10,
            Action::Die(_) => 11,
        }]
    }

    fn is_progress(&self, action: Action) -> bool {
        !matches!(
            action,
            Action::StoreUnanswered(..)
                | Action::DeleteUnanswered(_)
                | Action::LoseSession(_)
                | Action::Die(_)
        )
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        if state.effects.iter().any(|count| *count > 1) {
            Some(ONCE)
        } else if state.is_overtaken {
            Some(IN_ORDER)
        } else if state.is_rejected && state.effects[SUBMIT] > 0 {
            Some(REJECTED)
        } else {
            None
        }
    }

    fn is_end(&self, state: &State) -> bool {
        let is_drained = state.committed == ALL && state.outbox == 0 && state.entries == 0;
        let submits = state.effects[SUBMIT] + u8::from(state.is_rejected);
        is_drained && submits == 1 && state.effects[0] == 1 && state.effects[CANCEL] == 1
    }
}

#[test]
fn every_row_of_an_outbox_takes_effect_once_and_in_its_order() {
    let mut searches = ScopeSearches::begin();
    searches.search(&Outbox { mistake: None }, ("outbox", 19_020));
    searches.end(&KINDS);
}

#[test]
fn each_mistake_at_an_outbox_is_found() {
    let unnoticed = CONTROLS.into_iter().filter_map(|(mistake, property)| {
        unnoticed(&Outbox { mistake: Some(mistake) }, mistake, property)
    });
    let unnoticed: Vec<String> = unnoticed.collect();
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
