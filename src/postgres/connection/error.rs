//! Errors of Postgres, sorted by how the caller should react.

use az::SaturatingAs as _;
use sqlx::error::DatabaseError;
use thiserror::Error;

/// An error of Postgres. `what` names the attempt and its object.
#[derive(Debug, Error)]
pub enum PostgresError {
    /// The connection broke, or the answer did not come in time. **The statement may or may not
    /// have taken effect.**
    #[error("{what}: Postgres did not answer")]
    Unanswered {
        what: String,
        #[source]
        source: Cause,
    },
    /// No connection could be opened, or the server is a standby, which refuses every change. No
    /// change took effect.
    #[error("{what}: Postgres is unreachable")]
    Unreachable {
        what: String,
        #[source]
        source: Cause,
    },
    /// The statement was rolled back: in favour of another one (deadlock, lock timeout), or because
    /// it was too slow or cancelled. The caller can repeat it.
    #[error("{what}: took no effect")]
    GaveWay {
        what: String,
        #[source]
        source: Cause,
    },
    /// The values were refused (classes 22, 23 and 54). The same statement with the same values
    /// will fail again.
    #[error("{what}: the values were refused")]
    BadValue {
        what: String,
        #[source]
        source: Cause,
    },
    /// Any other error: a missing right, a missing table, a full disk. No change took effect,
    /// unless the answer of a committed statement could not be decoded.
    #[error("{what}: refused")]
    Refused {
        what: String,
        #[source]
        source: Cause,
    },
}

#[derive(Debug, Error)]
pub enum Cause {
    /// The message of Postgres. The driver's message would end with a line of Postgres's source.
    #[error("{}", .0.message())]
    Server(Box<dyn DatabaseError>),
    #[error(transparent)]
    Driver(sqlx::Error),
    #[error("no answer within {0:?}")]
    Deadline(std::time::Duration),
    #[error("{0}")]
    Fact(&'static str),
    #[error(transparent)]
    Rows(RowsDiffer),
    /// None of several hosts is the primary, each for its reason.
    #[error("no host is the primary: {0}")]
    NoPrimary(String),
}

impl From<sqlx::Error> for Cause {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(said) => Self::Server(said),
            sqlx::Error::Decode(error) => match error.downcast::<RowsDiffer>() {
                Ok(rows) => Self::Rows(*rows),
                Err(error) => Self::Driver(sqlx::Error::Decode(error)),
            },
            other => Self::Driver(other),
        }
    }
}

/// A statement met another number of rows than it had to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("met {met} rows instead of {wanted}")]
pub struct RowsDiffer {
    met: u64,
    wanted: u64,
}

/// Returns the error of a statement that met another number of rows than it had to.
pub(in crate::postgres) fn rows_differ(met: u64, wanted: u64) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(RowsDiffer { met, wanted }))
}

/// Returns true for an error of [`rows_differ`].
pub(in crate::postgres) fn is_rows_differ(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Decode(error) if error.is::<RowsDiffer>())
}

/// Checks the number of rows that a statement met.
///
/// # Errors
/// When it is not the wanted number.
pub(in crate::postgres) fn check_count(met: u64, wanted: usize) -> Result<(), sqlx::Error> {
    let wanted = wanted.saturating_as::<u64>();
    if met == wanted { Ok(()) } else { Err(rows_differ(met, wanted)) }
}

impl PostgresError {
    pub fn new(what: impl Into<String>, cause: Cause) -> Self {
        let what = what.into();
        let code = match &cause {
            Cause::Server(error) => error.code().map(|code| code.into_owned()),
            Cause::Driver(
                sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::Encode(_)
                | sqlx::Error::RowNotFound,
            ) => {
                return Self::Refused { what, source: cause };
            }
            Cause::Fact(_) | Cause::Rows(_) => return Self::Refused { what, source: cause },
            _ => None,
        };
        match code.as_deref() {
            // A change on a standby: this server was the primary, or the address has yet to follow
            // it. Sessions switch `default_transaction_read_only` off, so there is no other cause.
            Some("25006") => Self::Unreachable { what, source: cause },
            // 57P01-57P05: the server is shutting down, or has crashed during the statement. 08:
            // connection exception. A failure to connect never gets here: no statement was sent.
            None => Self::Unanswered { what, source: cause },
            Some(code) if code.starts_with("57P") || code.starts_with("08") => {
                Self::Unanswered { what, source: cause }
            }
            // Deadlock, serialization failure, lock timeout, statement cancelled.
            Some("40P01" | "40001" | "55P03" | "57014") => Self::GaveWay { what, source: cause },
            // No partition for the row: these tables have no other checks. The row is valid, and
            // its partition must be created.
            Some("23514") => Self::Refused { what, source: cause },
            Some(code) if ["22", "23", "54"].iter().any(|class| code.starts_with(class)) => {
                Self::BadValue { what, source: cause }
            }
            Some(_) => Self::Refused { what, source: cause },
        }
    }

