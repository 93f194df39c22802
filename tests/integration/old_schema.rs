//! A database of the first schema in use, with tasks in every place, goes through all migrations.
//! A node of today then publishes, shows, cancels and redrives these tasks.

use std::fmt::Display;
use std::time::Duration;

use punctual::domain::leaves::{Parent, Partition, Rules};
use punctual::domain::{BatchId, ClusterSettings, NodeId, Shard, TaskId, Timestamp, ids};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::support::{Api, Cluster, Stack, Wishes, eventually};

static MIGRATIONS: Migrator = sqlx::migrate!();
/// The last migration of the old program (commit 0e0d135).
const OLD: i64 = 3;
const MINUTE: Duration = Duration::from_secs(60);
/// Long enough for the migration and the start of a node.
const SOON: Duration = Duration::from_secs(20);
const DAY: Duration = Duration::from_secs(86_400);
const DEADLINE: Duration = Duration::from_secs(120);

/// The tasks of the old program.
struct Old {
    overdue: TaskId,
    soon: TaskId,
    named: TaskId,
    far: TaskId,
    claimed: TaskId,
    claimed_named: TaskId,
    published: TaskId,
    deferred: TaskId,
    dead: TaskId,
    redriven: TaskId,
    retried: TaskId,
    cancelled: TaskId,
}

fn task(due_at: Timestamp) -> TaskId {
    TaskId::new(due_at, Shard::new(7), rand::random())
}

async fn run(sql: &mut PgConnection, text: String) {
    sqlx::raw_sql(AssertSqlSafe(text)).execute(sql).await.unwrap();
}

/// Stores the settings of the cluster, and creates the partitions of some moments, as the old
/// program did.
async fn prepare(sql: &mut PgConnection, now: Timestamp) {
    let settings = "insert into cluster (shards, leaf_ms, horizon_ms, window_ms)
                    values (16, 900000, 7200000, 200)";
    run(sql, settings.to_owned()).await;
    let rules = Rules::new(&ClusterSettings::DEFAULT);
    let overdue = now.minus(30 * MINUTE);
    let due = [overdue, now, now.plus(SOON), now.plus(60 * MINUTE)];
    let mut partitions: Vec<Partition> =
        due.map(|at| rules.partition_of(Parent::Task, at)).to_vec();
    // Half an hour ago may be yesterday.
    for parent in [
        Parent::ExeclogBatch,
        Parent::ExeclogPayload,
        Parent::ExeclogCancelled,
        Parent::ExeclogRedriven,
        Parent::ExeclogEnded,
    ] {
        partitions.extend([overdue, now].map(|at| rules.partition_of(parent, at)));
    }
    partitions.dedup();
    for partition in partitions {
        let (name, table) = (partition.name(), partition.parent.table());
        let bounds = [partition.start, rules.end_of(partition)].map(|at| match partition.parent {
            Parent::Task | Parent::ExeclogBatch | Parent::ExeclogPayload => {
                format!("'{}'", ids::floor_of(at))
            }
            _ => format!("(to_timestamp({}))", at.as_millis() / 1000),
        });
        run(
            sql,
            format!(
                "create table {name} (like {table} including all);
                 alter table {table} attach partition {name} for values from ({}) to ({})",
                bounds[0], bounds[1]
            ),
        )
        .await;
    }
}

/// Returns the literal of an array of uuids.
fn uuids(ids: &[TaskId]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| id.uuid().to_string()).collect();
    format!("'{{{}}}'", ids.join(","))
}

