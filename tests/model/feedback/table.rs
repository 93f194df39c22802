//! The table of verdicts: which answer a call gets in which state of its task. The states are read
//! from the execlog, the tables and the earlier answers. `task_follow` is not asked, because the
//! calls themselves decide by it.

use super::state::{Ask, State, What};

/// The state of a task, as its consumer would describe it. The number is the current attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cell {
    /// Certainly never sent.
    Scheduled,
    InFlight(u8),
    /// In flight, and failed by the consumer already.
    InFlightAndFailed(u8),
    /// Perhaps sent, and pending to be sent once more.
    PerhapsSent(u8),
    Awaiting(u8),
    /// Failed, and waiting for the next attempt.
    Failed(u8),
    /// The verdict row was claimed, `final` was said, or the last attempt was failed.
    DeadDecided,
    Finished,
    Dead,
    Cancelled,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    Finished,
    FinishedInFlight,
    FinishedSuperseded,
    /// Takes effect with the settle.
    Noted,
    Retrying,
    /// Failed already: the same due time again.
    RetryingAsBefore,
    /// The dead letter is next.
    Dying,
    Extended,
    NotPublishedYet,
    AttemptTooHigh,
    AttemptSuperseded,
    AlreadyFailed,
    AlreadyFinished,
    /// 409 with the state of a task that is dead, or is about to be.
    IsDead,
    IsCancelled,
    /// The call gave up after its last round.
    Busy,
}

/// Returns the cell of the task.
pub fn cell_of(state: &State) -> Cell {
    let db = &state.db;
    match () {
        () if db.lines.finished > 0 => return Cell::Finished,
        () if db.lines.dead > 0 => return Cell::Dead,
        () if db.lines.cancelled > 0 => return Cell::Cancelled,
        () => {}
    }
    let (claimed, pending) = (db.claimed(), db.pending());
    let at = (claimed | pending).trailing_zeros() as usize;
    let Some(row) = db.rows.get(at) else { return Cell::Dead };
    let is_dead_decided =
        state.is_dead_said || db.was_verdict_claimed || row.is_verdict && claimed != 0;
    let current = current_attempt(state);
    match () {
        () if is_dead_decided => Cell::DeadDecided,
        () if claimed != 0 && state.failed == row.attempt => Cell::InFlightAndFailed(row.attempt),
        () if claimed != 0 => Cell::InFlight(row.attempt),
        () if current == 0 => Cell::Scheduled,
        () if !row.is_verdict && row.attempt == current => Cell::PerhapsSent(current),
        () if state.failed == current => Cell::Failed(current),
        () => Cell::Awaiting(current),
    }
}

/// Returns the last attempt that the consumer may have got, other than that in flight.
pub fn current_attempt(state: &State) -> u8 {
    state.db.settled_attempt.max(state.heard)
}

/// Returns the verdict that a call must get.
pub fn verdict_of(cell: Cell, ask: Ask, attempts_max: u8) -> Verdict {
    let current = match cell {
        Cell::Scheduled => return Verdict::NotPublishedYet,
        Cell::DeadDecided | Cell::Dead => return Verdict::IsDead,
        Cell::Cancelled => return Verdict::IsCancelled,
        Cell::Finished if ask.what == What::Finish => return Verdict::Finished,
        Cell::Finished => return Verdict::AlreadyFinished,
        Cell::InFlight(attempt)
        | Cell::InFlightAndFailed(attempt)
        | Cell::PerhapsSent(attempt)
        | Cell::Awaiting(attempt)
        | Cell::Failed(attempt) => attempt,
    };
    let names_attempt = ask.attempt != 0;
    if ask.attempt > current {
        return Verdict::AttemptTooHigh;
    }
    if names_attempt && ask.attempt < current {
        return match ask.what {
            What::Finish => Verdict::FinishedSuperseded,
            What::Fail { .. } | What::Extend => Verdict::AttemptSuperseded,
        };
    }
    let is_last = current == attempts_max;
    match (ask.what, cell) {
        (What::Finish, Cell::Awaiting(_) | Cell::Failed(_)) => Verdict::Finished,
        (What::Finish, _) => Verdict::FinishedInFlight,
        (What::Fail { .. }, Cell::InFlight(_)) => Verdict::Noted,
        (What::Fail { .. }, Cell::InFlightAndFailed(_) | Cell::Failed(_)) => {
            Verdict::RetryingAsBefore
        }
        (What::Fail { is_final }, _) if is_final || is_last => Verdict::Dying,
        (What::Fail { .. }, _) => Verdict::Retrying,
        (What::Extend, Cell::InFlight(_)) => Verdict::Noted,
        (What::Extend, Cell::InFlightAndFailed(_) | Cell::Failed(_)) => Verdict::AlreadyFailed,
        (What::Extend, _) => Verdict::Extended,
    }
}
