//! Two transactions about one tracked task, in both orders: a finish beside a claim, a settle, an
//! adoption, a cancel, a replacement, a redrive, and the mover. Both are the product's own code. A
//! lock of a third session stops the first in its middle. When the second waits for the first, the
//! third session lets go.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Duration;

use punctual::domain::task::feedback::Verdict;
use punctual::domain::{
    BatchId, IdRange, NodeId, Outcome, Precondition, TaskId, TaskState, Timestamp,
};
use punctual::postgres::PostgresError;
use punctual::postgres::lists::dead_letters::DeadLetters;
use punctual::postgres::partitions::mover::Mover;
use punctual::postgres::tasks::adopt::Adoptions;
use punctual::postgres::tasks::answers::AnswerStore;
use punctual::postgres::tasks::cancel::Cancels;
use punctual::postgres::tasks::replace::{Replacement, Replaces};
use punctual::postgres::tasks::settle::Settlement;

use sqlx::postgres::PgConnection;

use super::{HOUR, SHARD, Scene, extend, finish, task, tracking};
use crate::hazards::{number, run, staged};
use crate::support::BLOCKED;
use crate::support::partitions::move_far;
use crate::support::wait::look_for;

/// Claims, cancels and answers wait 200 ms for a lock.
const STAGED_WITHIN: Duration = Duration::from_millis(800);
pub const NAME: &str = "select from task_name for update";
const FINALS: &str = "select count(*) from execlog \
                      where state in ('finished', 'dead', 'cancelled', 'expired')";
const FOLLOW: &str = "select from task_follow for update";
/// Answers, cancels and replacements look into the far table before they take a row.
const FAR_TABLE: &str = "lock table task_far in access exclusive mode";

/// A named task whose first attempt is with its consumer, and an open connection for its answer.
async fn awaiting(scene: &Scene) -> (TaskId, AnswerStore) {
    let first = scene.submit(Some("n"), Some(tracking(3))).await;
    scene.attempt().await;
    (first, store(scene).await)
}

/// A named task whose record was certainly not sent. It waits for another try.
async fn deferred(scene: &Scene) -> (TaskId, AnswerStore) {
    let first = scene.submit(Some("n"), Some(tracking(3))).await;
    let batch = scene.claim().await;
    let next = TaskId::new(scene.now().await.ceil_millis(), first.shard(), rand::random());
    let outcome = Outcome::Deferred { next, maybe_sent: false };
    scene.settle(&Settlement::new(&batch, &[outcome])).await;
    (first, store(scene).await)
}

async fn store(scene: &Scene) -> AnswerStore {
    let mut store = AnswerStore::new(&scene.settings, HOUR);
    store.keep_open().await.unwrap();
    store
}

/// Finishes a task. `None`: neither of two statements has found an attempt.
async fn finished(
    scene: &Scene,
    store: &mut AnswerStore,
    first: TaskId,
) -> Result<Option<Verdict>, PostgresError> {
    let mut answers = HashMap::new();
    scene.take(store, &[finish(first)], &mut answers).await?;
    Ok(answers.remove(&first).map(|answered| answered.verdict))
}

pub async fn cancelled(scene: &Scene, first: TaskId) -> Result<bool, PostgresError> {
    let (views, outcome) = Cancels::new(&scene.settings, HOUR).cancel_group(&[(first, None)]).await;
    outcome.map(|()| views[0].is_some())
}

pub async fn replaced(scene: &Scene) -> Result<Replacement, PostgresError> {
    let due_at = scene.now().await.plus(HOUR / 2).ceil_millis();
    let (new, any) = (task(due_at, Some("n"), None), Precondition::default());
    Replaces::new(&scene.settings, HOUR, 1).replace(&new, false, None, &any).await
}

/// Runs `first` until it waits for the lock of a third session, then `second` until it waits, too,
/// and lets the third session go. Returns `None` when one of them gave up before: the machine was
/// too slow.
pub fn in_order<A, B>(
    scene: &Scene,
    lock: &str,
    first: impl Future<Output = Result<A, PostgresError>>,
    second: impl Future<Output = Result<B, PostgresError>>,
) -> Pin<Box<impl Future<Output = Option<(A, B)>>>> {
    Box::pin(async move {
        let (mut holder, mut one, mut other) =
            (scene.own.connect().await, scene.own.connect().await, scene.own.connect().await);
        run(&mut holder, &format!("begin; {lock}")).await;
        let second = async {
            let is_behind = are_blocked(&mut one, 1).await;
            (is_behind, second.await)
        };
        let release = async {
            let is_staged = are_blocked(&mut other, 2).await;
            run(&mut holder, "rollback").await;
            is_staged
        };
        let (first, (is_behind, second), is_staged) = tokio::join!(first, second, release);
        match (first, second) {
            (Ok(first), Ok(second)) if is_behind && is_staged => Some((first, second)),
            (Err(error), _) | (_, Err(error))
                if !matches!(error, PostgresError::GaveWay { .. }) =>
            {
                panic!("{error}")
            }
            _ => None,
        }
    })
}

