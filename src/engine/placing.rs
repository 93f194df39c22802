//! Where a new task goes.

use std::time::Duration;

use crate::domain::Timestamp;

/// Where a new task goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Due within the leaves.
    Near,
    /// Due beyond the last leaf.
    Far,
    /// Due within the window: straight into a batch of this node.
    Claimed,
}

/// What decides about the tasks of one group.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What is due up to here is within the window.
    soon: Timestamp,
    /// Leaves are attached up to here.
    end: Timestamp,
}

impl Rule {
    pub fn new(now: Timestamp, window: Duration, end: Timestamp) -> Self {
        Self { soon: now.plus(window), end }
    }

    /// `may_claim`: whether this node has room and takes records of the task's topic; asked only of what is due within the window.
    pub fn place_of(&self, due_at: Timestamp, may_claim: impl FnOnce() -> bool) -> Place {
        if due_at <= self.soon && may_claim() { Place::Claimed } else { self.table_of(due_at) }
    }

    /// The table that a task belongs in when it is not claimed.
    pub fn table_of(&self, due_at: Timestamp) -> Place {
        if due_at < self.end { Place::Near } else { Place::Far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_the_window_it_is_claimed_within_the_leaves_it_is_near_and_beyond_them_it_is_far() {
        let at = Timestamp::from_millis;
        let sorter = Rule::new(at(1_000), Duration::from_millis(200), at(5_000));
        let places = |may_claim| [0, 1_200, 1_201, 4_999, 5_000].map(|due_at| sorter.place_of(at(due_at), || may_claim));
        assert_eq!(places(true), [Place::Claimed, Place::Claimed, Place::Near, Place::Near, Place::Far]);
        assert_eq!(places(false), [Place::Near, Place::Near, Place::Near, Place::Near, Place::Far]);
    }
}
