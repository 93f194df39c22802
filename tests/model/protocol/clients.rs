//! The clients: submits, cancels and replacements by name.

use punctual::engine::placing::Destination;

use super::state::{
    Cancel, Late, Look, Property, Put, Rows, State, Status, bit, row_bit, row_of, task_of,
};
use super::{Action, Mistake, Protocol, no_more};

/// The number of times that a cancel looks for a task: first under the submitter's id, then as the
/// follow-up. See `postgres::tasks::cancel`.
const ROUNDS_MAX: u8 = 3;
/// The number of times that a replacement looks at a task that is in a table but cannot be taken
/// out. See `node::requests::replacer`.
const LOOKS_MAX: u8 = 3;

impl Protocol {
    pub fn client_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let next = state.accepted.count_ones();
        let asked_for = self.scope.submits.contains(&state.tick) && state.late.is_none();
        if asked_for
            && next < u32::from(self.scope.task_count)
            && !(self.scope.is_named && next > 0)
        {
            let task = u8::try_from(next).unwrap();
            // The nodes are alike, so the first running one stands for all.
            if state.nodes[0].status == Status::Running {
                actions.push(Action::Submit { slot: 0, task });
                actions.push(Action::SubmitUnanswered { slot: 0, task });
            }
        }
        let cancelled = self.scope.cancels.filter(|task| state.accepted >> task & 1 == 1);
        if cancelled.is_some() && state.cancel != Cancel::Answered {
            actions.push(Action::Cancel);
            actions.push(Action::CancelUnanswered);
        }
        for put in 0..self.scope.put_count {
            match state.puts[usize::from(put)] {
                Put::NotAsked if state.accepted & 1 == 0 => {}
                Put::NotAsked | Put::Again { .. } => actions.push(Action::PutLock { put }),
                Put::LookedFar { .. } => actions.push(Action::PutNear { put }),
                Put::Gone { .. } => actions.push(Action::PutVerdict { put }),
                Put::Done => {}
            }
        }
    }

    pub fn client_step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Submit { slot, task } => self.submit(state, slot, task, true),
            Action::SubmitUnanswered { slot, task } => {
                no_more(&mut state.faults.answers)?;
                self.submit(state, slot, task, false)
            }
            Action::CancelUnanswered => {
                no_more(&mut state.faults.answers)?;
                // A look in progress counts, but its result is lost.
                self.look(state)?;
                state.cancel = Cancel::Answered;
                Some(())
            }
            _ => self.look(state),
        }
    }

    fn submit(&self, state: &mut State, slot: u8, task: u8, is_answered: bool) -> Option<()> {
        let at = usize::from(task);
        let place = self.decisions.place(
            at,
            state.tick,
            self.may_claim(state, slot) && self.scope.claims_on_insert,
        );
        let identity = state.nodes[usize::from(slot)].identity;
        if place == Destination::Claimed {
            let batch = state.next_batch;
            state.next_batch += 1;
            if !is_answered {
                state.late = Some(Late::SubmitClaimed { task, identity, batch });
                return Some(());
            }
            self.insert_claimed(state, at, identity, batch);
            self.add_in_flight(state, slot, batch, false);
        } else {
            let is_far = place == Destination::Far;
            if !is_answered {
                state.late = Some(Late::Submit { task, is_far });
                return Some(());
            }
            self.accept(state, at, is_far)?;
        }
        Some(())
    }

    pub fn accept(&self, state: &mut State, task: usize, is_far: bool) -> Option<()> {
        if !self.insert(&mut state.db, row_of(task, 0), u8::try_from(task).unwrap(), is_far) {
            return None;
        }
        self.enter_name(state, task);
        self.commit(state);
        state.accepted |= bit(task);
        Some(())
    }

    pub fn insert_claimed(&self, state: &mut State, task: usize, identity: u8, batch: u8) {
        let row = row_of(task, 0);
        state.db.due[row] = u8::try_from(task).unwrap();
        self.claim(&mut state.db, identity, usize::from(batch), (row_bit(row), false));
        self.enter_name(state, task);
        self.commit(state);
        state.accepted |= bit(task);
    }

    fn enter_name(&self, state: &mut State, task: usize) {
        if self.scope.is_named {
            state.db.entry = Some(u8::try_from(row_of(task, 0)).unwrap());
        }
    }

    /// Takes one step of a cancel, or all of them.
    fn look(&self, state: &mut State) -> Option<()> {
        if state.cancel == Cancel::NotAsked {
            let row = u8::try_from(row_of(usize::from(self.scope.cancels?), 0)).unwrap();
            state.cancel =
                Cancel::Looking { row, look: Look::First, round: 1, was_too_late: false };
            self.watch_the_cancel(state);
        }
        loop {
            self.look_once(state)?;
            if self.scope.is_stepwise || state.cancel == Cancel::Answered {
                return Some(());
            }
        }
    }

    /// Looks in the far table first, because a task moves from there to a leaf and never back. Then
    /// looks for its follow-up, if the task was deferred and certainly not sent.
    fn look_once(&self, state: &mut State) -> Option<()> {
        let Cancel::Looking { row, look, round, was_too_late } = state.cancel else { return None };
        let looking = |row, look, round| Cancel::Looking { row, look, round, was_too_late };
        let is_far = (look == Look::First) != self.is(Mistake::CancelLooksNearFirst);
        state.cancel = match look {
            Look::First | Look::Second
                if self.take_out(&mut state.db, usize::from(row), is_far) =>
            {
                self.commit(state);
                Cancel::Answered
            }
            Look::First => looking(row, Look::Second, round),
            Look::Second => looking(row, Look::Follow, round),
            Look::Follow => {
                let may_go =
                    |maybe_sent: bool| !maybe_sent || self.is(Mistake::CancelTakesWhatMayBeSent);
                let follow = state.db.follow[task_of(usize::from(row))];
                let follow = follow.filter(|follow| may_go(follow.maybe_sent) && follow.row != row);
                match follow {
                    Some(follow) if round < ROUNDS_MAX => {
                        looking(follow.row, Look::First, round + 1)
                    }
                    _ => {
                        if !was_too_late {
                            state.broken = Some(Property::UntrueVerdict);
                        }
                        Cancel::Answered
                    }
                }
            }
        };
        Some(())
    }

    /// Records that the task was claimed, sent or final at some moment of its cancel. The verdict
    /// "too late" is then true.
    pub fn watch_the_cancel(&self, state: &mut State) {
        let Cancel::Looking { row, was_too_late: false, .. } = state.cancel else { return };
        let task = task_of(usize::from(row));
        let pending = state.db.far | self.visible(&state.db);
        let is_pending = pending & state.db.rows_of(task) != 0
            && !state.db.follow[task].is_some_and(|follow| follow.maybe_sent);
        if let Cancel::Looking { was_too_late, .. } = &mut state.cancel {
            *was_too_late = !is_pending;
        }
    }

    pub fn put_step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::PutLock { put } => self.put_lock(state, usize::from(put)),
            Action::PutNear { put } => self.put_near(state, usize::from(put)),
            Action::PutVerdict { put } => self.put_verdict(state, usize::from(put)),
            _ => None,
        }
    }

    /// Returns true while another transaction holds the lock on the entry of the name.
    pub fn is_locked(&self, state: &State) -> bool {
        !self.is(Mistake::ReplaceWithoutLock)
            && state.puts.iter().any(|put| matches!(put, Put::LookedFar { .. }))
    }

    fn put_lock(&self, state: &mut State, put: usize) -> Option<()> {
        if self.is_locked(state) {
            return None;
        }
        let row = state.db.entry?;
        if let Put::Again { over: Some(over), .. } = state.puts[put]
            && over == row
        {
            return self.put_in_place(state, put);
        }
        if self.replace(state, put, usize::from(row), true) {
            return self.put_in_place(state, put);
        }
        state.puts[put] = Put::LookedFar { row };
        if self.scope.is_stepwise { Some(()) } else { self.put_near(state, put) }
    }

    fn put_near(&self, state: &mut State, put: usize) -> Option<()> {
        let Put::LookedFar { row } = state.puts[put] else { return None };
        let row_now = usize::from(row);
        if self.replace(state, put, row_now, false) || self.is_final(state, row_now) {
            return self.put_in_place(state, put);
        }
        state.puts[put] = Put::Gone { row, looks: 1 };
        Some(())
    }

    /// Removes the row. The execlog line names the replacing task.
    fn replace(&self, state: &mut State, put: usize, row: usize, is_far: bool) -> bool {
        let is_taken = self.take_out(&mut state.db, row, is_far);
        if is_taken {
            state.db.replaced_by[task_of(row)] = u8::try_from(put + 1).unwrap();
        }
        is_taken
    }

    /// `is the task of a name final`, for a row in neither table.
    fn is_final(&self, state: &State, row: usize) -> bool {
        state.db.claimed() & row_bit(row) == 0 && state.db.follow[task_of(row)].is_none()
    }

    /// Looks up why a row could not be taken out.
    fn put_verdict(&self, state: &mut State, put: usize) -> Option<()> {
        let Put::Gone { row, looks } = state.puts[put] else { return None };
        let rows = state.db.rows_of(task_of(usize::from(row)));
        let is = |set: Rows| set & rows != 0;
        state.puts[put] = match () {
            () if is(state.db.claimed()) => Put::Done,
            () if is(state.db.near | state.db.far) && looks >= LOOKS_MAX => Put::Done,
            () if is(state.db.near | state.db.far) => Put::Again { over: None, looks: looks + 1 },
            () => Put::Again { over: Some(row), looks: looks + 1 },
        };
        Some(())
    }

    /// Inserts the new task and points the entry of the name at it.
    fn put_in_place(&self, state: &mut State, put: usize) -> Option<()> {
        let task = put + 1;
        let is_far = self.decisions.place(task, state.tick, false) == Destination::Far;
        state.puts[put] = Put::Done;
        self.accept(state, task, is_far)
    }
}
