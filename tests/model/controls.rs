//! Tests the checker itself: each deliberate mistake in the model must break its property. A
//! checker without a finding in a wrong model proves nothing about a right one.

use crate::checker::NEVER_LOST;
use crate::protocol::properties::{
    CANCELLED_UNSENT, DUPLICATES, EXPIRED_UNSENT, FROM_A_CLAIM, IN_ONE_PLACE, MOVED_UNSENT,
    NOT_AFTER_EXPIRY, ONE_OF_A_NAME, TRUE_VERDICT,
};
use crate::protocol::scopes::{self, Scope};
use crate::protocol::{Mistake, Protocol};
use crate::searches::unnoticed;

/// A mistake, its scope, and the broken property.
type Control = (Mistake, fn() -> Scope, &'static str);

const CONTROLS: [Control; 25] = [
    (Mistake::SettleWithoutOwner, scopes::zombies, FROM_A_CLAIM),
    (Mistake::SettleWhatIsSettled, scopes::late_settles, IN_ONE_PLACE),
    (Mistake::CancelLooksNearFirst, scopes::far_and_cancel, TRUE_VERDICT),
    (Mistake::AdoptWithoutHeartbeat, scopes::two_tasks, FROM_A_CLAIM),
    (Mistake::PublishBeforeTheClaimCommits, scopes::life_and_death, FROM_A_CLAIM),
    (Mistake::RetireWithoutSecondLook, scopes::leaves, IN_ONE_PLACE),
    (Mistake::FollowUpOutsideTheSettle, scopes::deferral_and_cancel, IN_ONE_PLACE),
    (Mistake::ReplaceWithoutLock, scopes::names, ONE_OF_A_NAME),
    (Mistake::CancelTakesWhatMayBeSent, scopes::deferral_and_cancel, CANCELLED_UNSENT),
    (Mistake::ZombieDoesNotAsk, scopes::zombies, FROM_A_CLAIM),
    (Mistake::MoveWithoutDelete, scopes::far_and_cancel, IN_ONE_PLACE),
    (Mistake::AdoptedIsTakenForFresh, scopes::adopted_and_cancelled, CANCELLED_UNSENT),
    (Mistake::DeclareDeadWithoutCounter, scopes::zombies, FROM_A_CLAIM),
    (Mistake::SettleForgottenAtItsAnswer, scopes::crashes, DUPLICATES),
    (Mistake::NoLookForOwnBatches, scopes::late_settles, NEVER_LOST),
    (Mistake::SettleRepeatedAsItWas, scopes::undone_settles, NEVER_LOST),
    (Mistake::FrozenRetirerKeepsItsLock, scopes::leaves, NEVER_LOST),
    (Mistake::DoubtOfAnEarlierAttemptForgotten, scopes::deferral_and_cancel, CANCELLED_UNSENT),
    (Mistake::RescheduleWithoutTheRow, scopes::moves, IN_ONE_PLACE),
    (Mistake::RescheduleTakesWhatMayBeSent, scopes::moves, MOVED_UNSENT),
    (Mistake::AdoptedIsTakenForFresh, scopes::expiry, EXPIRED_UNSENT),
    (Mistake::DoubtOfAnEarlierAttemptForgotten, scopes::deferral_and_expiry, EXPIRED_UNSENT),
    (Mistake::ExpiryForgetsEarlierAttempts, scopes::deferral_and_expiry, EXPIRED_UNSENT),
    (Mistake::ExpiryTakesBackWhatWasHandedOver, scopes::expiry, EXPIRED_UNSENT),
    (Mistake::ExpiryIsNotAskedAtTheHandOver, scopes::expiry, NOT_AFTER_EXPIRY),
];

#[test]
fn each_deliberate_mistake_is_found_and_breaks_what_it_is_about() {
    let unnoticed = CONTROLS.into_iter().filter_map(|(mistake, scope, property)| {
        unnoticed(&Protocol::new(scope(), Some(mistake)), mistake, property)
    });
    let unnoticed: Vec<String> = unnoticed.collect();
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}
