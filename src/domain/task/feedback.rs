//! Feedback: decides how a consumer's call changes a tracked task, and how the settle of an attempt
//! does.
//!
//! The row of `task_follow` is the authority ([`Follow`]). A call holds the lock of the row while
//! deciding. A settle writes a [`Proposal`], which Postgres merges with the row unless the row has
//! a note about the claimed attempt. Then [`noted_row`] returns the row that the settle inserts
//! instead. docs/decisions/0025 explains the rules, and `tests/model/feedback` searches them with
//! this code.

use std::time::Duration;

use crate::domain::{Timestamp, Ttr};

/// The answer of a consumer about an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// The work is done. An attempt need not be named, because done is done.
    Finish {
        attempt: Option<u16>,
    },
    Fail {
        attempt: u16,
        is_final: bool,
    },
    /// The work takes longer.
    Extend {
        attempt: u16,
    },
}

/// The consumer's word about an attempt, as `task_follow` keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    Finished,
    Failed,
    Extended,
}

impl Note {
    /// Returns the number in `task_follow`. It is stored, so never change one.
    pub const fn code(self) -> i16 {
        match self {
            Self::Finished => 1,
            Self::Failed => 2,
            Self::Extended => 3,
        }
    }

    pub const fn of_code(code: i16) -> Option<Self> {
        match code {
            1 => Some(Self::Finished),
            2 => Some(Self::Failed),
            3 => Some(Self::Extended),
            _ => None,
        }
    }
}

/// The contents of a row of `task_follow`, without ids.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Follow {
    /// The last attempt that was published or perhaps sent. 0: none.
    pub attempt: u16,
    /// True when the current row is this same attempt once more, because it was perhaps sent.
    pub is_again: bool,
    pub note: Option<Note>,
    /// True when the note is about the claimed row, and says which row the settle is to insert.
    /// Otherwise the note is about the attempt before the pending row.
    pub has_next: bool,
    /// True when the current row is a verdict row, or when the settle is to insert one.
    pub is_verdict: bool,
}

/// A task whose first attempt is in flight, and of which `task_follow` has no row.
pub const FIRST_IN_FLIGHT: Follow =
    Follow { attempt: 0, is_again: false, note: None, has_next: false, is_verdict: false };

/// The row of an attempt, or the verdict row after the last one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AttemptRow {
    pub attempt: u16,
    pub is_verdict: bool,
}

impl AttemptRow {
    /// Returns the row that comes after `attempt`. A verdict row has the number of the last one.
    pub fn after(attempt: u16, attempts_max: u16) -> Self {
        if attempt >= attempts_max {
            Self { attempt, is_verdict: true }
        } else {
            Self { attempt: attempt.saturating_add(1), is_verdict: false }
        }
    }
}

/// Where a call has found the current row of its task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// In `task` or `task_far`.
    Pending,
    /// In neither, so it is in an unsettled batch.
    Claimed,
}

/// The answer to a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    Finished,
    /// Finished, and a record may still reach the topic.
    FinishedInFlight,
    /// Finished by the consumer of an earlier attempt.
    FinishedSuperseded,
    /// Takes effect with the settle.
    Noted,
    /// The next attempt has a due time.
    Retrying,
    /// The attempt had been failed before. Its next due time stays.
    RetryingAsBefore,
    /// The dead letter is next.
    Dying,
    Extended,
    NotPublishedYet,
    AttemptTooHigh,
    AttemptSuperseded,
    /// The attempt cannot be extended, because it was failed.
    AlreadyFailed,
    AlreadyFinished,
    /// The task is dead, or that is decided.
    Dead,
    Cancelled,
    /// The call found its task between two places in each of its rounds.
    Busy,
}

/// The changes that a call writes. The answer is true once they are committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    Nothing,
    /// Delete the pending row and the row of `task_follow`, and write the final line.
    End,
    /// Note that the claimed task is finished, and write the final line.
    Mark,
    /// Insert another row in the place of the pending one, under a new id.
    Replace {
        note: Option<Note>,
        row: AttemptRow,
    },
    /// Note which row the settle of the claimed one is to insert.
    Note {
        note: Note,
        is_verdict: bool,
    },
}

impl Effect {
    /// Returns true when the call deletes the pending row. Other calls only read the row, and never
    /// wait for its lock.
    pub fn takes_the_row(self) -> bool {
        matches!(self, Self::End | Self::Replace { .. })
    }
}

