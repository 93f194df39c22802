//! Tests of the registry against the events of a batch between claim and settle.

use proptest::prelude::*;

use super::*;
use crate::domain::batch::TaskParts;
use crate::domain::{
    BatchBuilder, Outcome, Receipt, RetryPolicy, Shard, TaskId, TrackedRow, Tracking, Ttr,
};
use crate::engine::topics::TopicSettings;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_start(Duration::from_secs(seconds))
}

fn in_flight(tasks_max: usize) -> InFlightBatches {
    within(InFlightLimits { tasks_max, bytes_max: usize::MAX, batches_max: usize::MAX })
}

fn within(limits: InFlightLimits) -> InFlightBatches {
    let InFlightLimits { tasks_max, bytes_max, .. } = limits;
    InFlightBatches::new(
        limits,
        TopicBreakers::new(TopicSettings {
            silence_max: SECOND,
            denial_max: SECOND,
            tasks_max,
            bytes_max,
        }),
    )
}

const PAYLOAD: &[u8] = b"a payload that is worth to be dropped, for it is longer than what a task \
                         takes besides: some ninety bytes or so, as of today";

/// Returns a batch with one task for each topic name. The tasks are tracked if there is a
/// `tracking`.
fn batch_with(topics: &[&str], tracking: Option<&[u8]>) -> Batch {
    let mut builder = BatchBuilder::new(BatchId::new(Timestamp::EPOCH, 0, rand::random()), 0, 0);
    for (number, topic) in (0_u64..).zip(topics) {
        let id = TaskId::new(Timestamp::from_millis(1_000), Shard::new(0), number);
        let (payload, name) = (Some(PAYLOAD), Some(b"name".as_slice()));
        builder.push(TaskParts {
            id,
            first_id: None,
            attempt: None,
            topic,
            key: None,
            payload,
            headers: None,
            name,
            tracking,
            moved_to: None,
        });
    }
    builder.build()
}

fn batch_of(topics: &[&str]) -> Batch {
    batch_with(topics, None)
}

fn batch(task_count: usize) -> Batch {
    batch_of(&vec!["t"; task_count])
}

fn published() -> Outcome {
    Outcome::Published(Receipt { partition: 0, offset: 0, published_at: Timestamp::EPOCH })
}

/// Takes in a batch and settles it at `answered_at`.
fn settled(in_flight: &InFlightBatches, answered_at: Monotonic) -> BatchId {
    let held = in_flight.add(batch(1), Past::Fresh, at(0)).unwrap();
    assert_eq!(held.note(0, published()), Noted::Complete);
    let settlement = Arc::new(held.settlement(Timestamp::EPOCH));
    in_flight.settled(&held, settlement, Effect::Certain, answered_at);
    held.batch.id
}

#[test]
fn a_batch_is_complete_once_and_a_second_outcome_changes_nothing() {
    let held = in_flight(10).add(batch(2), Past::Fresh, at(0)).unwrap();
    assert_eq!(held.note(1, published()), Noted::MoreToCome);
    assert_eq!(
        held.note(1, Outcome::Dead { reason: "late".into(), receipt: None }),
        Noted::MoreToCome
    );
    assert_eq!(held.note(0, published()), Noted::Complete);
    assert_eq!(held.note(0, published()), Noted::MoreToCome);
    assert_eq!(held.settlement(Timestamp::EPOCH).task_count(), 2);
}

/// Returns the column `tracking` of a row whose record goes to the topic `dead`.
fn verdict() -> Vec<u8> {
    let retry = RetryPolicy::DEFAULT;
    let ttr = Ttr::new(SECOND).unwrap();
    let dead_topic = Some(TopicName::new("dead").unwrap());
    let row = Tracking { ttr, retry, dead_topic }.first_row();
    TrackedRow { is_verdict: true, ..row }.encode()
}

