//! Conditions on the task that a name stands for.

use crate::domain::{TaskId, Timestamp};

/// The tasks of a name for which a change by the name takes effect, and the tasks for which none
/// does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Precondition {
    pub must_be: Option<TaskSet>,
    pub must_not_be: Option<TaskSet>,
    /// The condition for a replacement to cancel a pending task.
    pub when: Option<When>,
}

/// When a new task may take the place of a pending one that can still be cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Never.
    Absent,
    /// If the new task is due earlier.
    Earlier,
    /// If the new task is due later.
    Later,
}

impl When {
    pub const ALL: [Self; 3] = [Self::Absent, Self::Earlier, Self::Later];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Earlier => "earlier",
            Self::Later => "later",
        }
    }

    /// Returns true when a task that is due at `new` may replace one that is due at `current`.
    pub fn allows(self, new: Timestamp, current: Timestamp) -> bool {
        match self {
            Self::Absent => false,
            Self::Earlier => new < current,
            Self::Later => new > current,
        }
    }
}

/// A set of tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TaskSet {
    /// Every existing task.
    Any,
    These(Vec<TaskId>),
}

impl TaskSet {
    fn holds(&self, task: TaskId) -> bool {
        match self {
            Self::Any => true,
            Self::These(tasks) => tasks.contains(&task),
        }
    }
}

impl Precondition {
    /// Returns true when the precondition allows every task.
    pub const fn is_none(&self) -> bool {
        self.must_be.is_none() && self.must_not_be.is_none()
    }

    /// Returns true when a change may take effect while the name stands for `current`. `None` means
    /// that it stands for no task.
    pub fn allows(&self, current: Option<TaskId>) -> bool {
        let is_in = |tasks: &TaskSet| current.is_some_and(|task| tasks.holds(task));
        self.must_be.as_ref().is_none_or(is_in) && !self.must_not_be.as_ref().is_some_and(is_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Shard, Timestamp};

    #[test]
    fn an_equal_due_time_is_neither_earlier_nor_later() {
        let at = Timestamp::from_millis;
        let allowed = |when: When| [1, 2, 3].map(|new| when.allows(at(new), at(2)));
        assert_eq!(
            When::ALL.map(allowed),
            [[false, false, false], [true, false, false], [false, false, true]]
        );
    }

    #[test]
    fn a_precondition_is_about_the_task_that_the_name_stands_for() {
        let id =
            |random| TaskId::new(Timestamp::from_millis(1_896_082_200_000), Shard::new(3), random);
        let these = || Some(TaskSet::These(vec![id(1), id(2)]));
        let (any, none) = (|| Some(TaskSet::Any), || Some(TaskSet::These(Vec::new())));
        // Required tasks, excluded tasks, and three results: for no task, for one of those tasks,
        // and for another task.
        for (must_be, must_not_be, wanted) in [
            (None, None, [true, true, true]),
            (any(), None, [false, true, true]),
            (these(), None, [false, true, false]),
            (none(), None, [false, false, false]),
            (None, any(), [true, false, false]),
            (None, these(), [true, false, true]),
            (None, none(), [true, true, true]),
            (any(), these(), [false, false, true]),
            (any(), any(), [false, false, false]),
        ] {
            let precondition = Precondition { must_be, must_not_be, when: None };
            assert_eq!(
                [None, Some(id(2)), Some(id(3))].map(|current| precondition.allows(current)),
                wanted,
                "{precondition:?}"
            );
        }
        assert!(Precondition::default().is_none());
        assert!(!Precondition { must_be: none(), ..Precondition::default() }.is_none());
    }
}
