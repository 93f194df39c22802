//! Partitions that are dropped while they are in use.

use std::time::Duration;

use punctual::domain::leaves::{Parent, Partition};
use punctual::domain::{BatchId, NodeId};
use punctual::postgres::partitions::create;
use punctual::postgres::partitions::retire::Retired;
use punctual::postgres::tasks::adopt::Adoptions;
use sqlx::postgres::PgConnection;
use tokio::task::JoinHandle;

use super::{LOCK_TIMEOUT, Stage, code_of, in_background, run, try_run};
use crate::support::partitions::retire_all;

/// A partition whose time has long passed, attached and empty.
async fn past(stage: &mut Stage, parent: Parent, hours_ago: u64) -> Partition {
    let at = stage.now().await.minus(Duration::from_secs(hours_ago * 3600));
    let partition = stage.rules.partition_of(parent, at);
    assert!(create(&mut stage.connection(), &stage.rules, &[partition]).await.unwrap());
    partition
}

fn retire(stage: &Stage, parent: Parent) -> JoinHandle<Retired> {
    let (settings, rules) = (stage.settings.clone(), stage.rules);
    tokio::spawn(async move { retire_all(&settings, parent, rules).await.unwrap() })
}

/// A claim that began in `hour` and has not committed.
async fn claim_under_way(
    stage: &mut Stage,
    hour: Partition,
    owner: NodeId,
) -> (PgConnection, BatchId) {
    let day = stage.rules.partition_of(Parent::ExeclogBatch, hour.start);
    // The partition may exist already, because the hour may be of today.
    create(&mut stage.connection(), &stage.rules, &[day]).await.unwrap();
    let batch = BatchId::new(hour.start.plus(Duration::from_secs(60)), 0, rand::random());
    let (id, owner) = (batch.uuid(), owner.uuid());
    let mut claimer = stage.another().await;
    let claim = format!(
        "begin;
         insert into execlog_batch (batch, owner, claimed_at, task_count, ids)
           values ('{id}', '{owner}', now(), 1, array['{id}'::uuid]);
         insert into execlog_payload values ('{id}', '{{orders}}', '{{k}}', '{{p}}', '{{NULL}}')"
    );
    run(&mut claimer, &claim).await;
    (claimer, batch)
}

fn detach(parent: Parent, partition: Partition) -> String {
    format!("alter table {} detach partition {} concurrently", parent.table(), partition.name())
}

/// The rule: a payload hour is detached before the check for its unsettled batches.
#[tokio::test]
async fn payloads_that_are_looked_after_before_they_are_detached_go_from_under_a_claim() {
    let owner = NodeId::new(Default::default(), 0, rand::random());
    for has_rule in [true, false] {
        let mut stage = Stage::new().await;
        let hour = past(&mut stage, Parent::ExeclogPayload, 4).await;
        let (mut claimer, batch) = claim_under_way(&mut stage, hour, owner).await;
        // A check at this moment sees no unsettled batch.
        assert_eq!(
            stage.number("select count(*) from execlog_batch where settled_at is null").await,
            0
        );
        if has_rule {
            let retiring = retire(&stage, Parent::ExeclogPayload);
            stage.wait_detaching().await;
            run(&mut claimer, "commit").await;
            assert_eq!(retiring.await.unwrap().kept_count, 1);
        } else {
            let detaching =
                in_background(stage.another().await, detach(Parent::ExeclogPayload, hour));
            stage.wait_detaching().await;
            run(&mut claimer, "commit").await;
            detaching.await.unwrap().unwrap();
            stage.run(&format!("drop table {}", hour.name())).await;
        }
        let loaded = Adoptions::new(&stage.settings, owner).load(batch).await.unwrap();
        assert_eq!(loaded.is_some(), has_rule, "what was claimed can be published");
    }
}

