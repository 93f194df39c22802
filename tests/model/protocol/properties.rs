//! The properties that must hold in every state.

use super::Protocol;
use super::moves::is_claimed_since;
use super::state::{Database, Progress, Property, State, TASKS, each};

pub const IN_ONE_PLACE: &str = "never lost: each accepted task is in exactly one place: a table, \
                                an unsettled batch, or one final line";
pub const CLAIMED_ONCE: &str = "never two claims of one task";
pub const CANCELLED_UNSENT: &str = "a cancelled task is never published";
pub const FROM_A_CLAIM: &str =
    "a record is handed over only from a committed claim: an unsettled batch of its node";
pub const ONE_FINAL_LINE: &str = "each task ends in exactly one final line";
pub const DUPLICATES: &str = "a duplicate only after a lost acknowledgement or a declared death";
pub const TRUE_VERDICT: &str = "a cancel says too late only when it was";
pub const REPLACED_BY: &str =
    "what was replaced is cancelled, and what is in its place was accepted";
pub const TRUE_RECEIPT: &str = "what is settled as published is in the topic";
pub const MOVED_UNSENT: &str = "a moved task is not in the topic before its new row is claimed";
pub const EXPIRED_UNSENT: &str = "an expired task is never published";
pub const NOT_AFTER_EXPIRY: &str = "no record is handed over after its expiry";
pub const ONE_OF_A_NAME: &str = "a name has one live task";
pub const IN_BOUNDS: &str = "the bounds of the model are wide enough";

/// Returns the number of final lines of a task in the execlog.
pub fn final_lines(db: &Database, task: usize) -> u32 {
    let is_final = |batch: &&super::Batch| {
        batch.is_settled
            && batch.rows & db.rows_of(task) != 0
            && matches!(
                batch.outcomes[task],
                Progress::Published | Progress::Dead | Progress::Expired
            )
    };
    u32::try_from(db.batches.iter().filter(is_final).count()).unwrap()
        + u32::from(db.cancelled[task])
}

/// Returns the number of rows and batches that still contain a task.
fn pending_places(db: &Database, task: usize) -> u32 {
    let rows = db.rows_of(task);
    let claimed: u32 = db
        .batches
        .iter()
        .filter(|batch| !batch.is_settled)
        .map(|batch| (batch.rows & rows).count_ones())
        .sum();
    (db.far & rows).count_ones() + (db.near & rows).count_ones() + claimed
}

impl Protocol {
    pub fn broken_property(&self, state: &State) -> Option<&'static str> {
        let db = &state.db;
        match state.broken {
            Some(Property::NotClaimed) => return Some(FROM_A_CLAIM),
            Some(Property::TooLate) => return Some(NOT_AFTER_EXPIRY),
            Some(Property::UntrueVerdict) => return Some(TRUE_VERDICT),
            Some(Property::OutOfBounds) => return Some(IN_BOUNDS),
            None => {}
        }
        let (mut all, mut twice) = (0, 0);
        for batch in &db.batches {
            twice |= all & batch.rows;
            all |= batch.rows;
        }
        if twice != 0 {
            return Some(CLAIMED_ONCE);
        }
        for task in each(u16::from(state.accepted)) {
            let (lines, pending) = (final_lines(db, task), pending_places(db, task));
            if lines > 1 {
                return Some(ONE_FINAL_LINE);
            }
            if db.cancelled[task] > 0 && state.sent[task] > 0 {
                return Some(CANCELLED_UNSENT);
            }
            let successor = db.replaced_by[task];
            if successor != 0 && (db.cancelled[task] != 1 || state.accepted >> successor & 1 == 0) {
                return Some(REPLACED_BY);
            }
            if lines + pending != 1 {
                return Some(IN_ONE_PLACE);
            }
            if state.sent[task] > 1 && state.excused >> task & 1 == 0 {
                return Some(DUPLICATES);
            }
            let is_settled_as = |outcome| {
                db.batches.iter().any(|batch| {
                    batch.is_settled
                        && batch.rows & db.rows_of(task) != 0
                        && batch.outcomes[task] == outcome
                })
            };
            if is_settled_as(Progress::Published) && state.sent[task] == 0 {
                return Some(TRUE_RECEIPT);
            }
            if is_settled_as(Progress::Expired) && state.sent[task] > 0 {
                return Some(EXPIRED_UNSENT);
            }
        }
        if state.moved_to != 0 && state.sent[0] > 0 && !is_claimed_since(db, state.moved_to) {
            return Some(MOVED_UNSENT);
        }
        let is_live = |task: &usize| pending_places(db, *task) > 0;
        (self.scope.is_named && (0..TASKS).filter(is_live).count() > 1).then_some(ONE_OF_A_NAME)
    }
}
