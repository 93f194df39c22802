//! The name of a schedule.

use std::fmt;

use crate::domain::Timestamp;
use crate::domain::task::name::{TaskName, TaskNameError};

/// The name of a schedule, unique within its topic: 1 to 200 bytes of UTF-8 without NUL, and
/// neither `.` nor `..`. The names of its runs begin with it, and have to fit a [`TaskName`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleName(Box<str>);

/// The most bytes of a name.
const BYTES_MAX: usize = 200;

impl ScheduleName {
    /// # Errors
    /// Says what a name may be.
    pub fn new(name: &str) -> Result<Self, String> {
        if name.len() > BYTES_MAX {
            return Err(format!(
                "the name of a schedule may have {BYTES_MAX} bytes at most, but this one has {}",
                name.len()
            ));
        }
        TaskName::new(name).map_err(|error| error.to_string())?;
        Ok(Self(name.into()))
    }

    /// Wraps a name checked before it was stored.
    pub fn stored(name: &str) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of the run at an instant, such as `nightly@2026-12-01T01:30:00Z`.
    ///
    /// # Errors
    /// When the instant is beyond the calendar, so that its text is too long.
    pub fn of_run(&self, at: Timestamp) -> Result<TaskName, TaskNameError> {
        TaskName::new(&format!("{}@{at}", self.0))
    }
}

impl fmt::Display for ScheduleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_leaves_room_for_the_instant_of_a_run() {
        let longest = ScheduleName::new(&"n".repeat(BYTES_MAX)).unwrap();
        let last = Timestamp::from_millis(253_370_764_800_999);
        assert!(longest.of_run(last).unwrap().as_str().ends_with("@9999-01-01T00:00:00.999Z"));
        let error = ScheduleName::new(&"n".repeat(BYTES_MAX + 1)).unwrap_err();
        assert!(error.contains("200 bytes at most, but this one has 201"), "{error}");
    }

    #[test]
    fn a_name_that_no_task_can_have_is_refused() {
        for name in ["", ".", "..", "a\0b"] {
            assert!(ScheduleName::new(name).is_err(), "{name:?}");
        }
        assert_eq!(ScheduleName::new("a/b c").unwrap().as_str(), "a/b c");
    }
}
