//! What is overdue.

use super::Timestamp;

/// Tasks that are due and in no batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// In leaves and in the far table; of each a bounded number is counted.
    pub task_count: u64,
    /// False when there are more than were counted.
    pub is_exact: bool,
    pub oldest_due_at: Option<Timestamp>,
}
