//! The scopes of the search: a few small worlds, each with the faults that matter there. Together
//! they contain every action.

use std::ops::RangeInclusive;

use super::decisions::Times;
use super::state::Faults;

#[derive(Clone, Debug)]
pub struct Scope {
    pub name: &'static str,
    pub times: Times,
    pub first_tick: u8,
    pub task_count: u8,
    /// The ticks at which tasks may be submitted.
    pub submits: RangeInclusive<u8>,
    /// True when submits within the window go straight into a batch.
    pub claims_on_insert: bool,
    /// The task that a client cancels.
    pub cancels: Option<u8>,
    /// True when all tasks have one name: the first is submitted, and the others replace it.
    pub is_named: bool,
    pub put_count: u8,
    /// The number of moves of the first task to another due time.
    pub move_count: u8,
    /// True when a leaf of the past is retired.
    pub retires: bool,
    /// True when cancels, replacements and detaches are taken step by step.
    pub is_stepwise: bool,
    pub faults: Faults,
}

pub const NO_FAULTS: Faults = Faults {
    nodes: 0,
    answers: 0,
    acknowledgements: 0,
    refusals: 0,
    refusals_for_good: 0,
    postgres: 0,
    heartbeats: 0,
    etcd: 0,
};

/// Four moments: before the leaf exists, one window before the due time, just after the due time,
/// and when the task is long overdue.
const SHORT: Times = Times {
    ticks: &[-600_000, 0, 1_000, 20_000],
    due: [100, 100, 100],
    leaf_at: 1,
    expires_at: None,
};
/// As [`SHORT`], until the leaf's time is over.
const PAST: Times = Times { ticks: &[-600_000, 0, 1_000, 961_000], ..SHORT };
/// As [`PAST`], and a moment later.
const LONG: Times = Times { ticks: &[-600_000, 0, 1_000, 961_000, 981_000], ..SHORT };
/// As [`SHORT`]. At the last tick, it is too late to publish a task.
const EXPIRING: Times = Times { expires_at: Some(5_000), ..SHORT };
/// As [`EXPIRING`], with time for two follow-ups.
const EXPIRING_LATER: Times =
    Times { ticks: &[-600_000, 0, 1_000, 3_000, 20_000], expires_at: Some(5_000), ..SHORT };

const PLAIN: Scope = Scope {
    name: "",
    times: SHORT,
    first_tick: 1,
    task_count: 1,
    submits: 1..=1,
    claims_on_insert: false,
    cancels: None,
    is_named: false,
    put_count: 0,
    move_count: 0,
    retires: false,
    is_stepwise: true,
    faults: NO_FAULTS,
};

/// Claim, publish, settle, adopt, while a node dies or is paused and an answer is lost.
pub fn life_and_death() -> Scope {
    let faults = Faults { nodes: 1, answers: 1, ..NO_FAULTS };
    Scope {
        name: "life and death",
        first_tick: 0,
        submits: 0..=2,
        claims_on_insert: true,
        faults,
        ..PLAIN
    }
}

/// A node is paused, or the heartbeats do not get through. The node goes on with the tasks in
/// memory.
pub fn zombies() -> Scope {
    let faults = Faults { nodes: 1, heartbeats: 1, ..NO_FAULTS };
    Scope { name: "zombies", first_tick: 2, submits: 2..=2, faults, ..PLAIN }
}

/// An acknowledgement does not arrive, and a node dies or is paused.
pub fn acknowledgements() -> Scope {
    let faults = Faults { nodes: 1, acknowledgements: 1, ..NO_FAULTS };
    Scope { name: "acknowledgements", first_tick: 2, submits: 2..=2, faults, ..PLAIN }
}

/// Two tasks, in one batch or two.
pub fn two_tasks() -> Scope {
    let faults = Faults { nodes: 1, refusals_for_good: 1, ..NO_FAULTS };
    Scope { name: "two tasks", first_tick: 2, task_count: 2, submits: 2..=2, faults, ..PLAIN }
}

/// A task is deferred after its node died or was paused, and is cancelled.
pub fn adopted_and_cancelled() -> Scope {
    let faults = Faults { nodes: 1, refusals: 1, ..NO_FAULTS };
    Scope {
        name: "adopted and cancelled",
        first_tick: 2,
        submits: 2..=2,
        cancels: Some(0),
        faults,
        ..PLAIN
    }
}

/// A task is deferred twice, for different reasons, and is cancelled.
pub fn deferral_and_cancel() -> Scope {
    let faults = Faults { acknowledgements: 1, refusals: 1, ..NO_FAULTS };
    Scope {
        name: "deferral and cancel",
        first_tick: 2,
        submits: 2..=2,
        cancels: Some(0),
        faults,
        ..PLAIN
    }
}

