//! The protocol of an intake topic: two nodes believe that a partition of four records is theirs. A
//! submit comes first, then a record that is refused until the world has changed, another submit,
//! and its cancel.
//!
//! An answer may be lost after its commit, and a node may die anywhere. A node reads the offset and
//! the rejections that are not written yet, and then all records from it on.

use crate::checker::{Model, NEVER_LOST};
use crate::searches::{ScopeSearches, unnoticed};

const ONCE: &str = "a record takes effect once";
const IN_ORDER: &str = "a cancel never overtakes its submit";
const NO_GAP: &str = "the offset passes no record that is not done";
const TRUE_TO_ITS_CALLER: &str = "a rejected record takes no effect";

const NODES: usize = 2;
const RECORDS: usize = 4;
/// The record that is refused at first.
const EARLY: usize = 1;
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
    /// The rejected record is written before the offset moves.
    WriteBefore,
    /// The rejection is stored after the offset has moved.
    RejectLater,
    /// The rejection is deleted before the record is written.
    ForgetBefore,
    /// A node reads from the offset on, and not the rejections.
    ReadFromOffset,
}

const CONTROLS: [(Mistake, &str); 7] = [
    (Mistake::NoCompare, ONCE),
    (Mistake::OffsetLater, ONCE),
    (Mistake::Lanes, IN_ORDER),
    (Mistake::WriteBefore, TRUE_TO_ITS_CALLER),
    (Mistake::RejectLater, NO_GAP),
    (Mistake::ForgetBefore, NO_GAP),
    (Mistake::ReadFromOffset, NEVER_LOST),
];

/// The verdict of a node about the record that is refused at first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Verdict {
    Unknown,
    Accepted,
    Rejected,
}

