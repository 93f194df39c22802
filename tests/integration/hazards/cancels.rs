//! Cancels of tasks that are being moved, and concurrent cancels.

use std::time::Duration;

use punctual::domain::{IdRange, PrincipalId, Shard, TaskId, Timestamp};
use punctual::postgres::partitions::mover::Mover;
use punctual::postgres::tasks::cancel::Cancels;
use sqlx::postgres::PgConnection;

use super::{DEADLOCK, Stage, code_of, in_background, run, staged, try_run};
use crate::support::partitions::move_far;

/// Looks for rows one by one, in the order of the array, as the canceller does.
const PLAN: &str = "set enable_hashjoin = off; set enable_mergejoin = off; set enable_seqscan = \
                    off; set enable_bitmapscan = off";

fn delete(table: &str, ids: &[TaskId]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| format!("'{id}'::uuid")).collect();
    let rows = format!("unnest(array[{}]) as w (id)", ids.join(", "));
    format!("delete from {table} t using {rows} where t.shard = 7 and t.id = w.id")
}

async fn move_all(stage: &mut Stage) -> u64 {
    let now = stage.now().await;
    let range = IdRange::of_times(now, now.plus(Duration::from_secs(3600)));
    move_far(&mut Mover::new(&stage.settings), range).await.unwrap().task_count
}

/// The rule: the far table first, then the leaves. A task moves from the one to the other, never
/// back.
#[tokio::test]
async fn a_cancel_that_looks_near_first_and_far_second_misses_a_task_that_is_moved_between() {
    for (tables, found) in [(["task_far", "task"], 1), (["task", "task_far"], 0)] {
        let mut stage = Stage::new().await;
        let due_at = stage.now().await.plus(Duration::from_secs(600));
        let ids = stage.insert("task_far", due_at, 1).await;
        let first = try_run(&mut stage.sql, &delete(tables[0], &ids)).await.unwrap();
        let moved = move_all(&mut stage).await;
        let second = try_run(&mut stage.sql, &delete(tables[1], &ids)).await.unwrap();
        assert_eq!((first + second, first + moved), (found, 1), "{tables:?}");
    }
}

fn anonymously(ids: &[TaskId]) -> Vec<(TaskId, Option<PrincipalId>)> {
    ids.iter().map(|id| (*id, None)).collect()
}

/// A new session that is already open, so only the statements take time.
async fn canceller(stage: &Stage) -> Cancels {
    let mut canceller = Cancels::new(&stage.settings, Duration::from_secs(3600));
    let nobody = TaskId::new(Timestamp::from_millis(1), Shard::new(7), 7);
    let (cancelled, outcome) = canceller.cancel_group(&[(nobody, None)]).await;
    outcome.unwrap();
    assert_eq!(cancelled, [None]);
    canceller
}

/// A task that is being moved: its row has left the far table, and the row in the leaf is not
/// visible yet.
async fn amid_a_move() -> (Stage, Vec<TaskId>, PgConnection) {
    let mut stage = Stage::new().await;
    let due_at = stage.now().await.plus(Duration::from_secs(600));
    let ids = stage.insert("task_far", due_at, 1).await;
    let mut mover = stage.another().await;
    let moving = "begin;
        with d as (delete from task_far returning shard, id, topic, payload)
        insert into task (shard, id, topic, payload) select shard, id, topic, payload from d";
    run(&mut mover, moving).await;
    (stage, ids, mover)
}

/// The rule: two statements. One statement has one snapshot, waits in the far table for a row, and
/// does not see the row's new place.
#[tokio::test]
async fn a_cancel_in_one_statement_misses_a_task_that_is_being_moved() {
    let with_rule = staged(async || {
        let (mut stage, ids, mut mover) = amid_a_move().await;
        let mut canceller = canceller(&stage).await;
        let wanted = anonymously(&ids);
        let ((cancelled, outcome), is_staged) =
            tokio::join!(canceller.cancel_group(&wanted), stage.release(1, &mut mover, "commit"));
        if !is_staged {
            return None;
        }
        outcome.unwrap();
        Some((cancelled[0].is_some(), stage.number("select count(*) from task").await))
    });
    assert_eq!(with_rule.await, (true, 0));

    let (mut stage, ids, mut mover) = amid_a_move().await;
    let text = format!(
        "with far as ({} returning t.id) {}",
        delete("task_far", &ids),
        delete("task", &ids)
    );
    let cancelling = in_background(stage.another().await, text);
    stage.wait_blocked(1).await;
    run(&mut mover, "commit").await;
    assert_eq!(
        (cancelling.await.unwrap().unwrap(), stage.number("select count(*) from task").await),
        (0, 1)
    );
}

/// Three tasks, and a transaction that locks the middle one. Each cancel gets one row, and waits
/// for that lock.
async fn with_the_middle_locked() -> (Stage, Vec<TaskId>, PgConnection) {
    let mut stage = Stage::new().await;
    let due_at = stage.now().await.plus(Duration::from_secs(600));
    let ids = stage.insert("task", due_at, 3).await;
    let mut holder = stage.another().await;
    run(&mut holder, &format!("begin; select from task where id = '{}' for update", ids[1])).await;
    (stage, ids, holder)
}

/// The rule: rows are deleted by range, or sorted by shard and id.
#[tokio::test]
async fn cancels_that_take_rows_in_different_orders_deadlock() {
    let backwards = |ids: &[TaskId]| -> Vec<TaskId> { ids.iter().rev().copied().collect() };
    let with_rule = staged(async || {
        let (mut stage, ids, mut holder) = with_the_middle_locked().await;
        let (mut one, mut other) = (canceller(&stage).await, canceller(&stage).await);
        let (wanted, backwards) = (anonymously(&ids), anonymously(&backwards(&ids)));
        let ((first, one_ended), (second, other_ended), is_staged) = tokio::join!(
            one.cancel_group(&wanted),
            other.cancel_group(&backwards),
            stage.release(2, &mut holder, "rollback")
        );
        if !is_staged {
            return None;
        }
        one_ended.and(other_ended).unwrap();
        Some(first.into_iter().chain(second).flatten().count())
    });
    assert_eq!(with_rule.await, 3, "each of them once");

    let (mut stage, ids, mut holder) = with_the_middle_locked().await;
    let text = |ids: &[TaskId]| format!("{PLAN}; {}", delete("task", ids));
    let one = in_background(stage.another().await, text(&ids));
    let other = in_background(stage.another().await, text(&backwards(&ids)));
    stage.wait_blocked(2).await;
    run(&mut holder, "rollback").await;
    let failures: Vec<_> =
        [one.await.unwrap(), other.await.unwrap()].into_iter().filter_map(Result::err).collect();
    let codes: Vec<_> = failures.iter().map(code_of).collect();
    assert_eq!(codes, [Some(DEADLOCK.to_owned())]);
}