    /// True when Postgres is away, whether or not it received the statement. A retry makes sense.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unanswered { .. } | Self::Unreachable { .. })
    }

    /// True when the statement may have taken effect despite the error.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unanswered { .. })
    }

    /// True when the session ended under the statement: not when the answer was only late.
    pub(super) fn is_end_of_session(&self) -> bool {
        matches!(self, Self::Unanswered { source, .. } if !matches!(source, Cause::Deadline(_)))
    }

    /// True when the statement failed because of its rows (values out of range, damaged data). A
    /// smaller range may succeed.
    pub fn is_bad_data(&self) -> bool {
        matches!(self, Self::BadValue { .. })
            || self.code().is_some_and(|code| code.starts_with("XX"))
    }

    /// True when some rows of the statement may have caused the error, and not the others: bad or
    /// damaged data, a wrong number of rows, or the lock of another transaction.
    pub fn may_be_of_some_rows(&self) -> bool {
        let is_of_answer = matches!(
            self,
            Self::Refused {
                source: Cause::Rows(_)
                    | Cause::Driver(sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)),
                ..
            }
        );
        is_of_answer || self.is_bad_data() || matches!(self, Self::GaveWay { .. })
    }

    /// True when the statement met another number of rows than it had to.
    pub(in crate::postgres) fn is_wrong_row_count(&self) -> bool {
        matches!(self, Self::Refused { source: Cause::Rows(_), .. })
    }

    /// True when a row could not be inserted because another row has its key. Two ids are the same
    /// only by chance.
    pub fn is_duplicate_key(&self) -> bool {
        self.code().as_deref() == Some("23505")
    }

    /// True when another session has created the same table at the same time. The error may be
    /// about the table, its type, or a row of the catalog.
    pub(in crate::postgres) fn is_concurrent_create(&self) -> bool {
        matches!(self.code().as_deref(), Some("23505" | "42P07" | "42710"))
    }

    /// True when the statement gave way to a lock.
    pub fn is_lock_conflict(&self) -> bool {
        matches!(self.code().as_deref(), Some("55P03" | "40P01"))
    }

    /// True when the statement took no effect because another transaction was in its way: a repeat
    /// may succeed at once. Not for one that was too slow or cancelled: its repeat would only load
    /// the server again.
    pub fn gave_way_to_others(&self) -> bool {
        matches!(self, Self::GaveWay { .. }) && !self.is_slow()
    }

    /// True when the server's disk had no room for the statement.
    pub fn is_disk_full(&self) -> bool {
        self.code().as_deref() == Some("53100")
    }

    /// True when the server accepted the statement but did not finish it in time, or was told to
    /// cancel it.
    pub fn is_slow(&self) -> bool {
        self.code().as_deref() == Some("57014")
            || matches!(self, Self::Unanswered { source: Cause::Deadline(_), .. })
    }

    /// Returns the five characters of the SQLSTATE, when Postgres sent one.
    pub fn code(&self) -> Option<String> {
        let (Self::Unanswered { source, .. }
        | Self::Unreachable { source, .. }
        | Self::GaveWay { source, .. }
        | Self::BadValue { source, .. }
        | Self::Refused { source, .. }) = self;
        match source {
            Cause::Server(error) => error.code().map(|code| code.into_owned()),
            Cause::Driver(_)
            | Cause::Deadline(_)
            | Cause::Fact(_)
            | Cause::Rows(_)
            | Cause::NoPrimary(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_chain::chain;

    #[test]
    fn a_failed_check_of_rows_is_refused_and_tells_both_numbers() {
        assert!(check_count(4, 4).is_ok());
        let error = check_count(3, 4).unwrap_err();
        assert!(is_rows_differ(&error));
        let error = PostgresError::new("settle", error.into());
        assert!(error.is_wrong_row_count() && !error.is_away() && !error.is_bad_data());
        assert!(error.may_be_of_some_rows());
        assert_eq!(chain(&error), "settle: refused: met 3 rows instead of 4");
    }

    #[test]
    fn a_missing_row_and_damaged_values_fail_no_check_of_rows() {
        for error in [sqlx::Error::RowNotFound, sqlx::Error::Decode("not a time".into())] {
            assert!(!is_rows_differ(&error));
            let is_of_answer = matches!(error, sqlx::Error::Decode(_));
            let error = PostgresError::new("settle", error.into());
            assert!(matches!(error, PostgresError::Refused { .. }) && !error.is_wrong_row_count());
            assert_eq!(error.may_be_of_some_rows(), is_of_answer);
        }
    }
}
