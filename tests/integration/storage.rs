//! Storage against a real Postgres: the schema, partitions that come and go, the far table,
//! look-ups and cancels.

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual::clock::ClusterClock;
use punctual::domain::leaves::{Parent, Partition, Rules};
use punctual::domain::{
    BatchId, ClusterSettings, ClusterWishes, IdRange, PrincipalId, Reach, Receipt, Shard,
    ShardCount, TaskId, TaskState, TaskView, Timestamp, ids,
};
use punctual::node::maintenance::{Leaves, Maintenance, MaintenanceMetrics};
use punctual::postgres::cluster::schema;
use punctual::postgres::connection::ConnectionPurpose;
use punctual::postgres::lists::backlog::BacklogCounter;
use punctual::postgres::partitions::mover::Mover;
use punctual::postgres::partitions::retire::Retired;
use punctual::postgres::partitions::{create, take_census};
use punctual::postgres::tasks::cancel::Cancels;
use punctual::postgres::tasks::look_up::LookUp;
use punctual::postgres::{Connection, PostgresError, PostgresSettings};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::support::partitions::{move_far, retire_all};
use crate::support::wait::throughout;
use crate::support::{self, Stack, eventually, eventually_some};

mod migrations;
mod mover;
mod strangers;

const PATIENCE: Duration = Duration::from_secs(120);

/// A database for one test, with helpers.
struct Database {
    own: support::Database,
    settings: PostgresSettings,
    sql: PgConnection,
    look_up: LookUp,
}

impl Database {
    async fn empty() -> Self {
        Self::empty_as("").await
    }

    /// Creates the database with these options.
    async fn empty_as(words: &str) -> Self {
        let own = support::Database::create_as(&Stack::shared(), "storage", words).await;
        let (sql, settings) = (own.connect().await, PostgresSettings::new(&own.url).unwrap());
        let look_up = LookUp::new(&settings, &ClusterSettings::DEFAULT, 1);
        Self { own, settings, sql, look_up }
    }

    /// With leaves of two seconds, up to ten seconds ahead.
    async fn with_short_leaves() -> (Self, Rules) {
        let (database, rules) = Self::with_leaves(seconds(2), seconds(10)).await;
        (database, Rules { leaf_grace: seconds(2), ..rules })
    }

    /// With leaves of a quarter of an hour, an hour ahead.
    async fn with_long_leaves() -> (Self, Rules) {
        let (database, rules) = Self::with_leaves(seconds(900), seconds(3600)).await;
        // The leaf that is ending now is not part of the test.
        (database, Rules { leaf_grace: seconds(3600), ..rules })
    }

    async fn with_leaves(leaf: Duration, horizon: Duration) -> (Self, Rules) {
        let database = Self::empty().await;
        let wishes =
            ClusterWishes { leaf: Some(leaf), horizon: Some(horizon), ..ClusterWishes::default() };
        let report = schema::migrate(&database.settings, wishes).await.unwrap();
        let rules = Rules::new(&report.cluster);
        (
            database,
            Rules {
                payload_retention: seconds(3600),
                receipt_retention: seconds(7 * 86_400),
                ..rules
            },
        )
    }

    async fn another(&self) -> PgConnection {
        self.own.connect().await
    }

    fn connection(&self) -> Connection {
        Connection::new(
            &self.settings,
            ConnectionPurpose { name: "test", deadline: Duration::from_secs(10), settings: &[] },
        )
    }

    async fn run(&mut self, statement: &str) {
        execute(&mut self.sql, statement).await;
    }