/// Stores tasks in every place, in the columns of the old schema.
async fn fill(sql: &mut PgConnection, topic: &str, now: Timestamp) -> Old {
    let before = now.minus(5 * MINUTE);
    let old = Old {
        overdue: task(now.minus(30 * MINUTE)),
        soon: task(now.plus(SOON)),
        named: task(now.plus(60 * MINUTE)),
        far: task(now.plus(10 * DAY)),
        claimed: task(now),
        claimed_named: task(now),
        published: task(before),
        deferred: task(before),
        dead: task(before),
        redriven: task(before),
        retried: task(before),
        cancelled: task(now.plus(10 * MINUTE)),
    };
    let row = |table: &str, id: TaskId, payload: &str, name: &str| {
        format!(
            "insert into {table} (shard, id, topic, key, payload, name)
             values (7, '{id}', '{topic}', 'k', '{payload}', {name});"
        )
    };
    let again = |first: TaskId, maybe_sent: bool, payload: &str| {
        let row = task(now.plus(SOON));
        let text = format!(
            "insert into task (shard, id, topic, key, payload, first_id, attempt)
             values (7, '{row}', '{topic}', 'k', '{payload}', '{first}', 2);
             insert into task_follow values ('{first}', '{row}', {maybe_sent});"
        );
        (row, text)
    };
    let name = |name: &str, id: TaskId, outcome: &dyn Display| {
        format!(
            "insert into task_name values ('{topic}', '{name}', '{id}', '{id}', \
             now() + interval '1 day', {outcome});"
        )
    };
    let (deferred_row, deferred) = again(old.deferred, false, "deferred");
    let (redriven_row, redriven) = again(old.redriven, true, "redriven");
    let retried_row = task(before.plus(Duration::from_secs(1)));
    let [unsettled, settled, retry] =
        [now, before, before.plus(Duration::from_secs(1))].map(|at| BatchId::new(at, 0, 7).uuid());
    let owner = NodeId::new(before, 0, 7).uuid();
    let ended = [old.published, old.deferred, old.dead, old.redriven, old.retried];
    let mut text = [
        row("task", old.overdue, "overdue", "null"),
        row("task", old.soon, "soon", "null"),
        row("task", old.named, "named", "'order-1'"),
        name("order-1", old.named, &"null"),
        row("task_far", old.far, "far", "'order-2'"),
        name("order-2", old.far, &"null"),
        name("order-3", old.claimed_named, &"null"),
        name("order-4", old.dead, &3),
        deferred,
        redriven,
    ]
    .concat();
    text += &format!(
        "insert into heartbeat (node, name, address, version, counter, started_at, beat_at,
           has_broker, can_publish)
         values ('{owner}', 'old', 'http://old', '0.0.9', 17, now(), now(), true, true);
         insert into execlog_batch (batch, owner, claimed_at, task_count, ids, names)
         values ('{unsettled}', '{owner}', now(), 2, {}, '{{NULL,order-3}}');
         insert into execlog_payload values ('{unsettled}', '{{{topic},{topic}}}', '{{k,k}}',
           '{{claimed,claimed_named}}', '{{NULL,NULL}}');",
        uuids(&[old.claimed, old.claimed_named]),
    );
    text += &format!(
        "insert into execlog_batch (batch, owner, claimed_at, settled_at, task_count, ids, names,
           span, id_from, id_to, topic_names, outcomes, partitions,
             offsets, published_ats, next_ids)
         values ('{settled}', '{owner}', now(), now(), 5, {}, '{{NULL,NULL,order-4,NULL,NULL}}',
           0, '{}', '{}', '{{{topic}}}', '{{1,2,3,3,2}}', '{{1,-1,-1,-1,-1}}', '{{7,-1,-1,-1,-1}}',
           '{{{at},0,0,0,0}}', '{{NULL,{deferred_row},NULL,NULL,{retried_row}}}');
         insert into execlog_batch (batch, owner, claimed_at,
           settled_at, task_count, ids, first_ids,
           attempts, span, id_from, id_to, topic_names, outcomes, partitions,
             offsets, published_ats)
         values ('{retry}', '{owner}', now(), now(), 1, '{{{retried_row}}}', '{{{}}}', '{{2}}', 0,
           '{retried_row}', '{retried_row}', '{{{topic}}}', '{{1}}', '{{2}}',
             '{{8}}', '{{{at}}}');",
        uuids(&ended),
        ended.iter().min().unwrap(),
        ended.iter().max().unwrap(),
        old.retried,
        at = before.as_millis() + 1500,
    );
    text += &format!(
        "insert into dead_letter (id, row_id, topic, key, payload, name, attempts, reason)
         values ('{}', '{0}', '{topic}', 'k', 'dead', 'order-4', 1, 'too large');
         insert into execlog_redriven (id, row_id, next_id)
         values ('{}', '{1}', '{redriven_row}');
         insert into execlog_ended (id, row_id) values ('{}', '{retried_row}');
         insert into execlog_cancelled (id, row_id, topic, attempt)
         values ('{}', '{3}', '{topic}', 1);",
        old.dead, old.redriven, old.retried, old.cancelled,
    );
    run(sql, text).await;
    old
}

async fn shown(api: &Api, id: TaskId) -> Value {
    let answer = api.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!(answer.status, 200, "{id}: {}", answer.text);
    answer.json()
}

