//! Moves of a task to another due time by a client. A move is one transaction: it deletes the row,
//! inserts the next one, and holds the lock of `task_follow` meanwhile. See
//! `postgres::tasks::replace::reschedule`.

use punctual::engine::placing::Destination;

use super::state::{ATTEMPTS, Database, Follow, Moving, State, row_bit, row_of, task_of};
use super::{Action, Mistake, Protocol};

/// The number of times that a move looks at a task that is in a table but cannot be moved.
const LOOKS_MAX: u8 = 3;
/// The task that is moved.
const TASK: usize = 0;

impl Protocol {
    pub fn reschedule_actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.moving {
            Moving::Idle { moves, .. }
                if moves < self.scope.move_count && state.accepted & 1 == 1 =>
            {
                actions.push(Action::Reschedule);
            }
            Moving::Idle { .. } => {}
            Moving::LookedFar { .. } => actions.push(Action::RescheduleNear),
            Moving::Gone { .. } => actions.push(Action::RescheduleVerdict),
        }
    }

    pub fn reschedule_step(&self, state: &mut State, action: Action) -> Option<()> {
        match (action, state.moving) {
            (Action::Reschedule, Moving::Idle { moves, looks }) => {
                self.reschedule(state, moves, looks)
            }
            (Action::RescheduleNear, Moving::LookedFar { row, moves, looks }) => {
                if self.must_give_way(state) {
                    return None;
                }
                let is_moved = self.move_row(state, usize::from(row), false)
                    || self.is(Mistake::RescheduleWithoutTheRow)
                        && self.put_next(state, usize::from(row));
                state.moving = if is_moved {
                    Moving::Idle { moves: moves + 1, looks: 0 }
                } else {
                    Moving::Gone { moves, looks }
                };
                Some(())
            }
            (Action::RescheduleVerdict, Moving::Gone { moves, looks }) => {
                let follow = state.db.follow[TASK];
                let is_pending = (state.db.near | state.db.far) & state.db.rows_of(TASK) != 0
                    && !follow.is_some_and(|follow| follow.maybe_sent);
                let is_again = is_pending && looks + 1 < LOOKS_MAX;
                state.moving = match is_again {
                    true => Moving::Idle { moves, looks: looks + 1 },
                    false => Moving::Idle { moves: moves + 1, looks: 0 },
                };
                Some(())
            }
            _ => None,
        }
    }

    /// Finds the current row, takes the lock, and looks in the far table.
    fn reschedule(&self, state: &mut State, moves: u8, looks: u8) -> Option<()> {
        let follow = state.db.follow[TASK];
        let row = follow.map_or(row_of(TASK, 0), |follow| usize::from(follow.row));
        if row + 1 >= row_of(TASK, ATTEMPTS) {
            return None;
        }
        if self.must_give_way(state) {
            return None;
        }
        let may_go = !follow.is_some_and(|follow| follow.maybe_sent)
            || self.is(Mistake::RescheduleTakesWhatMayBeSent);
        state.moving = if !may_go {
            Moving::Gone { moves, looks }
        } else if self.move_row(state, row, true) {
            Moving::Idle { moves: moves + 1, looks: 0 }
        } else {
            Moving::LookedFar { row: u8::try_from(row).unwrap(), moves, looks }
        };
        if self.scope.is_stepwise || !matches!(state.moving, Moving::LookedFar { .. }) {
            return Some(());
        }
        self.reschedule_step(state, Action::RescheduleNear)
    }

    /// A move needs the entry of the name at its end. While a replacement holds it, the move gives
    /// way and is repeated.
    fn must_give_way(&self, state: &State) -> bool {
        let is_named = state.db.entry.is_some_and(|row| task_of(usize::from(row)) == TASK);
        is_named && self.is_locked(state)
    }

    /// `move from ..`: deletes the row and inserts the next one.
    fn move_row(&self, state: &mut State, row: usize, is_far: bool) -> bool {
        let rows = if is_far { state.db.far } else { self.visible(&state.db) };
        if rows & row_bit(row) == 0 {
            return false;
        }
        let before = state.db;
        if is_far {
            state.db.far &= !row_bit(row);
        } else {
            state.db.near &= !row_bit(row);
        }
        let is_put = self.put_next(state, row);
        if !is_put {
            state.db = before;
        }
        is_put
    }

    fn put_next(&self, state: &mut State, row: usize) -> bool {
        let next = row + 1;
        let due = self.due_of_move(state);
        let is_far = self.decisions.place(usize::from(due), state.tick, false) == Destination::Far;
        if !self.insert(&mut state.db, next, due, is_far) {
            return false;
        }
        let number = u8::try_from(next).unwrap();
        let maybe_sent = state.db.follow[TASK].is_some_and(|follow| follow.maybe_sent);
        state.db.follow[TASK] = Some(Follow { row: number, maybe_sent });
        if state.db.entry.is_some_and(|entry| task_of(usize::from(entry)) == TASK) {
            state.db.entry = Some(number);
        }
        state.moved_to = number;
        self.commit(state);
        true
    }

    /// The first move is to the time of a follow-up, and the second back to the time of the task.
    pub fn due_of_move(&self, state: &State) -> u8 {
        let is_first = matches!(
            state.moving,
            Moving::Idle { moves: 0, .. } | Moving::LookedFar { moves: 0, .. }
        );
        let due = if is_first { self.decisions.due_of_follow_up(state.tick) } else { 0 };
        self.decisions.due_at_least(due, state.tick)
    }

    /// Returns true while a move holds the lock of its task in `task_follow`.
    pub fn is_being_moved(&self, state: &State, task: usize) -> bool {
        task == TASK && matches!(state.moving, Moving::LookedFar { .. })
    }
}

/// Returns true when the row that a move has inserted was claimed, or a later one.
pub fn is_claimed_since(db: &Database, row: u8) -> bool {
    let later = (usize::from(row)..row_of(TASK, ATTEMPTS)).fold(0, |all, row| all | row_bit(row));
    db.batches.iter().any(|batch| batch.rows & later != 0)
}