    async fn number(&mut self, query: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&mut self.sql).await.unwrap()
    }

    async fn now(&mut self) -> Timestamp {
        let now =
            self.number("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").await;
        Timestamp::from_micros(now)
    }

    /// Writes a row as a submit does; `table` may be a leaf.
    async fn insert(&mut self, table: &str, id: TaskId, payload: &[u8]) {
        self.insert_follow_up(table, (id, None), payload).await;
    }

    async fn insert_follow_up(
        &mut self,
        table: &str,
        (id, first): (TaskId, Option<TaskId>),
        payload: &[u8],
    ) {
        let statement = format!(
            "insert into {table} (shard, id, topic, payload, first_id, attempt) values ($1, $2, \
             'orders', $3, $4, $5)"
        );
        sqlx::query(AssertSqlSafe(statement))
            .bind(id.shard().as_smallint())
            .bind(id.uuid())
            .bind(payload)
            .bind(first.map(TaskId::uuid))
            .bind(first.map(|_first| 2_i16))
            .execute(&mut self.sql)
            .await
            .unwrap();
    }

    /// Inserts a batch as a claim does: unsettled, with its payload.
    async fn claim(&mut self, claimed_at: Timestamp, tasks: &[TaskId]) -> BatchId {
        let batch = BatchId::new(claimed_at, 0, rand::random());
        let ids: Vec<Uuid> = tasks.iter().map(|id| id.uuid()).collect();
        let count = i32::try_from(ids.len()).unwrap();
        let insert = "insert into execlog_batch (batch, owner, claimed_at, task_count, ids)
                      values ($1, $1, now(), $2, $3)";
        let insert = sqlx::query(insert).bind(batch.uuid()).bind(count).bind(ids);
        insert.execute(&mut self.sql).await.unwrap();
        sqlx::query(
            "insert into execlog_payload (batch, topics, keys, payloads, headers)
             select $1, array_fill('orders'::text, array[$2]), array_fill('k'::bytea, array[$2]),
               array_fill('p'::bytea, array[$2]),
               array_fill(null::bytea, array[$2])",
        )
        .bind(batch.uuid())
        .bind(count)
        .execute(&mut self.sql)
        .await
        .unwrap();
        batch
    }

    /// Settles a batch: all published, or all deferred to `next`.
    async fn settle(&mut self, batch: BatchId, tasks: &[TaskId], next: Option<&[TaskId]>) {
        let reach = Reach::of(tasks.iter().copied()).unwrap();
        let next: Option<Vec<Uuid>> = next.map(|next| next.iter().map(|id| id.uuid()).collect());
        sqlx::query(
            "update execlog_batch set settled_at = now(), width_class = $2, id_from = $3,
              id_to = $4, topic_names = '{orders}', next_ids = $5,
               outcomes = array_fill(case when $5 is null then 1 else 2 end::smallint,
                 array[task_count]),
               partitions = array_fill(case when $5 is null then 3 else -1 end, array[task_count]),
               offsets = (select array_agg(o::bigint) from generate_series(100, 99 + task_count) o),
               published_ats = array_fill(1795252500000, array[task_count])
             where batch = $1",
        )
        .bind(batch.uuid())
        .bind(reach.width_class.as_smallint())
        .bind(reach.from.uuid())
        .bind(reach.to.uuid())
        .bind(next)
        .execute(&mut self.sql)
        .await
        .unwrap();
    }

    async fn view(&self, id: TaskId) -> Option<TaskView> {
        self.look_up.task(id).await.unwrap()
    }

    async fn state(&self, id: TaskId) -> Option<(TaskState, i16)> {
        self.view(id).await.map(|view| (view.state, view.attempt))
    }
}

async fn execute(connection: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await.unwrap();
}

