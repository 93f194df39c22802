//! Divides a group that is committed together, so one item does not fail the others.
//!
//! A statement fails as a whole: for one value that is refused, or for one row that another
//! transaction has locked. The caller then halves the group until the cause is alone.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;

use crate::domain::Monotonic;
use crate::postgres::PostgresError;

/// The course of a group after the failure of one of its pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFailure {
    /// The items of the piece are tried again.
    Retried,
    /// Only this piece has failed. Others go on.
    PieceFailed,
    /// The other pieces are not tried: they would fail as well, or time is up.
    AllFailed,
}

/// The pieces of a group that are still to be committed, as ranges of its items.
#[derive(Debug)]
pub struct Pieces {
    waiting: VecDeque<Range<usize>>,
    until: Monotonic,
}

impl Pieces {
    /// Begins with a group of `count` items as one piece. Waiting for locks ends at `until`.
    pub fn new(count: usize, until: Monotonic) -> Self {
        Self { waiting: iter::once(0..count).collect(), until }
    }

    /// Takes the next piece. There is none when all items are done.
    pub fn take(&mut self) -> Option<Range<usize>> {
        self.waiting.pop_front()
    }

    /// Returns true when the group has waited for the locks of others for long enough.
    pub fn is_late(&self, now: Monotonic) -> bool {
        now >= self.until
    }

    /// Decides about a piece that failed. A piece that gave way to another transaction comes again,
    /// by halves, until time is up.
    pub fn fail(
        &mut self,
        piece: &Range<usize>,
        error: &PostgresError,
        now: Monotonic,
    ) -> AfterFailure {
        if !error.may_be_of_some_rows() || self.is_late(now) {
            return AfterFailure::AllFailed;
        }
        if piece.len() > 1 || matches!(error, PostgresError::GaveWay { .. }) {
            self.halve(piece.clone());
            return AfterFailure::Retried;
        }
        AfterFailure::PieceFailed
    }

    /// Puts the halves of a failed piece behind the other pieces, which are not held up and come
    /// first. A piece of one item comes again as it is.
    pub fn halve(&mut self, piece: Range<usize>) {
        let middle = piece.start + piece.len() / 2;
        let halves = [piece.start..middle, middle..piece.end];
        self.waiting.extend(halves.into_iter().filter(|half| !half.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::postgres::connection::error::Cause;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    /// Commits all pieces, and fails those containing `bad`. Returns the committed pieces in order,
    /// and the number of tries.
    fn commit_without(bad: usize, count: usize) -> (Vec<Range<usize>>, usize) {
        let (mut pieces, mut done, mut tries) = (Pieces::new(count, at(3)), Vec::new(), 0);
        while let Some(piece) = pieces.take() {
            tries += 1;
            match piece.contains(&bad) {
                false => done.push(piece),
                true if piece.len() > 1 => pieces.halve(piece),
                true => {}
            }
        }
        (done, tries)
    }

    #[test]
    fn one_bad_item_fails_alone_and_within_few_tries() {
        assert_eq!(commit_without(5, 8), (vec![0..4, 6..8, 4..5], 7));
        for bad in [0, 1, 499, 998, 999] {
            let (done, tries) = commit_without(bad, 1000);
            let count: usize = done.iter().map(ExactSizeIterator::len).sum();
            assert!(count == 999 && tries <= 21, "{bad}: {count} of 999 in {tries} tries");
            assert!(done.iter().all(|piece| !piece.contains(&bad)), "{bad}");
        }
    }

    #[test]
    fn one_item_comes_again_as_it_is_until_time_is_up() {
        let mut pieces = Pieces::new(1, at(3));
        for _ in 0..3 {
            assert_eq!(pieces.take(), Some(0..1));
            pieces.halve(0..1);
        }
        assert!(!pieces.is_late(at(2)) && pieces.is_late(at(3)));
    }

    #[test]
    fn only_what_may_be_of_some_rows_is_tried_again_and_until_time_is_up() {
        let what = || "cancel".to_owned();
        let rows = PostgresError::new(what(), sqlx::Error::Decode("damaged".into()).into());
        let gave_way = PostgresError::GaveWay { what: what(), source: Cause::Fact("a lock") };
        let refused = PostgresError::Refused { what: what(), source: Cause::Fact("a full disk") };
        let away = PostgresError::Unanswered { what: what(), source: Cause::Fact("cut") };
        for (error, of_many, of_one) in [
            (&rows, AfterFailure::Retried, AfterFailure::PieceFailed),
            (&gave_way, AfterFailure::Retried, AfterFailure::Retried),
            (&refused, AfterFailure::AllFailed, AfterFailure::AllFailed),
            (&away, AfterFailure::AllFailed, AfterFailure::AllFailed),
        ] {
            let mut pieces = Pieces::new(4, at(3));
            let after = [0..4, 0..1].map(|piece| pieces.fail(&piece, error, at(2)));
            assert_eq!(after, [of_many, of_one], "{error}");
            assert_eq!(pieces.fail(&(0..4), error, at(3)), AfterFailure::AllFailed, "{error}");
        }
    }

    #[test]
    fn the_other_pieces_come_before_the_halves_of_a_failed_one() {
        let mut pieces = Pieces::new(4, at(3));
        pieces.halve(0..2);
        let order: Vec<_> = iter::from_fn(|| pieces.take()).collect();
        assert_eq!(order, [0..4, 0..1, 1..2]);
    }
}