async fn changed(api: &Api, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
    let body = body.map(|body| ("application/json", body.to_string().into_bytes()));
    let answer = api.send(method, path, body).await;
    (answer.status, answer.json())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_the_first_schema_in_use_reach_their_end_after_all_migrations() {
    let cluster = Cluster::unmigrated(&Stack::shared(), "old-schema", Wishes::default()).await;
    let topic = cluster.topic("orders").await;
    let mut sql = cluster.database.connect().await;
    let first = MIGRATIONS.iter().filter(|migration| migration.version <= OLD).cloned().collect();
    Migrator::with_migrations(first).run_direct(None, &mut sql, false).await.unwrap();
    let now = cluster.count("select (extract(epoch from now()) * 1000000)::bigint").await;
    let now = Timestamp::from_micros(now);
    prepare(&mut sql, now).await;
    let old = fill(&mut sql, &topic, now).await;

    cluster.migrate().await;
    let last = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap();
    assert_eq!(cluster.count("select max(version) from _sqlx_migrations").await, last);

    let node = cluster.node().await;
    let api = node.api();
    // Tasks that had ended.
    for (id, state, attempt, offset) in [
        (old.published, "published", 1, json!(7)),
        (old.retried, "published", 2, json!(8)),
        (old.dead, "dead", 1, Value::Null),
        (old.cancelled, "cancelled", 1, Value::Null),
    ] {
        let task = shown(api, id).await;
        assert_eq!((&task["state"], &task["attempt"]), (&json!(state), &json!(attempt)), "{task}");
        assert_eq!(task["receipt"]["offset"], offset, "{task}");
    }
    // Pending tasks by id and by name.
    assert_eq!(shown(api, old.named).await["state"], "scheduled");
    api.learn(&topic).await;
    let by_name = format!("/v1/topics/{topic}/tasks/order-1");
    let body = json!({ "delay": "2h", "payload": 2 });
    let (status, next) = changed(api, Method::PUT, &by_name, Some(&body)).await;
    assert_eq!(status, 200, "{next}");
    assert_eq!(shown(api, old.named).await["replaced_by"], next["id"]);
    assert_eq!(changed(api, Method::DELETE, &by_name, None).await.0, 200);
    let far = format!("/v1/tasks/{}", old.far);
    assert_eq!(changed(api, Method::DELETE, &far, None).await.0, 200);
    let again = json!({ "topic": topic, "name": "order-3", "delay": "1h", "payload": 3 });
    let (status, known) = changed(api, Method::POST, "/v1/tasks", Some(&again)).await;
    assert_eq!((status, &known["id"]), (200, &json!(old.claimed_named.to_string())));
    let redrive = format!("/v1/dead/{}/redrive", old.dead);
    assert_eq!(changed(api, Method::POST, &redrive, None).await.0, 200);

    // Due tasks are published: those in their leaf, in a batch of the old node, and again.
    let mut expected: Vec<(Uuid, &str)> = [
        (old.overdue, "overdue"),
        (old.soon, "soon"),
        (old.claimed, "claimed"),
        (old.claimed_named, "claimed_named"),
        (old.deferred, "deferred"),
        (old.redriven, "redriven"),
        (old.dead, "dead"),
    ]
    .map(|(id, payload)| (id.uuid(), payload))
    .to_vec();
    let records = cluster.consumer(&topic).wait_count(expected.len(), DEADLINE).await;
    let mut seen: Vec<(Uuid, String)> = records
        .iter()
        .map(|record| {
            let payload = record.payload.clone().unwrap_or_default();
            (record.task_id(), String::from_utf8(payload).unwrap())
        })
        .collect();
    seen.sort_unstable();
    expected.sort_unstable();
    let seen: Vec<(Uuid, &str)> = seen.iter().map(|(id, text)| (*id, text.as_str())).collect();
    assert_eq!(seen, expected);
    // The replacement is the only task that the old program has not stored.
    let lines = "select count(distinct id) from execlog
                 where state in ('published', 'cancelled', 'dead', 'dropped')";
    eventually("each task has its final line", DEADLINE, async || cluster.count(lines).await == 13)
        .await;
    let twice = "select count(*) from (
                   select id from execlog where state
                     in ('published', 'cancelled', 'dead', 'dropped')
                   group by id having count(*) > 1) as more";
    assert_eq!(cluster.count(twice).await, 0);
}