fn task(due_at: Timestamp) -> TaskId {
    TaskId::new(due_at, Shard::new(rand::random_range(0..64)), rand::random())
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[tokio::test]
async fn leaves_come_and_go_under_inserts_and_claims_and_no_task_is_lost() {
    let (mut database, rules) = Database::with_short_leaves().await;
    let tasks = punctual::shutdown::Tasks::default();
    let leaves = Arc::new(Leaves::default());
    let mut maintenance =
        Maintenance::new(&database.settings, rules, leaves.clone(), MaintenanceMetrics::default());
    maintenance.round().await.unwrap();
    let clock = Arc::new(ClusterClock::default());
    clock.take_in(database.now().await, punctual::clock::monotonic());
    punctual::node::maintenance::start(&tasks, &database.settings, maintenance, &clock);

    let first_leaf = leaves.oldest().unwrap();
    let (mut inserter, mut claimer) = (database.another().await, database.another().await);
    let start = database.now().await;
    let (mut inserted, mut claimed) = (0_u64, 0_u64);
    // Four leaves' time, until the first have been retired under the traffic.
    eventually("leaves are retired", PATIENCE, async || {
        for delay in [0, 100, 1500, 4000] {
            let count = sqlx::query(
                "insert into task (shard, id, topic)
                 select 0, (lpad(to_hex(
                   (extract(epoch from clock_timestamp()) * 1000)::bigint + $1), 12, '0') ||
                   '8000' || right(gen_random_uuid()::text, 17))::uuid, 'orders'
                     from generate_series(1, 25)",
            )
            .bind(delay)
            .execute(&mut inserter)
            .await
            .unwrap();
            inserted += count.rows_affected();
        }
        let now: i64 =
            sqlx::query_scalar("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
                .fetch_one(&mut claimer)
                .await
                .unwrap();
        let range = IdRange::of_times(leaves.oldest().unwrap(), Timestamp::from_micros(now));
        let delete = sqlx::query("delete from task where id >= $1 and id < $2")
            .bind(range.from)
            .bind(range.to);
        claimed += delete.execute(&mut claimer).await.unwrap().rows_affected();
        leaves.oldest().unwrap() >= first_leaf.plus(rules.leaf * 3)
            && Timestamp::from_micros(now) > start.plus(rules.leaf * 4)
    })
    .await;
    let left = u64::try_from(database.number("select count(*) from task").await).unwrap();
    assert_eq!(inserted, claimed + left);
    assert!(inserted > 1000, "{inserted}");
    eventually("leaves are made ahead", PATIENCE, async || {
        let (census, now) = take_census(&mut database.connection(), Parent::Task).await.unwrap();
        leaves.end().unwrap() > now.plus(rules.horizon)
            && rules.missing(Parent::Task, &census.attached, now).len() <= 2
    })
    .await;
    assert!(tasks.stop(PATIENCE).await);
    assert_eq!(tasks.failure(), None);
}

/// A leaf of two hours ago, attached and empty.
async fn past_leaf(database: &mut Database, rules: &Rules) -> Partition {
    let at = database.now().await.minus(seconds(7200));
    let leaf = rules.partition_of(Parent::Task, at);
    assert!(create(&mut database.connection(), rules, &[leaf]).await.unwrap());
    leaf
}

async fn retire(database: &Database, parent: Parent, rules: Rules) -> Retired {
    retire_all(&database.settings, parent, rules).await.unwrap()
}

#[tokio::test]
async fn a_detach_that_was_killed_is_finalized_by_whoever_comes_next() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let leaf = past_leaf(&mut database, &rules).await;
    // An open transaction has used the table, but not this leaf: the detach waits for its end.
    let mut reader = database.another().await;
    execute(&mut reader, "begin; lock table only task in access share mode").await;
    let settings = database.settings.clone();
    let killed = tokio::spawn(async move { retire_all(&settings, Parent::Task, rules).await });
    eventually("the detach is pending", PATIENCE, async || {
        database.number("select count(*) from pg_inherits where inhdetachpending").await == 1
    })
    .await;
    // Meanwhile leaves can be made, and rows written and read.
    let ahead = Rules { horizon: rules.horizon + rules.leaf, ..rules };
    let (census, now) = take_census(&mut database.connection(), Parent::Task).await.unwrap();
    let missing = ahead.missing(Parent::Task, &census.attached, now);
    assert!(
        !missing.is_empty() && create(&mut database.connection(), &ahead, &missing).await.unwrap()
    );
    let due_at = database.now().await;
    database.insert("task", task(due_at), b"x").await;
    let kill = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = \
                current_database() and application_name = 'punctual detach'";
    assert_eq!(database.number(kill).await, 1);
    assert!(killed.await.unwrap().is_err());
    execute(&mut reader, "commit").await;

    let mut finalized = 0;
    eventually("the leaf is gone", PATIENCE, async || {
        finalized += retire(&database, Parent::Task, rules).await.finalized_count;
        let query = format!("select count(*) from pg_class where relname = '{}'", leaf.name());
        database.number(&query).await == 0
    })
    .await;
    assert_eq!(finalized, 1);
}

#[tokio::test]
async fn a_leaf_that_got_a_row_while_it_was_detached_comes_back_with_it() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let leaf = past_leaf(&mut database, &rules).await;
    let late = task(leaf.start);
    let mut reader = database.another().await;
    execute(&mut reader, "begin; lock table only task in access share mode").await;
    let settings = database.settings.clone();
    let retiring = tokio::spawn(async move { retire_all(&settings, Parent::Task, rules).await });
    eventually("the detach is pending", PATIENCE, async || {
        database.number("select count(*) from pg_inherits where inhdetachpending").await == 1
    })
    .await;
    // The leaf was empty at the truncate. While the leaf is hidden, a look-up finds the row anyway.
    database.insert(&leaf.name(), late, b"x").await;
    let look_up = LookUp::new(
        &database.settings,
        &ClusterSettings { leaf: rules.leaf, ..ClusterSettings::DEFAULT },
        1,
    );
    assert_eq!(look_up.task(late).await.unwrap().unwrap().state, TaskState::Claimed);
    assert!(look_up.topics(&[late]).await.unwrap().undecided.contains(&late));
    execute(&mut reader, "commit").await;
    assert_eq!(retiring.await.unwrap().unwrap(), Retired { kept_count: 1, ..Retired::default() });
    assert_eq!(database.number("select count(*) from task").await, 1);
    // A leaf with a row stays. Without the row, the leaf is dropped.
    assert_eq!(retire(&database, Parent::Task, rules).await, Retired::default());
    database.run("delete from task").await;
    assert_eq!(retire(&database, Parent::Task, rules).await.dropped_count, 1);
}

