//! The interface for submits to the measured program. Punctual's implementation is in the crate;
//! the other programs have their own.

use std::future::Future;

use crate::bench::ledger::{Planned, Reply};

/// A program that accepts tasks.
pub trait LoadTarget: Send + Sync + 'static {
    type Connection: LoadConnection;

    /// Opens one more connection. All connections are used at the same time.
    fn open(&self, number: usize) -> impl Future<Output = Result<Self::Connection, String>> + Send;
}

/// One connection to the program.
pub trait LoadConnection: Send + 'static {
    /// Submits `tasks` in one call.
    ///
    /// # Errors
    /// Returns the reason as text when no answer came. The tasks may be stored.
    fn submit(
        &mut self,
        tasks: &[Planned],
    ) -> impl Future<Output = Result<CallResult, String>> + Send;
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    All,
    /// The answer for each task, and the reason for the first that was not accepted.
    Some(Vec<Reply>, String),
    None(String),
}

impl CallResult {
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
