//! A database of the version before, with tasks in every place, goes through the migration.

use punctual::domain::leaves::{Parent, Partition, Rules};
use punctual::postgres::Connection;
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::partitions::create;
use sqlx::migrate::Migrator;

use super::*;
use crate::support::eventually;
use crate::support::partitions::retire_all;

static ALL: Migrator = sqlx::migrate!();
const PATIENCE: Duration = Duration::from_secs(60);

async fn run(sql: &mut PgConnection, text: &str) {
    sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(sql).await.unwrap();
}

fn task(due_at: Timestamp) -> TaskId {
    TaskId::new(due_at, punctual::domain::Shard::new(7), rand::random())
}

/// Leaves the detach of a leaf half-done, as a node that is killed does.
async fn cut_a_detach_off(database: &Database, sql: &mut PgConnection, leaf: Partition) {
    let mut reader = database.connect().await;
    run(&mut reader, "begin; lock table only task in access share mode").await;
    let mut detacher = database.connect().await;
    let detach = format!("alter table task detach partition {} concurrently", leaf.name());
    let detaching =
        tokio::spawn(
            async move { sqlx::raw_sql(AssertSqlSafe(detach)).execute(&mut detacher).await },
        );
    eventually("the detach is pending", PATIENCE, async || {
        number(sql, "select count(*) from pg_inherits where inhdetachpending").await == 1
    })
    .await;
    let cancel = "select count(pg_cancel_backend(pid)) from pg_stat_activity
                  where datname = current_database() and query ilike 'alter table%detach%'
                    and pid <> pg_backend_pid()";
    assert_eq!(number(sql, cancel).await, 1);
    assert!(detaching.await.unwrap().is_err());
    run(&mut reader, "commit").await;
}

#[tokio::test]
async fn tasks_of_the_version_before_are_kept_and_have_no_submitter() {
    let database = Database::create(&Stack::shared(), "upgrade").await;
    let (mut sql, settings) =
        (database.connect().await, PostgresSettings::new(&database.url).unwrap());
    let before = ALL.iter().filter(|migration| migration.version < 7).cloned().collect();
    Migrator::with_migrations(before).run_direct(None, &mut sql, false).await.unwrap();
    let cluster = "insert into cluster (shards, leaf_ms, horizon_ms, window_ms)
        values (64, 900000, 86400000, 200)";
    run(&mut sql, cluster).await;
    let now = number(&mut sql, "select (extract(epoch from now()) * 1000000)::bigint").await;
    let now = Timestamp::from_micros(now);
    let cluster = ClusterSettings { horizon: DAY, ..ClusterSettings::DEFAULT };
    let rules = Rules { leaf_grace: Duration::from_secs(3600), ..Rules::new(&cluster) };
    let purpose = ConnectionPurpose { name: "test", deadline: PATIENCE, settings: &[] };
    let mut connection = Connection::new(&settings, purpose);
    let (past, older) = (now.minus(3 * DAY), now.minus(4 * DAY));
    let leaves = [now, past, older].map(|at| rules.partition_of(Parent::Task, at));
    assert!(create(&mut connection, &rules, &leaves).await.unwrap());
    for parent in [Parent::ExeclogPayload, Parent::ExeclogCancelled] {
        let partition = rules.partition_of(parent, now);
        assert!(create(&mut connection, &rules, &[partition]).await.unwrap());
    }
    let day = rules.partition_of(Parent::ExeclogBatch, now);
    let bounds = [day.start, rules.end_of(day)].map(punctual::domain::ids::floor_of);
    run(
        &mut sql,
        &format!(
            "create table {} partition of execlog_batch for values from ('{}') to ('{}')",
            day.name(),
            bounds[0],
            bounds[1]
        ),
    )
    .await;
    // A task in every place; two of them in leaves that are about to be retired, one way and the
    // other.
    let waiting = [now, past, older].map(task);
    for (id, leaf) in waiting.iter().zip(&leaves) {
        run(
            &mut sql,
            &format!(
                "insert into {} (shard, id, topic, payload) values (7, '{id}', 'orders', 'p')",
                leaf.name()
            ),
        )
        .await;
    }
    let (far, died, cancelled, claimed) =
        (task(now.plus(2 * DAY)), task(now), task(now), task(now));
    let owner = NodeId::new(now, 0, 7);
    let batch = BatchId::new(now, 0, 7);
    run(
        &mut sql,
        &format!(
            "insert into task_far (shard, id, topic) values (7, '{far}', 'orders');
             insert into dead_letter (id, row_id, topic, attempts, reason)
               values ('{died}', '{died}', 'orders', 1, 'tried');
             insert into execlog_cancelled (id, row_id, topic, attempt)
               values ('{cancelled}', '{cancelled}', 'orders', 1);
             insert into execlog_batch (batch, owner, claimed_at, task_count, ids)
               values ('{}', '{}', now(), 1, '{{{claimed}}}');
             insert into execlog_payload
               values ('{}', '{{orders}}', '{{NULL}}', '{{p}}', '{{NULL}}')",
            batch.uuid(),
            owner.uuid(),
            batch.uuid()
        ),
    )
    .await;
    run(&mut sql, &format!("alter table task detach partition {}", leaves[2].name())).await;
    cut_a_detach_off(&database, &mut sql, leaves[1]).await;

    let report = schema::migrate(&settings, ClusterWishes::default()).await.unwrap();
    let versions = ALL.iter().map(|migration| migration.version);
    assert_eq!(report.applied, versions.filter(|version| *version >= 7).collect::<Vec<_>>());
    let look_up = LookUp::new(&settings, &report.cluster, 1);
    for (id, state) in [
        (waiting[0], TaskState::Scheduled),
        (far, TaskState::Scheduled),
        (died, TaskState::Dead),
        (cancelled, TaskState::Cancelled),
        (claimed, TaskState::Claimed),
        // Hidden with its leaf.
        (waiting[1], TaskState::Claimed),
        (waiting[2], TaskState::Claimed),
    ] {
        let view = look_up.task(id).await.unwrap().unwrap();
        assert_eq!((view.state, view.actors), (state, Default::default()), "{id}");
    }
    // Both leaves come back with their rows.
    assert_eq!(retire_all(&settings, Parent::Task, rules).await.unwrap().kept_count, 2);
    assert_eq!(number(&mut sql, "select count(*) from task").await, 3);
    // A claim that was made before is settled as any other.
    let held = Adoptions::new(&settings, owner).load(batch).await.unwrap().unwrap().0;
    let settlement = Settlement::new(&held, &[deferred(claimed)]);
    let settled =
        Settles::new(&settings, owner, DAY).settle(&[&settlement], SettleTerms::default()).await;
    assert_eq!(settled.0.batches.len(), 1);
    assert_eq!(number(&mut sql, "select count(*) from task where submitted_by is null").await, 4);
    let lines = "select count(*) from execlog where submitted_by is null and ended_by is null";
    assert_eq!(number(&mut sql, lines).await, 2);
}
