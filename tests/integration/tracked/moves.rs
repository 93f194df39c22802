//! Moves to another due time beside claims, cancels, replacements and each other, in both orders;
//! and what the life of a moved task remembers of its new time.

use std::time::Duration;

use punctual::domain::task::feedback::Verdict;
use punctual::domain::{IdRange, Outcome, SubmitOrder, TaskId, TaskState, Timestamp, TrackedView};
use punctual::postgres::PostgresError;
use punctual::postgres::lists::dead_letters::DeadLetters;
use punctual::postgres::partitions::mover::Mover;
use punctual::postgres::tasks::replace::reschedule::{NewPlace, Rescheduling};
use punctual::postgres::tasks::replace::{Replacement, Replaces};
use punctual::postgres::tasks::settle::Settlement;

use super::orders::{NAME, cancelled, in_order, replaced};
use super::{HOUR, Scene, finish, tracking};
use crate::hazards::staged;
use crate::support::partitions::move_far;

/// Stops whatever deletes the row of a task.
const ROW: &str = "select from task for update";
const HALF: Duration = Duration::from_secs(1800);

async fn moved_to(
    scene: &Scene,
    first: TaskId,
    (due_at, is_far): (Timestamp, bool),
) -> Result<Rescheduling, PostgresError> {
    let position = SubmitOrder::default().next(scene.now().await, due_at, 0);
    let to = NewPlace { due_at, is_far, position, random: rand::random() };
    Replaces::new(&scene.settings, HOUR, 1).reschedule(first, None, to).await
}

/// Moves a task by half an hour.
async fn moved(scene: &Scene, first: TaskId) -> Result<Rescheduling, PostgresError> {
    moved_to(scene, first, (first.due_at().plus(HALF), false)).await
}

fn is_moved(done: &Rescheduling) -> bool {
    matches!(done, Rescheduling::Moved { .. })
}

/// Claims everything within the hour: the one task, due at its new time.
async fn claim_moved(scene: &Scene, first: TaskId, due_at: Timestamp) {
    let batch = scene.claim().await;
    let task = batch.task(0);
    assert_eq!((batch.len(), task.first_id), (1, first));
    assert_eq!((batch.due_at(0), task.promised_at()), (due_at, due_at));
}

