//! The table of verdicts: the answer to a call in each state of the task, as the execlog, the
//! tables and the earlier answers show the state. `task_follow` is not asked, because the calls
//! themselves decide by it.

use punctual::domain::task::feedback::{Call, Verdict};

use super::state::State;

/// The state of a task, as its consumer would describe it. The number is the current attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cell {
    /// Certainly never sent.
    Scheduled,
    InFlight(u16),
    /// In flight, and failed by the consumer already.
    InFlightAndFailed(u16),
    /// Perhaps sent, and pending to be sent once more.
    PerhapsSent(u16),
    Awaiting(u16),
    /// Failed, and waiting for the next attempt.
    Failed(u16),
    /// The verdict row was claimed, `final` was said, or the last attempt was failed.
    DeadDecided,
    Finished,
    Dead,
    Cancelled,
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
pub fn current_attempt(state: &State) -> u16 {
    state.db.settled_attempt.max(state.heard)
}

/// Returns the verdict that a call must get.
pub fn verdict_of(cell: Cell, call: Call, attempts_max: u16) -> Verdict {
    let is_finish = matches!(call, Call::Finish { .. });
    let current = match cell {
        Cell::Scheduled => return Verdict::NotPublishedYet,
        Cell::DeadDecided | Cell::Dead => return Verdict::Dead,
        Cell::Cancelled => return Verdict::Cancelled,
        Cell::Finished if is_finish => return Verdict::Finished,
        Cell::Finished => return Verdict::AlreadyFinished,
        Cell::InFlight(attempt)
        | Cell::InFlightAndFailed(attempt)
        | Cell::PerhapsSent(attempt)
        | Cell::Awaiting(attempt)
        | Cell::Failed(attempt) => attempt,
    };
    match attempt_of(call) {
        Some(attempt) if attempt > current => return Verdict::AttemptTooHigh,
        Some(attempt) if attempt < current && is_finish => return Verdict::FinishedSuperseded,
        Some(attempt) if attempt < current => return Verdict::AttemptSuperseded,
        Some(_) | None => {}
    }
    let is_last = current == attempts_max;
    match (call, cell) {
        (Call::Finish { .. }, Cell::Awaiting(_) | Cell::Failed(_)) => Verdict::Finished,
        (Call::Finish { .. }, _) => Verdict::FinishedInFlight,
        (Call::Fail { .. } | Call::Extend { .. }, Cell::InFlight(_)) => Verdict::Noted,
        (Call::Fail { is_final: false, .. }, Cell::InFlightAndFailed(_)) => Verdict::Noted,
        (Call::Fail { .. }, Cell::InFlightAndFailed(_) | Cell::Failed(_)) => {
            Verdict::RetryingAsBefore
        }
        (Call::Fail { is_final, .. }, _) if is_final || is_last => Verdict::Dying,
        (Call::Fail { .. }, _) => Verdict::Retrying,
        (Call::Extend { .. }, Cell::InFlightAndFailed(_) | Cell::Failed(_)) => {
            Verdict::AlreadyFailed
        }
        (Call::Extend { .. }, _) => Verdict::Extended,
    }
}

/// Returns the attempt that a call names.
pub fn attempt_of(call: Call) -> Option<u16> {
    match call {
        Call::Finish { attempt } => attempt,
        Call::Fail { attempt, .. } | Call::Extend { attempt } => Some(attempt),
    }
}
