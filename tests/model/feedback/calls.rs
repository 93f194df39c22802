//! The calls of consumers: finish, fail and extend. Each step is one statement. A call locks in the
//! order of all transactions: `task_follow`, the row of the task, the entry of the name.

use super::state::{Ask, Call, Follow, Note, Phase, Place, Row, State, What, bit};
use super::table::{Cell, Verdict, cell_of, verdict_of};
use super::{BROKEN_TABLE, Feedback, Mistake};

/// The number of times that a call begins with transaction 1.
const ROUNDS_MAX: u8 = 3;

/// The writes of a call, which commit together with its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    Nothing,
    /// The pending row is deleted, and the task is finished.
    End,
    /// The claimed task is finished. Its settle finds the mark.
    Mark,
    /// The pending row is deleted, and another one inserted.
    Replace {
        note: Option<Note>,
        is_verdict: bool,
    },
    /// The settle of the claimed row is to insert another row than its own.
    Note {
        note: Note,
        is_verdict: bool,
    },
}

impl Effect {
    fn takes_the_row(self) -> bool {
        matches!(self, Self::End | Self::Replace { .. })
    }
}

impl Feedback {
    pub fn begin(&self, state: &mut State, index: u8, ask: Ask) -> Option<()> {
        state.calls_left = state.calls_left.checked_sub(1)?;
        state.calls[usize::from(index)] =
            Some(Call { ask, phase: Phase::Locking, round: 1, seen: None });
        Some(())
    }

    pub fn look(&self, state: &mut State, index: u8) -> Option<()> {
        let call = state.calls[usize::from(index)]?;
        let turn_to = |state: &mut State, phase| {
            state.calls[usize::from(index)] = Some(Call { phase, ..call });
            Some(())
        };
        match call.phase {
            Phase::Locking => match self.lock(state, index)? {
                Some(follow) if self.goes_without_lock(state, index) => {
                    let (phase, seen) = (Phase::LookingFar, Some(follow));
                    state.calls[usize::from(index)] = Some(Call { phase, seen, ..call });
                    Some(())
                }
                Some(_) => turn_to(state, Phase::LookingFar),
                None if self.is(Mistake::NoCheckAfterTheMark) => turn_to(state, Phase::Asking),
                None => turn_to(state, Phase::Marking),
            },
            Phase::LookingFar => {
                let follow = call.seen.or(state.db.follow)?;
                if state.db.far & bit(follow.row) == 0 {
                    return turn_to(state, Phase::LookingNear);
                }
                if self.decide(follow, Place::Far, call.ask).1.takes_the_row()
                    && self.is_row_locked(state, follow.row, Some(index))
                {
                    let waits = self.is(Mistake::FarAndNearInOneStatement);
                    return if waits { turn_to(state, Phase::LookingOld) } else { None };
                }
                self.found(state, index, Place::Far)
            }
            Phase::LookingOld => {
                let row = state.db.follow?.row;
                if self.is_row_locked(state, row, Some(index)) {
                    return None;
                }
                let is_far = state.db.far & bit(row) != 0;
                self.found(state, index, if is_far { Place::Far } else { Place::Claimed })
            }
            Phase::LookingNear => {
                let follow = call.seen.or(state.db.follow)?;
                if state.db.near & bit(follow.row) == 0 {
                    return self.found(state, index, Place::Claimed);
                }
                if self.decide(follow, Place::Near, call.ask).1.takes_the_row()
                    && self.is_row_locked(state, follow.row, Some(index))
                {
                    return None;
                }
                self.found(state, index, Place::Near)
            }
            Phase::Naming(place) => self.finish_up(state, index, place),
            Phase::Marking => self.mark(state, index),
            Phase::Asking => {
                if state.db.claimed() == 0 {
                    return turn_to(state, Phase::Seeking);
                }
                if self.is(Mistake::NoCheckAfterTheMark) {
                    return turn_to(state, Phase::Marking);
                }
                self.found(state, index, Place::New)
            }
            Phase::Seeking => self.seek(state, index),
        }
    }

    /// `lock tasks to finish`. Returns the committed row, or `None` when there is none. A row that
    /// another transaction has inserted and not committed is not seen.
    fn lock(&self, state: &State, index: u8) -> Option<Option<Follow>> {
        let Some(follow) = state.db.follow else { return Some(None) };
        if self.is(Mistake::LockOnlyWhatMayBeSent) && follow.attempt == 0 && follow.note.is_none() {
            return Some(None);
        }
        if self.is_follow_locked(state, Some(index)) && !self.goes_without_lock(state, index) {
            return None;
        }
        Some(Some(follow))
    }

