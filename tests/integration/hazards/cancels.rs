//! Cancels against tasks that are being moved, and against each other.

use std::time::Duration;

use punctual::domain::{IdRange, TaskId};
use punctual::postgres::cancel::Canceller;
use punctual::postgres::far::Mover;

use super::{DEADLOCK, Stage, code_of, in_background, run, try_run};

/// As the canceller has them: rows are looked for one by one, in the order of the array.
const PLAN: &str = "set enable_hashjoin = off; set enable_mergejoin = off; set enable_seqscan = off; set enable_bitmapscan = off";

fn delete(table: &str, ids: &[TaskId]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| format!("'{id}'::uuid")).collect();
    let rows = format!("unnest(array[{}]) as w (id)", ids.join(", "));
    format!("delete from {table} t using {rows} where t.shard = 7 and t.id = w.id")
}

async fn move_all(stage: &mut Stage) -> u64 {
    let now = stage.now().await;
    let range = IdRange::of_times(now, now.plus(Duration::from_secs(3600)));
    Mover::new(&stage.settings).round(range).await.unwrap().task_count
}

/// The rule: the far table first, then the leaves. A task moves from the one to the other, never back.
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

/// The rule: as two statements. One statement has one snapshot, and waits in the far table for a row whose new place it does not see.
#[tokio::test]
async fn a_cancel_in_one_statement_misses_a_task_that_is_being_moved() {
    for has_rule in [true, false] {
        let mut stage = Stage::new().await;
        let due_at = stage.now().await.plus(Duration::from_secs(600));
        let ids = stage.insert("task_far", due_at, 1).await;
        let mut mover = stage.another().await;
        let moving = "begin;
            with d as (delete from task_far returning shard, id, topic, payload)
            insert into task (shard, id, topic, payload) select shard, id, topic, payload from d";
        run(&mut mover, moving).await;
        let found = if has_rule {
            let mut canceller = Canceller::new(&stage.settings);
            let ((cancelled, outcome), ()) = tokio::join!(canceller.cancel_group(&ids), async {
                stage.wait_blocked(1).await;
                run(&mut mover, "commit").await;
            });
            outcome.unwrap();
            cancelled[0].is_some()
        } else {
            let text = format!("with far as ({} returning t.id) {}", delete("task_far", &ids), delete("task", &ids));
            let cancelling = in_background(stage.another().await, text);
            stage.wait_blocked(1).await;
            run(&mut mover, "commit").await;
            cancelling.await.unwrap().unwrap() == 1
        };
        assert_eq!((found, stage.number("select count(*) from task").await), (has_rule, i64::from(!has_rule)));
    }
}

/// The rule: rows are deleted by range, or sorted by shard and id.
#[tokio::test]
async fn cancels_that_take_rows_in_different_orders_deadlock() {
    for has_rule in [true, false] {
        let mut stage = Stage::new().await;
        let due_at = stage.now().await.plus(Duration::from_secs(600));
        let ids = stage.insert("task", due_at, 3).await;
        let backwards: Vec<TaskId> = ids.iter().rev().copied().collect();
        // Whoever comes has got one row, and waits for the one in the middle.
        let mut holder = stage.another().await;
        run(&mut holder, &format!("begin; select from task where id = '{}' for update", ids[1])).await;
        if has_rule {
            let (mut one, mut other) = (Canceller::new(&stage.settings), Canceller::new(&stage.settings));
            let ((first, one_ended), (second, other_ended), ()) =
                tokio::join!(one.cancel_group(&ids), other.cancel_group(&backwards), async {
                    stage.wait_blocked(2).await;
                    run(&mut holder, "rollback").await;
                });
            one_ended.and(other_ended).unwrap();
            let cancelled = first.into_iter().chain(second).flatten();
            assert_eq!(cancelled.count(), 3, "each of them once");
        } else {
            let text = |ids: &[TaskId]| format!("{PLAN}; {}", delete("task", ids));
            let one = in_background(stage.another().await, text(&ids));
            let other = in_background(stage.another().await, text(&backwards));
            stage.wait_blocked(2).await;
            run(&mut holder, "rollback").await;
            let failures: Vec<_> = [one.await.unwrap(), other.await.unwrap()].into_iter().filter_map(Result::err).collect();
            let codes: Vec<_> = failures.iter().map(code_of).collect();
            assert_eq!(codes, [Some(DEADLOCK.to_owned())]);
        }
    }
}
