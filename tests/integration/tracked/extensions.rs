//! Extensions at their limits, and the words of a consumer who gives a task up.

use std::collections::HashMap;
use std::time::Duration;

use punctual::domain::task::feedback::{Call, Verdict};
use punctual::domain::task::tracking::reason_without_words;
use punctual::domain::{RetryPolicy, TaskId, TaskState, Timestamp, Tracking};
use punctual::postgres::tasks::answers::{AnswerCall, AnswerStore, AnswerTerms};
use uuid::Uuid;

use super::{HOUR, Scene, WINDOW, call, extend, tracking};

/// Extends an attempt at a time in the future.
async fn extended_at(scene: &Scene, call: &AnswerCall, now: Timestamp) -> TaskId {
    let terms = AnswerTerms { now, leaves_end: scene.leaves_end, window: WINDOW };
    let mut answers = HashMap::new();
    let mut store = AnswerStore::new(&scene.settings, HOUR);
    store.take(std::slice::from_ref(call), terms, &mut answers).await.unwrap();
    assert_eq!(answers.remove(&call.first).unwrap().verdict, Verdict::Extended);
    let row = "select row_id from task_follow";
    let row: Uuid =
        sqlx::query_scalar(row).fetch_one(&mut scene.own.connect().await).await.unwrap();
    TaskId::from_uuid(row)
}

#[tokio::test]
async fn an_extension_after_the_longest_time_to_run_leaves_no_row_in_the_past() {
    let scene = Scene::new("extensions").await;
    let first = scene.submit(None, Some(tracking(3))).await;
    scene.attempt().await;
    // As in a topic that is paused for longer.
    let now = scene.now().await.plus(Duration::from_secs(8 * 86_400));
    let next = extended_at(&scene, &extend(first, 1), now).await;
    assert!(next.due_at() >= now, "{} is before {now}", next.due_at());
}

#[tokio::test]
async fn the_dead_letter_after_an_extended_last_attempt_waits_for_no_back_off() {
    let scene = Scene::new("extensions").await;
    let retry = RetryPolicy::new(1, HOUR, HOUR, 1).unwrap();
    let first = scene.submit(None, Some(Tracking { retry, ..tracking(1) })).await;
    scene.attempt().await;
    let now = scene.now().await;
    let next = extended_at(&scene, &extend(first, 1), now).await;
    let finish_by = scene.view(first).await.tracked.unwrap().finish_by.unwrap();
    assert_eq!(next.due_at().since(finish_by), WINDOW);
}

#[tokio::test]
async fn the_words_of_a_consumer_can_be_told_from_the_rest_before_the_task_is_a_dead_letter() {
    let scene = Scene::new("extensions").await;
    let first = scene.submit(None, Some(tracking(3))).await;
    scene.attempt().await;
    let last = Call::Fail { attempt: 1, is_final: true };
    let last = AnswerCall { reason: Some("card 4711".into()), ..call(first, last) };
    assert_eq!(scene.verdict(&last).await, Verdict::Dying);
    let view = scene.view(first).await;
    let reason = view.reason.unwrap();
    assert_eq!(
        (view.state, reason.as_str()),
        (TaskState::Dead, "attempt 1 of 3 failed: card 4711")
    );
    assert_eq!(reason_without_words(&reason), "attempt 1 of 3 failed");
}