/// A dead topic that takes nothing would use up the room of the other tasks.
#[test]
fn a_dead_letter_counts_for_its_dead_topic_and_not_for_that_of_its_task() {
    let in_flight = within(InFlightLimits { tasks_max: 1, bytes_max: 1 << 20, batches_max: 9 });
    let dead = TopicName::new("dead").unwrap();
    let takes = || {
        let topics = in_flight.topics();
        (topics.takes_tasks(&TopicName::new("t").unwrap()), topics.takes_tasks(&dead))
    };
    let add = || in_flight.add(batch_with(&["t"], Some(&verdict())), Past::Fresh, at(0)).unwrap();
    let held = add();
    assert_eq!(takes(), (false, false), "the dead topic is full, and claims know only the tasks");
    assert_eq!(held.note(0, published()), Noted::Complete);
    let settlement = Arc::new(held.settlement(Timestamp::EPOCH));
    in_flight.settled(&held, settlement, Effect::Certain, at(1));
    assert_eq!(takes(), (true, true));
    let _held = add();
    in_flight.topics().refused(&dead, at(1));
    in_flight.topics().turn(at(60), true, |topic| *topic == dead);
    assert_eq!(takes(), (true, false), "it takes nothing: verdict rows are not handed over");
}

#[test]
fn a_dead_letter_is_left_out_by_the_pause_of_its_topic_and_not_of_its_dead_topic() {
    let tracking = verdict();
    for (paused, is_left_out) in [("t", true), ("dead", false)] {
        let batch = batch_with(&["t"], Some(&tracking));
        let held = in_flight(10).add(batch, Past::MaybeSent, at(0)).unwrap();
        held.leave_out(vec![TopicName::new(paused).unwrap()]);
        assert_eq!(held.is_left_out(0), is_left_out, "{paused}");
    }
}

#[test]
fn a_batch_that_was_given_up_is_let_go_and_never_complete() {
    let in_flight = in_flight(10);
    let held = in_flight.add(batch(2), Past::Fresh, at(0)).unwrap();
    assert_eq!(held.note(0, published()), Noted::MoreToCome);
    assert_eq!(in_flight.give_up_all(), [held.batch.id]);
    assert!(in_flight.give_up_all().is_empty(), "once");
    assert_eq!(held.note(1, published()), Noted::GivenUp);
    in_flight.let_go(&held);
    assert_eq!(in_flight.amount(), Amount::default());
    assert!(in_flight.in_slot(held.slot).is_none() && in_flight.is_idle());
}

#[test]
fn what_is_known_of_a_batch_that_others_have_adopted_is_void() {
    let in_flight = in_flight(10);
    let [lost, own] = [(); 2].map(|()| in_flight.add(batch(1), Past::Fresh, at(0)).unwrap());
    let since = in_flight.add(batch(1), Past::Fresh, at(2)).unwrap();
    for held in [&lost, &own, &since] {
        assert_eq!(held.note(0, published()), Noted::Complete);
    }
    assert!(
        in_flight.give_up_lost(&[own.batch.id], at(1)).is_empty(),
        "nothing of it is still to come"
    );
    assert_eq!([&lost, &own, &since].map(|held| held.is_void()), [true, false, false]);
}

#[test]
fn what_is_complete_was_asked_for_since_or_is_still_its_own_is_not_given_up() {
    let in_flight = in_flight(10);
    let (complete, own) = (
        in_flight.add(batch(1), Past::Fresh, at(0)).unwrap(),
        in_flight.add(batch(1), Past::Fresh, at(0)).unwrap(),
    );
    complete.note(0, published());
    in_flight.add(batch(1), Past::Fresh, at(2)).unwrap();
    assert!(in_flight.give_up_lost(&[own.batch.id], at(1)).is_empty());
}

#[test]
fn an_unsettled_batch_is_unknown_only_when_nothing_is_under_way_for_it() {
    let in_flight = in_flight(10);
    let asked = batch(1).id;
    assert!(in_flight.ask_for(asked) && !in_flight.ask_for(asked));
    let held = in_flight.add(batch(1), Past::Fresh, at(0)).unwrap().batch.id;
    let (before, after) = (settled(&in_flight, at(1)), settled(&in_flight, at(3)));
    let stranger = batch(1).id;
    let comparison = in_flight.compare(&[asked, held, before, after, stranger], at(2));
    assert_eq!(comparison.unknown, [stranger]);
    // The first batch was settled before the question, and is unsettled in the answer. The other
    // one was answered after the question.
    assert_eq!(comparison.undone.iter().map(|(batch, _)| *batch).collect::<Vec<_>>(), [before]);
    in_flight.forget(asked);
    assert_eq!(in_flight.compare(&[asked], at(2)).unknown, [asked]);
}