#[tokio::test]
async fn of_a_move_and_a_claim_the_first_decides() {
    staged(async || {
        let scene = Scene::new("moves").await;
        let first = scene.submit(Some("n"), None).await;
        let (done, batch) =
            in_order(&scene, ROW, moved(&scene, first), scene.claim_beside()).await?;
        assert!(is_moved(&done) && batch.is_none(), "the claim saw only the former row");
        assert_eq!(scene.state(first).await, TaskState::Scheduled);
        claim_moved(&scene, first, first.due_at().plus(HALF)).await;
        Some(())
    })
    .await;
    staged(async || {
        let scene = Scene::new("moves").await;
        let first = scene.submit(Some("n"), None).await;
        let (batch, done) =
            in_order(&scene, ROW, scene.claim_beside(), moved(&scene, first)).await?;
        let batch = batch.expect("the task");
        assert_eq!(done, Rescheduling::Gone { row: first });
        assert_eq!(batch.task(0).promised_at(), first.due_at());
        assert_eq!(scene.view(first).await.moved_to, None);
        assert_eq!(scene.number("select count(*) from task").await, 0);
        assert_eq!(scene.number("select count(*) from task_follow").await, 0);
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_cancel_beside_a_move_cancels_the_task_in_both_orders() {
    staged(async || {
        let scene = Scene::new("moves").await;
        let first = scene.submit(Some("n"), None).await;
        let (done, is_cancelled) =
            in_order(&scene, ROW, moved(&scene, first), cancelled(&scene, first)).await?;
        assert!(is_moved(&done) && is_cancelled, "the cancel follows the task to its new row");
        let view = scene.view(first).await;
        assert_eq!((view.state, view.due_at()), (TaskState::Cancelled, first.due_at().plus(HALF)));
        scene.is_tidy().await;
        Some(())
    })
    .await;
    staged(async || {
        let scene = Scene::new("moves").await;
        let first = scene.submit(Some("n"), None).await;
        let (is_cancelled, done) =
            in_order(&scene, ROW, cancelled(&scene, first), moved(&scene, first)).await?;
        assert!(is_cancelled && !is_moved(&done));
        assert_eq!(scene.state(first).await, TaskState::Cancelled);
        scene.is_tidy().await;
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_name_has_one_live_task_after_a_move_and_a_replacement_in_both_orders() {
    let live = "select count(*) from task";
    staged(async || {
        let scene = Scene::new("moves").await;
        let first = scene.submit(Some("n"), None).await;
        let (done, replacement) =
            in_order(&scene, NAME, moved(&scene, first), replaced(&scene)).await?;
        assert!(is_moved(&done));
        assert_eq!(replacement, Replacement::Replaced, "the entry names the new row");
        assert!(scene.view(first).await.replaced_by.is_some());
        assert_eq!(scene.number(live).await, 1);
        Some(())
    })
    .await;
    staged(async || {
        let scene = Scene::new("moves").await;
        let first = scene.submit(Some("n"), None).await;
        let (replacement, done) =
            in_order(&scene, ROW, replaced(&scene), moved(&scene, first)).await?;
        assert_eq!(replacement, Replacement::Replaced);
        assert!(!is_moved(&done) && scene.view(first).await.replaced_by.is_some());
        assert_eq!(scene.number(live).await, 1);
        Some(())
    })
    .await;
}

#[tokio::test]
async fn of_two_moves_the_second_finds_the_new_row() {
    staged(async || {
        let scene = Scene::new("moves").await;
        let first = scene.submit(None, None).await;
        let (done, other) =
            in_order(&scene, ROW, moved(&scene, first), moved(&scene, first)).await?;
        assert!(is_moved(&done));
        assert_eq!(other, Rescheduling::Gone { row: first }, "it is to look again");
        assert!(is_moved(&moved(&scene, first).await.unwrap()));
        assert_eq!(scene.number("select count(*) from task").await, 1);
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_move_that_waits_for_the_lock_of_a_name_gives_way() {
    let scene = Scene::new("moves").await;
    let first = scene.submit(Some("n"), None).await;
    let mut holder = scene.own.connect().await;
    crate::hazards::run(&mut holder, &format!("begin; {NAME}")).await;
    let refused = moved(&scene, first).await.unwrap_err();
    assert!(matches!(refused, PostgresError::GaveWay { .. }), "{refused}");
    crate::hazards::run(&mut holder, "rollback").await;
    assert!(is_moved(&moved(&scene, first).await.unwrap()));
}

#[tokio::test]
async fn a_task_goes_to_the_far_table_and_back_and_keeps_its_id_and_its_name() {
    let scene = Scene::new("moves").await;
    let first = scene.submit(Some("n"), None).await;
    let due_at = first.due_at().plus(HOUR * 24);
    let done = moved_to(&scene, first, (due_at, true)).await.unwrap();
    assert!(is_moved(&done));
    assert_eq!(scene.number("select count(*) from task_far").await, 1);
    assert!(scene.try_claim().await.is_none(), "nothing is due at the former time");
    let view = scene.view(first).await;
    assert_eq!((view.id, view.state, view.due_at()), (first, TaskState::Scheduled, due_at));
    let named = "select count(*) from task_name n join task_far t on t.id = n.row_id
        where n.id = t.first_id and n.expires_at >= to_timestamp(t.moved_to / 1000.0)";
    assert_eq!(scene.number(named).await, 1);
    let done = moved(&scene, first).await.unwrap();
    assert!(is_moved(&done));
    claim_moved(&scene, first, first.due_at().plus(HALF)).await;
}

#[tokio::test]
async fn the_mover_brings_a_moved_task_to_its_leaf() {
    let scene = Scene::new("moves").await;
    let first = scene.submit(None, None).await;
    let due_at = first.due_at().plus(HALF);
    assert!(is_moved(&moved_to(&scene, first, (due_at, true)).await.unwrap()));
    let now = scene.now().await;
    let range = IdRange::of_times(now, now.plus(HOUR));
    assert_eq!(move_far(&mut Mover::new(&scene.settings), range).await.unwrap().task_count, 1);
    claim_moved(&scene, first, due_at).await;
}

#[tokio::test]
async fn a_retry_of_a_moved_task_keeps_its_time_until_the_execlog_has_it() {
    let scene = Scene::new("moves").await;
    let first = scene.submit(Some("n"), None).await;
    let due_at = scene.now().await.floor_millis().minus(Duration::from_millis(500));
    assert!(is_moved(&moved_to(&scene, first, (due_at, false)).await.unwrap()));
    let batch = scene.claim().await;
    let next = TaskId::new(scene.now().await.ceil_millis(), first.shard(), rand::random());
    let deferred = Settlement::new(&batch, &[Outcome::Deferred { next, maybe_sent: false }]);
    assert_eq!(scene.settle(&deferred).await, 1);
    assert_eq!(scene.view(first).await.due_at(), due_at);
    assert!(is_moved(&moved_to(&scene, first, (due_at, false)).await.unwrap()), "not sent so far");
    let batch = scene.claim().await;
    let task = batch.task(0);
    assert_eq!((task.promised_at(), task.attempt), (due_at, 2));
    let settlement = scene.published(&batch).await;
    assert_eq!(scene.settle(&settlement).await, 1);
    let view = scene.view(first).await;
    assert_eq!((view.state, view.due_at()), (TaskState::Published, due_at));
    let lateness = "select max(lateness_ms) from execlog where state = 'published'";
    assert!((500..600_000).contains(&scene.number(lateness).await));
    let due = "select (extract(epoch from max(due_at)) * 1000)::bigint from execlog
        where state = 'published'";
    assert_eq!(scene.number(due).await, due_at.as_millis());
    assert_eq!(scene.number("select count(*) from execlog_ended").await, 1);
    scene.is_tidy().await;
    assert_eq!(moved(&scene, first).await.unwrap(), Rescheduling::Gone { row: first });
}

#[tokio::test]
async fn a_dead_letter_of_a_moved_task_keeps_its_time_and_a_redriven_one_cannot_be_moved() {
    let scene = Scene::new("moves").await;
    let first = scene.submit(Some("n"), None).await;
    let due_at = scene.now().await.floor_millis();
    assert!(is_moved(&moved_to(&scene, first, (due_at, false)).await.unwrap()));
    let batch = scene.claim().await;
    let dead = Outcome::Dead { reason: "refused".into(), receipt: None };
    assert_eq!(scene.settle(&Settlement::new(&batch, &[dead])).await, 1);
    let view = scene.view(first).await;
    assert_eq!((view.state, view.due_at()), (TaskState::Dead, due_at));
    assert!(!is_moved(&moved(&scene, first).await.unwrap()));
    let letters = DeadLetters::new(&scene.settings, HOUR, 1);
    let redriven = letters.redrive(first, None).await.unwrap().unwrap();
    assert_eq!(redriven.view.due_at(), due_at);
    assert!(!is_moved(&moved(&scene, first).await.unwrap()), "an attempt may be in the topic");
    assert_eq!(scene.view(first).await.state, TaskState::Scheduled);
}

#[tokio::test]
async fn a_tracked_task_is_moved_before_its_first_attempt_and_never_later() {
    let scene = Scene::new("moves").await;
    let first = scene.submit(Some("n"), Some(tracking(3))).await;
    let due_at = scene.now().await.floor_millis();
    let done = moved_to(&scene, first, (due_at, false)).await.unwrap();
    let Rescheduling::Moved { view, .. } = done else { panic!("{done:?}") };
    let attempt = |tracked: Option<Box<TrackedView>>| tracked.map(|tracked| tracked.attempt);
    assert_eq!((view.state, attempt(view.tracked)), (TaskState::Scheduled, Some(0)));
    assert_eq!(attempt(scene.view(first).await.tracked), Some(0));
    assert_eq!(scene.verdict(&finish(first)).await, Verdict::NotPublishedYet);
    scene.attempt().await;
    let view = scene.view(first).await;
    assert_eq!((view.state, view.due_at()), (TaskState::Awaiting, due_at));
    assert!(!is_moved(&moved(&scene, first).await.unwrap()), "its consumer has it");
    assert_eq!(scene.verdict(&super::fail(first, 1)).await, Verdict::Retrying);
    assert!(!is_moved(&moved(&scene, first).await.unwrap()));
    assert_eq!(scene.verdict(&finish(first)).await, Verdict::Finished);
    assert!(!is_moved(&moved(&scene, first).await.unwrap()));
    let view = scene.view(first).await;
    assert_eq!((view.state, view.due_at()), (TaskState::Finished, due_at));
    scene.is_tidy().await;
}

#[tokio::test]
async fn a_quick_consumer_finishes_a_moved_task_in_flight() {
    let scene = Scene::new("moves").await;
    let first = scene.submit(Some("n"), Some(tracking(3))).await;
    let due_at = scene.now().await.floor_millis();
    assert!(is_moved(&moved_to(&scene, first, (due_at, false)).await.unwrap()));
    let batch = scene.claim().await;
    let settlement = scene.published(&batch).await;
    assert_eq!(scene.verdict(&finish(first)).await, Verdict::FinishedInFlight);
    assert_eq!(scene.settle(&settlement).await, 1);
    assert_eq!(scene.view(first).await.due_at(), due_at);
    scene.is_tidy().await;
}