#[tokio::test]
async fn the_payloads_of_an_hour_stay_while_one_of_its_batches_is_unsettled() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let at = database.now().await.minus(seconds(3 * 3600));
    let (hour, day) = (
        rules.partition_of(Parent::ExeclogPayload, at),
        rules.partition_of(Parent::ExeclogBatch, at),
    );
    let mut connection = database.connection();
    assert!(create(&mut connection, &rules, &[hour]).await.unwrap());
    // The day is there already, unless midnight was less than three hours ago.
    assert!(create(&mut connection, &rules, &[day]).await.unwrap());
    let tasks = [task(at)];
    let batch = database.claim(at, &tasks).await;
    assert_eq!(retire(&database, Parent::ExeclogPayload, rules).await, Retired::default());
    // Also after the detach, if the unsettled batch is seen only then.
    database.run(&format!("alter table execlog_payload detach partition {}", hour.name())).await;
    assert_eq!(retire(&database, Parent::ExeclogPayload, rules).await.kept_count, 1);
    assert_eq!(database.number("select count(*) from execlog_payload").await, 1);
    database.settle(batch, &tasks, None).await;
    assert_eq!(retire(&database, Parent::ExeclogPayload, rules).await.dropped_count, 1);
    let view = database.view(tasks[0]).await.unwrap();
    assert_eq!((view.state, view.kept), (TaskState::Published, None));
}

#[tokio::test]
async fn days_of_the_execlog_go_after_their_retention_and_never_unsettled() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let at = database.now().await.minus(seconds(9 * 86_400));
    let days = [
        Parent::ExeclogBatch,
        Parent::ExeclogCancelled,
        Parent::ExeclogEnded,
        Parent::ExeclogPayload,
    ]
    .map(|parent| rules.partition_of(parent, at));
    assert!(create(&mut database.connection(), &rules, &days).await.unwrap());
    let tasks = [task(at)];
    let batch = database.claim(at, &tasks).await;
    assert_eq!(retire(&database, Parent::ExeclogBatch, rules).await, Retired::default());
    for parent in [Parent::ExeclogCancelled, Parent::ExeclogEnded] {
        assert_eq!(retire(&database, parent, rules).await.dropped_count, 1);
    }
    database.settle(batch, &tasks, None).await;
    assert_eq!(retire(&database, Parent::ExeclogBatch, rules).await.dropped_count, 1);
}

#[tokio::test]
async fn a_task_that_is_being_moved_is_cancelled_or_moved_never_both() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let (census, now) = take_census(&mut database.connection(), Parent::Task).await.unwrap();
    let end = rules.end_of_run(Parent::Task, &census.attached, now);
    let all: Vec<TaskId> = (0..6000_u64)
        .map(|number| task(now.plus(Duration::from_millis(10_000 + number))))
        .collect();
    let uuids: Vec<Uuid> = all.iter().map(|id| id.uuid()).collect();
    let shards: Vec<i16> = all.iter().map(|id| id.shard().as_smallint()).collect();
    let insert = "insert into task_far (shard, id, topic)
                  select s, i, 'orders' from unnest($1, $2) x (s, i)";
    sqlx::query(insert).bind(shards).bind(uuids).execute(&mut database.sql).await.unwrap();
    let (settings, mut canceller) =
        (database.settings.clone(), Cancels::new(&database.settings, PATIENCE));
    let moving = tokio::spawn(async move {
        move_far(&mut Mover::new(&settings), IdRange::of_times(now, end)).await.unwrap()
    });
    let mut cancelled = 0;
    for group in all.chunks(100) {
        // Of each group every other one, in no order.
        let wanted: Vec<TaskId> = group.iter().rev().step_by(2).copied().collect();
        cancelled += cancel(&mut canceller, &wanted)
            .await
            .into_iter()
            .filter(|is_cancelled| *is_cancelled)
            .count();
    }
    let moved = moving.await.unwrap();
    assert_eq!(cancelled, 3000);
    assert!(moved.task_count >= 3000, "{moved:?}");
    assert_eq!(database.number("select count(*) from task").await, 3000);
    assert_eq!(database.number("select count(*) from task_far").await, 0);
    assert_eq!(
        database.number("select count(distinct id) from execlog where state = 'cancelled'").await,
        3000
    );
}

