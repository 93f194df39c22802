//! The rule for the place of a new task.

use std::time::Duration;

use crate::domain::Timestamp;

/// The destination of a new task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// `task`: due within the attached leaves.
    Near,
    /// `task_far`: due beyond the last leaf.
    Far,
    /// A batch of the node, at once: due within the window.
    Claimed,
}

/// The placing rule for one group of tasks.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Tasks due up to this time are within the window.
    soon: Timestamp,
    /// Leaves are attached up to here.
    end: Timestamp,
}

impl Rule {
    pub fn new(now: Timestamp, window: Duration, end: Timestamp) -> Self {
        Self { soon: now.plus(window), end }
    }

    /// Returns the destination of a task. `may_claim` tells whether the node has room and its topic
    /// is available; it is only called for tasks due within the window.
    pub fn place_of(&self, due_at: Timestamp, may_claim: impl FnOnce() -> bool) -> Destination {
        if due_at <= self.soon && may_claim() {
            Destination::Claimed
        } else {
            self.table_of(due_at)
        }
    }

    /// Returns the table of a task not claimed on insert.
    pub fn table_of(&self, due_at: Timestamp) -> Destination {
        if due_at < self.end { Destination::Near } else { Destination::Far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_the_window_it_is_claimed_within_the_leaves_it_is_near_and_beyond_them_it_is_far() {
        let at = Timestamp::from_millis;
        let sorter = Rule::new(at(1_000), Duration::from_millis(200), at(5_000));
        let places = |may_claim| {
            [0, 1_200, 1_201, 4_999, 5_000].map(|due_at| sorter.place_of(at(due_at), || may_claim))
        };
        assert_eq!(
            places(true),
            [
                Destination::Claimed,
                Destination::Claimed,
                Destination::Near,
                Destination::Near,
                Destination::Far
            ]
        );
        assert_eq!(
            places(false),
            [
                Destination::Near,
                Destination::Near,
                Destination::Near,
                Destination::Near,
                Destination::Far
            ]
        );
    }
}