/// Waits until so many sessions wait for a lock.
async fn are_blocked(watcher: &mut PgConnection, count: i64) -> bool {
    let count_blocked = async || (number(watcher, BLOCKED).await == count).then_some(());
    look_for(STAGED_WITHIN, count_blocked).await.is_some()
}

/// Checks that a task is finished, by one final line, and that nothing of it is left.
async fn is_finished(scene: &Scene, first: TaskId) {
    assert_eq!(scene.state(first).await, TaskState::Finished);
    assert_eq!(scene.number(FINALS).await, 1);
    scene.is_tidy().await;
}

#[tokio::test]
async fn of_a_finish_and_a_claim_the_first_decides() {
    staged(async || {
        let scene = Scene::new("orders").await;
        let (first, mut store) = awaiting(&scene).await;
        let (verdict, batch) =
            in_order(&scene, NAME, finished(&scene, &mut store, first), scene.claim_beside())
                .await?;
        assert_eq!((verdict, batch.is_none()), (Some(Verdict::Finished), true));
        is_finished(&scene, first).await;
        Some(())
    })
    .await;
    staged(async || {
        let scene = Scene::new("orders").await;
        let (first, mut store) = awaiting(&scene).await;
        let later = scene.now().await.plus(HOUR / 2).ceil_millis();
        let other = scene.submit_at(later, None, None).await;
        let lock = format!("select from task where id = '{other}' for update");
        let (batch, verdict) =
            in_order(&scene, &lock, scene.claim_beside(), finished(&scene, &mut store, first))
                .await?;
        let batch = batch.expect("the claim was first");
        assert_eq!((batch.len(), verdict), (2, Some(Verdict::FinishedInFlight)));
        scene.settle(&scene.published(&batch).await).await;
        is_finished(&scene, first).await;
        Some(())
    })
    .await;
}

/// The settle of the first attempt, of which `task_follow` has no row yet, and of the second.
#[tokio::test]
async fn of_a_finish_and_a_settle_neither_misses_the_other() {
    for (settled_before, is_settle_first) in [(0, true), (0, false), (1, true), (1, false)] {
        staged(async || {
            let scene = Scene::new("orders").await;
            let first = scene.submit(Some("n"), Some(tracking(3))).await;
            for _attempt in 0..settled_before {
                scene.attempt().await;
            }
            let settlement = scene.published(&scene.claim().await).await;
            let mut store = store(&scene).await;
            let settle = scene.settle_beside(scene.node, &settlement);
            let finish = finished(&scene, &mut store, first);
            if is_settle_first {
                let (settled, verdict) = in_order(&scene, NAME, settle, finish).await?;
                // A mark that meets the row of the settle goes back to transaction 1.
                assert_eq!((settled, verdict), (1, Some(Verdict::Finished)));
            } else {
                let (verdict, settled) = in_order(&scene, NAME, finish, settle).await?;
                assert_eq!((settled, verdict), (1, Some(Verdict::FinishedInFlight)));
            }
            is_finished(&scene, first).await;
            Some(())
        })
        .await;
    }
}

