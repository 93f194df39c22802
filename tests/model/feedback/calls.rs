//! The calls of consumers: finish, fail and extend. Each step is one statement. A call locks in the
//! order of all transactions: `task_follow`, the row of the task, the entry of the name. What it
//! then decides is `punctual::domain::task::feedback`.

use punctual::domain::task::feedback::{Call, Effect, FIRST_IN_FLIGHT, Note, Place, Verdict};

use super::state::{Followed, Found, OpenCall, Phase, State, bit};
use super::table::{Cell, cell_of, verdict_of};
use super::{BROKEN_TABLE, Feedback, Mistake};

/// The number of times that a call begins with transaction 1.
const ROUNDS_MAX: u8 = 3;

impl Feedback {
    pub fn begin(&self, state: &mut State, index: u8, call: Call) -> Option<()> {
        state.calls_left = state.calls_left.checked_sub(1)?;
        state.calls[usize::from(index)] =
            Some(OpenCall { call, phase: Phase::Locking, round: 1, seen: None });
        Some(())
    }

    pub fn look(&self, state: &mut State, index: u8) -> Option<()> {
        let open = state.calls[usize::from(index)]?;
        let turn_to = |state: &mut State, phase| {
            state.calls[usize::from(index)] = Some(OpenCall { phase, ..open });
            Some(())
        };
        match open.phase {
            Phase::Locking => match self.lock(state, index)? {
                Some(found) if self.goes_without_lock(state, index) => {
                    let (phase, seen) = (Phase::LookingFar, Some(found));
                    state.calls[usize::from(index)] = Some(OpenCall { phase, seen, ..open });
                    Some(())
                }
                Some(_) => turn_to(state, Phase::LookingFar),
                None if self.is(Mistake::NoCheckAfterTheMark) => turn_to(state, Phase::Asking),
                None => turn_to(state, Phase::Marking),
            },
            Phase::LookingFar | Phase::LookingNear => {
                let is_far = open.phase == Phase::LookingFar;
                let row = open.seen.or(state.db.follow)?.row;
                let rows = if is_far { state.db.far } else { state.db.near };
                if rows & bit(row) == 0 {
                    return if is_far {
                        turn_to(state, Phase::LookingNear)
                    } else {
                        self.found(state, index, Found::At(Place::Claimed))
                    };
                }
                // A row that the call does not take is read and not locked.
                let pending = Found::At(Place::Pending);
                if self.decided(state, open, pending).1.takes_the_row()
                    && self.is_row_locked(state, row, Some(index))
                {
                    let goes_on = is_far && self.is(Mistake::FarAndNearInOneStatement);
                    return if goes_on { turn_to(state, Phase::LookingOld) } else { None };
                }
                self.found(state, index, pending)
            }
            Phase::LookingOld => {
                let row = state.db.follow?.row;
                if self.is_row_locked(state, row, Some(index)) {
                    return None;
                }
                let is_far = state.db.far & bit(row) != 0;
                let place = if is_far { Place::Pending } else { Place::Claimed };
                self.found(state, index, Found::At(place))
            }
            Phase::Naming(found) => self.commit(state, index, found),
            Phase::Marking => self.mark(state, index),
            Phase::Asking => {
                if state.db.claimed() == 0 {
                    return turn_to(state, Phase::Seeking);
                }
                if self.is(Mistake::NoCheckAfterTheMark) {
                    return turn_to(state, Phase::Marking);
                }
                self.found(state, index, Found::New)
            }
            Phase::Seeking => self.seek(state, index),
        }
    }

    /// Locks the row of `task_follow`. Returns the committed row, or `None` when there is none. A
    /// row that another transaction has inserted and not committed is not seen.
    fn lock(&self, state: &State, index: u8) -> Option<Option<Followed>> {
        let Some(found) = state.db.follow else { return Some(None) };
        let is_left_out = found.follow.attempt == 0 && found.follow.note.is_none();
        if is_left_out && self.is(Mistake::LockOnlyWhatMayBeSent) {
            return Some(None);
        }
        if self.is_follow_locked(state, Some(index)) && !self.goes_without_lock(state, index) {
            return None;
        }
        Some(Some(found))
    }

    pub fn goes_without_lock(&self, state: &State, index: u8) -> bool {
        let is_finish = |open: OpenCall| matches!(open.call, Call::Finish { .. });
        self.is(Mistake::FinishWithoutLock)
            && state.calls[usize::from(index)].is_some_and(is_finish)
    }

    /// Goes on to the entry of the name, or commits.
    fn found(&self, state: &mut State, index: u8, found: Found) -> Option<()> {
        let open = state.calls[usize::from(index)]?;
        let changes_the_name =
            self.scope.is_named && self.decided(state, open, found).1 != Effect::Nothing;
        // Without the lock, there is time between the last look and the mark.
        if changes_the_name || open.seen.is_some() {
            state.calls[usize::from(index)] =
                Some(OpenCall { phase: Phase::Naming(found), ..open });
            return Some(());
        }
        self.commit(state, index, found)
    }

    fn decided(&self, state: &State, open: OpenCall, found: Found) -> (Verdict, Effect) {
        let followed = open.seen.or(state.db.follow);
        let follow = followed.map_or(FIRST_IN_FLIGHT, |followed| followed.follow);
        let place = match found {
            Found::At(place) => place,
            Found::New => Place::Claimed,
        };
        let call = match open.call {
            Call::Fail { attempt, is_final } if self.is(Mistake::OldFailCounts) => {
                Call::Fail { attempt: attempt.max(follow.current(place)), is_final }
            }
            call => call,
        };
        follow.hear(call, place, state.attempts_max)
    }

