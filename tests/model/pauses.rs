//! The pause of a topic: two nodes, one task, and an operator who pauses and resumes.
//!
//! Statements that depend on the pause have a snapshot: it is taken when they begin, and they
//! commit at any later time. A row that moves to another table is another row, which a statement
//! that has begun before does not find. A node's memory of the pause may be old. A node may die
//! anywhere; `protocol` has suspended nodes and lost answers. A cancel looks for the row of the
//! task first, and then deletes that row.

use crate::checker::{Model, NEVER_LOST};
use crate::searches::{ScopeSearches, unnoticed};

const HEEDED: &str = "no claim that begins in a pause takes a task";
const HELD_BACK: &str = "a batch that is loaded in a pause publishes nothing";
const IN_ONE_PLACE: &str = "a task is in one place";
const CANCELLED_UNSENT: &str = "a cancelled task was never published";
const TRUE_VERDICT: &str = "too late is said of a task that was claimed or is doubtful";
const ONCE: &str = "without a fault a task is published once";

const NODES: usize = 2;
const PAUSES_MAX: u8 = 2;
const FAULTS_MAX: u8 = 2;

/// A deliberate mistake, which is a control of the checker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// Claims ask the memory of their node.
    ClaimAsksMemory,
    /// A claim by an insert does not ask the table.
    InsertDoesNotAsk,
    /// A node publishes what it adopts in a pause.
    AdoptedGoesOn,
    /// A hold inserts without its deleted row.
    HoldWithoutRow,
    /// A hold takes each task for one that was never sent.
    HoldForgetsDoubt,
    /// Nodes release held tasks when they learn of the end of a pause, and at no other time.
    ReleaseIsAnEvent,
    /// A cancel that does not find its row any more says that it came too late.
    CancelLooksOnce,
}

const CONTROLS: [(Mistake, &str); 7] = [
    (Mistake::ClaimAsksMemory, HEEDED),
    (Mistake::InsertDoesNotAsk, HEEDED),
    (Mistake::AdoptedGoesOn, HELD_BACK),
    (Mistake::HoldWithoutRow, IN_ONE_PLACE),
    (Mistake::HoldForgetsDoubt, CANCELLED_UNSENT),
    (Mistake::ReleaseIsAnEvent, NEVER_LOST),
    (Mistake::CancelLooksOnce, TRUE_VERDICT),
];

/// A statement that has begun: whether the topic was paused then, and the row that it saw.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Statement {
    Insert { in_pause: bool, claims: bool },
    Claim { in_pause: bool, is_refused: bool, row: u8 },
    Hold { row: u8 },
    Release { row: u8 },
}