#[test]
fn a_settle_is_remembered_until_a_heartbeat_that_was_sent_after_it() {
    let in_flight = in_flight(10);
    let (early, late, undone) =
        (settled(&in_flight, at(1)), settled(&in_flight, at(3)), settled(&in_flight, at(1)));
    in_flight.durable_until(at(2), &HashSet::from([undone]));
    let comparison = in_flight.compare(&[early, late, undone], at(4));
    assert_eq!(comparison.unknown, [early], "forgotten");
    assert_eq!(comparison.undone.len(), 2);
    in_flight.settled_again(undone, at(5));
    assert!(
        in_flight.compare(&[undone], at(4)).undone.is_empty(),
        "it was not settled again when the question was asked"
    );
}

#[test]
fn room_is_what_the_limits_leave_and_comes_back() {
    let in_flight = in_flight(4);
    let one = in_flight.add(batch(2), Past::Fresh, at(0)).unwrap();
    assert!(
        in_flight.has_room() && !in_flight.has_room_behind_the_watermark(),
        "half of it is for what is on time"
    );
    let other = in_flight.add(batch(2), Past::Fresh, at(0)).unwrap();
    assert!(!in_flight.has_room());
    assert_eq!((in_flight.amount().tasks, in_flight.amount().batches), (4, 2));
    for held in [&one, &other, &one] {
        in_flight.let_go(held);
    }
    assert_eq!(in_flight.amount(), Amount::default(), "a second release frees nothing");
    assert!(
        [one.slot, other.slot].contains(&in_flight.add(batch(1), Past::Fresh, at(0)).unwrap().slot),
        "slots are used again"
    );
}

#[test]
fn what_another_owner_may_have_sent_stays_perhaps_sent() {
    let in_flight = in_flight(10);
    let (fresh, loaded) = (
        in_flight.add(batch(1), Past::Fresh, at(0)).unwrap(),
        in_flight.add(batch(1), Past::MaybeSent, at(0)).unwrap(),
    );
    assert!(!fresh.note_maybe_sent(0, false) && loaded.note_maybe_sent(0, false));
    assert!(
        fresh.note_maybe_sent(0, true) && fresh.note_maybe_sent(0, false),
        "once perhaps sent, always perhaps sent"
    );
}

#[test]
fn a_topic_is_silent_when_a_due_record_of_it_has_waited_for_long() {
    let in_flight = in_flight(10);
    let held = in_flight.add(batch(1), Past::Fresh, at(0)).unwrap();
    let (due, now) = (Timestamp::from_millis(1_000), at(10));
    let silent = |before: Timestamp, age| in_flight.silent_topics(before, now, age).len();
    assert_eq!(silent(due, SECOND), 0, "not due before");
    assert_eq!(silent(due.plus(SECOND), SECOND * 11), 0, "not held for so long");
    assert_eq!(silent(due.plus(SECOND), SECOND), 1);
    held.note(0, published());
    assert_eq!(silent(due.plus(SECOND), SECOND), 0, "acknowledged");
}

#[test]
fn small_batches_claimed_on_insert_leave_room_for_the_claim_loops() {
    let in_flight =
        within(InFlightLimits { tasks_max: usize::MAX, bytes_max: usize::MAX, batches_max: 8 });
    let rooms = || {
        (
            in_flight.has_room_on_insert(),
            in_flight.has_room_behind_the_watermark(),
            in_flight.has_room(),
        )
    };
    let mut seen = vec![rooms()];
    for _ in 0..8 {
        in_flight.add(batch(1), Past::Fresh, at(0)).unwrap();
        seen.push(rooms());
    }
    let until = |count: usize, room: fn(&(bool, bool, bool)) -> bool| {
        seen.iter().map(room).eq((0..9).map(|held| held < count))
    };
    assert!(
        until(2, |rooms| rooms.0) && until(6, |rooms| rooms.1) && until(8, |rooms| rooms.2),
        "{seen:?}"
    );
}

fn deferred() -> Outcome {
    Outcome::Deferred {
        next: TaskId::new(Timestamp::from_millis(2_000), Shard::new(0), 7),
        maybe_sent: true,
    }
}

