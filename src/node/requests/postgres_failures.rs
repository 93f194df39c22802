//! Decides what follows when Postgres fails a call: a retry, or an answer to the caller. Only this
//! module translates an error of Postgres into an answer of the service.

use std::borrow::Borrow;

use crate::error_chain::chain;
use crate::node::messages::{Refusal, Unavailable};
use crate::postgres::PostgresError;

/// The total number of tries for a call that gives way to other transactions.
const TRIES_MAX: usize = 5;
/// The maximum number of times that ids are drawn again when one is taken. More collisions cannot
/// be chance.
const DRAWS_MAX: usize = 3;

/// Counts how often a call has failed in a way that a retry may mend.
#[derive(Debug, Default)]
pub struct Tries {
    failed_count: usize,
    drawn_count: usize,
}

impl Tries {
    /// Returns true when a call that failed with `error` must be retried: it gave way, and not too
    /// often.
    pub fn again(&mut self, error: &PostgresError) -> bool {
        if !error.gave_way_to_others() {
            return false;
        }
        self.failed_count += 1;
        let is_again = self.failed_count < TRIES_MAX;
        if is_again {
            tracing::debug!(
                error = chain(error),
                tries = self.failed_count,
                "a statement gave way to another transaction; retrying"
            );
        }
        is_again
    }

    /// Returns true when a call that failed with `error` must be retried with new ids: another task
    /// has one of them, and they were not drawn too often.
    pub fn draws_again(&mut self, error: &PostgresError) -> bool {
        let is_again = error.is_duplicate_key() && self.drawn_count < DRAWS_MAX;
        if is_again {
            self.drawn_count += 1;
        }
        is_again
    }

    /// As [`Self::again`], also for an id or a row that is taken: the retry has another one.
    pub fn again_with_new_id(&mut self, error: &PostgresError) -> bool {
        if !error.is_duplicate_key() {
            return self.again(error);
        }
        self.failed_count += 1;
        self.failed_count < TRIES_MAX
    }
}

/// Makes a change, and retries when it gave way to another transaction. Returns the answer for a
/// failed change.
pub async fn retrying<T, F: Future<Output = Result<T, PostgresError>>>(
    change: impl Fn() -> F,
) -> Result<T, Unavailable> {
    let mut tries = Tries::default();
    loop {
        match change().await {
            Err(error) if tries.again(&error) => {}
            outcome => return outcome.map_err(|error| unavailable_of(&error)),
        }
    }
}

/// Returns the refusal for a task that Postgres did not store.
pub fn refusal_of(error: &PostgresError) -> Refusal {
    let reason = chain(error);
    match error {
        PostgresError::Unanswered { .. } => Refusal::Unknown { reason: reason.into() },
        PostgresError::BadValue { .. } => Refusal::BadValue { reason },
        PostgresError::Unreachable { .. }
        | PostgresError::GaveWay { .. }
        | PostgresError::Refused { .. } => Refusal::ServerAway { reason },
    }
}

/// Returns the refusal for a failed read on the way to a submit. A read changes nothing, answered
/// or not.
pub fn refusal_of_read(error: impl Borrow<PostgresError>) -> Refusal {
    Refusal::ServerAway { reason: chain(error.borrow()) }
}

/// Returns the answer for a failed change.
pub fn unavailable_of(error: &PostgresError) -> Unavailable {
    let reason = chain(error);
    if error.is_unknown() {
        Unavailable::Unknown { reason }
    } else {
        Unavailable::ServerAway { reason }
    }
}

/// Returns the answer for a failed read, which has either a result or none.
pub fn unavailable_of_read(error: impl Borrow<PostgresError>) -> Unavailable {
    Unavailable::ServerAway { reason: chain(error.borrow()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::connection::error::Cause;

    #[test]
    fn what_gave_way_is_tried_five_times_and_nothing_else_twice() {
        let what = || "store".to_owned();
        let gave_way = PostgresError::GaveWay { what: what(), source: Cause::Fact("a deadlock") };
        let mut tries = Tries::default();
        assert_eq!([(); 5].map(|()| tries.again(&gave_way)), [true, true, true, true, false]);
        let unanswered = PostgresError::Unanswered { what: what(), source: Cause::Fact("cut") };
        assert!(!Tries::default().again(&unanswered));
        assert!(!Tries::default().draws_again(&gave_way), "no id is taken");
    }
}
