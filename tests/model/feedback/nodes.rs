//! The actions of nodes: claim, publish, settle, adopt, move a far row.

use super::state::{
    Batch, Database, Follow, Note, Outcome, Progress, ROWS, Row, SLOTS, Settle, State, bit,
};
use super::{Action, FINISHED_IS_OVER, Feedback, HEARD_IS_OVER, Mistake, no_more};

impl Feedback {
    pub fn node_actions(&self, state: &State, slot: u8, actions: &mut Vec<Action>) {
        let node = &state.nodes[usize::from(slot)];
        actions.push(Action::Claim { slot });
        actions.push(Action::Adopt { slot });
        match node.settle {
            Some(settle) if settle.has_upserted => actions.extend([
                Action::SettleEnds { slot },
                Action::SettleUnanswered { slot },
                Action::SettleAborted { slot },
            ]),
            Some(_) => {
                actions.extend([Action::SettleUpserts { slot }, Action::SettleAborted { slot }])
            }
            None => {}
        }
        for row in 0..ROWS as u8 {
            match node.progress[usize::from(row)] {
                Progress::Waiting => actions.extend([
                    Action::Publish { slot, row },
                    Action::Unacknowledged { slot, row },
                    Action::NotSent { slot, row },
                    Action::RefusedForGood { slot, row },
                    Action::Verdict { slot, row },
                ]),
                Progress::Sent => actions.extend([
                    Action::Acknowledge { slot, row },
                    Action::Unacknowledged { slot, row },
                ]),
                Progress::Done(_) if node.settle.is_none() => {
                    actions.push(Action::SettleBegins { slot, row });
                }
                Progress::Done(_) | Progress::Settled(_) | Progress::Unknown => {}
            }
        }
    }

