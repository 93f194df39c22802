//! The protocol of an intake topic: two nodes believe that a partition of four records is theirs. A
//! submit comes first, then a record that cannot be a task, another submit, and its cancel.
//!
//! An answer may be lost after its commit, and a node may die anywhere. A node reads the offset,
//! and then all records from it on.

use crate::checker::Model;
use crate::searches::{ScopeSearches, unnoticed};

const ONCE: &str = "a record takes effect once";
const IN_ORDER: &str = "a cancel never overtakes its submit";
const NO_GAP: &str = "the offset passes no record that is not done";

const NODES: usize = 2;
const RECORDS: usize = 4;
const BAD: usize = 1;
const SUBMIT: usize = 2;
const CANCEL: usize = 3;
/// The faults of a run.
const FAULTS_MAX: u8 = 3;

/// A deliberate mistake, which is a control of the checker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// Stores do not compare the offset.
    NoCompare,
    /// The offset moves in a transaction of its own, after the tasks.
    OffsetLater,
    /// The cancel is stored beside the submits, and the offset moves behind the last of them.
    Lanes,
    /// The offset moves before the rejected record is acknowledged.
    RejectLater,
}

const CONTROLS: [(Mistake, &str); 4] = [
    (Mistake::NoCompare, ONCE),
    (Mistake::OffsetLater, ONCE),
    (Mistake::Lanes, IN_ORDER),
    (Mistake::RejectLater, NO_GAP),
];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Node {
    /// Knows no offset.
    Fresh,
    /// Has read the records from `at` on.
    Stores { at: usize, has_rejected: bool, is_moved: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    next: usize,
    effects: [u8; RECORDS],
    is_rejected: bool,
    is_overtaken: bool,
    nodes: [Node; NODES],
    faults: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Read(usize),
    Reject(usize),
    /// Stores the run that ends before a record.
    Store(usize, usize),
    /// Stored, and the answer is lost.
    StoreUnanswered(usize, usize),
    /// A move of the offset alone, for a mistake.
    Move(usize),
    Die(usize),
}

const KINDS: [&str; 5] = ["read", "reject", "store", "store without an answer", "die"];

struct Intake {
    mistake: Option<Mistake>,
}

impl Intake {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Stores the records from `at` to `end`. Returns false when the offset is another one.
    fn store(&self, state: &mut State, (at, end): (usize, usize)) -> bool {
        if state.next != at && !self.is(Mistake::NoCompare) && !self.is(Mistake::OffsetLater) {
            return false;
        }
        for record in (at..end).filter(|record| *record != BAD) {
            state.effects[record] = (state.effects[record] + 1).min(2);
            state.is_overtaken |= record == CANCEL && state.effects[SUBMIT] == 0;
        }
        if !self.is(Mistake::OffsetLater) {
            state.next = end;
        }
        true
    }

    fn stored(&self, state: &State, node: usize, end: usize) -> Option<State> {
        let Node::Stores { at, has_rejected, is_moved: true } = state.nodes[node] else {
            return None;
        };
        let is_cancel = self.is(Mistake::Lanes) && at <= SUBMIT && end == RECORDS;
        let run_end = if at == CANCEL { RECORDS } else { CANCEL };
        let needs_reject = at <= BAD && !has_rejected && !self.is(Mistake::RejectLater);
        if at == RECORDS || needs_reject || (end != run_end && !is_cancel) {
            return None;
        }
        let mut next = *state;
        if is_cancel {
            // The cancel alone, out of its turn.
            next.effects[CANCEL] = (next.effects[CANCEL] + 1).min(2);
            next.is_overtaken |= next.effects[SUBMIT] == 0;
            return Some(next);
        }
        next.nodes[node] = match self.store(&mut next, (at, end)) {
            true => {
                let is_moved = !self.is(Mistake::OffsetLater);
                Node::Stores { at: end, has_rejected, is_moved }
            }
            false => Node::Fresh,
        };
        Some(next)
    }
}

impl Model for Intake {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        State {
            next: 0,
            effects: [0; RECORDS],
            is_rejected: false,
            is_overtaken: false,
            nodes: [Node::Fresh; NODES],
            faults: 0,
        }
    }

    fn actions(&self, _state: &State, actions: &mut Vec<Action>) {
        for node in 0..NODES {
            actions.extend([Action::Read(node), Action::Reject(node), Action::Die(node)]);
            for end in [CANCEL, RECORDS] {
                actions.extend([Action::Store(node, end), Action::StoreUnanswered(node, end)]);
            }
            if self.is(Mistake::OffsetLater) {
                actions.push(Action::Move(node));
            }
        }
    }

    fn step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Read(node) => {
                let is_done = matches!(state.nodes[node], Node::Stores { at: RECORDS, .. });
                if (state.nodes[node] != Node::Fresh && !is_done) || state.next == RECORDS {
                    return None;
                }
                next.nodes[node] =
                    Node::Stores { at: state.next, has_rejected: false, is_moved: true };
            }
            Action::Reject(node) => {
                let Node::Stores { at, has_rejected: false, is_moved } = state.nodes[node] else {
                    return None;
                };
                let is_late = self.is(Mistake::RejectLater) && at > BAD;
                if at > BAD && !is_late {
                    return None;
                }
                next.is_rejected = true;
                next.nodes[node] = Node::Stores { at, has_rejected: true, is_moved };
            }
            Action::Store(node, end) => next = self.stored(state, node, end)?,
            Action::StoreUnanswered(node, end) => {
                next = self.stored(state, node, end)?;
                next.nodes[node] = Node::Fresh;
            }
            Action::Move(node) => {
                let Node::Stores { at, has_rejected, is_moved: false } = state.nodes[node] else {
                    return None;
                };
                next.next = at;
                next.nodes[node] = Node::Stores { at, has_rejected, is_moved: true };
            }
            Action::Die(node) => next.nodes[node] = Node::Fresh,
        }
        if !self.is_progress(action) {
            next.faults += 1;
        }
        (next.faults <= FAULTS_MAX).then_some(next)
    }

    fn kind(&self, action: Action) -> &'static str {
        KINDS[match action {
            Action::Read(_) => 0,
            Action::Reject(_) => 1,
            Action::Store(..) | Action::Move(_) => 2,
            Action::StoreUnanswered(..) => 3,
            Action::Die(_) => 4,
        }]
    }

    fn is_progress(&self, action: Action) -> bool {
        !matches!(action, Action::StoreUnanswered(..) | Action::Die(_))
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let is_done = |record: usize| match record {
            BAD => state.is_rejected,
            record => state.effects[record] > 0,
        };
        if state.effects.iter().any(|count| *count > 1) {
            Some(ONCE)
        } else if state.is_overtaken {
            Some(IN_ORDER)
        } else if !(0..state.next).all(is_done) {
            Some(NO_GAP)
        } else {
            None
        }
    }

    fn is_end(&self, state: &State) -> bool {
        state.next == RECORDS && state.is_rejected && state.effects == [1, 0, 1, 1]
    }
}

#[test]
fn every_record_of_an_intake_topic_takes_effect_once_and_in_its_order() {
    let mut searches = ScopeSearches::begin();
    searches.search(&Intake { mistake: None }, ("intake topic", 209));
    searches.end(&KINDS);
}

#[test]
fn each_mistake_at_an_intake_topic_is_found() {
    let unnoticed = CONTROLS.into_iter().filter_map(|(mistake, property)| {
        unnoticed(&Intake { mistake: Some(mistake) }, mistake, property)
    });
    let unnoticed: Vec<String> = unnoticed.collect();
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
