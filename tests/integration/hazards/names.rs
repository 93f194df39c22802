//! Names: two concurrent replacements, and groups that lock names in different orders.

use std::time::Duration;

use punctual::domain::{
    Headers, NewTask, NodeId, Precondition, Record, ShardCount, TaskName, Timestamp, TopicName,
};
use punctual::postgres::tasks::cancel::Cancels;
use punctual::postgres::tasks::replace::{Replacement, Replaces};
use punctual::postgres::tasks::submit_named::{NamedGroup, NamedSubmits};
use punctual::postgres::{PostgresError, PostgresSettings};

use super::{
    DEADLOCK, LOCK_TIMEOUT, PATIENCE, STAGED_WITHIN_A_SECOND, Stage, in_background, run, staged,
};

fn task(name: &str, due_at: Timestamp) -> NewTask {
    let topic = TopicName::new("orders").unwrap();
    let record =
        Record { topic, key: None, payload: Some(Box::from(*b"p")), headers: Headers::default() };
    NewTask::new(
        record,
        Some(TaskName::new(name).unwrap()),
        due_at,
        ShardCount::DEFAULT,
        (0, rand::random()),
    )
}

/// Stores tasks in the given order. Returns the number of new names.
async fn store(settings: &PostgresSettings, tasks: &[NewTask]) -> Result<usize, PostgresError> {
    let (tasks, nowhere): (Vec<&NewTask>, Vec<bool>) =
        tasks.iter().map(|task| (task, false)).unzip();
    let group = NamedGroup { tasks: &tasks, is_far: &nowhere, is_claimed: &nowhere, batch: None };
    let node = NodeId::new(Timestamp::EPOCH, 0, rand::random());
    NamedSubmits::new(settings, node, PATIENCE).store(&group).await.map(|(won, _)| won.len())
}

/// A replacement as one statement, to save a round trip.
fn in_one_statement(task: &NewTask) -> String {
    let (id, shard) = (task.id, task.id.shard().as_smallint());
    format!(
        "with entry as (select row_id from task_name where topic = 'orders'
          and name = 'n' for update),
           gone as (delete from task using entry where task.id = entry.row_id),
           moved as (update task_name set id = '{id}', row_id = '{id}' from entry
             where topic = 'orders' and name = 'n')
         insert into task (shard, id, topic, payload, name) select {shard}, '{id}', 'orders', 'p',
           'n' from entry"
    )
}

/// The rule: a replacement locks the entry in a separate statement. The next replacement then sees
/// the changes of the previous lock holder.
#[tokio::test]
async fn two_replacements_in_one_statement_each_leave_two_live_tasks() {
    for (has_rule, live) in [(true, 1), (false, 2)] {
        let found = staged(async || {
            let mut stage = Stage::new().await;
            let due_at = stage.now().await.plus(Duration::from_secs(600));
            assert_eq!(store(&stage.settings, &[task("n", due_at)]).await.unwrap(), 1);
            let mut holder = stage.another().await;
            run(&mut holder, "begin; select from task_name for update").await;
            let news = [task("n", due_at), task("n", due_at)];
            if has_rule {
                let (replaces, any) =
                    (Replaces::new(&stage.settings, PATIENCE, 2), Precondition::default());
                let (one, other, is_staged) = tokio::join!(
                    replaces.replace(&news[0], false, None, &any),
                    replaces.replace(&news[1], false, None, &any),
                    stage.release_within(STAGED_WITHIN_A_SECOND, 2, &mut holder, "commit")
                );
                if !is_staged {
                    return None;
                }
                assert_eq!(
                    (one.unwrap(), other.unwrap()),
                    (Replacement::Replaced, Replacement::Replaced)
                );
            } else {
                let one = in_background(stage.another().await, in_one_statement(&news[0]));
                let other = in_background(stage.another().await, in_one_statement(&news[1]));
                stage.wait_blocked(2).await;
                run(&mut holder, "commit").await;
                assert_eq!((one.await.unwrap().unwrap(), other.await.unwrap().unwrap()), (1, 1));
            }
            Some(stage.number("select count(*) from task where name = 'n'").await)
        })
        .await;
        assert_eq!(found, live);
    }
}

/// A sweep, or a repeated submit, frees the expired name of a task that is being cancelled. The
/// rule: the cancel makes the entry anew.
#[tokio::test]
async fn a_name_that_is_freed_beside_the_cancel_of_its_task_is_kept_all_the_same() {
    staged(async || {
        let mut stage = Stage::new().await;
        let due_at = stage.now().await.plus(Duration::from_secs(600));
        let named = [task("n", due_at)];
        assert_eq!(store(&stage.settings, &named).await.unwrap(), 1);
        let mut holder = stage.another().await;
        run(&mut holder, "begin; delete from task_name").await;
        let mut canceller = Cancels::new(&stage.settings, PATIENCE);
        canceller.keep_open().await.unwrap();
        let wanted = [(named[0].id, None)];
        let ((cancelled, outcome), is_staged) =
            tokio::join!(canceller.cancel_group(&wanted), stage.release(1, &mut holder, "commit"));
        outcome.unwrap();
        assert!(cancelled[0].is_some());
        let kept = "select count(*) from task_name \
                    where outcome = 4 and expires_at > clock_timestamp() + interval '1 minute'";
        // A cancel waits 200 ms for a lock.
        (is_staged && stage.number(kept).await == 1).then_some(())
    })
    .await;
}

/// The rule: the names of a group are sorted.
#[tokio::test]
async fn groups_that_take_names_in_different_orders_deadlock() {
    for (has_rule, second) in [(true, ["a", "m", "z"]), (false, ["z", "m", "a"])] {
        let failures: Vec<PostgresError> = staged(async || {
            let mut stage = Stage::new().await;
            let due_at = stage.now().await.plus(Duration::from_secs(600));
            let id = task("m", due_at).id;
            let mut holder = stage.another().await;
            run(
                &mut holder,
                &format!(
                    "begin; insert into task_name values ('orders', 'm', '{id}', '{id}', now())"
                ),
            )
            .await;
            let groups =
                [["a", "m", "z"], second].map(|names| names.map(|name| task(name, due_at)));
            let (settings, [first, second]) = (stage.settings.clone(), groups);
            // Released when both groups have all the locks that they can get.
            let (one, other, is_staged) = tokio::join!(
                store(&settings, &first),
                store(&settings, &second),
                stage.release_within(STAGED_WITHIN_A_SECOND, 2, &mut holder, "rollback")
            );
            is_staged.then(|| [one, other].into_iter().filter_map(Result::err).collect())
        })
        .await;
        // Either Postgres finds the deadlock, or the lock timeout ends one group. One group gives
        // way, and is repeated.
        match has_rule {
            true => assert!(failures.is_empty(), "{failures:?}"),
            false => {
                assert!(!failures.is_empty());
                let codes: Vec<_> =
                    failures.iter().map(|error| error.code().unwrap_or_default()).collect();
                assert!(
                    codes.iter().all(|code| [DEADLOCK, LOCK_TIMEOUT].contains(&code.as_str())),
                    "{codes:?}"
                );
            }
        }
    }
}
