//! The actions of nodes: claim, publish, settle, adopt, move a far row.

use punctual::domain::task::feedback::{AttemptRow, Delivery, Note, Proposal, noted_row};

use super::state::{Batch, Database, Followed, Progress, ROWS, SLOTS, Settle, State, bit};
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
        let AttemptRow { attempt, is_verdict } = state.db.rows[usize::from(row)];
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
        let AttemptRow { attempt, is_verdict } = state.db.rows[row_at];
        let is_sent = state.nodes[at].progress[row_at] == Progress::Sent;
        let stays_here = is_verdict && !self.is(Mistake::VerdictRowIsPublished);
        let progress = match action {
            // With a dead topic, the record goes there. The consumers of the topic see nothing.
            Action::Verdict { .. } => {
                if !stays_here {
                    return None;
                }
                Progress::Done(Delivery::Dead)
            }
            Action::NotSent { .. } => {
                no_more(&mut state.faults.refusals)?;
                // Another node may have sent what this one did not.
                let maybe_sent = state.nodes[at].maybe_sent & bit(row) != 0;
                Progress::Done(if maybe_sent { Delivery::PerhapsSent } else { Delivery::NotSent })
            }
            Action::Unacknowledged { .. } => {
                no_more(&mut state.faults.acknowledgements)?;
                Progress::Done(Delivery::PerhapsSent)
            }
            Action::RefusedForGood { .. } => {
                no_more(&mut state.faults.refusals_for_good)?;
                Progress::Done(Delivery::Dead)
            }
            Action::Publish { .. } if stays_here => return None,
            Action::Publish { .. } => {
                state.sent |= bit(u8::try_from(attempt).unwrap() + u8::from(is_verdict));
                Progress::Sent
            }
            Action::Acknowledge { .. } if is_sent => Progress::Done(Delivery::Published),
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
            state.db.follow.is_some_and(|found| found.follow.note == Some(Note::Finished));
        let node = &mut state.nodes[usize::from(slot)];
        if batch.is_some_and(is_open) {
            node.settle = Some(Settle { row, has_upserted: false, saw_finished });
        } else {
            node.progress[usize::from(row)] = Progress::Unknown;
            node.maybe_sent &= !bit(row);
        }
        Some(())
    }

    /// The upsert of `task_follow`, which takes the lock, or waits for it.
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
        let Progress::Done(delivery) = state.nodes[at].progress[row_at] else { return None };
        let before = state.db;
        self.settle(state, settle, delivery)?;
        if state.faults.postgres > 0 {
            state.undo.get_or_insert(before);
        }
        let node = &mut state.nodes[at];
        node.settle = None;
        if is_answered {
            node.progress[row_at] = Progress::Settled(delivery);
        }
        Some(())
    }

    /// `settle tracked batches`. Returns `None` when Postgres refuses it.
    fn settle(&self, state: &mut State, settle: Settle, delivery: Delivery) -> Option<()> {
        let row_at = usize::from(settle.row);
        let row = state.db.rows[row_at];
        let attempts_max = state.attempts_max - u16::from(self.is(Mistake::OneAttemptTooFew));
        state.db.batches[row_at].as_mut()?.is_settled = true;
        let mut proposal = Proposal::new(row, delivery, attempts_max);
        self.spoil(&mut proposal, row);
        let Some(before) = state.db.follow else {
            self.goes_on(state, delivery, row);
            return self.write(state, proposal);
        };
        let is_finished = match before.follow.note == Some(Note::Finished) {
            _ if self.is(Mistake::SettleIgnoresTheMark) => false,
            _ if self.is(Mistake::SettleReadsTheMarkInItsSnapshot) => settle.saw_finished,
            is_finished => is_finished,
        };
        if is_finished {
            state.db.follow = None;
            return Some(());
        }
        self.goes_on(state, delivery, row);
        let has_note = matches!(before.follow.note, Some(Note::Failed | Note::Extended));
        if has_note && before.next.is_none() && self.is(Mistake::OldNoteIsTakenForANewOne) {
            return None;
        }
        let Some(next) = before.next else {
            proposal.follow = proposal.merged_with(before.follow);
            return self.write(state, proposal);
        };
        let mut noted = before.follow;
        noted.is_verdict &= !self.is(Mistake::FinalIsForgotten);
        let (mut contents, mut follow) = noted_row(row, noted, attempts_max);
        if self.is(Mistake::NoteIsNoEvidence) && delivery == Delivery::NotSent {
            contents = row;
        }
        if self.is(Mistake::SettleForgetsAFail) {
            follow.note = None;
        }
        if delivery == Delivery::Dead {
            if !self.is(Mistake::DeathForgetsTheNote) {
                proposal.follow = follow;
            }
            return self.write(state, proposal);
        }
        self.insert(state, next, contents);
        state.db.follow = Some(Followed { row: next, next: None, follow });
        Some(())
    }

    /// Notes what the execlog says of the attempt from now on.
    fn goes_on(&self, state: &mut State, delivery: Delivery, row: AttemptRow) {
        if matches!(delivery, Delivery::Published | Delivery::PerhapsSent) && !row.is_verdict {
            state.db.settled_attempt = state.db.settled_attempt.max(row.attempt);
        }
        state.db.was_verdict_claimed |= row.is_verdict;
    }

    /// Inserts the next row, or the final line of a task that is given up.
    fn write(&self, state: &mut State, proposal: Proposal) -> Option<()> {
        let Some(contents) = proposal.next else {
            state.db.lines.dead += 1;
            state.db.dead_attempt = proposal.follow.attempt;
            state.db.follow = None;
            return Some(());
        };
        let row = self.new_row(state)?;
        self.insert(state, row, contents);
        state.db.follow = Some(Followed { row, next: None, follow: proposal.follow });
        Some(())
    }

    /// Makes the deliberate mistake.
    fn spoil(&self, proposal: &mut Proposal, row: AttemptRow) {
        let Proposal { follow, next } = proposal;
        if self.is(Mistake::PerhapsSentIsNotCounted) && follow.is_again {
            follow.is_again = false;
            follow.attempt -= 1;
        }
        if self.is(Mistake::DeferredVerdictIsOpen) {
            follow.note = None;
        }
        if let Some(next) = next
            && self.is(Mistake::DeferralIsCounted)
            && next.attempt == row.attempt
            && !row.is_verdict
        {
            next.attempt += 1;
        }
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
                if let (true, Progress::Settled(delivery)) = (is_open, node.progress[row]) {
                    node.progress[row] = Progress::Done(delivery);
                }
            }
        }
        Some(())
    }

    /// Inserts a row into the table that the scope says.
    pub fn insert(&self, state: &mut State, row: u8, contents: AttemptRow) {
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
