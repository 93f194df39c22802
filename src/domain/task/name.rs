//! The name of a task: the submitter's idempotency key.

use std::fmt;

use thiserror::Error;

/// A task name (your idempotency key), unique within its topic. A name has 1 to 255 bytes of UTF-8
/// without NUL (Postgres cannot store NUL in a text), and is neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskName(Box<str>);

const BYTES_MAX: usize = 255;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TaskNameError {
    #[error("a name may not be empty")]
    Empty,
    #[error("a name may have {BYTES_MAX} bytes at most, but this one has {0}")]
    TooLong(usize),
    #[error("a name may not contain the character NUL")]
    Nul,
    #[error(
        "'.' and '..' are not allowed as names: in a path they mean a folder, and clients remove \
         them"
    )]
    Dots,
}

impl TaskName {
    pub fn new(name: &str) -> Result<Self, TaskNameError> {
        match name.len() {
            0 => Err(TaskNameError::Empty),
            length if length > BYTES_MAX => Err(TaskNameError::TooLong(length)),
            _ if name.contains('\0') => Err(TaskNameError::Nul),
            // The WHATWG URL standard normalises both away, so usual clients could not reach such a
            // task by its name.
            _ if matches!(name, "." | "..") => Err(TaskNameError::Dots),
            _ => Ok(Self(name.into())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_in_bytes() {
        assert!(TaskName::new(&"ä".repeat(127)).is_ok());
        assert_eq!(TaskName::new(&"ä".repeat(128)), Err(TaskNameError::TooLong(256)));
        assert_eq!(TaskName::new(""), Err(TaskNameError::Empty));
        assert_eq!(TaskName::new("a\0b"), Err(TaskNameError::Nul));
    }

    #[test]
    fn segments_that_urls_leave_out_are_no_names() {
        for name in [".", ".."] {
            assert_eq!(TaskName::new(name), Err(TaskNameError::Dots));
        }
        for name in ["...", ".a", "../a", "./", "%2e", ".\u{200b}"] {
            assert!(TaskName::new(name).is_ok(), "{name}");
        }
    }
}