    pub fn node_step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Claim { slot } => self.claim(state, slot),
            Action::Adopt { slot } => self.adopt(state, slot),
            Action::SettleBegins { slot, row } => self.settle_begins(state, slot, row),
            Action::SettleUpserts { slot } => self.settle_upserts(state, slot),
            Action::SettleEnds { slot } => self.settle_ends(state, slot, true),
            Action::SettleUnanswered { slot } => {
                no_more(&mut state.faults.answers)?;
                self.settle_ends(state, slot, false)
            }
            Action::SettleAborted { slot } => {
                no_more(&mut state.faults.answers)?;
                state.nodes[usize::from(slot)].settle = None;
                Some(())
            }
            Action::Publish { slot, row }
            | Action::Acknowledge { slot, row }
            | Action::Unacknowledged { slot, row }
            | Action::NotSent { slot, row }
            | Action::RefusedForGood { slot, row }
            | Action::Verdict { slot, row } => self.deliver(state, action, slot, row),
            _ => None,
        }
    }

    /// `claim`: one statement. A locked row is waited for, or left to the next claim.
    fn claim(&self, state: &mut State, slot: u8) -> Option<()> {
        let rows = state.db.pending();
        let row = (0..ROWS as u8).find(|row| rows & bit(*row) != 0)?;
        if self.is_row_locked(state, row, None) {
            return None;
        }
        if state.is_finished {
            state.broken = Some(FINISHED_IS_OVER);
        }
        let Row { attempt, is_verdict } = state.db.rows[usize::from(row)];
        if !is_verdict && attempt <= state.heard {
            state.broken = Some(HEARD_IS_OVER);
        }
        self.take_out(state, row);
        state.db.batches[usize::from(row)] = Some(Batch { owner: slot, is_settled: false });
        state.nodes[usize::from(slot)].progress[usize::from(row)] = Progress::Waiting;
        state.undo = None;
        Some(())
    }

    /// A record goes to the topic, and something is learnt of it.
    fn deliver(&self, state: &mut State, action: Action, slot: u8, row: u8) -> Option<()> {
        let (at, row_at) = (usize::from(slot), usize::from(row));
        let Row { attempt, is_verdict } = state.db.rows[row_at];
        let is_sent = state.nodes[at].progress[row_at] == Progress::Sent;
        let stays_here = is_verdict && !self.is(Mistake::VerdictRowIsPublished);
        let progress = match action {
            // With a dead topic, the record goes there. The consumers of the topic see nothing.
            Action::Verdict { .. } => {
                if !stays_here {
                    return None;
                }
                Progress::Done(Outcome::Dead)
            }
            Action::NotSent { .. } => {
                no_more(&mut state.faults.refusals)?;
                let maybe_sent = state.nodes[at].maybe_sent & bit(row) != 0;
                Progress::Done(Outcome::Deferred { maybe_sent })
            }
            Action::Unacknowledged { .. } => {
                no_more(&mut state.faults.acknowledgements)?;
                Progress::Done(Outcome::Deferred { maybe_sent: true })
            }
            Action::RefusedForGood { .. } => {
                no_more(&mut state.faults.refusals_for_good)?;
                Progress::Done(Outcome::Dead)
            }
            Action::Publish { .. } if stays_here => return None,
            Action::Publish { .. } => {
                state.sent |= bit(attempt + u8::from(is_verdict));
                Progress::Sent
            }
            Action::Acknowledge { .. } if is_sent => Progress::Done(Outcome::Published),
            _ => return None,
        };
        state.nodes[at].progress[row_at] = progress;
        Some(())
    }

    /// The update of the batch's row, which takes its lock. Nothing follows if the batch is another
    /// node's or is settled.
    fn settle_begins(&self, state: &mut State, slot: u8, row: u8) -> Option<()> {
        let is_locked = state.nodes.iter().any(|node| is_settling(node.settle, row));
        if is_locked {
            return None;
        }
        let batch = state.db.batches[usize::from(row)];
        let is_open = |batch: Batch| {
            batch.owner == slot && (!batch.is_settled || self.is(Mistake::FollowUpTwice))
        };
        let saw_finished =
            state.db.follow.is_some_and(|follow| follow.note == Some(Note::Finished));
        let node = &mut state.nodes[usize::from(slot)];
        if batch.is_some_and(is_open) {
            node.settle = Some(Settle { row, has_upserted: false, saw_finished });
        } else {
            node.progress[usize::from(row)] = Progress::Unknown;
            node.maybe_sent &= !bit(row);
        }
        Some(())
    }

    /// The upsert of `task_follow`, which takes its lock, or waits for it.
    fn settle_upserts(&self, state: &mut State, slot: u8) -> Option<()> {
        if self.is_follow_locked(state, None) {
            return None;
        }
        let settle = &mut state.nodes[usize::from(slot)].settle;
        settle.as_mut()?.has_upserted = true;
        Some(())
    }

    /// The entry of the name, and the commit.
    fn settle_ends(&self, state: &mut State, slot: u8, is_answered: bool) -> Option<()> {
        let at = usize::from(slot);
        if self.scope.is_named && self.is_name_locked(state) {
            return None;
        }
        let settle = state.nodes[at].settle?;
        let row_at = usize::from(settle.row);
        let Progress::Done(outcome) = state.nodes[at].progress[row_at] else { return None };
        let before = state.db;
        self.settle(state, settle, outcome)?;
        if state.faults.postgres > 0 {
            state.undo.get_or_insert(before);
        }
        let node = &mut state.nodes[at];
        node.settle = None;
        if is_answered {
            node.progress[row_at] = Progress::Settled(outcome);
        }
        Some(())
    }

    /// `settle tracked batches`. Returns `None` when Postgres refuses it.
    fn settle(&self, state: &mut State, settle: Settle, outcome: Outcome) -> Option<()> {
        let row_at = usize::from(settle.row);
        let Row { attempt, is_verdict } = state.db.rows[row_at];
        let mut follow = state.db.follow.unwrap_or(Follow {
            row: settle.row,
            attempt: 0,
            is_again: false,
            note: None,
            next: None,
            is_verdict,
        });
        state.db.batches[row_at].as_mut()?.is_settled = true;
        let is_finished = match follow.note == Some(Note::Finished) {
            _ if self.is(Mistake::SettleIgnoresTheMark) => false,
            _ if self.is(Mistake::SettleReadsTheMarkInItsSnapshot) => settle.saw_finished,
            is_finished => is_finished,
        };
        if is_finished {
            state.db.follow = None;
            return Some(());
        }
        let (maybe_sent, is_deferred) = match outcome {
            Outcome::Dead => {
                state.db.lines.dead += 1;
                state.db.follow = None;
                return Some(());
            }
            Outcome::Published => (true, false),
            Outcome::Deferred { maybe_sent } => (maybe_sent, true),
        };
        if maybe_sent && !is_verdict {
            state.db.settled_attempt = state.db.settled_attempt.max(attempt);
        }
        state.db.was_verdict_claimed |= is_verdict;
        let has_note = matches!(follow.note, Some(Note::Failed | Note::Extended));
        if has_note && follow.next.is_none() && self.is(Mistake::OldNoteIsTakenForANewOne) {
            return None;
        }
        let is_noted = has_note && follow.next.is_some();
        let row = follow.next.or_else(|| self.new_row(state))?;
        let is_evidence = is_noted && !self.is(Mistake::NoteIsNoEvidence);
        if is_evidence || !is_deferred {
            // A consumer that has an opinion has the record.
            let is_failed = is_noted && follow.note == Some(Note::Failed);
            let is_final = is_failed && follow.is_verdict && !self.is(Mistake::FinalIsForgotten);
            let too_few = u8::from(self.is(Mistake::OneAttemptTooFew));
            let is_verdict = is_final || attempt + too_few == self.scope.attempts_max;
            let next = (attempt + 1).min(self.scope.attempts_max);
            self.insert(state, row, Row { attempt: next, is_verdict });
            let keeps = is_failed && !self.is(Mistake::SettleForgetsAFail);
            let note = keeps.then_some(Note::Failed);
            follow = Follow { row, attempt, is_again: false, note, next: None, is_verdict };
        } else {
            let counted = u8::from(self.is(Mistake::DeferralIsCounted));
            self.insert(state, row, Row { attempt: attempt + counted, is_verdict });
            follow.row = row;
            follow.is_verdict = is_verdict;
            if is_verdict && !self.is(Mistake::DeferredVerdictIsOpen) {
                follow.note = Some(Note::Failed);
            } else if !is_verdict && maybe_sent && !self.is(Mistake::PerhapsSentIsNotCounted) {
                follow = Follow { attempt, is_again: true, note: None, ..follow };
            }
        }
        state.db.follow = Some(follow);
        Some(())
    }

    /// `adopt`, which skips locked batches.
    fn adopt(&self, state: &mut State, slot: u8) -> Option<()> {
        no_more(&mut state.faults.adoptions)?;
        let free = state.db.batches_with(|batch| !batch.is_settled && batch.owner != slot);
        let row = (0..ROWS as u8).find(|row| free & bit(*row) != 0)?;
        if state.nodes.iter().any(|node| is_settling(node.settle, row)) {
            return None;
        }
        state.db.batches[usize::from(row)] = Some(Batch { owner: slot, is_settled: false });
        let node = &mut state.nodes[usize::from(slot)];
        node.progress[usize::from(row)] = Progress::Waiting;
        node.maybe_sent |= bit(row);
        state.undo = None;
        Some(())
    }

    /// Postgres comes back as it was at the last synchronous commit. All transactions are gone.
    pub fn postgres_crash(&self, state: &mut State) -> Option<()> {
        no_more(&mut state.faults.postgres)?;
        state.db = state.undo.take()?;
        state.is_moving = false;
        state.calls = [None; super::state::CALLS];
        for slot in 0..SLOTS {
            let node = &mut state.nodes[slot];
            node.settle = None;
            for row in 0..ROWS {
                let is_open = state.db.batches[row]
                    .is_some_and(|batch| !batch.is_settled && usize::from(batch.owner) == slot);
                // The settle is repeated from memory.
                if let (true, Progress::Settled(outcome)) = (is_open, node.progress[row]) {
                    node.progress[row] = Progress::Done(outcome);
                }
            }
        }
        Some(())
    }

    /// Inserts a row into the table that the scope says.
    pub fn insert(&self, state: &mut State, row: u8, contents: Row) {
        let db: &mut Database = &mut state.db;
        db.rows[usize::from(row)] = contents;
        if self.scope.is_far {
            db.far |= bit(row);
        } else {
            db.near |= bit(row);
        }
    }

    pub fn take_out(&self, state: &mut State, row: u8) {
        state.db.far &= !bit(row);
        state.db.near &= !bit(row);
    }

    /// Returns an id that nothing refers to.
    pub fn new_row(&self, state: &State) -> Option<u8> {
        let known = super::known(state);
        (0..ROWS as u8).find(|row| known & bit(*row) == 0)
    }
}

fn is_settling(settle: Option<Settle>, row: u8) -> bool {
    settle.is_some_and(|settle| settle.row == row)
}
