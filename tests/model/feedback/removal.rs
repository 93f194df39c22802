//! A cancel, or a replacement by name, of a task that was certainly never sent. A replacement locks
//! the entry of the name first. Each step is one statement.

use punctual::domain::task::feedback::{AttemptRow, Follow};

use super::state::{FIRST, Followed, Removal, State, bit};
use super::table::current_attempt;
use super::{CANCELLED_UNSENT, Feedback, Mistake, no_more};

impl Feedback {
    pub fn remove(&self, state: &mut State) -> Option<()> {
        match state.removal {
            Removal::NotAsked => {
                // A cancel looks for the follow-up of a task that was not sent. A replacement knows
                // the row from the entry.
                let is_sent = |attempt: u16| attempt != 0 && !self.scope.is_named;
                let follow = state.db.follow.filter(|found| !is_sent(found.follow.attempt));
                let row = follow.map_or(FIRST, |follow| follow.row);
                state.removal = Removal::LookingFar { row };
            }
            Removal::LookingFar { row } if self.may_remove(state, state.db.far, row) => {
                self.delete(state, row)?;
            }
            Removal::LookingFar { row } => state.removal = Removal::LookingNear { row },
            Removal::LookingNear { row } if self.may_remove(state, state.db.near, row) => {
                self.delete(state, row)?;
            }
            Removal::LookingNear { .. } => {
                // `is the task of a name final`. A 409 otherwise, or too late.
                let has_ended = state.db.follow.is_none() || self.is(Mistake::AwaitingLooksFinal);
                let is_final = state.db.claimed() == 0 && has_ended;
                state.is_succeeded = self.scope.is_named && is_final;
                state.removal = Removal::Done;
                state.undo = None;
            }
            Removal::Following { row } => {
                if state.db.follow.is_some() && self.is_follow_locked(state, None) {
                    return None;
                }
                self.take_out(state, row);
                state.db.follow = None;
                state.db.lines.cancelled += 1;
                state.is_succeeded = self.scope.is_named;
                state.removal = Removal::Done;
                state.undo = None;
                if state.sent != 0 {
                    state.broken = Some(CANCELLED_UNSENT);
                }
            }
            Removal::Done => return None,
        }
        Some(())
    }

    /// The condition of the statement: a first row, or the row of a follow-up of a task that was
    /// never sent.
    fn may_remove(&self, state: &State, rows: u8, row: u8) -> bool {
        let follow = state.db.follow;
        let may_go = |attempt: u16| attempt == 0 || self.is(Mistake::RemovalTakesWhatMayBeSent);
        let is_unsent =
            follow.is_some_and(|found| found.row == row && may_go(found.follow.attempt));
        rows & bit(row) != 0 && (row == FIRST || is_unsent)
    }

    fn delete(&self, state: &mut State, row: u8) -> Option<()> {
        if self.is_row_locked(state, row, None) {
            return None;
        }
        state.removal = Removal::Following { row };
        Some(())
    }

    /// The dead letter is put back, as the next attempt. Its statement inserts a row of
    /// `task_follow`, and waits for a call that has inserted one.
    pub fn redrive(&self, state: &mut State) -> Option<()> {
        if state.db.lines.dead == 0 || self.is_follow_written(state, None) {
            return None;
        }
        no_more(&mut state.redrives_left)?;
        state.db.lines.dead -= 1;
        let row = self.new_row(state)?;
        let follow = Follow::redriven(state.db.dead_attempt);
        self.insert(state, row, AttemptRow { attempt: follow.attempt + 1, is_verdict: false });
        state.db.follow = Some(Followed { row, next: None, follow });
        state.db.was_verdict_claimed = false;
        state.is_dead_said = false;
        // The dead attempt counts as failed.
        state.failed = current_attempt(state);
        state.attempts_max = follow.attempt + self.scope.attempts_max;
        state.undo = None;
        Some(())
    }

    /// A far row is moved to its leaf, in one statement.
    pub fn move_begins(&self, state: &mut State) -> Option<()> {
        let is_locked = self.is_row_locked(state, state.db.far.trailing_zeros() as u8, None);
        if state.db.far == 0 || is_locked {
            return None;
        }
        state.is_moving = true;
        Some(())
    }

    pub fn move_ends(&self, state: &mut State) -> Option<()> {
        state.is_moving = false;
        state.db.near |= std::mem::take(&mut state.db.far);
        state.undo = None;
        Some(())
    }

    pub fn call_aborted(&self, state: &mut State, index: u8) -> Option<()> {
        no_more(&mut state.faults.answers)?;
        state.calls[usize::from(index)].take().map(drop)
    }
}