impl Follow {
    /// Returns the row of a dead letter that was redriven. `attempt` is its last one, which counts
    /// as failed.
    pub fn redriven(attempt: u16) -> Self {
        let note = (attempt > 0).then_some(Note::Failed);
        Self { attempt, note, ..FIRST_IN_FLIGHT }
    }

    /// Returns the attempt that a call must name, as things are.
    pub fn current(self, place: Place) -> u16 {
        let is_next_in_flight = place == Place::Claimed && !self.is_again;
        self.attempt.saturating_add(u16::from(is_next_in_flight))
    }

    /// Returns true when the settle of the claimed row must obey the note.
    pub fn is_noted(self) -> bool {
        self.note == Some(Note::Finished) || self.has_next
    }

    /// Decides about a call. `attempts_max` is that of the task.
    pub fn hear(self, call: Call, place: Place, attempts_max: u16) -> (Verdict, Effect) {
        let is_claimed = place == Place::Claimed;
        let is_failed = self.note == Some(Note::Failed);
        let is_finish = matches!(call, Call::Finish { .. });
        let current = self.current(place);
        let named = match call {
            Call::Finish { attempt } => attempt.unwrap_or(current),
            Call::Fail { attempt, .. } | Call::Extend { attempt } => attempt,
        };
        let refusal = match () {
            () if self.note == Some(Note::Finished) && is_finish => Verdict::Finished,
            () if self.note == Some(Note::Finished) => Verdict::AlreadyFinished,
            () if self.is_verdict && (is_claimed || is_failed) => Verdict::Dead,
            () if self.attempt == 0 && !is_claimed => Verdict::NotPublishedYet,
            () if named > current => Verdict::AttemptTooHigh,
            () if named < current && !is_finish => Verdict::AttemptSuperseded,
            () => return self.obey(call, place, (named, current), attempts_max),
        };
        (refusal, Effect::Nothing)
    }

    /// Decides about a call that is not refused.
    fn obey(
        self,
        call: Call,
        place: Place,
        (named, current): (u16, u16),
        attempts_max: u16,
    ) -> (Verdict, Effect) {
        let is_claimed = place == Place::Claimed;
        // A note without a next row is about the attempt before that in flight.
        let was_failed = self.note == Some(Note::Failed) && self.has_next == is_claimed;
        let next = AttemptRow::after(current, attempts_max);
        match call {
            Call::Finish { .. } => {
                let verdict = match () {
                    () if named < current => Verdict::FinishedSuperseded,
                    () if is_claimed || self.is_again => Verdict::FinishedInFlight,
                    () => Verdict::Finished,
                };
                (verdict, if is_claimed { Effect::Mark } else { Effect::End })
            }
            Call::Fail { is_final: false, .. } if was_failed && is_claimed => {
                (Verdict::Noted, Effect::Nothing)
            }
            Call::Fail { .. } if was_failed => (Verdict::RetryingAsBefore, Effect::Nothing),
            Call::Extend { .. } if was_failed => (Verdict::AlreadyFailed, Effect::Nothing),
            Call::Fail { is_final, .. } => {
                let is_verdict = is_final || next.is_verdict;
                if is_claimed {
                    return (Verdict::Noted, Effect::Note { note: Note::Failed, is_verdict });
                }
                let verdict = if is_verdict { Verdict::Dying } else { Verdict::Retrying };
                let row = AttemptRow { is_verdict, ..next };
                (verdict, Effect::Replace { note: Some(Note::Failed), row })
            }
            Call::Extend { .. } if is_claimed => {
                (Verdict::Noted, Effect::Note { note: Note::Extended, is_verdict: false })
            }
            Call::Extend { .. } => (Verdict::Extended, Effect::Replace { note: None, row: next }),
        }
    }
}

/// The delivery outcome of the record of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Delivery {
    Published,
    /// Deferred. The record may be in the topic.
    PerhapsSent,
    /// Deferred. The record is certainly not in the topic.
    NotSent,
    /// Given up.
    Dead,
    /// Not sent before its expiry, and given up. Unlike a dead task it leaves no dead letter.
    Expired,
}

/// The changes that the settle of a row writes, unless `task_follow` has a note about that row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proposal {
    pub follow: Follow,
    /// The row that the settle inserts, if the task goes on.
    pub next: Option<AttemptRow>,
}