/// The first attempt expires before its hand-over. Who finishes the task knows of it from
/// elsewhere.
#[tokio::test]
async fn of_a_finish_and_an_expiry_the_first_decides_and_nothing_is_left() {
    for is_settle_first in [true, false] {
        staged(async || {
            let scene = Scene::new("orders").await;
            let first = scene.submit(Some("n"), Some(tracking(3))).await;
            let batch = scene.claim().await;
            let expires_at = scene.now().await;
            let settlement = Settlement::new(&batch, &[Outcome::Expired { expires_at }]);
            let mut store = store(&scene).await;
            let settle = scene.settle_beside(scene.node, &settlement);
            let finish = finished(&scene, &mut store, first);
            if is_settle_first {
                let (settled, verdict) = in_order(&scene, NAME, settle, finish).await?;
                assert_eq!((settled, verdict), (1, None));
                assert_eq!(scene.state(first).await, TaskState::Expired);
                assert_eq!(scene.number(FINALS).await, 1);
                scene.is_tidy().await;
            } else {
                let (verdict, settled) = in_order(&scene, NAME, finish, settle).await?;
                assert_eq!((settled, verdict), (1, Some(Verdict::FinishedInFlight)));
                is_finished(&scene, first).await;
            }
            Some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_finish_before_or_after_an_adoption_is_kept_by_the_settle_of_the_heir() {
    for is_adopted_first in [true, false] {
        let scene = Scene::new("orders").await;
        let first = scene.submit(Some("n"), Some(tracking(3))).await;
        let batch = scene.claim().await;
        let heir = NodeId::new(Timestamp::EPOCH, 0, rand::random());
        let mut adoptions = Adoptions::new(&scene.settings, heir);
        if !is_adopted_first {
            assert_eq!(scene.verdict(&finish(first)).await, Verdict::FinishedInFlight);
        }
        assert_eq!(adoptions.adopt(BatchId::MIN).await.unwrap(), [batch.id]);
        let zombie = scene.published(&batch).await;
        assert_eq!(scene.settle(&zombie).await, 0, "the batch is no longer its own");
        if is_adopted_first {
            assert_eq!(scene.verdict(&finish(first)).await, Verdict::FinishedInFlight);
        }
        let batch = adoptions.load(batch.id).await.unwrap().unwrap().0;
        let settlement = scene.published(&batch).await;
        assert_eq!(scene.settle_beside(heir, &settlement).await.unwrap(), 1);
        is_finished(&scene, first).await;
    }
}

/// A task whose record was certainly not sent can be cancelled, and not finished.
#[tokio::test]
async fn a_finish_beside_a_cancel_leaves_the_task_to_the_cancel() {
    for (lock, is_cancel_first) in [(FOLLOW, true), (FAR_TABLE, false)] {
        staged(async || {
            let scene = Scene::new("orders").await;
            let (first, mut store) = deferred(&scene).await;
            let cancel = cancelled(&scene, first);
            let finish = finished(&scene, &mut store, first);
            let (is_cancelled, verdict) = if is_cancel_first {
                in_order(&scene, lock, cancel, finish).await?
            } else {
                let (verdict, is_cancelled) = in_order(&scene, lock, finish, cancel).await?;
                (is_cancelled, verdict)
            };
            let wanted = (!is_cancel_first).then_some(Verdict::NotPublishedYet);
            assert_eq!((is_cancelled, verdict), (true, wanted));
            assert_eq!(scene.state(first).await, TaskState::Cancelled);
            scene.is_tidy().await;
            Some(())
        })
        .await;
    }
}

/// The same for a replacement, which locks the name first.
#[tokio::test]
async fn a_finish_beside_a_replacement_leaves_an_unsent_task_to_the_replacement() {
    for (lock, is_put_first) in [(FOLLOW, true), (FAR_TABLE, false)] {
        staged(async || {
            let scene = Scene::new("orders").await;
            let (first, mut store) = deferred(&scene).await;
            let put = replaced(&scene);
            let finish = finished(&scene, &mut store, first);
            let (replacement, verdict) = if is_put_first {
                in_order(&scene, lock, put, finish).await?
            } else {
                let (verdict, replacement) = in_order(&scene, lock, finish, put).await?;
                (replacement, verdict)
            };
            let wanted = (!is_put_first).then_some(Verdict::NotPublishedYet);
            assert_eq!((replacement, verdict), (Replacement::Replaced, wanted));
            assert_eq!(scene.state(first).await, TaskState::Cancelled);
            assert_eq!(scene.number("select count(*) from task_follow").await, 0);
            Some(())
        })
        .await;
    }
}

/// A task that is with its consumer can be finished, and not replaced. The replacement holds the
/// name, or waits for it.
#[tokio::test]
async fn a_finish_beside_a_replacement_takes_a_task_that_is_with_its_consumer() {
    for (lock, is_put_first) in [(FAR_TABLE, true), (NAME, false)] {
        staged(async || {
            let scene = Scene::new("orders").await;
            let (first, mut store) = awaiting(&scene).await;
            let put = replaced(&scene);
            let finish = finished(&scene, &mut store, first);
            let (replacement, verdict) = if is_put_first {
                in_order(&scene, lock, put, finish).await?
            } else {
                let (verdict, replacement) = in_order(&scene, lock, finish, put).await?;
                (replacement, verdict)
            };
            assert_eq!(verdict, Some(Verdict::Finished));
            match replacement {
                Replacement::Gone(_) if is_put_first => is_finished(&scene, first).await,
                Replacement::Created if !is_put_first => {
                    assert_eq!(scene.state(first).await, TaskState::Finished);
                }
                other => panic!("{other:?}"),
            }
            Some(())
        })
        .await;
    }
}

/// A mark holds the place in `task_follow` for a moment, until it is seen that the task is dead.
/// The call is then repeated. Or both wait for that place, and the call that comes second goes back
/// to transaction 1.
#[tokio::test]
async fn a_finish_beside_a_redrive_finds_the_redriven_task() {
    let batches = "lock table execlog_batch in access exclusive mode".to_owned();
    for is_mark_first in [true, false] {
        staged(async || {
            let scene = Scene::new("orders").await;
            let first = scene.submit(Some("n"), Some(tracking(1))).await;
            scene.attempt().await;
            scene.attempt().await;
            assert_eq!(scene.state(first).await, TaskState::Dead);
            let (letters, mut store) =
                (DeadLetters::new(&scene.settings, HOUR, 1), store(&scene).await);
            let place = format!(
                "insert into task_follow (first_id, row_id, maybe_sent)
                 values ('{first}', '{first}', false)"
            );
            let lock = if is_mark_first { &batches } else { &place };
            let finish = finished(&scene, &mut store, first);
            let (verdict, redriven) =
                in_order(&scene, lock, finish, letters.redrive(first, None)).await?;
            assert!(redriven.is_some());
            match verdict {
                None => {
                    assert_eq!(scene.verdict(&super::finish(first)).await, Verdict::Finished);
                }
                Some(verdict) => assert_eq!((verdict, is_mark_first), (Verdict::Finished, false)),
            }
            assert_eq!(scene.state(first).await, TaskState::Finished);
            scene.is_tidy().await;
            Some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_finish_beside_the_mover_takes_the_row_wherever_it_is() {
    for is_move_first in [true, false] {
        staged(async || {
            let scene = Scene::new("orders").await;
            let (first, mut store) = awaiting(&scene).await;
            let by = Some(HOUR + HOUR / 4);
            let extended = super::AnswerCall { by, ..extend(first, 1) };
            assert_eq!(scene.verdict(&extended).await, Verdict::Extended);
            // Another far task, due later.
            let now = scene.now().await;
            let later = now.plus(HOUR + HOUR / 3).ceil_millis();
            let other = TaskId::new(later, first.shard(), rand::random());
            let mut sql = scene.own.connect().await;
            let insert = format!(
                "insert into task_far (shard, id, topic) values ({SHARD}, '{other}', 'orders')"
            );
            run(&mut sql, &insert).await;
            assert_eq!(scene.number("select count(*) from task_far").await, 2);
            let mut mover = Mover::new(&scene.settings);
            let range = IdRange::of_times(now, now.plus(HOUR + HOUR / 2));
            let moving = async { move_far(&mut mover, range).await.map(|moved| moved.task_count) };
            let finish = finished(&scene, &mut store, first);
            let (moved, verdict) = if is_move_first {
                let lock = format!("select from task_far where id = '{other}' for update");
                in_order(&scene, &lock, moving, finish).await?
            } else {
                let (verdict, moved) = in_order(&scene, NAME, finish, moving).await?;
                (moved, verdict)
            };
            let wanted = if is_move_first { 2 } else { 1 };
            assert_eq!((moved, verdict), (wanted, Some(Verdict::Finished)));
            run(&mut sql, &format!("delete from task where id = '{other}'")).await;
            is_finished(&scene, first).await;
            Some(())
        })
        .await;
    }
}

/// The calls of a group that are about followed tasks are committed first. When the others give
/// way to a lock, the first ones keep their answers.
#[tokio::test]
async fn the_first_half_of_a_group_keeps_its_answers_when_the_other_half_gives_way() {
    let scene = Scene::new("orders").await;
    let (awaiting, mut store) = awaiting(&scene).await;
    let in_flight = scene.submit(None, Some(tracking(3))).await;
    let claimed = scene.claim().await;
    assert_eq!(claimed.len(), 2);
    let mut holder = scene.own.connect().await;
    let mark = format!(
        "begin; insert into task_follow (first_id, row_id, maybe_sent)
         values ('{in_flight}', '{in_flight}', false)"
    );
    run(&mut holder, &mark).await;
    let (calls, mut answers) = ([finish(awaiting), finish(in_flight)], HashMap::new());
    let gave_way = scene.take(&mut store, &calls, &mut answers).await;
    assert!(matches!(gave_way, Err(PostgresError::GaveWay { .. })), "{gave_way:?}");
    assert_eq!(answers.len(), 1);
    run(&mut holder, "rollback").await;
    scene.take(&mut store, &calls, &mut answers).await.unwrap();
    // A second call about the first task would be told `Finished` only.
    for task in [awaiting, in_flight] {
        assert_eq!(answers[&task].verdict, Verdict::FinishedInFlight);
    }
}
