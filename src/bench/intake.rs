//! The way in of whatever is measured. Here is Punctual's; what it is compared with brings its own.

use std::future::Future;

use super::ledger::Planned;

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
    /// Task by task, with the first refusal in words.
    Some(Vec<bool>, String),
    None(String),
}

impl Answered {
    pub fn is_accepted(&self, index: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(accepted, _) => accepted.get(index).copied().unwrap_or(false),
            Self::None(_) => false,
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Some(_, reason) | Self::None(reason) => Some(reason),
        }
    }
}