    /// Writes what the call decides, commits and answers.
    fn commit(&self, state: &mut State, index: u8, found: Found) -> Option<()> {
        let open = state.calls[usize::from(index)]?;
        if open.seen.is_some() && self.is_follow_locked(state, Some(index)) {
            return None;
        }
        let (verdict, effect) = self.decided(state, open, found);
        let changes_the_name = effect != Effect::Nothing || self.is(Mistake::NameIsAlwaysLocked);
        if self.scope.is_named && changes_the_name && self.is_name_locked(state) {
            return None;
        }
        let before = *state;
        let mut followed = state.db.follow.unwrap_or_else(|| new_followed(state));
        match effect {
            Effect::Nothing => {}
            Effect::End => {
                self.take_out(state, followed.row);
                state.db.lines.finished += 1;
                state.db.follow = None;
            }
            Effect::Mark => {
                followed.next = None;
                followed.follow.has_next = false;
                followed.follow.note = Some(Note::Finished);
                state.db.lines.finished += 1;
                state.db.follow = Some(followed);
            }
            Effect::Replace { note, row: contents } => {
                self.take_out(state, followed.row);
                followed.row = self.new_row(state)?;
                self.insert(state, followed.row, contents);
                followed.follow.is_again = false;
                followed.follow.note = note;
                followed.follow.is_verdict = contents.is_verdict;
                state.db.follow = Some(followed);
            }
            Effect::Note { note, is_verdict } => {
                followed.next = Some(followed.next.or_else(|| self.new_row(state))?);
                followed.follow.has_next = true;
                followed.follow.note = Some(note);
                followed.follow.is_verdict = is_verdict;
                state.db.follow = Some(followed);
            }
        }
        if self.is(Mistake::CallsDoNotWaitForTheDisk) {
            state.undo.get_or_insert(before.db);
        } else {
            state.undo = None;
        }
        self.answer(state, &before, index, verdict)
    }

    /// Ends the call, and compares its verdict with the table. `before` is the state at the commit.
    fn answer(&self, state: &mut State, before: &State, index: u8, verdict: Verdict) -> Option<()> {
        let call = state.calls[usize::from(index)].take()?.call;
        let cell = cell_of(before);
        // The caller is told to call again, and nothing has changed.
        if verdict == Verdict::Busy && self.scope.may_be_busy {
            return Some(());
        }
        if verdict_of(cell, call, state.attempts_max) != verdict {
            state.broken = Some(BROKEN_TABLE);
            return Some(());
        }
        self.meet(cell, call, verdict);
        let (Cell::InFlight(current) | Cell::PerhapsSent(current) | Cell::Awaiting(current)) = cell
        else {
            state.is_finished |= verdict == Verdict::Finished;
            return Some(());
        };
        match verdict {
            Verdict::Finished | Verdict::FinishedInFlight | Verdict::FinishedSuperseded => {
                state.is_finished = true;
            }
            Verdict::Noted | Verdict::Retrying | Verdict::Dying | Verdict::Extended => {
                state.heard = state.heard.max(current);
                if let Call::Fail { is_final, .. } = call {
                    state.failed = state.failed.max(current);
                    state.is_dead_said |= is_final || current == state.attempts_max;
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Transaction 2: `insert .. on conflict do nothing`. The statement waits for another
    /// transaction with an inserted or changed row, and not for one with a lock only.
    fn mark(&self, state: &mut State, index: u8) -> Option<()> {
        let at = usize::from(index);
        let open = state.calls[at]?;
        if self.is_follow_written(state, Some(index)) {
            return None;
        }
        if state.db.follow.is_some() {
            let is_last = open.round == ROUNDS_MAX;
            let phase = if is_last { Phase::Seeking } else { Phase::Locking };
            let round = open.round + u8::from(!is_last);
            state.calls[at] = Some(OpenCall { phase, round, ..open });
            return Some(());
        }
        if self.is(Mistake::NoCheckAfterTheMark) {
            return self.found(state, index, Found::New);
        }
        state.calls[at] = Some(OpenCall { phase: Phase::Asking, ..open });
        Some(())
    }

    /// Looks up a task in no unsettled batch, as transaction 2 has seen it.
    fn seek(&self, state: &mut State, index: u8) -> Option<()> {
        let at = usize::from(index);
        let open = state.calls[at]?;
        let is_finish = matches!(open.call, Call::Finish { .. });
        let lines = state.db.lines;
        let verdict = match () {
            () if lines.finished > 0 && is_finish => Verdict::Finished,
            () if lines.finished > 0 => Verdict::AlreadyFinished,
            () if lines.dead > 0 => Verdict::Dead,
            () if lines.cancelled > 0 => Verdict::Cancelled,
            () if state.db.claimed() == 0 && state.db.follow.is_none() => Verdict::NotPublishedYet,
            () if open.round < ROUNDS_MAX => {
                let (phase, round) = (Phase::Locking, open.round + 1);
                state.calls[at] = Some(OpenCall { phase, round, ..open });
                return Some(());
            }
            () => Verdict::Busy,
        };
        let before = *state;
        self.answer(state, &before, index, verdict)
    }
}

/// The mark of a first attempt in flight, before it says anything.
fn new_followed(state: &State) -> Followed {
    let row = u8::try_from((state.db.claimed() | 1 << 7).trailing_zeros()).unwrap();
    Followed { row, next: None, follow: FIRST_IN_FLIGHT }
}
