//! What follows when Postgres fails a call: another try, or what the caller is told. The only place
//! where one of its errors becomes a word of the service.

use crate::error_chain::chain;
use crate::node::messages::{Refusal, Unavailable};
use crate::postgres::Error;

/// What gives way to other transactions is tried so often in all.
const TRIES_MAX: usize = 5;

/// How often a call has given way to other transactions.
#[derive(Debug, Default)]
pub struct Tries {
    gave_way_count: usize,
}

impl Tries {
    /// True when what failed with `error` is to be tried again: it gave way, and not too often.
    pub fn again(&mut self, error: &Error) -> bool {
        if !matches!(error, Error::GaveWay { .. }) {
            return false;
        }
        self.gave_way_count += 1;
        let is_again = self.gave_way_count < TRIES_MAX;
        if is_again {
            tracing::debug!(
                error = chain(error),
                tries = self.gave_way_count,
                "it gave way to another transaction, and is tried again"
            );
        }
        is_again
    }
}

/// What the submitter of a task is told when Postgres did not store it.
pub fn refusal_of(error: &Error) -> Refusal {
    let reason = chain(error);
    match error {
        Error::Unanswered { .. } => Refusal::Unknown { reason },
        Error::BadValue { .. } => Refusal::BadValue { reason },
        Error::Unreachable { .. } | Error::GaveWay { .. } | Error::Refused { .. } => Refusal::ServerAway { reason },
    }
}

/// The same of a look on the way to a submit: it changes nothing, answered or not.
pub fn refusal_of_look(error: &Error) -> Refusal {
    Refusal::ServerAway { reason: chain(error) }
}

/// What is told of a change that failed.
pub fn trouble_of(error: &Error) -> Unavailable {
    let reason = chain(error);
    if error.is_unknown() { Unavailable::Unknown { reason } } else { Unavailable::ServerAway { reason } }
}

/// What is told of a look that failed: it has either an answer or none.
pub fn trouble_of_look(error: &Error) -> Unavailable {
    Unavailable::ServerAway { reason: chain(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::connection::error::Cause;

    #[test]
    fn what_gave_way_is_tried_five_times_and_nothing_else_twice() {
        let what = || "store".to_owned();
        let gave_way = Error::GaveWay { what: what(), source: Cause::Fact("a deadlock") };
        let mut tries = Tries::default();
        assert_eq!([(); 5].map(|()| tries.again(&gave_way)), [true, true, true, true, false]);
        let unanswered = Error::Unanswered { what: what(), source: Cause::Fact("cut") };
        assert!(!Tries::default().again(&unanswered));
    }
}
