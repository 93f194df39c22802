//! The scopes of the search: a few small worlds, each with the calls and faults that matter there.

use punctual::domain::task::feedback::Call;

use super::state::Faults;

#[derive(Clone, Debug)]
pub struct Scope {
    pub name: &'static str,
    pub attempts_max: u16,
    /// The number of nodes.
    pub slot_count: u8,
    /// The calls that a consumer may make, in any state of the task.
    pub calls: &'static [Call],
    pub call_count: u8,
    /// The number of calls at the same time.
    pub connection_count: u8,
    /// The number of times that a dead letter is put back.
    pub redrive_count: u8,
    /// True when a client cancels the task, or replaces it if it has a name.
    pub is_removed: bool,
    pub is_named: bool,
    /// True when rows are inserted into the far table, and a mover moves them.
    pub is_far: bool,
    /// True when so much happens to the task that three rounds of a call may not be enough.
    pub may_be_busy: bool,
    pub faults: Faults,
}

const FINISH: Call = Call::Finish { attempt: None };

const fn finish(attempt: u16) -> Call {
    Call::Finish { attempt: Some(attempt) }
}

const fn fail(attempt: u16) -> Call {
    Call::Fail { attempt, is_final: false }
}

const fn fail_for_good(attempt: u16) -> Call {
    Call::Fail { attempt, is_final: true }
}

const fn extend(attempt: u16) -> Call {
    Call::Extend { attempt }
}

/// Every call, with the attempts that a task of two attempts has, and one more.
const ALL: &[Call] = &[
    FINISH,
    finish(1),
    finish(2),
    finish(3),
    fail(1),
    fail(2),
    fail(3),
    fail_for_good(1),
    fail_for_good(2),
    extend(1),
    extend(2),
    extend(3),
];
const SOME: &[Call] = &[FINISH, fail(1), fail_for_good(1), extend(1)];
const OF_BOTH: &[Call] = &[FINISH, finish(1), fail(1), fail(2), extend(1), extend(2)];
const ONLY_FINISH: &[Call] = &[FINISH];

const NO_FAULTS: Faults = Faults {
    adoptions: 0,
    answers: 0,
    acknowledgements: 0,
    refusals: 0,
    refusals_for_good: 0,
    postgres: 0,
};

const PLAIN: Scope = Scope {
    name: "",
    attempts_max: 2,
    slot_count: 1,
    calls: ALL,
    call_count: 1,
    connection_count: 1,
    redrive_count: 0,
    is_removed: false,
    is_named: false,
    is_far: false,
    may_be_busy: false,
    faults: NO_FAULTS,
};

/// Three calls, one after another.
pub fn calls_in_turn() -> Scope {
    let faults = Faults { refusals: 1, acknowledgements: 1, ..NO_FAULTS };
    Scope { name: "calls in turn", call_count: 3, faults, ..PLAIN }
}

/// Two calls, one after another, and three attempts.
pub fn three_attempts() -> Scope {
    let faults = Faults { acknowledgements: 1, refusals_for_good: 1, ..NO_FAULTS };
    Scope { name: "three attempts", attempts_max: 3, call_count: 2, faults, ..PLAIN }
}

/// The only attempt is the last one.
pub fn one_attempt() -> Scope {
    let faults = Faults { refusals: 1, acknowledgements: 1, ..NO_FAULTS };
    Scope { name: "one attempt", attempts_max: 1, call_count: 3, faults, ..PLAIN }
}

/// Two calls at the same time.
pub fn calls_at_once() -> Scope {
    let faults = Faults { refusals: 1, ..NO_FAULTS };
    Scope { name: "calls at once", call_count: 2, connection_count: 2, faults, ..PLAIN }
}

/// A batch is adopted, and the node that had it goes on.
pub fn adopted() -> Scope {
    let faults = Faults { adoptions: 1, refusals: 1, ..NO_FAULTS };
    Scope { name: "adopted while called", slot_count: 2, call_count: 2, faults, ..PLAIN }
}

/// Settles and calls are rolled back, or commit without an answer.
pub fn unanswered() -> Scope {
    let faults = Faults { answers: 1, adoptions: 1, ..NO_FAULTS };
    Scope {
        name: "unanswered settles and calls",
        slot_count: 2,
        calls: SOME,
        call_count: 2,
        faults,
        ..PLAIN
    }
}

/// Rows are inserted into the far table, and moved, while two consumers call.
pub fn far() -> Scope {
    Scope { name: "far rows and calls", is_far: true, call_count: 2, connection_count: 2, ..PLAIN }
}

/// The task is cancelled while two consumers call.
pub fn cancelled() -> Scope {
    let faults = Faults { refusals: 1, ..NO_FAULTS };
    Scope {
        name: "a cancel and calls",
        is_removed: true,
        is_far: true,
        calls: SOME,
        call_count: 2,
        connection_count: 2,
        faults,
        ..PLAIN
    }
}

/// The task is replaced by name while two consumers call.
pub fn replaced() -> Scope {
    Scope { name: "a replacement and calls", is_named: true, ..cancelled() }
}

/// Postgres crashes and undoes settles.
pub fn undone() -> Scope {
    let faults = Faults { postgres: 1, refusals: 1, ..NO_FAULTS };
    Scope { name: "undone settles and calls", call_count: 2, faults, ..PLAIN }
}

/// The dead letter of a task of one attempt is put back.
pub fn redriven() -> Scope {
    let faults = Faults { refusals_for_good: 1, ..NO_FAULTS };
    Scope {
        name: "redriven",
        attempts_max: 1,
        calls: OF_BOTH,
        redrive_count: 1,
        call_count: 2,
        connection_count: 2,
        may_be_busy: true,
        faults,
        ..PLAIN
    }
}

/// One finish, and nothing else. Only controls use it.
pub fn one_finish() -> Scope {
    let faults = Faults { answers: 1, refusals: 1, postgres: 1, ..NO_FAULTS };
    Scope { calls: ONLY_FINISH, faults, ..PLAIN }
}

pub fn all() -> Vec<Scope> {
    vec![
        calls_in_turn(),
        three_attempts(),
        one_attempt(),
        calls_at_once(),
        adopted(),
        unanswered(),
        far(),
        cancelled(),
        replaced(),
        undone(),
        redriven(),
    ]
}
