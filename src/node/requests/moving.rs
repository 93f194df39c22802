//! Waits for a task that is being moved from one table to another.
//!
//! While a task moves, no statement sees it in a table, and yet the task is not final. The move
//! takes milliseconds, so the caller repeats the whole call.

use std::time::Duration;

use crate::clock;

/// The pause between two reads.
const PAUSE: Duration = Duration::from_millis(5);
/// The maximum number of reads of a task that is in a table, but cannot be removed from it.
const READS_MAX: usize = 3;

/// Counts the reads of a task that is being moved.
#[derive(Debug, Default)]
pub struct Reads {
    count: usize,
}

impl Reads {
    /// Counts one more read. Returns true when no other may follow.
    pub fn next_is_last(&mut self) -> bool {
        self.count += 1;
        self.count >= READS_MAX
    }
}

/// Waits before the next read.
pub async fn pause() {
    clock::sleep(PAUSE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moving_task_is_read_three_times() {
        let mut reads = Reads::default();
        assert_eq!([(); 3].map(|()| reads.next_is_last()), [false, false, true]);
    }
}
