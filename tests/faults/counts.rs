//! Counts the requests and the tasks of a run.

use super::history::{MoveVerdict, Outcome, Verdict};
use super::oracle::Case;

#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    pub asked: usize,
    pub accepted: usize,
    pub replaced: usize,
    pub refused: usize,
    pub unknown: usize,
    /// Submits and replacements that were committed at the doors beside REST.
    pub committed: usize,
    /// The number of unknown submits that turned out to be stored.
    pub unknown_stored: usize,
    pub cancels: usize,
    pub cancelled: usize,
    pub too_late: usize,
    pub cancels_unknown: usize,
    pub moves: usize,
    pub moved: usize,
    pub moves_unknown: usize,
    /// PUTs whose condition did not hold.
    pub kept: usize,
    /// Accepted tracked tasks.
    pub tracked: usize,
    pub calls: usize,
    pub calls_refused: usize,
    pub calls_unknown: usize,
    pub records: usize,
    pub published: usize,
    pub withdrawn: usize,
    pub finished: usize,
    pub expired: usize,
    /// Runs of schedules.
    pub runs: usize,
    pub dead: usize,
    /// Dead tasks whose consumers did not finish them.
    pub exhausted: usize,
    pub pending: usize,
    /// Tasks published according to their receipt, in a topic deleted before the consumer reached
    /// them.
    pub by_receipt: usize,
}

impl Case<'_> {
    /// Counts the requests and their answers.
    pub(super) fn count(&mut self) {
        let counts = &mut self.found.counts;
        for submit in &self.history.submits {
            counts.asked += 1;
            match &submit.outcome {
                Outcome::Accepted { has_replaced, .. } => {
                    counts.accepted += 1;
                    counts.tracked += usize::from(submit.tracked.is_some());
                    counts.replaced += usize::from(*has_replaced);
                }
                Outcome::Known { .. } => {}
                Outcome::Kept { .. } => counts.kept += 1,
                Outcome::Committed => {
                    counts.committed += 1;
                    counts.tracked += usize::from(submit.tracked.is_some());
                }
                Outcome::TooLate { .. } | Outcome::Refused { .. } => counts.refused += 1,
                Outcome::Unknown { .. } => counts.unknown += 1,
            }
        }
        for cancel in &self.history.cancels {
            counts.cancels += 1;
            match cancel.verdict {
                Verdict::Cancelled { .. } => counts.cancelled += 1,
                Verdict::TooLate { .. } => counts.too_late += 1,
                Verdict::Unknown { .. } => counts.cancels_unknown += 1,
                Verdict::Replaced { .. } | Verdict::NotFound | Verdict::Refused { .. } => {}
            }
        }
        for one in &self.history.moves {
            counts.moves += 1;
            counts.moved += usize::from(matches!(one.verdict, MoveVerdict::Moved { .. }));
            counts.moves_unknown += usize::from(matches!(one.verdict, MoveVerdict::Unknown { .. }));
        }
        for call in &self.history.calls {
            counts.calls += 1;
            counts.calls_refused += usize::from(!call.may_count());
            counts.calls_unknown += usize::from(call.may_count() && !call.counts());
        }
        counts.records = self.history.records.len();
    }
}