/// Settles whose answers are lost are retried.
pub fn late_settles() -> Scope {
    let faults = Faults { answers: 2, refusals: 1, ..NO_FAULTS };
    Scope { name: "late settles", first_tick: 2, submits: 2..=2, cancels: Some(0), faults, ..PLAIN }
}

/// Far tasks are moved while cancelled and claimed.
pub fn far_and_cancel() -> Scope {
    let faults = Faults { answers: 1, ..NO_FAULTS };
    Scope {
        name: "far and cancel",
        first_tick: 0,
        submits: 0..=1,
        task_count: 2,
        cancels: Some(0),
        faults,
        ..PLAIN
    }
}

/// A leaf is retired while a submit commits late and a node dies.
pub fn leaves() -> Scope {
    let faults = Faults { nodes: 1, answers: 1, ..NO_FAULTS };
    Scope {
        name: "leaves",
        times: PAST,
        retires: true,
        first_tick: 2,
        submits: 2..=2,
        faults,
        ..PLAIN
    }
}

/// Postgres crashes and undoes settles and their follow-ups. The follow-ups' leaf is retired
/// meanwhile.
pub fn undone_settles() -> Scope {
    let faults = Faults { refusals: 1, postgres: 1, ..NO_FAULTS };
    Scope {
        name: "undone settles",
        times: LONG,
        retires: true,
        first_tick: 2,
        submits: 2..=2,
        faults,
        ..PLAIN
    }
}

/// Postgres crashes, and a node with it or after it.
pub fn crashes() -> Scope {
    let faults = Faults { nodes: 1, postgres: 1, ..NO_FAULTS };
    Scope { name: "crashes", first_tick: 2, submits: 2..=2, faults, ..PLAIN }
}

/// etcd is wrong, and heartbeats do not arrive.
pub fn membership() -> Scope {
    let faults = Faults { heartbeats: 1, etcd: 1, ..NO_FAULTS };
    Scope { name: "membership", first_tick: 2, submits: 2..=2, faults, ..PLAIN }
}

/// The task of a name is replaced twice, while moved, claimed, deferred and cancelled.
pub fn names() -> Scope {
    let faults = Faults { refusals: 1, ..NO_FAULTS };
    Scope {
        name: "names",
        first_tick: 0,
        submits: 0..=0,
        task_count: 3,
        is_named: true,
        put_count: 2,
        cancels: Some(0),
        faults,
        ..PLAIN
    }
}

/// A task is moved to another due time and back, between the tables, while claimed, deferred,
/// replaced and cancelled.
pub fn moves() -> Scope {
    let faults = Faults { acknowledgements: 1, refusals: 1, ..NO_FAULTS };
    Scope {
        name: "moves",
        first_tick: 0,
        submits: 0..=0,
        task_count: 2,
        is_named: true,
        put_count: 1,
        cancels: Some(0),
        move_count: 2,
        faults,
        ..PLAIN
    }
}

/// A task expires while its acknowledgement is lost, and its node dies or is paused.
pub fn expiry() -> Scope {
    let faults = Faults { nodes: 1, acknowledgements: 1, ..NO_FAULTS };
    Scope { name: "expiry", times: EXPIRING, first_tick: 2, submits: 2..=3, faults, ..PLAIN }
}

/// A task expires after it was deferred, for different reasons, moved or cancelled.
pub fn deferral_and_expiry() -> Scope {
    let faults = Faults { acknowledgements: 1, refusals: 1, ..NO_FAULTS };
    Scope {
        name: "deferral and expiry",
        times: EXPIRING_LATER,
        submits: 1..=2,
        cancels: Some(0),
        move_count: 1,
        faults,
        ..PLAIN
    }
}

/// A task expires, a node dies or is paused, and Postgres crashes and undoes the settle.
pub fn expiry_and_crashes() -> Scope {
    let faults = Faults { nodes: 1, postgres: 1, ..NO_FAULTS };
    Scope {
        name: "expiry and crashes",
        times: EXPIRING,
        first_tick: 2,
        submits: 2..=2,
        faults,
        ..PLAIN
    }
}

pub fn all() -> Vec<Scope> {
    vec![
        life_and_death(),
        zombies(),
        acknowledgements(),
        two_tasks(),
        adopted_and_cancelled(),
        deferral_and_cancel(),
        late_settles(),
        far_and_cancel(),
        leaves(),
        undone_settles(),
        crashes(),
        membership(),
        names(),
        moves(),
        expiry(),
        deferral_and_expiry(),
        expiry_and_crashes(),
    ]
}