/// The rule: a leaf is checked again after the detach, when no transaction can write to the leaf.
#[tokio::test]
async fn a_leaf_that_is_dropped_without_a_second_look_takes_a_task_with_it() {
    for has_rule in [true, false] {
        let mut stage = Stage::new().await;
        let leaf = past(&mut stage, Parent::Task, 4).await;
        // Somebody has used the table: the detach waits, after the leaf was seen to be empty.
        let mut reader = stage.another().await;
        run(&mut reader, "begin; lock table only task in access share mode").await;
        if has_rule {
            let retiring = retire(&stage, Parent::Task);
            stage.wait_detaching().await;
            stage.insert(&leaf.name(), leaf.start, 1).await;
            run(&mut reader, "commit").await;
            assert_eq!(retiring.await.unwrap().kept_count, 1);
        } else {
            stage.run(&format!("truncate {}", leaf.name())).await;
            let detaching = in_background(stage.another().await, detach(Parent::Task, leaf));
            stage.wait_detaching().await;
            stage.insert(&leaf.name(), leaf.start, 1).await;
            run(&mut reader, "commit").await;
            detaching.await.unwrap().unwrap();
            stage.run(&format!("drop table {}", leaf.name())).await;
        }
        assert_eq!(
            stage.number("select count(*) from task").await,
            i64::from(has_rule),
            "the late task"
        );
    }
}

/// The rules: a detach has no timeout, and an interrupted detach is completed by the next node.
#[tokio::test]
async fn a_detach_that_was_cut_off_hides_its_leaf_and_forbids_all_others_until_it_is_finalized() {
    let mut stage = Stage::new().await;
    let (leaf, other) =
        (past(&mut stage, Parent::Task, 4).await, past(&mut stage, Parent::Task, 3).await);
    let mut reader = stage.another().await;
    run(&mut reader, "begin; lock table only task in access share mode").await;
    stage.insert(&leaf.name(), leaf.start, 1).await;
    let detaching = in_background(stage.another().await, detach(Parent::Task, leaf));
    stage.wait_detaching().await;
    let cancel = "select count(pg_cancel_backend(pid)) from pg_stat_activity
                  where datname = current_database() and query ilike 'alter table%detach%'
                    and pid <> pg_backend_pid()";
    assert_eq!(stage.number(cancel).await, 1);
    let cut_off = detaching.await.unwrap().unwrap_err();
    assert_eq!(code_of(&cut_off).as_deref(), Some("57014"), "as by a timeout");
    run(&mut reader, "commit").await;
    assert_eq!(stage.number("select count(*) from task").await, 0, "the task is out of sight");
    let refused = try_run(&mut stage.sql, &detach(Parent::Task, other)).await.unwrap_err();
    assert_eq!(code_of(&refused).as_deref(), Some("55000"), "{refused}");

    let retired = retire(&stage, Parent::Task).await.unwrap();
    assert_eq!(retired, Retired { finalized_count: 1, dropped_count: 1, kept_count: 1 });
    assert_eq!(stage.number("select count(*) from task").await, 1);
}

/// The rule: a partition is detached concurrently before the drop.
#[tokio::test]
async fn a_plain_drop_behind_one_open_reader_stalls_all_claims() {
    for has_rule in [true, false] {
        let mut stage = Stage::new().await;
        let leaf = past(&mut stage, Parent::Task, 4).await;
        let from = stage.now().await;
        stage.insert("task", from, 1).await;
        let mut reader = stage.another().await;
        run(&mut reader, "begin; select count(*) from task").await;
        let drop = format!("drop table {}", leaf.name());
        let statement = if has_rule { detach(Parent::Task, leaf) } else { drop };
        let going = in_background(stage.another().await, statement);
        // The detach waits for the transaction, and the drop for a lock on the parent.
        stage.wait_blocked(1).await;
        let claim = "set lock_timeout = '200ms'; delete from task";
        let claimed = try_run(&mut stage.sql, claim).await;
        match has_rule {
            true => assert_eq!(claimed.unwrap(), 1),
            false => assert_eq!(code_of(&claimed.unwrap_err()).as_deref(), Some(LOCK_TIMEOUT)),
        }
        run(&mut reader, "commit").await;
        going.await.unwrap().unwrap();
    }
}
