//! The topics of many tasks, found in a few statements: those that look-ups of single tasks find.

use std::time::Duration;

use punctual::domain::task::feedback::Verdict;
use punctual::domain::{
    ClusterSettings, Outcome, Receipt, Shard, SubmitOrder, TaskId, Timestamp, TopicName,
};
use punctual::postgres::lists::dead_letters::DeadLetters;
use punctual::postgres::tasks::answers::AnswerCall;
use punctual::postgres::tasks::cancel::Cancels;
use punctual::postgres::tasks::look_up::{LookUp, TOPICS_MAX};
use punctual::postgres::tasks::replace::Replaces;
use punctual::postgres::tasks::replace::reschedule::{NewPlace, Rescheduling};
use punctual::postgres::tasks::settle::Settlement;
use sqlx::{Connection as _, PgConnection};

use super::{HOUR, Scene, fail, finish, tracking};
use crate::support::{Stack, eventually};

const DEADLINE: Duration = Duration::from_secs(60);

/// Submits untracked tasks and settles them: one is published, one is dead, one is a dropped dead
/// letter, one is redriven to another topic and published there, and one is deferred.
async fn settled(scene: &Scene, later: Timestamp) -> [TaskId; 5] {
    let firsts = [
        scene.submit(None, None).await,
        scene.submit(None, None).await,
        scene.submit(None, None).await,
        scene.submit(None, None).await,
        scene.submit(None, None).await,
    ];
    let [published, _dead, dropped, redriven, deferred] = firsts;
    let batch = scene.claim().await;
    let receipt = Receipt { partition: 3, offset: 17, published_at: scene.now().await };
    let next = TaskId::new(later, deferred.shard(), rand::random());
    let outcome = |id: TaskId| match id {
        id if id == published => Outcome::Published(receipt),
        id if id == deferred => Outcome::Deferred { next, maybe_sent: false },
        _ => Outcome::Dead { reason: "refused".into(), receipt: None },
    };
    let outcomes: Vec<Outcome> = batch.tasks().map(|task| outcome(task.id)).collect();
    assert_eq!(scene.settle(&Settlement::new(&batch, &outcomes)).await, 1);
    let letters = DeadLetters::new(&scene.settings, HOUR, 1);
    letters.discard((dropped, None), None).await.unwrap().unwrap();
    let to = TopicName::new("invoices").unwrap();
    letters.redrive_to((redriven, None), None, Some(&to)).await.unwrap().unwrap();
    scene.attempt().await;
    firsts
}

async fn move_to(scene: &Scene, first: TaskId, (due_at, is_far): (Timestamp, bool)) {
    let position = SubmitOrder::default().next(scene.now().await, due_at, 0);
    let to = NewPlace { due_at, is_far, position, random: rand::random() };
    let done = Replaces::new(&scene.settings, HOUR, 1).reschedule(first, None, to).await.unwrap();
    assert!(matches!(done, Rescheduling::Moved { .. }), "{done:?}");
}

#[tokio::test]
async fn the_topics_of_many_tasks_are_those_that_single_look_ups_find() {
    let scene = Scene::new("found_topics").await;
    // Claims of the scene take what is due within an hour.
    let later = scene.now().await.plus(HOUR + HOUR / 3).ceil_millis();
    let [published, dead, dropped, redriven, deferred] = settled(&scene, later).await;
    let moved_and_published = scene.submit_at(later, None, None).await;
    let now = scene.now().await.floor_millis();
    move_to(&scene, moved_and_published, (now, false)).await;
    let finished = scene.submit(None, Some(tracking(3))).await;
    scene.attempt().await;
    assert_eq!(scene.verdict(&finish(finished)).await, Verdict::Finished);
    let in_flight = scene.submit(Some("n"), Some(tracking(3))).await;
    scene.claim().await;
    let awaiting = scene.submit(None, Some(tracking(3))).await;
    let retrying = scene.submit(None, Some(tracking(3))).await;
    scene.attempt().await;
    let failed = AnswerCall { retry_at: Some(later.plus(HOUR * 3)), ..fail(retrying, 1) };
    assert_eq!(scene.verdict(&failed).await, Verdict::Retrying);
    let pending = scene.submit_at(later, None, None).await;
    let cancelled = scene.submit_at(later, None, None).await;
    let done = Cancels::new(&scene.settings, HOUR).cancel_group(&[(cancelled, None)]).await;
    assert!(done.1.is_ok() && done.0[0].is_some());
    let moved = scene.submit_at(later, None, None).await;
    move_to(&scene, moved, (later.plus(HOUR * 5), true)).await;
    let absent = TaskId::new(later, pending.shard(), rand::random());
    let old = TaskId::new(Timestamp::EPOCH, pending.shard(), rand::random());

    let ids = [
        published,
        dead,
        dropped,
        redriven,
        deferred,
        moved_and_published,
        finished,
        in_flight,
        awaiting,
        retrying,
        pending,
        cancelled,
        moved,
        absent,
        old,
    ];
    let found = scene.look_up.topics(&ids).await.unwrap();
    assert!(found.undecided.is_empty(), "{found:?}");
    assert_eq!(found.topics.len(), ids.len() - 2, "{found:?}");
    assert_eq!(found.topics[&redriven].as_str(), "invoices");
    for id in ids {
        let single = scene.look_up.task(id).await.unwrap().map(|task| task.topic);
        assert_eq!(found.topics.get(&id), single.as_ref(), "{id:?}");
        let alone = scene.look_up.topics(&[id]).await.unwrap();
        assert_eq!(alone.topics.get(&id), single.as_ref(), "{id:?} alone");
        assert!(alone.undecided.is_empty(), "{id:?} alone");
    }
}

/// Returns how many transactions the database has committed. A session reports all of its own when
/// it ends.
async fn committed(scene: &Scene) -> i64 {
    let mut server = PgConnection::connect(&Stack::shared().database_url).await.unwrap();
    let sessions = "select count(*) from pg_stat_activity where datname = $1 and backend_type = \
                    'client backend'";
    eventually("all sessions have ended", DEADLINE, async || {
        let query = sqlx::query_scalar(sessions).bind(&scene.own.name);
        let count: i64 = query.fetch_one(&mut server).await.unwrap();
        count == 0
    })
    .await;
    let committed = "select xact_commit from pg_stat_database where datname = $1";
    let query = sqlx::query_scalar(committed).bind(&scene.own.name);
    query.fetch_one(&mut server).await.unwrap()
}

#[tokio::test]
async fn the_number_of_statements_does_not_grow_with_the_tasks() {
    let scene = Scene::new("found_topics").await;
    let now = scene.now().await;
    let transactions_of = async |count: usize| {
        let id = |_index| TaskId::new(now, Shard::new(7), rand::random());
        let ids: Vec<TaskId> = (0..count).map(id).collect();
        let before = committed(&scene).await;
        let look_up = LookUp::new(&scene.settings, &ClusterSettings::DEFAULT, 1);
        let found = look_up.topics(&ids).await.unwrap();
        assert!(found.topics.is_empty() && found.undecided.is_empty(), "{found:?}");
        drop(look_up);
        committed(&scene).await - before
    };
    let [one, many] = [transactions_of(1).await, transactions_of(TOPICS_MAX).await];
    // Autovacuum may have committed some of them.
    assert!(one > 0 && many < one + 100, "{one} and {many}");
}
