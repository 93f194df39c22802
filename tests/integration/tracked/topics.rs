//! Answers of callers with a right to one topic: they change no task of another topic.

use std::collections::HashMap;

use punctual::domain::task::feedback::Verdict;
use punctual::domain::{TaskState, TopicName};
use punctual::postgres::tasks::answers::{AnswerCall, AnswerStore};

use super::{HOUR, Scene, extend, fail, finish, tracking};

fn of(topic: &str, call: AnswerCall) -> AnswerCall {
    AnswerCall { topic: Some(TopicName::new(topic).unwrap()), ..call }
}

#[tokio::test]
async fn a_call_for_one_topic_leaves_the_task_of_another_alone_wherever_it_is() {
    let scene = Scene::new("answer_topics").await;
    let first = scene.submit(None, Some(tracking(3))).await;
    // In flight, and without a row of `task_follow`.
    let batch = scene.claim().await;
    assert_eq!(scene.answer(&of("invoices", finish(first))).await, None);
    let settlement = scene.published(&batch).await;
    assert_eq!(scene.settle(&settlement).await, 1);

    // A row of `task` waits for the end of its time to run.
    for call in [finish(first), fail(first, 1), extend(first, 1)] {
        let answered = scene.answer(&of("invoices", call)).await.unwrap();
        assert_eq!(answered.view, None, "nothing has changed: {answered:?}");
    }
    assert_eq!(scene.state(first).await, TaskState::Awaiting);

    // A row of `task_far` waits for a retry.
    let retry_at = scene.now().await.plus(HOUR * 3);
    let failed = AnswerCall { retry_at: Some(retry_at), ..of("orders", fail(first, 1)) };
    assert_eq!(scene.verdict(&failed).await, Verdict::Retrying);
    assert_eq!(scene.verdict(&of("invoices", finish(first))).await, Verdict::Busy);
    assert_eq!(scene.state(first).await, TaskState::Retrying);
    assert_eq!(scene.verdict(&of("orders", finish(first))).await, Verdict::Finished);
    assert_eq!(scene.state(first).await, TaskState::Finished);
}

#[tokio::test]
async fn the_calls_of_a_group_may_be_for_several_topics() {
    let scene = Scene::new("answer_topics").await;
    let ids = [
        scene.submit(None, Some(tracking(3))).await,
        scene.submit(None, Some(tracking(3))).await,
        scene.submit(None, Some(tracking(3))).await,
    ];
    scene.attempt().await;
    let [theirs, own, any] = ids.map(finish);
    let calls = [of("invoices", theirs), of("orders", own), any];
    let (mut store, mut answers) = (AnswerStore::new(&scene.settings, HOUR), HashMap::new());
    scene.take(&mut store, &calls, &mut answers).await.unwrap();
    let verdicts = ids.map(|id| answers[&id].verdict);
    assert_eq!(verdicts, [Verdict::Busy, Verdict::Finished, Verdict::Finished]);
    assert_eq!(scene.state(ids[0]).await, TaskState::Awaiting);
}

/// Execlog and dead letters show the ids of later rows.
#[tokio::test]
async fn the_id_of_a_later_row_is_the_id_of_no_task() {
    let scene = Scene::new("tracked").await;
    let first = scene.submit(None, Some(tracking(3))).await;
    scene.attempt().await;
    let failed = AnswerCall { retry_at: Some(scene.now().await), ..fail(first, 1) };
    assert_eq!(scene.verdict(&failed).await, Verdict::Retrying);
    let row = scene.claim().await.id_of(0);
    assert_ne!(row, first);
    for call in [finish(row), fail(row, 2), extend(row, 2)] {
        assert!(scene.answer(&call).await.is_none());
    }
    assert_eq!(scene.number("select count(*) from task_follow").await, 1);
    assert_eq!(scene.verdict(&finish(first)).await, Verdict::FinishedInFlight);
}