impl Proposal {
    pub fn new(row: AttemptRow, delivery: Delivery, attempts_max: u16) -> Self {
        // The attempt of a verdict row is none of its own, so it must not raise that of the task.
        let attempt = match delivery {
            _ if row.is_verdict => 0,
            Delivery::Published | Delivery::PerhapsSent => row.attempt,
            Delivery::NotSent | Delivery::Dead | Delivery::Expired => row.attempt.saturating_sub(1),
        };
        let next = match delivery {
            Delivery::Published if !row.is_verdict => {
                Some(AttemptRow::after(row.attempt, attempts_max))
            }
            Delivery::PerhapsSent | Delivery::NotSent => Some(row),
            Delivery::Published | Delivery::Dead | Delivery::Expired => None,
        };
        let follow = Follow {
            attempt,
            is_again: delivery == Delivery::PerhapsSent && !row.is_verdict,
            // The record of a verdict row may be in the dead topic. Dead stays decided.
            note: row.is_verdict.then_some(Note::Failed),
            has_next: false,
            is_verdict: next.is_some_and(|next| next.is_verdict),
        };
        Self { follow, next }
    }

    /// Returns the row of `task_follow` after the settle, as its statement merges the two.
    pub fn merged_with(self, before: Follow) -> Follow {
        let proposed = self.follow;
        let is_older = proposed.attempt < before.attempt;
        let keeps_note = proposed.attempt <= before.attempt;
        Follow {
            attempt: proposed.attempt.max(before.attempt),
            is_again: proposed.is_again || before.is_again && is_older,
            note: proposed.note.or(before.note.filter(|_| keeps_note)),
            ..proposed
        }
    }
}

/// Returns the row for a failed or extended attempt, inserted by a settle, and the row of
/// `task_follow` afterwards. `row` is the claimed row, and `follow` has a note about it. A consumer
/// that has a word about an attempt has the record, whatever is known of the delivery. If the
/// record was given up, the task is dead all the same, and nothing is inserted. The dead letter has
/// the attempt of the returned [`Follow`].
pub fn noted_row(row: AttemptRow, follow: Follow, attempts_max: u16) -> (AttemptRow, Follow) {
    let is_failed = follow.note == Some(Note::Failed);
    let next = AttemptRow::after(row.attempt, attempts_max);
    let is_verdict = next.is_verdict || is_failed && follow.is_verdict;
    let follow = Follow {
        attempt: row.attempt,
        is_again: false,
        note: follow.note.filter(|_| is_failed),
        has_next: false,
        is_verdict,
    };
    (AttemptRow { is_verdict, ..next }, follow)
}