/// The batch with the task, in the memory of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Batch {
    Claimed,
    Adopted { in_pause: bool },
    Published,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct Node {
    remembers_pause: bool,
    /// The node has learned of the end of a pause, for a mistake.
    has_news: bool,
    statement: Option<Statement>,
    batch: Option<Batch>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct State {
    is_paused: bool,
    pauses: u8,
    is_submitted: bool,
    /// The row of the task in `task`, and in `task_far`.
    due: Option<u8>,
    held: Option<u8>,
    /// Rows so far.
    rows: u8,
    /// The execlog has the task.
    is_claimed: bool,
    /// Its follow-up says that it may have been sent.
    is_doubtful: bool,
    /// The row that a cancel has found.
    cancel: Option<u8>,
    is_cancelled: bool,
    is_verdict_wrong: bool,
    published: u8,
    is_unheeded: bool,
    is_not_held_back: bool,
    nodes: [Node; NODES],
    faults: u8,
}

impl State {
    /// Returns the number of a new row.
    fn new_row(&mut self) -> Option<u8> {
        self.rows += 1;
        Some(self.rows)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Pause,
    Resume,
    LookForCancel,
    Cancel,
    Learn(usize),
    BeginInsert(usize),
    BeginClaim(usize),
    BeginHold(usize),
    BeginRelease(usize),
    Commit(usize),
    Publish(usize),
    Settle(usize),
    Adopt(usize),
    /// Puts an adopted task of a paused topic back.
    Defer(usize),
    Die(usize),
}

const KINDS: [&str; 15] = [
    "pause",
    "resume",
    "look for a cancel",
    "cancel",
    "learn",
    "begin an insert",
    "begin a claim",
    "begin a hold",
    "begin a release",
    "commit",
    "publish",
    "settle",
    "adopt",
    "defer",
    "die",
];

struct Pauses {
    mistake: Option<Mistake>,
}

impl Pauses {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Begins a statement with the snapshot of this moment.
    fn begin(&self, state: &mut State, node: usize, action: Action) -> Option<()> {
        let Node { remembers_pause, statement: None, batch: None, .. } = state.nodes[node] else {
            return None;
        };
        let in_pause = state.is_paused;
        state.nodes[node].statement = Some(match action {
            Action::BeginInsert(_) if !state.is_submitted => {
                state.is_submitted = true;
                Statement::Insert { in_pause, claims: !remembers_pause }
            }
            Action::BeginClaim(_) => {
                let asked = self.is(Mistake::ClaimAsksMemory);
                let is_refused = if asked { remembers_pause } else { in_pause };
                Statement::Claim { in_pause, is_refused, row: state.due? }
            }
            Action::BeginHold(_) if in_pause => Statement::Hold { row: state.due? },
            Action::BeginRelease(_) if !in_pause => {
                if self.is(Mistake::ReleaseIsAnEvent) && !state.nodes[node].has_news {
                    return None;
                }
                state.nodes[node].has_news = false;
                Statement::Release { row: state.held? }
            }
            _ => return None,
        });
        Some(())
    }

    fn commit(&self, state: &mut State, node: usize) -> Option<()> {
        match state.nodes[node].statement.take()? {
            Statement::Insert { in_pause, claims } => {
                if claims && (!in_pause || self.is(Mistake::InsertDoesNotAsk)) {
                    Self::claim(state, node, in_pause);
                } else {
                    // A refused claim by an insert is stored without a claim.
                    state.due = state.new_row();
                }
            }
            Statement::Claim { in_pause, is_refused, row } => {
                if !is_refused && state.due == Some(row) {
                    state.due = None;
                    Self::claim(state, node, in_pause);
                }
            }
            Statement::Hold { row } => {
                let is_there = state.due == Some(row);
                if is_there || self.is(Mistake::HoldWithoutRow) {
                    state.due = state.due.filter(|due| *due != row);
                    state.held = state.new_row();
                    state.is_doubtful &= !self.is(Mistake::HoldForgetsDoubt);
                }
            }
            Statement::Release { row } => {
                if state.held == Some(row) {
                    state.held = None;
                    state.due = state.new_row();
                }
            }
        }
        Some(())
    }

    fn claim(state: &mut State, node: usize, in_pause: bool) {
        state.is_claimed = true;
        state.nodes[node].batch = Some(Batch::Claimed);
        state.is_unheeded |= in_pause;
    }
}

impl Model for Pauses {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        State::default()
    }

    fn actions(&self, _state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Pause, Action::Resume]);
        actions.extend([Action::LookForCancel, Action::Cancel]);
        for node in 0..NODES {
            actions.extend([
                Action::Learn(node),
                Action::BeginInsert(node),
                Action::BeginClaim(node),
                Action::BeginHold(node),
                Action::BeginRelease(node),
                Action::Commit(node),
                Action::Publish(node),
                Action::Settle(node),
                Action::Adopt(node),
                Action::Defer(node),
                Action::Die(node),
            ]);
        }
    }

    fn step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Pause => {
                next.pauses += 1;
                next.is_paused = true;
                if state.is_paused || next.pauses > PAUSES_MAX {
                    return None;
                }
            }
            Action::Resume => next.is_paused = false,
            Action::LookForCancel => next.cancel = Some(state.due.or(state.held)?),
            Action::Cancel => {
                let row = next.cancel.take()?;
                let is_there = state.due == Some(row) || state.held == Some(row);
                // A task that may have been sent is not taken. A row that has moved is looked for
                // again.
                if is_there && !state.is_doubtful {
                    (next.due, next.held, next.is_cancelled) = (None, None, true);
                } else if self.is(Mistake::CancelLooksOnce) {
                    let is_pending = state.due.or(state.held).is_some();
                    next.is_verdict_wrong |= is_pending && !state.is_doubtful;
                }
            }
            Action::Learn(node) => {
                let known = &mut next.nodes[node];
                known.has_news |=
                    known.remembers_pause && !state.is_paused && self.is(Mistake::ReleaseIsAnEvent);
                known.remembers_pause = state.is_paused;
            }
            Action::BeginInsert(node)
            | Action::BeginClaim(node)
            | Action::BeginHold(node)
            | Action::BeginRelease(node) => self.begin(&mut next, node, action)?,
            Action::Commit(node) => self.commit(&mut next, node)?,
            Action::Publish(node) => {
                let in_pause = match state.nodes[node].batch? {
                    Batch::Claimed => false,
                    Batch::Adopted { in_pause } => in_pause,
                    Batch::Published => return None,
                };
                if in_pause && !self.is(Mistake::AdoptedGoesOn) {
                    return None;
                }
                next.is_not_held_back |= in_pause;
                next.published = state.published.saturating_add(1);
                next.nodes[node].batch = Some(Batch::Published);
            }
            Action::Settle(node) => {
                if state.nodes[node].batch != Some(Batch::Published) {
                    return None;
                }
                next.nodes[node].batch = None;
                next.is_claimed = false;
            }
            Action::Adopt(node) => {
                let has_owner = state.nodes.iter().any(|node| node.batch.is_some());
                if !state.is_claimed || has_owner || state.nodes[node].statement.is_some() {
                    return None;
                }
                next.nodes[node].batch = Some(Batch::Adopted { in_pause: state.is_paused });
            }
            Action::Defer(node) => {
                if state.nodes[node].batch != Some(Batch::Adopted { in_pause: true }) {
                    return None;
                }
                next.nodes[node].batch = None;
                (next.is_claimed, next.is_doubtful) = (false, true);
                next.due = next.new_row();
            }
            Action::Die(node) => {
                // A submit without an answer is repeated.
                let is_lost = matches!(state.nodes[node].statement, Some(Statement::Insert { .. }));
                next.is_submitted &= !is_lost;
                next.nodes[node] = Node::default();
                next.faults += 1;
                if next.faults > FAULTS_MAX {
                    return None;
                }
            }
        }
        Some(next)
    }

    fn kind(&self, action: Action) -> &'static str {
        KINDS[match action {
            Action::Pause => 0,
            Action::Resume => 1,
            Action::LookForCancel => 2,
            Action::Cancel => 3,
            Action::Learn(_) => 4,
            Action::BeginInsert(_) => 5,
            Action::BeginClaim(_) => 6,
            Action::BeginHold(_) => 7,
            Action::BeginRelease(_) => 8,
            Action::Commit(_) => 9,
            Action::Publish(_) => 10,
            Action::Settle(_) => 11,
            Action::Adopt(_) => 12,
            Action::Defer(_) => 13,
            Action::Die(_) => 14,
        }]
    }

    /// The operator resumes in the end, and does not pause again.
    fn is_progress(&self, action: Action) -> bool {
        !matches!(action, Action::Pause | Action::LookForCancel | Action::Cancel | Action::Die(_))
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let places = [state.due.is_some(), state.held.is_some(), state.is_claimed];
        let batches = state.nodes.iter().filter(|node| node.batch.is_some()).count();
        if state.is_unheeded {
            Some(HEEDED)
        } else if state.is_not_held_back {
            Some(HELD_BACK)
        } else if places.into_iter().filter(|is_there| *is_there).count() > 1 || batches > 1 {
            Some(IN_ONE_PLACE)
        } else if state.is_cancelled && state.published > 0 {
            Some(CANCELLED_UNSENT)
        } else if state.is_verdict_wrong {
            Some(TRUE_VERDICT)
        } else if state.published > 1 && state.faults == 0 {
            Some(ONCE)
        } else {
            None
        }
    }

    fn is_end(&self, state: &State) -> bool {
        let is_nowhere = state.due.or(state.held).is_none() && !state.is_claimed;
        let is_idle = state.nodes.iter().all(|node| node.statement.is_none());
        state.is_submitted && is_nowhere && is_idle && (state.published > 0 || state.is_cancelled)
    }
}

#[test]
fn a_pause_holds_each_task_back_and_loses_none() {
    let mut searches = ScopeSearches::begin();
    searches.search(&Pauses { mistake: None }, ("pauses", 162_885));
    searches.end(&KINDS);
}

#[test]
fn each_mistake_at_a_pause_is_found() {
    let unnoticed = CONTROLS.into_iter().filter_map(|(mistake, property)| {
        unnoticed(&Pauses { mistake: Some(mistake) }, mistake, property)
    });
    let unnoticed: Vec<String> = unnoticed.collect();
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
