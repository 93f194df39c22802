//! Waits for a task that is being moved from one table to another.
//!
//! While a task moves, no statement sees it in a table, and yet the task is not final. The move
//! takes milliseconds, so the caller repeats the whole call.

use std::time::Duration;

use crate::clock;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// The maximum number of looks at a task that is in a table, but cannot be removed from it.
const LOOKS_MAX: usize = 3;

/// Counts the looks at a task that is being moved.
#[derive(Debug, Default)]
pub struct Looks {
    count: usize,
}

impl Looks {
    /// Counts a look. Returns true when no other look may follow.
    pub fn is_last(&mut self) -> bool {
        self.count += 1;
        self.count >= LOOKS_MAX
    }
}

/// Waits before the next look.
pub async fn pause() {
    clock::sleep(PAUSE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moving_task_is_looked_at_three_times() {
        let mut looks = Looks::default();
        assert_eq!([(); 3].map(|()| looks.is_last()), [false, false, true]);
    }
}