fn anonymously(ids: &[TaskId]) -> Vec<(TaskId, Option<PrincipalId>)> {
    ids.iter().map(|id| (*id, None)).collect()
}

async fn cancel(canceller: &mut Cancels, firsts: &[TaskId]) -> Vec<bool> {
    let mut taken = vec![false; firsts.len()];
    // As a lane does: repeats a group that gave way to a lock.
    eventually("nobody's lock is in the way", PATIENCE, async || {
        let (cancelled, outcome) = canceller.cancel_group(&anonymously(firsts)).await;
        taken.iter_mut().zip(&cancelled).for_each(|(taken, view)| *taken |= view.is_some());
        match outcome {
            Err(PostgresError::GaveWay { .. }) => false,
            other => {
                other.unwrap();
                true
            }
        }
    })
    .await;
    taken
}

#[tokio::test]
async fn what_a_group_has_cancelled_before_it_failed_is_said_to_be_cancelled() {
    let (mut database, _rules) = Database::with_long_leaves().await;
    let now = database.now().await;
    let [near, far] = [1, 100_000].map(|ahead| task(now.plus(seconds(ahead))));
    database.insert("task", near, b"x").await;
    database.insert("task_far", far, b"x").await;
    // The second statement does not get its lock, but the first one has committed.
    let mut canceller = Cancels::new(&database.settings, PATIENCE);
    database.run("begin").await;
    database.run("lock table task in access exclusive mode").await;
    let (cancelled, outcome) = canceller.cancel_group(&anonymously(&[near, far])).await;
    database.run("rollback").await;
    assert!(outcome.is_err_and(|error| !error.is_unknown()), "nothing is unknown");
    assert_eq!(
        cancelled.iter().map(|view| view.as_ref().map(|view| view.id)).collect::<Vec<_>>(),
        [None, Some(far)]
    );
    assert_eq!(cancel(&mut canceller, &[near, far]).await, [true, false]);
}

#[tokio::test]
async fn a_cancel_takes_what_waits_and_leaves_what_is_claimed_or_perhaps_sent() {
    let (mut database, _rules) = Database::with_long_leaves().await;
    let now = database.now().await;
    let [near, far, claimed, unknown] =
        [1, 100_000, 1, 1].map(|ahead| task(now.plus(seconds(ahead))));
    database.insert("task", near, b"x").await;
    database.insert("task_far", far, b"x").await;
    database.claim(now, &[claimed]).await;
    // Deferred: one was never sent, of the other nobody knows; the third is far ahead again.
    let firsts = [task(now), task(now), task(now)];
    let rows =
        [task(now.plus(seconds(3))), task(now.plus(seconds(3))), task(now.plus(seconds(100_000)))];
    for (place, table, maybe_sent) in
        [(0, "task", false), (1, "task", true), (2, "task_far", false)]
    {
        database.insert_follow_up(table, (rows[place], Some(firsts[place])), b"x").await;
        let (first, row) = (firsts[place], rows[place]);
        database
            .run(&format!("insert into task_follow values ('{first}', '{row}', {maybe_sent})"))
            .await;
    }
    let mut canceller = Cancels::new(&database.settings, PATIENCE);
    let wanted = [unknown, firsts[1], near, rows[0], claimed, far, firsts[0], firsts[2], near];
    let (shown, outcome) = canceller.cancel_group(&anonymously(&wanted)).await;
    outcome.unwrap();
    let verdicts: Vec<bool> = shown.iter().map(Option::is_some).collect();
    // The row of a follow-up is nobody's id.
    assert_eq!(verdicts, [false, false, true, false, false, true, true, true, true]);
    for view in shown.into_iter().flatten() {
        assert_eq!(database.view(view.id).await, Some(view), "a look-up shows the same");
    }
    assert_eq!(cancel(&mut canceller, &wanted).await, [false; 9]);
    assert_eq!(database.number("select count(*) from execlog_cancelled").await, 4);
    assert_eq!(database.number("select count(*) from task_follow").await, 1);
    assert_eq!(database.state(near).await, Some((TaskState::Cancelled, 1)));
    assert_eq!(database.state(firsts[0]).await, Some((TaskState::Cancelled, 2)));
    assert_eq!(database.state(firsts[1]).await, Some((TaskState::Scheduled, 2)));
    assert_eq!(database.state(rows[1]).await, None);
    assert_eq!(database.state(unknown).await, None);
}