/// A rejection in the table, as a node knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Rejection {
    None,
    /// Not stored yet, for a mistake.
    Later,
    Stored,
    /// The rejected topic has acknowledged the record.
    Written,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Node {
    /// Knows no offset.
    Fresh,
    /// Has read the records from `at` on.
    Stores { at: usize, verdict: Verdict, rejection: Rejection, is_moved: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    next: usize,
    effects: [u8; RECORDS],
    /// The world has changed: the record would be accepted now.
    is_changed: bool,
    /// The table has the rejection.
    is_rejected: bool,
    /// The rejected topic has the record.
    is_written: bool,
    is_overtaken: bool,
    nodes: [Node; NODES],
    faults: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Read(usize),
    Change,
    Check(usize),
    /// Stores the run that ends before a record.
    Store(usize, usize),
    /// Stored, and the answer is lost.
    StoreUnanswered(usize, usize),
    /// A move of the offset alone, or a rejection alone, for a mistake.
    Late(usize),
    Write(usize),
    Forget(usize),
    Die(usize),
}

const KINDS: [&str; 8] =
    ["read", "change", "check", "store", "store without an answer", "write", "forget", "die"];

struct Intake {
    mistake: Option<Mistake>,
}

impl Intake {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Stores the records from `at` to `end`, with the verdict about one of them. Returns false
    /// when the offset is another one.
    fn store(&self, state: &mut State, (at, end): (usize, usize), verdict: Verdict) -> bool {
        if state.next != at && !self.is(Mistake::NoCompare) && !self.is(Mistake::OffsetLater) {
            return false;
        }
        let is_refused = |record: usize| record == EARLY && verdict == Verdict::Rejected;
        for record in at..end {
            if is_refused(record) {
                state.is_rejected |= !self.is(Mistake::RejectLater);
            } else {
                state.effects[record] = (state.effects[record] + 1).min(2);
                state.is_overtaken |= record == CANCEL && state.effects[SUBMIT] == 0;
            }
        }
        if !self.is(Mistake::OffsetLater) {
            state.next = end;
        }
        true
    }

    fn stored(&self, state: &State, node: usize, end: usize) -> Option<State> {
        let Node::Stores { at, verdict, rejection, is_moved: true } = state.nodes[node] else {
            return None;
        };
        let is_cancel = self.is(Mistake::Lanes) && at <= SUBMIT && end == RECORDS;
        let run_end = if at == CANCEL { RECORDS } else { CANCEL };
        let is_unchecked = at <= EARLY && verdict == Verdict::Unknown;
        if at == RECORDS || is_unchecked || (end != run_end && !is_cancel) {
            return None;
        }
        let mut next = *state;
        if is_cancel {
            // The cancel alone, out of its turn.
            next.effects[CANCEL] = (next.effects[CANCEL] + 1).min(2);
            next.is_overtaken |= next.effects[SUBMIT] == 0;
            return Some(next);
        }
        next.nodes[node] = match self.store(&mut next, (at, end), verdict) {
            true => {
                let is_moved = !self.is(Mistake::OffsetLater);
                let is_new = at <= EARLY && verdict == Verdict::Rejected;
                let rejection = match is_new && rejection == Rejection::None {
                    true if self.is(Mistake::RejectLater) => Rejection::Later,
                    true => Rejection::Stored,
                    false => rejection,
                };
                Node::Stores { at: end, verdict, rejection, is_moved }
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
            is_changed: false,
            is_rejected: false,
            is_written: false,
            is_overtaken: false,
            nodes: [Node::Fresh; NODES],
            faults: 0,
        }
    }

    fn actions(&self, _state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Change);
        for node in 0..NODES {
            actions.extend([Action::Read(node), Action::Check(node), Action::Die(node)]);
            actions.extend([Action::Write(node), Action::Forget(node)]);
            for end in [CANCEL, RECORDS] {
                actions.extend([Action::Store(node, end), Action::StoreUnanswered(node, end)]);
            }
            if self.is(Mistake::OffsetLater) || self.is(Mistake::RejectLater) {
                actions.push(Action::Late(node));
            }
        }
    }

    fn step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Read(node) => {
                let is_done = match state.nodes[node] {
                    Node::Fresh => true,
                    Node::Stores { at, rejection, .. } => {
                        at == RECORDS && rejection == Rejection::None
                    }
                };
                if !is_done || (state.next == RECORDS && !state.is_rejected) {
                    return None;
                }
                let is_known = state.is_rejected && !self.is(Mistake::ReadFromOffset);
                let rejection = if is_known { Rejection::Stored } else { Rejection::None };
                let (at, verdict) = (state.next, Verdict::Unknown);
                next.nodes[node] = Node::Stores { at, verdict, rejection, is_moved: true };
            }
            Action::Change => {
                if state.is_changed {
                    return None;
                }
                next.is_changed = true;
            }
            Action::Check(node) => {
                let Node::Stores { at, verdict, .. } = &mut next.nodes[node] else { return None };
                if *at > EARLY || *verdict != Verdict::Unknown {
                    return None;
                }
                *verdict = if state.is_changed { Verdict::Accepted } else { Verdict::Rejected };
            }
            Action::Store(node, end) => next = self.stored(state, node, end)?,
            Action::StoreUnanswered(node, end) => {
                next = self.stored(state, node, end)?;
                next.nodes[node] = Node::Fresh;
            }
            Action::Late(node) => match &mut next.nodes[node] {
                Node::Stores { at, is_moved: is_moved @ false, .. } => {
                    next.next = *at;
                    *is_moved = true;
                }
                Node::Stores { rejection: rejection @ Rejection::Later, .. } => {
                    next.is_rejected = true;
                    *rejection = Rejection::Stored;
                }
                _ => return None,
            },
            Action::Write(node) => {
                let Node::Stores { verdict, rejection, .. } = &mut next.nodes[node] else {
                    return None;
                };
                let is_before = self.is(Mistake::WriteBefore)
                    && *verdict == Verdict::Rejected
                    && !state.is_written;
                match rejection {
                    Rejection::Stored => *rejection = Rejection::Written,
                    _ if is_before => {}
                    _ => return None,
                }
                next.is_written = true;
            }
            Action::Forget(node) => {
                let Node::Stores { rejection, .. } = &mut next.nodes[node] else { return None };
                let is_before = self.is(Mistake::ForgetBefore) && *rejection == Rejection::Stored;
                if *rejection != Rejection::Written && !is_before {
                    return None;
                }
                next.is_rejected = false;
                *rejection = Rejection::None;
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
            Action::Change => 1,
            Action::Check(_) => 2,
            Action::Store(..) | Action::Late(_) => 3,
            Action::StoreUnanswered(..) => 4,
            Action::Write(_) => 5,
            Action::Forget(_) => 6,
            Action::Die(_) => 7,
        }]
    }

    fn is_progress(&self, action: Action) -> bool {
        !matches!(action, Action::StoreUnanswered(..) | Action::Die(_))
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let is_told = state.is_rejected || state.is_written;
        let is_done = |record: usize| state.effects[record] > 0 || (record == EARLY && is_told);
        if state.effects.iter().any(|count| *count > 1) {
            Some(ONCE)
        } else if state.is_overtaken {
            Some(IN_ORDER)
        } else if is_told && state.effects[EARLY] > 0 {
            Some(TRUE_TO_ITS_CALLER)
        } else if !(0..state.next).all(is_done) {
            Some(NO_GAP)
        } else {
            None
        }
    }

    fn is_end(&self, state: &State) -> bool {
        let early = u8::from(!state.is_written);
        state.next == RECORDS && !state.is_rejected && state.effects == [1, early, 1, 1]
    }
}

#[test]
fn every_record_of_an_intake_topic_takes_effect_once_and_in_its_order() {
    let mut searches = ScopeSearches::begin();
    searches.search(&Intake { mistake: None }, ("intake topic", 2_377));
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
