//! The effects of the statements on the tables. Each statement takes effect completely or not at
//! all. Names in the comments are those of statements in `src/postgres`.

use super::decisions::is_visible;
use super::state::{
    ATTEMPTS, BATCHES, Batch, Database, Follow, Heart, Leaf, NOBODY, Progress, Rows, Set, State,
    TASKS, bit, each, row_bit, row_of, task_of,
};
use super::{Mistake, Protocol};

/// A refused settle: its follow-up has no leaf, or exists already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

impl Database {
    pub fn has_live_heart(&self, identity: u8) -> bool {
        identity != NOBODY && self.hearts[usize::from(identity)] == Heart::Alive
    }

    pub fn unsettled_of(&self, identity: u8) -> Set {
        self.batches_with(|batch| !batch.is_settled && batch.owner == identity)
    }

    pub fn batches_with(&self, is_meant: impl Fn(&Batch) -> bool) -> Set {
        (0..BATCHES)
            .filter(|batch| self.batches[*batch].rows != 0 && is_meant(&self.batches[*batch]))
            .fold(0, |all, batch| all | bit(batch))
    }

    /// Returns the rows of unsettled batches.
    pub fn claimed(&self) -> Rows {
        self.batches.iter().filter(|batch| !batch.is_settled).fold(0, |all, batch| all | batch.rows)
    }

    pub fn rows_of(&self, task: usize) -> Rows {
        ((1 << ATTEMPTS) - 1) << (task * ATTEMPTS)
    }
}

impl Protocol {
    /// Returns the rows that a statement sees.
    pub fn visible(&self, db: &Database) -> Rows {
        if is_visible(db.leaf) { db.near } else { db.near & !self.in_leaf(db) }
    }

    /// Returns the rows in the leaf whose time passes.
    pub fn in_leaf(&self, db: &Database) -> Rows {
        each(db.near)
            .filter(|row| self.decisions.is_in_leaf(db.due[*row]))
            .fold(0, |all, row| all | row_bit(row))
    }

    /// A synchronous commit also makes all earlier commits durable.
    pub fn commit(&self, state: &mut State) {
        state.undo = None;
    }

    /// `submit`: inserts a row into one of the two tables. Returns false when it has no leaf.
    pub fn insert(&self, db: &mut Database, row: usize, due: u8, is_far: bool) -> bool {
        if !is_far && db.leaf != Leaf::Attached && self.decisions.is_in_leaf(due) {
            return false;
        }
        db.due[row] = due;
        if is_far {
            db.far |= row_bit(row);
        } else {
            db.near |= row_bit(row);
        }
        true
    }

    /// `claim`: moves rows from the table into a batch.
    pub fn claim(&self, db: &mut Database, owner: u8, batch: usize, (rows, is_far): (Rows, bool)) {
        if is_far {
            db.far &= !rows;
        } else {
            db.near &= !rows;
        }
        db.batches[batch] =
            Batch { rows, owner, is_settled: false, outcomes: [Progress::Waiting; TASKS] };
    }

    /// Returns the rows that a claim of this kind would take for a node with the shards `mine`.
    pub fn claimable(&self, db: &Database, kind: usize, mine: u8) -> Rows {
        let kind = self.decisions.claims[kind];
        // A claim names its leaf, so it sees the rows of one that is not attached. No claim crosses
        // the end of a leaf.
        let rows = if kind.is_far { db.far } else { db.near };
        let is_taken = |row: &usize| {
            let is_of_shard = kind.is_for_all || mine >> (task_of(*row) % 2) & 1 == 1;
            is_of_shard && kind.dues >> db.due[*row] & 1 == 1
        };
        each(rows).filter(is_taken).fold(0, |all, row| all | row_bit(row))
    }

    /// `settle` and `settle with follow-ups`. Returns true when the batch belonged to the settler
    /// and was unsettled.
    pub fn settle(
        &self,
        db: &mut Database,
        owner: u8,
        batch: usize,
        outcomes: [Progress; TASKS],
    ) -> Result<bool, Refused> {
        let found = db.batches[batch];
        let is_own = found.owner == owner || self.is(Mistake::SettleWithoutOwner);
        let is_open = !found.is_settled || self.is(Mistake::SettleWhatIsSettled);
        if found.rows == 0 || !is_own || !is_open {
            return Ok(false);
        }
        let before = *db;
        db.batches[batch].is_settled = true;
        db.batches[batch].outcomes = outcomes;
        for row in each(found.rows) {
            let is_done = match outcomes[task_of(row)] {
                Progress::Deferred { .. } if self.is(Mistake::FollowUpOutsideTheSettle) => true,
                Progress::Deferred { maybe_sent, due } => self.follow_up(db, row, maybe_sent, due),
                outcome => self.end(db, row, outcome),
            };
            if !is_done {
                *db = before;
                return Err(Refused);
            }
        }
        Ok(true)
    }

    /// Inserts the next attempt. Returns false when it cannot be inserted.
    pub fn follow_up(&self, db: &mut Database, row: usize, maybe_sent: bool, due: u8) -> bool {
        let (task, next) = (task_of(row), row + 1);
        if (db.near | db.far) & row_bit(next) != 0 || !self.insert(db, next, due, false) {
            return false;
        }
        let before = db.follow[task].is_some_and(|follow| follow.maybe_sent)
            && !self.is(Mistake::DoubtOfAnEarlierAttemptForgotten);
        db.follow[task] =
            Some(Follow { row: u8::try_from(next).unwrap(), maybe_sent: maybe_sent || before });
        if db.entry.is_some_and(|entry| task_of(usize::from(entry)) == task) {
            db.entry = Some(u8::try_from(next).unwrap());
        }
        true
    }

    fn end(&self, db: &mut Database, row: usize, outcome: Progress) -> bool {
        let task = task_of(row);
        if outcome == Progress::Dead {
            if db.dead_letters >> task & 1 == 1 {
                return false;
            }
            db.dead_letters |= bit(task);
        }
        if row != row_of(task, 0) {
            db.follow[task] = None;
        }
        true
    }

    /// `cancel in ..` and `take out a far task`: deletes a row and writes its line.
    pub fn take_out(&self, db: &mut Database, row: usize, is_far: bool) -> bool {
        let task = task_of(row);
        let rows = if is_far { db.far } else { self.visible(db) };
        let may_go = row == row_of(task, 0)
            || db.follow[task].is_some_and(|follow| {
                usize::from(follow.row) == row
                    && (!follow.maybe_sent || self.is(Mistake::CancelTakesWhatMayBeSent))
            });
        if rows & row_bit(row) == 0 || !may_go {
            return false;
        }
        if is_far {
            db.far &= !row_bit(row);
        } else {
            db.near &= !row_bit(row);
        }
        db.cancelled[task] += 1;
        db.follow[task] = None;
        true
    }

    /// `adopt`: returns the batches that change their owner.
    pub fn adoptable(&self, db: &Database, identity: u8) -> Set {
        let is_free = |owner| {
            !db.has_live_heart(owner)
                || (self.is(Mistake::AdoptWithoutHeartbeat) && owner != identity)
        };
        db.batches_with(|batch| !batch.is_settled && is_free(batch.owner))
    }
}