/// Returns the due time of the row after an attempt that was appended at `appended_at`, at the
/// latest, if its consumer stays silent. `wait` is the back-off. Rows are claimed a `window` ahead
/// of their due time. So without it, the attempt or the verdict would come before the deadline.
pub fn due_after_silence(
    row: AttemptRow,
    appended_at: Timestamp,
    ttr: Ttr,
    (wait, window): (Duration, Duration),
) -> Timestamp {
    let wait = if row.is_verdict { window } else { wait.max(window) };
    appended_at.plus(ttr.as_duration()).plus(wait)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AWAITING_1: Follow =
        Follow { attempt: 1, is_again: false, note: None, has_next: false, is_verdict: false };
    const FAIL_1: Call = Call::Fail { attempt: 1, is_final: false };

    #[test]
    fn a_failed_attempt_is_failed_once_however_often_it_is_said() {
        let (verdict, effect) = AWAITING_1.hear(FAIL_1, Place::Pending, 3);
        let row = AttemptRow { attempt: 2, is_verdict: false };
        assert_eq!(verdict, Verdict::Retrying);
        assert_eq!(effect, Effect::Replace { note: Some(Note::Failed), row });
        let failed = Follow { note: Some(Note::Failed), ..AWAITING_1 };
        let again = failed.hear(FAIL_1, Place::Pending, 3);
        assert_eq!(again, (Verdict::RetryingAsBefore, Effect::Nothing));
        let late = failed.hear(FAIL_1, Place::Claimed, 3);
        assert_eq!(late, (Verdict::AttemptSuperseded, Effect::Nothing));
        // In flight, no retry has a due time yet.
        let noted = Follow { has_next: true, ..failed };
        let second = Call::Fail { attempt: 2, is_final: false };
        let again = noted.hear(second, Place::Claimed, 3);
        assert_eq!(again, (Verdict::Noted, Effect::Nothing));
    }

    #[test]
    fn a_note_without_a_next_row_says_nothing_of_the_attempt_in_flight() {
        let failed = Follow { note: Some(Note::Failed), ..AWAITING_1 };
        assert!(!failed.is_noted());
        let call = Call::Fail { attempt: 2, is_final: false };
        let noted = Effect::Note { note: Note::Failed, is_verdict: false };
        assert_eq!(failed.hear(call, Place::Claimed, 3), (Verdict::Noted, noted));
        assert!(Follow { has_next: true, ..failed }.is_noted());
    }

    #[test]
    fn a_task_that_was_never_sent_cannot_be_answered_until_it_is_claimed() {
        let finish = Call::Finish { attempt: None };
        let refused = (Verdict::NotPublishedYet, Effect::Nothing);
        assert_eq!(FIRST_IN_FLIGHT.hear(finish, Place::Pending, 3), refused);
        let finished = (Verdict::FinishedInFlight, Effect::Mark);
        assert_eq!(FIRST_IN_FLIGHT.hear(finish, Place::Claimed, 3), finished);
    }

    #[test]
    fn a_record_that_was_perhaps_sent_makes_its_attempt_the_current_one() {
        let row = AttemptRow { attempt: 2, is_verdict: false };
        let after = |delivery| Proposal::new(row, delivery, 3).merged_with(AWAITING_1);
        let again = after(Delivery::PerhapsSent);
        assert_eq!((again.attempt, again.is_again), (2, true));
        let not_sent = after(Delivery::NotSent);
        assert_eq!((not_sent.attempt, not_sent.is_again), (1, false));
        let published = after(Delivery::Published);
        assert_eq!((published.attempt, published.is_again), (2, false));
        // Once more, and not sent this time: it may still be with its consumer.
        let twice = Proposal::new(row, Delivery::NotSent, 3).merged_with(again);
        assert_eq!((twice.attempt, twice.is_again), (2, true));
    }

    #[test]
    fn a_verdict_row_is_the_end_and_stays_one_while_it_is_deferred() {
        let last =
            Proposal::new(AttemptRow { attempt: 3, is_verdict: false }, Delivery::Published, 3);
        let verdict = AttemptRow { attempt: 3, is_verdict: true };
        assert_eq!(last.next, Some(verdict));
        let deferred = Proposal::new(verdict, Delivery::NotSent, 3);
        assert_eq!(deferred.next, Some(verdict));
        let follow = deferred.merged_with(last.follow);
        let finish = Call::Finish { attempt: None };
        assert_eq!(last.follow.hear(finish, Place::Pending, 3), (Verdict::Finished, Effect::End));
        for place in [Place::Pending, Place::Claimed] {
            assert_eq!(follow.hear(finish, place, 3), (Verdict::Dead, Effect::Nothing));
        }
    }

    #[test]
    fn a_final_fail_in_flight_becomes_a_verdict_row_and_uses_up_no_further_attempt() {
        let row = AttemptRow { attempt: 1, is_verdict: false };
        let call = Call::Fail { attempt: 1, is_final: true };
        let noted = Effect::Note { note: Note::Failed, is_verdict: true };
        assert_eq!(FIRST_IN_FLIGHT.hear(call, Place::Claimed, 3), (Verdict::Noted, noted));
        let note = Some(Note::Failed);
        let follow = Follow { note, has_next: true, is_verdict: true, ..FIRST_IN_FLIGHT };
        let (next, follow) = noted_row(row, follow, 3);
        assert!(next.is_verdict);
        assert_eq!(follow, Follow { note, is_verdict: true, ..AWAITING_1 });
        let deferred = Proposal::new(next, Delivery::PerhapsSent, 3).merged_with(follow);
        assert_eq!(deferred, follow);
    }

    #[test]
    fn an_attempt_stays_failed_until_the_next_one_is_perhaps_sent() {
        let row = AttemptRow { attempt: 2, is_verdict: false };
        let failed = Follow { note: Some(Note::Failed), ..AWAITING_1 };
        let note = |delivery| Proposal::new(row, delivery, 3).merged_with(failed).note;
        assert_eq!(note(Delivery::NotSent), Some(Note::Failed));
        assert_eq!(note(Delivery::PerhapsSent), None);
        assert_eq!(note(Delivery::Published), None);
    }

    #[test]
    fn no_row_can_be_claimed_before_the_deadline() {
        let appended_at = Timestamp::from_millis(1_000);
        let ttr = Ttr::new(Duration::from_secs(30)).unwrap();
        let due = |is_verdict, wait_ms| {
            let times = (Duration::from_millis(wait_ms), Duration::from_millis(200));
            let row = AttemptRow { attempt: 2, is_verdict };
            due_after_silence(row, appended_at, ttr, times).as_millis()
        };
        assert_eq!([due(false, 0), due(false, 5_000)], [31_200, 36_000]);
        assert_eq!([due(true, 0), due(true, 5_000)], [31_200, 31_200]);
    }

    #[test]
    fn a_redriven_task_counts_its_dead_attempt_as_failed() {
        let redriven = Follow::redriven(1);
        let as_before = (Verdict::RetryingAsBefore, Effect::Nothing);
        assert_eq!(redriven.hear(FAIL_1, Place::Pending, 4), as_before);
        let finish = Call::Finish { attempt: Some(1) };
        assert_eq!(redriven.hear(finish, Place::Pending, 4), (Verdict::Finished, Effect::End));
        let never_sent = Follow::redriven(0).hear(finish, Place::Pending, 4);
        assert_eq!(never_sent, (Verdict::NotPublishedYet, Effect::Nothing));
    }

    fn follow() -> impl Strategy<Value = Follow> {
        let note = prop_oneof![
            Just(None),
            Just(Some(Note::Finished)),
            Just(Some(Note::Failed)),
            Just(Some(Note::Extended)),
        ];
        (0_u16..=5, any::<bool>(), note, any::<bool>(), any::<bool>()).prop_map(
            |(attempt, is_again, note, has_next, is_verdict)| Follow {
                attempt,
                is_again,
                note,
                has_next,
                is_verdict,
            },
        )
    }

    fn call() -> impl Strategy<Value = Call> {
        prop_oneof![
            proptest::option::of(0_u16..=7).prop_map(|attempt| Call::Finish { attempt }),
            (0_u16..=7, any::<bool>())
                .prop_map(|(attempt, is_final)| Call::Fail { attempt, is_final }),
            (0_u16..=7).prop_map(|attempt| Call::Extend { attempt }),
        ]
    }

    proptest! {
        #[test]
        fn a_claimed_row_is_never_taken_and_a_pending_one_never_noted(
            follow in follow(),
            call in call(),
        ) {
            let (_, effect) = follow.hear(call, Place::Claimed, 5);
            prop_assert!(!effect.takes_the_row(), "{effect:?}");
            let (_, effect) = follow.hear(call, Place::Pending, 5);
            prop_assert!(!matches!(effect, Effect::Mark | Effect::Note { .. }), "{effect:?}");
        }

        #[test]
        fn only_the_current_attempt_is_failed_or_extended(
            follow in follow(),
            call in call(),
            is_claimed in any::<bool>(),
        ) {
            let place = if is_claimed { Place::Claimed } else { Place::Pending };
            let (_, effect) = follow.hear(call, place, 5);
            if let Call::Fail { attempt, .. } | Call::Extend { attempt } = call {
                prop_assert!(effect == Effect::Nothing || attempt == follow.current(place));
            }
        }

        #[test]
        fn a_settle_never_takes_an_attempt_back_nor_exceeds_their_number(
            follow in follow(),
            attempt in 1_u16..=5,
            is_verdict in any::<bool>(),
        ) {
            let row = AttemptRow { attempt, is_verdict };
            for delivery in [
                Delivery::Published,
                Delivery::PerhapsSent,
                Delivery::NotSent,
                Delivery::Dead,
                Delivery::Expired,
            ] {
                let proposal = Proposal::new(row, delivery, 5);
                prop_assert!(proposal.merged_with(follow).attempt >= follow.attempt);
                prop_assert!(proposal.next.is_none_or(|next| next.attempt <= 5));
            }
            prop_assert!(noted_row(row, follow, 5).0.attempt <= 5);
        }
    }
}