#[test]
fn what_was_acknowledged_beside_a_record_without_an_answer_gives_its_room_back() {
    let in_flight = in_flight(4);
    let healthy = TopicName::stored("healthy");
    let held = in_flight
        .add(batch_of(&["healthy", "healthy", "healthy", "healthy", "dead"]), Past::Fresh, at(0))
        .unwrap();
    assert!(!in_flight.has_room() && !in_flight.topics().takes_tasks(&healthy));
    for index in 0..4 {
        assert_eq!(held.note(index, published()), Noted::MoreToCome);
    }
    let before = in_flight.amount();
    in_flight.ease(at(1), SECOND * 2);
    assert_eq!(in_flight.amount(), before, "not held for so long");
    in_flight.ease(at(2), SECOND * 2);
    let amount = in_flight.amount();
    assert_eq!((amount.tasks, amount.batches), (1, 1));
    assert_eq!(amount.bytes, before.bytes - 4 * PAYLOAD.len());
    assert!(in_flight.has_room() && in_flight.topics().takes_tasks(&healthy));
    in_flight.ease(at(3), SECOND * 2);
    assert_eq!(in_flight.amount(), amount, "once");
    // The outcomes still to come are unchanged, and holders of the original batch share its
    // progress.
    let lighter = in_flight.in_slot(held.slot).unwrap();
    assert_eq!([0, 4].map(|index| lighter.batch.task(index).payload), [None, Some(PAYLOAD)]);
    assert_eq!(held.note(4, deferred()), Noted::Complete);
    assert!(lighter.has_outcome(4));
    assert_eq!(lighter.settlement(Timestamp::EPOCH), held.settlement(Timestamp::EPOCH));
    in_flight.settled(&held, Arc::new(held.settlement(Timestamp::EPOCH)), Effect::Certain, at(4));
    assert_eq!(in_flight.amount(), Amount { remembered: 1, ..Amount::default() });
    assert!(in_flight.is_idle());
}

#[test]
fn what_is_settled_and_not_known_to_be_durable_has_a_limit() {
    let in_flight = within(InFlightLimits { tasks_max: 10, bytes_max: usize::MAX, batches_max: 2 });
    settled(&in_flight, at(1));
    assert!(in_flight.has_room());
    settled(&in_flight, at(3));
    assert!(!in_flight.has_room() && in_flight.is_idle());
    in_flight.durable_until(at(2), &HashSet::new());
    assert!(in_flight.has_room());
}

proptest! {
    #[test]
    fn all_that_was_held_is_given_back_whenever_it_is_eased(
        tasks in prop::collection::vec((0_usize..3, 0_usize..3), 1..20),
        eased_after in prop::collection::vec(any::<bool>(), 20),
    ) {
        let in_flight = in_flight(1);
        let names = ["a", "b", "c"];
        let topics: Vec<&str> = tasks.iter().map(|(topic, _)| names[*topic]).collect();
        let held = in_flight.add(batch_of(&topics), Past::Fresh, at(0)).unwrap();
        for (index, ((_, outcome), is_eased)) in tasks.iter().zip(eased_after).enumerate() {
            let dead = Outcome::Dead { reason: "gone".into(), receipt: None };
            let outcome = [published(), deferred(), dead]
                [*outcome]
                .clone();
            // The outcomes are recorded in turns through the original batch and the current one.
            let current = in_flight.in_slot(held.slot).unwrap();
            if is_eased { &held } else { &current }.note(index, outcome);
            if is_eased {
                in_flight.ease(at(9), SECOND);
                let current = in_flight.in_slot(held.slot).unwrap();
                prop_assert_eq!(in_flight.amount().bytes, current.batch.bytes());
            }
        }
        let current = in_flight.in_slot(held.slot).unwrap();
        prop_assert_eq!(current.settlement(Timestamp::EPOCH), held.settlement(Timestamp::EPOCH));
        in_flight.settled(
            &held,
            Arc::new(held.settlement(Timestamp::EPOCH)),
            Effect::Certain,
            at(9),
        );
        prop_assert_eq!(in_flight.amount(), Amount { remembered: 1, ..Amount::default() });
        for name in names {
            let topics = in_flight.topics();
            prop_assert!(topics.takes_tasks(&TopicName::stored(name)), "{}", name);
        }
    }
}
