//! Searches the scopes of feedback, and tests the checker with deliberate mistakes.

use std::collections::BTreeSet;

use super::scopes::{self, Scope};
use super::{
    ATTEMPTS_MAX, BROKEN_TABLE, CANCELLED_UNSENT, COUNTED, DEAD_IN_TIME, FINISHED_IS_OVER,
    Feedback, HEARD_IS_OVER, IN_ONE_PLACE, KINDS, Mistake, ONE_FINAL_LINE, ONE_OF_A_NAME,
};
use crate::checker::NEVER_LOST;
use crate::searches::{ScopeSearches, unnoticed};

/// The number of states of each scope. A change shows that an action was lost from the model, or
/// added to it.
const STATES: [(&str, usize); 11] = [
    ("calls in turn", 219_582),
    ("three attempts", 92_543),
    ("one attempt", 74_018),
    ("calls at once", 733_991),
    ("adopted while called", 844_253),
    ("unanswered settles and calls", 231_301),
    ("far rows and calls", 293_254),
    ("a cancel and calls", 591_274),
    ("a replacement and calls", 529_034),
    ("undone settles and calls", 49_499),
    ("redriven", 316_593),
];

/// The number of different cells of the table that some call met: the state of the task with the
/// current attempt, the call with its attempt, and the verdict.
const CELLS: usize = 212;

#[test]
fn every_call_gets_the_verdict_of_the_table_and_every_tracked_task_can_end_from_everywhere() {
    assert_eq!(
        scopes::all().iter().map(|scope| scope.name).collect::<Vec<_>>(),
        STATES.map(|(name, _)| name)
    );
    let (mut searches, mut met) = (ScopeSearches::begin(), BTreeSet::new());
    for (scope, expected) in scopes::all().into_iter().zip(STATES) {
        let model = Feedback::new(scope, None);
        searches.search(&model, expected);
        met.extend(model.met.into_inner().unwrap());
    }
    searches.end(&KINDS);
    assert_eq!(met.len(), CELLS, "the cells that were met are {met:#?}");
}

/// A mistake, its scope, and the broken property.
type Control = (Mistake, fn() -> Scope, &'static str);

const CONTROLS: [Control; 22] = [
    (Mistake::FinishWithoutLock, scopes::one_finish, FINISHED_IS_OVER),
    (Mistake::LockOnlyWhatMayBeSent, scopes::one_finish, BROKEN_TABLE),
    (Mistake::FarAndNearInOneStatement, scopes::far, FINISHED_IS_OVER),
    (Mistake::SettleIgnoresTheMark, scopes::one_finish, FINISHED_IS_OVER),
    (Mistake::SettleReadsTheMarkInItsSnapshot, scopes::one_finish, FINISHED_IS_OVER),
    (Mistake::SettleForgetsAFail, scopes::calls_in_turn, BROKEN_TABLE),
    (Mistake::OldNoteIsTakenForANewOne, scopes::calls_in_turn, NEVER_LOST),
    (Mistake::NoCheckAfterTheMark, scopes::one_finish, ONE_FINAL_LINE),
    (Mistake::FollowUpTwice, scopes::one_finish, IN_ONE_PLACE),
    (Mistake::VerdictRowIsPublished, scopes::one_finish, ATTEMPTS_MAX),
    (Mistake::OldFailCounts, scopes::calls_in_turn, BROKEN_TABLE),
    (Mistake::PerhapsSentIsNotCounted, scopes::calls_in_turn, BROKEN_TABLE),
    (Mistake::FinalIsForgotten, scopes::calls_in_turn, BROKEN_TABLE),
    (Mistake::DeferredVerdictIsOpen, scopes::calls_in_turn, BROKEN_TABLE),
    (Mistake::NameIsAlwaysLocked, scopes::replaced, NEVER_LOST),
    (Mistake::CallsDoNotWaitForTheDisk, scopes::one_finish, FINISHED_IS_OVER),
    (Mistake::NoteIsNoEvidence, scopes::calls_in_turn, HEARD_IS_OVER),
    (Mistake::DeathForgetsTheNote, scopes::redriven, HEARD_IS_OVER),
    (Mistake::OneAttemptTooFew, scopes::one_finish, DEAD_IN_TIME),
    (Mistake::DeferralIsCounted, scopes::one_finish, COUNTED),
    (Mistake::RemovalTakesWhatMayBeSent, scopes::replaced, CANCELLED_UNSENT),
    (Mistake::AwaitingLooksFinal, scopes::replaced, ONE_OF_A_NAME),
];

#[test]
fn each_deliberate_mistake_of_feedback_is_found_and_breaks_what_it_is_about() {
    let unnoticed = CONTROLS.into_iter().filter_map(|(mistake, scope, property)| {
        unnoticed(&Feedback::new(scope(), Some(mistake)), mistake, property)
    });
    let unnoticed: Vec<String> = unnoticed.collect();
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
