//! The way in of whatever is measured. Here is Punctual's; what it is compared with brings its own.

use std::future::Future;

use crate::bench::ledger::{Planned, Reply};

/// Something that takes tasks.
pub trait Intake: Send + Sync + 'static {
    type Lane: Lane;

    /// Opens one more way in; all of them are used at once.
    fn open(&self, number: usize) -> impl Future<Output = Result<Self::Lane, String>> + Send;
}

/// One way in: a connection.
pub trait Lane: Send + 'static {
    /// Submits `tasks` in one call.
    ///
    /// # Errors
    /// In words, when no answer came: the tasks may be stored.
    fn submit(&mut self, tasks: &[Planned]) -> impl Future<Output = Result<Answered, String>> + Send;
}

/// What a call was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    All,
    /// Task by task, with the first that was not accepted in words.
    Some(Vec<Reply>, String),
    None(String),
}

impl Answered {
    pub fn reply(&self, index: usize) -> Reply {
        match self {
            Self::All => Reply::Accepted,
            Self::Some(replies, _) => replies.get(index).copied().unwrap_or_default(),
            Self::None(_) => Reply::Refused,
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Some(_, reason) | Self::None(reason) => Some(reason),
        }
    }
}
