//! Errors of Postgres, sorted by what to do next.

use sqlx::error::DatabaseError;
use thiserror::Error;

/// `what` says what was attempted and to what.
#[derive(Debug, Error)]
pub enum Error {
    /// The connection broke, or the answer did not come in time. **Whether the statement took
    /// effect is unknown.**
    #[error("{what}: Postgres did not answer")]
    Unanswered {
        what: String,
        #[source]
        source: Cause,
    },
    /// No connection could be opened: nothing was asked for, and nothing took effect.
    #[error("{what}: Postgres cannot be reached")]
    Unreachable {
        what: String,
        #[source]
        source: Cause,
    },
    /// The statement was rolled back for the sake of another one (deadlock, lock timeout,
    /// cancelled): it can be repeated.
    #[error("{what}: gave way to another transaction")]
    GaveWay {
        what: String,
        #[source]
        source: Cause,
    },
    /// The values were refused (classes 22, 23 and 54): it will not pass when repeated as it is.
    #[error("{what}: the values were refused")]
    BadValue {
        what: String,
        #[source]
        source: Cause,
    },
    /// Anything else: a missing right, a missing table, a full disk. Nothing took effect.
    #[error("{what}: refused")]
    Refused {
        what: String,
        #[source]
        source: Cause,
    },
}

#[derive(Debug, Error)]
pub enum Cause {
    /// In Postgres's own words. The driver's would end with a line of Postgres's source.
    #[error("{}", .0.message())]
    Server(Box<dyn DatabaseError>),
    #[error(transparent)]
    Driver(sqlx::Error),
    #[error("no answer within {0:?}")]
    Deadline(std::time::Duration),
    #[error("{0}")]
    Fact(&'static str),
}

impl From<sqlx::Error> for Cause {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(said) => Self::Server(said),
            other => Self::Driver(other),
        }
    }
}

impl Error {
    pub fn new(what: impl Into<String>, cause: Cause) -> Self {
        let what = what.into();
        let code = match &cause {
            Cause::Server(error) => error.code().map(|code| code.into_owned()),
            Cause::Driver(sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::RowNotFound) => {
                return Self::Refused { what, source: cause };
            }
            Cause::Fact(_) => return Self::Refused { what, source: cause },
            _ => None,
        };
        match code.as_deref() {
            // 57P01-57P05: the server is going down, or has crashed under us. 08: connection
            // exception. That a connection cannot be had never gets here: nothing was asked for.
            None => Self::Unanswered { what, source: cause },
            Some(code) if code.starts_with("57P") || code.starts_with("08") => Self::Unanswered { what, source: cause },
            // deadlock, serialization failure, lock timeout, statement cancelled
            Some("40P01" | "40001" | "55P03" | "57014") => Self::GaveWay { what, source: cause },
            // No partition for the row: these tables have no other checks. The row is as good as
            // any, the partition is to be made.
            Some("23514") => Self::Refused { what, source: cause },
            Some(code) if ["22", "23", "54"].iter().any(|class| code.starts_with(class)) => {
                Self::BadValue { what, source: cause }
            }
            Some(_) => Self::Refused { what, source: cause },
        }
    }

    /// True when Postgres is away, whether or not it got the statement: it will be back.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unanswered { .. } | Self::Unreachable { .. })
    }

    /// True when the statement may have taken effect all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unanswered { .. })
    }

    /// True when the statement failed for the rows that it met (values out of bounds, damaged
    /// data), so that a smaller range may pass.
    pub fn is_of_the_data(&self) -> bool {
        matches!(self, Self::BadValue { .. }) || self.code().is_some_and(|code| code.starts_with("XX"))
    }

    /// True when a row could not be inserted for another one has its key: nothing but chance makes
    /// two ids the same.
    pub fn is_of_an_id(&self) -> bool {
        self.code().as_deref() == Some("23505")
    }

    /// True when it gave way to somebody's lock.
    pub fn is_of_a_lock(&self) -> bool {
        matches!(self.code().as_deref(), Some("55P03" | "40P01"))
    }

    /// True when the server took the statement and did not come to its end in time, or was told to
    /// cancel it.
    pub fn is_slow(&self) -> bool {
        self.code().as_deref() == Some("57014") || matches!(self, Self::Unanswered { source: Cause::Deadline(_), .. })
    }

    /// The five characters of the SQLSTATE, when Postgres sent one.
    pub fn code(&self) -> Option<String> {
        let (Self::Unanswered { source, .. }
        | Self::Unreachable { source, .. }
        | Self::GaveWay { source, .. }
        | Self::BadValue { source, .. }
        | Self::Refused { source, .. }) = self;
        match source {
            Cause::Server(error) => error.code().map(|code| code.into_owned()),
            Cause::Driver(_) | Cause::Deadline(_) | Cause::Fact(_) => None,
        }
    }
}