    pub fn goes_without_lock(&self, state: &State, index: u8) -> bool {
        self.is(Mistake::FinishWithoutLock)
            && state.calls[usize::from(index)].is_some_and(|call| call.ask.what == What::Finish)
    }

    /// Goes on to the entry of the name, or commits.
    fn found(&self, state: &mut State, index: u8, place: Place) -> Option<()> {
        let call = state.calls[usize::from(index)]?;
        let changes_the_name =
            self.scope.is_named && self.decided(state, call, place).1 != Effect::Nothing;
        // Without the lock, there is time between the last look and the mark.
        if changes_the_name || call.seen.is_some() {
            state.calls[usize::from(index)] = Some(Call { phase: Phase::Naming(place), ..call });
            return Some(());
        }
        self.finish_up(state, index, place)
    }

    fn decided(&self, state: &State, call: Call, place: Place) -> (Verdict, Effect) {
        match call.seen.or(state.db.follow) {
            Some(follow) => self.decide(follow, place, call.ask),
            None => self.decide(new_follow(state), place, call.ask),
        }
    }

    /// Writes what the call decides, commits and answers.
    fn finish_up(&self, state: &mut State, index: u8, place: Place) -> Option<()> {
        let call = state.calls[usize::from(index)]?;
        if call.seen.is_some() && self.is_follow_locked(state, Some(index)) {
            return None;
        }
        let (verdict, effect) = self.decided(state, call, place);
        let changes_the_name = effect != Effect::Nothing || self.is(Mistake::NameIsAlwaysLocked);
        if self.scope.is_named && changes_the_name && self.is_name_locked(state) {
            return None;
        }
        let mut follow = state.db.follow.unwrap_or_else(|| new_follow(state));
        let before = *state;
        match effect {
            Effect::Nothing => {}
            Effect::End => {
                self.take_out(state, follow.row);
                state.db.lines.finished += 1;
                state.db.follow = None;
            }
            Effect::Mark => {
                follow.note = Some(Note::Finished);
                follow.next = None;
                state.db.lines.finished += 1;
                state.db.follow = Some(follow);
            }
            Effect::Replace { note, is_verdict } => {
                self.take_out(state, follow.row);
                let row = self.new_row(state)?;
                let attempt = (follow.attempt + 1).min(self.scope.attempts_max);
                self.insert(state, row, Row { attempt, is_verdict });
                let is_again = false;
                state.db.follow =
                    Some(Follow { row, is_again, note, next: None, is_verdict, ..follow });
            }
            Effect::Note { note, is_verdict } => {
                let next = follow.next.or_else(|| self.new_row(state));
                state.db.follow = Some(Follow { note: Some(note), next, is_verdict, ..follow });
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
        let Ask { what, attempt } = state.calls[usize::from(index)].take()?.ask;
        let cell = cell_of(before);
        let expected = verdict_of(cell, Ask { what, attempt }, self.scope.attempts_max);
        if expected != verdict {
            state.broken = Some(BROKEN_TABLE);
            return Some(());
        }
        self.meet(cell, what, attempt, verdict);
        let current = match cell {
            Cell::InFlight(attempt) | Cell::PerhapsSent(attempt) | Cell::Awaiting(attempt) => {
                attempt
            }
            _ => 0,
        };
        match what {
            What::Finish => {
                state.is_finished |= matches!(
                    verdict,
                    Verdict::Finished | Verdict::FinishedInFlight | Verdict::FinishedSuperseded
                );
            }
            What::Fail { is_final }
                if matches!(verdict, Verdict::Noted | Verdict::Retrying | Verdict::Dying) =>
            {
                state.heard = state.heard.max(current);
                state.failed = state.failed.max(current);
                state.is_dead_said |= is_final || current == self.scope.attempts_max;
            }
            What::Extend if matches!(verdict, Verdict::Noted | Verdict::Extended) => {
                state.heard = state.heard.max(current);
            }
            What::Fail { .. } | What::Extend => {}
        }
        Some(())
    }

    /// Transaction 2: `insert .. on conflict do nothing`. The statement waits for another
    /// transaction that has inserted or changed the row, and not for one that has locked it.
    fn mark(&self, state: &mut State, index: u8) -> Option<()> {
        let at = usize::from(index);
        let call = state.calls[at]?;
        if self.is_follow_written(state, Some(index)) {
            return None;
        }
        if state.db.follow.is_some() {
            let is_last = call.round == ROUNDS_MAX;
            let phase = if is_last { Phase::Seeking } else { Phase::Locking };
            state.calls[at] = Some(Call { phase, round: call.round + u8::from(!is_last), ..call });
            return Some(());
        }
        if self.is(Mistake::NoCheckAfterTheMark) {
            return self.found(state, index, Place::New);
        }
        state.calls[at] = Some(Call { phase: Phase::Asking, ..call });
        Some(())
    }

    /// Looks up a task that is in no unsettled batch, as transaction 2 has seen it.
    fn seek(&self, state: &mut State, index: u8) -> Option<()> {
        let at = usize::from(index);
        let call = state.calls[at]?;
        let verdict = match (state.db.lines, call.ask.what) {
            (lines, What::Finish) if lines.finished > 0 => Verdict::Finished,
            (lines, _) if lines.finished > 0 => Verdict::AlreadyFinished,
            (lines, _) if lines.dead > 0 => Verdict::IsDead,
            (lines, _) if lines.cancelled > 0 => Verdict::IsCancelled,
            _ if state.db.claimed() == 0 && state.db.follow.is_none() => Verdict::NotPublishedYet,
            _ if call.round < ROUNDS_MAX => {
                state.calls[at] =
                    Some(Call { phase: Phase::Locking, round: call.round + 1, ..call });
                return Some(());
            }
            _ => Verdict::Busy,
        };
        let before = *state;
        self.answer(state, &before, index, verdict)
    }

    /// Decides about a call by the locked row of `task_follow` and the place of the task's row.
    fn decide(&self, follow: Follow, place: Place, ask: Ask) -> (Verdict, Effect) {
        let is_claimed = matches!(place, Place::Claimed | Place::New);
        let is_noted = follow.next.is_some();
        let is_failed = follow.note == Some(Note::Failed);
        let nothing = |verdict| (verdict, Effect::Nothing);
        match (follow.note, ask.what) {
            (Some(Note::Finished), What::Finish) => return nothing(Verdict::Finished),
            (Some(Note::Finished), _) => return nothing(Verdict::AlreadyFinished),
            _ => {}
        }
        if follow.is_verdict && (is_claimed || is_failed) {
            return nothing(Verdict::IsDead);
        }
        if follow.attempt == 0 && !is_claimed {
            return nothing(Verdict::NotPublishedYet);
        }
        let is_next_in_flight = is_claimed && !follow.is_again;
        let current = follow.attempt + u8::from(is_next_in_flight);
        if ask.attempt > current {
            return nothing(Verdict::AttemptTooHigh);
        }
        let is_old = ask.attempt != 0 && ask.attempt < current;
        let counts = !is_old || self.is(Mistake::OldFailCounts);
        let is_last = current == self.scope.attempts_max;
        match ask.what {
            What::Finish => {
                let verdict = match () {
                    () if is_old => Verdict::FinishedSuperseded,
                    () if is_claimed || follow.is_again => Verdict::FinishedInFlight,
                    () => Verdict::Finished,
                };
                (verdict, if is_claimed { Effect::Mark } else { Effect::End })
            }
            _ if !counts => nothing(Verdict::AttemptSuperseded),
            // A note without a next row is about the attempt before that in flight.
            What::Fail { .. } if is_failed && is_noted == is_claimed => {
                nothing(Verdict::RetryingAsBefore)
            }
            What::Extend if is_failed && is_noted == is_claimed => nothing(Verdict::AlreadyFailed),
            What::Fail { is_final } => {
                let is_verdict = is_final || is_last;
                if is_claimed {
                    return (Verdict::Noted, Effect::Note { note: Note::Failed, is_verdict });
                }
                let verdict = if is_verdict { Verdict::Dying } else { Verdict::Retrying };
                (verdict, Effect::Replace { note: Some(Note::Failed), is_verdict })
            }
            What::Extend if is_claimed => {
                (Verdict::Noted, Effect::Note { note: Note::Extended, is_verdict: false })
            }
            What::Extend => {
                (Verdict::Extended, Effect::Replace { note: None, is_verdict: is_last })
            }
        }
    }
}

/// The mark of a first attempt in flight, before it says anything.
fn new_follow(state: &State) -> Follow {
    let row = u8::try_from((state.db.claimed() | 1 << 7).trailing_zeros()).unwrap();
    Follow { row, attempt: 0, is_again: false, note: None, next: None, is_verdict: false }
}