#[tokio::test]
async fn a_look_up_follows_a_task_from_attempt_to_attempt() {
    let (mut database, _rules) = Database::with_long_leaves().await;
    let now = database.now().await;
    let rows: Vec<TaskId> = (0..3).map(|attempt| task(now.plus(seconds(attempt)))).collect();
    let first = rows[0];
    let beside = task(now.plus(seconds(1)));
    database.insert("task", first, b"payload").await;
    let view = database.view(first).await.unwrap();
    assert_eq!(
        (view.state, view.kept.unwrap().payload),
        (TaskState::Scheduled, Some(b"payload".to_vec()))
    );

    database.run("delete from task").await;
    let batch = database.claim(now, &[beside, first]).await;
    let view = database.view(first).await.unwrap();
    assert_eq!(
        (view.state, view.topic.as_str(), view.kept.unwrap().payload),
        (TaskState::Claimed, "orders", Some(b"p".to_vec()))
    );

    database.settle(batch, &[beside, first], Some(&[task(now), rows[1]])).await;
    database.insert_follow_up("task", (rows[1], Some(first)), b"x").await;
    database.run(&format!("insert into task_follow values ('{first}', '{}', true)", rows[1])).await;
    assert_eq!(database.state(first).await, Some((TaskState::Scheduled, 2)));

    database.run("delete from task").await;
    let batch = database.claim(now, &rows[1..2]).await;
    assert_eq!(database.state(first).await.map(|(state, _)| state), Some(TaskState::Claimed));
    database.settle(batch, &rows[1..2], Some(&rows[2..])).await;
    // The follow-up is in a hidden leaf.
    assert_eq!(database.state(first).await.map(|(state, _)| state), Some(TaskState::Scheduled));
    let batch = database.claim(now, &rows[2..]).await;
    database.settle(batch, &rows[2..], None).await;
    database.run("delete from task_follow").await;
    let view = database.view(first).await.unwrap();
    let receipt = Receipt {
        partition: 3,
        offset: 100,
        published_at: Timestamp::from_millis(1_795_252_500_000),
    };
    assert_eq!((view.id, view.state, view.receipt), (first, TaskState::Published, Some(receipt)));
}

#[tokio::test]
async fn a_dead_letter_says_why() {
    let (mut database, _rules) = Database::with_long_leaves().await;
    let now = database.now().await;
    let id = task(now);
    let batch = database.claim(now, &[id]).await;
    database.settle(batch, &[id], None).await;
    database.run("update execlog_batch set outcomes = '{3}', partitions = '{-1}'").await;
    assert_eq!(database.state(id).await, Some((TaskState::Dead, 1)));
    database
        .run(&format!(
            "insert into dead_letter (id, row_id, topic, attempts, reason) values ('{id}', '{id}', \
             'orders', 1, 'too large')"
        ))
        .await;
    let view = database.view(id).await.unwrap();
    assert_eq!((view.state, view.reason.as_deref()), (TaskState::Dead, Some("too large")));
    assert_eq!(database.number("select count(*) from execlog where state = 'dead'").await, 1);
}

#[tokio::test]
async fn the_backlog_is_what_is_due_and_unclaimed() {
    let (mut database, rules) = Database::with_long_leaves().await;
    let leaf = past_leaf(&mut database, &rules).await;
    let now = database.now().await;
    let counter = BacklogCounter::new(&database.settings, ShardCount::DEFAULT);
    assert_eq!(counter.count(leaf.start, now).await.unwrap().task_count, 0);
    for due_at in [leaf.start.plus(seconds(1)), leaf.start, now.plus(seconds(5))] {
        database.insert("task", task(due_at), b"x").await;
    }
    let overdue = counter.count(leaf.start, now).await.unwrap();
    assert_eq!(
        (overdue.task_count, overdue.is_exact, overdue.oldest_due_at),
        (2, true, Some(leaf.start))
    );
    database.insert("task_far", task(now.minus(seconds(86_400))), b"x").await;
    assert_eq!(counter.count(leaf.start, now).await.unwrap().task_count, 3);
    assert_eq!(ids::floor_of(leaf.start), IdRange::of_times(leaf.start, now).from);
}
