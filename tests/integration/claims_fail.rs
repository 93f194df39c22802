//! A node with failing claims or settles gives up its shards, so others claim, and says so. A lock
//! that stops all claims is named.

use std::time::Duration;

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::support::{Cluster, Ledger, Node, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);

async fn run(cluster: &Cluster, statement: String) {
    let mut connection = cluster.database.connect().await;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// Returns the reason why the node is not ready, if its claims are the reason.
async fn lacks_claims(node: &Node) -> Option<String> {
    lacks(node, "claims").await
}

async fn lacks(node: &Node, what: &str) -> Option<String> {
    let answer = node.api().get("/readyz").await;
    let missing = answer.json()["missing"].as_array().cloned().unwrap_or_default();
    let whys: Vec<&str> = missing
        .iter()
        .filter(|one| one["what"] == what)
        .map(|one| one["why"].as_str().unwrap())
        .collect();
    (!whys.is_empty()).then(|| whys.join("; "))
}

/// Two nodes sharing the shards. The first one has a role of its own, whose sessions can be
/// limited.
struct Limited {
    role: String,
    node: Node,
    healthy: Node,
}

impl Limited {
    async fn start(cluster: &Cluster) -> Self {
        let role = format!("limited_{}", cluster.database.name);
        run(cluster, format!("create role {role} login in role punctual")).await;
        let url = cluster.database.url.replace("user=punctual", &format!("user={role}"));
        assert_ne!(url, cluster.database.url, "the role of a test's database stands in its URL");
        let healthy = cluster.node().await;
        let stack = &cluster.stack;
        let arguments = [
            "--database-url",
            &url,
            "--kafka",
            &stack.kafka,
            "--etcd",
            &stack.etcd,
            "--cluster",
            &cluster.name,
        ];
        let mut node = cluster.spawn_bare(&arguments);
        node.wait_ready().await;
        eventually("both have shards", DEADLINE, async || {
            shards_of(&node, &healthy).await > 0 && shards_of(&healthy, &node).await > 0
        })
        .await;
        Self { role, node, healthy }
    }

    /// Ends the sessions with this name, and allows no new ones.
    async fn lose(&self, cluster: &Cluster, sessions: &str) {
        let role = &self.role;
        run(cluster, format!("alter role {role} connection limit 1")).await;
        let end = format!(
            "select pg_terminate_backend(pid) from pg_stat_activity
             where usename = '{role}' and datname = current_database()
               and application_name = '{sessions}'"
        );
        run(cluster, end).await;
    }

    async fn may_have_sessions(&self, cluster: &Cluster) {
        run(cluster, format!("alter role {} connection limit -1", self.role)).await;
    }

    async fn end(self, cluster: &Cluster) {
        let role = self.role;
        drop((self.healthy, self.node));
        run(cluster, format!("drop owned by {role}; drop role {role}")).await;
    }
}

async fn shards_of(node: &Node, seen_by: &Node) -> usize {
    let id = node.id().await;
    seen_by.assignment().await.get(&id).map_or(0, Vec::len)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_gets_no_sessions_for_its_claims_gives_its_shards_to_others_until_it_does() {
    let cluster = Cluster::start("no-sessions").await;
    let topic = cluster.topic("orders").await;
    let limited = Limited::start(&cluster).await;
    let (node, healthy) = (&limited.node, &limited.healthy);
    limited.lose(&cluster, "punctual claim").await;
    eventually("the node says that its claims fail", DEADLINE, async || {
        lacks_claims(node).await.is_some()
    })
    .await;
    let why = lacks_claims(node).await.unwrap_or_default();
    assert!(why.contains("too many connections"), "{why}");
    eventually("the other one has all shards", DEADLINE, async || {
        shards_of(node, healthy).await == 0
    })
    .await;
    healthy.api().learn(&topic).await;
    let ledger = Ledger::default();
    let consumer = cluster.consumer(&topic);
    let tasks: Vec<_> = (0..100)
        .map(|number| {
            json!({
                "topic": topic,
                "due_at": now_ms() + 6_000 + number * 10,
                "payload_text": format!("task {number}"),
            })
        })
        .collect();
    ledger.accept_all(&healthy.api().submit_all(&tasks).await, &tasks);
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    // Tasks that no claim takes are left to the sweeps: 10 s and more.
    assert!(findings.lateness_at(1.0) < 10_000, "{} ms late", findings.lateness_at(1.0));

    limited.may_have_sessions(&cluster).await;
    eventually("the node claims again", DEADLINE, async || {
        lacks_claims(node).await.is_none() && shards_of(node, healthy).await > 0
    })
    .await;
    limited.end(&cluster).await;
}

/// Without a settle, published tasks would stay in flight until the node is full, and would be
/// published again after its death.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_gets_no_session_for_its_settles_gives_its_shards_to_others_until_it_does() {
    let cluster = Cluster::start("no-settles").await;
    let topic = cluster.topic("orders").await;
    let limited = Limited::start(&cluster).await;
    let (node, healthy) = (&limited.node, &limited.healthy);
    let (ledger, consumer) = (Ledger::default(), cluster.consumer(&topic));
    let submit = async |count: usize| {
        let task = |number| {
            json!({
                "topic": topic,
                "delay": 0,
                "payload_text": format!("task {number}"),
            })
        };
        let tasks: Vec<_> = (0..count).map(task).collect();
        ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
    };
    // All sessions of the node are open by then, except the lost one.
    submit(10).await;
    cluster.wait_final(10, DEADLINE).await;
    limited.lose(&cluster, "punctual settle").await;
    // The tasks are claimed on insert, by the node that cannot settle.
    submit(90).await;
    eventually("the node says that its settles fail", DEADLINE, async || {
        lacks(node, "batches")
            .await
            .is_some_and(|why| why.contains("settled") && why.contains("too many connections"))
    })
    .await;
    eventually("the other one has all shards", DEADLINE, async || {
        shards_of(node, healthy).await == 0
    })
    .await;
    limited.may_have_sessions(&cluster).await;
    eventually("the node claims again", DEADLINE, async || {
        lacks(node, "batches").await.is_none() && shards_of(node, healthy).await > 0
    })
    .await;
    submit(10).await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!((findings.published_count, findings.duplicates.len()), (110, 0));
    limited.end(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_a_table_is_named_and_what_was_due_meanwhile_comes_when_it_is_gone() {
    let cluster = Cluster::start("locked-table").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    let ledger = Ledger::default();
    let tasks: Vec<_> = (0..50)
        .map(|number| {
            json!({
                "topic": topic,
                "due_at": now_ms() + 6_000 + number * 10,
                "payload_text": format!("task {number}"),
            })
        })
        .collect();
    let mut holder = cluster.database.connect().await;
    ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
    sqlx::raw_sql("begin; lock table execlog_batch in share mode")
        .execute(&mut holder)
        .await
        .unwrap();
    eventually("the node names the lock", DEADLINE, async || {
        lacks_claims(&node).await.is_some_and(|why| why.contains("pg_locks"))
    })
    .await;
    eventually("the log names it, too", DEADLINE, async || {
        node.log().contains("all claims fail; a lock is in the way")
    })
    .await;
    eventually("the log says that the node is not ready, and why", DEADLINE, async || {
        node.log()
            .lines()
            .any(|line| line.contains("not ready any more") && line.contains("pg_locks"))
    })
    .await;
    holder.close().await.unwrap();
    eventually("the node is ready again", DEADLINE, async || lacks_claims(&node).await.is_none())
        .await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.published_count, 50);
}

/// As on a full disk: claims that find nothing go on, and prove nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_nothing_do_not_hide_that_nothing_due_can_be_claimed() {
    let cluster = Cluster::start("nothing-written").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let (ledger, consumer) = (Ledger::default(), cluster.consumer(&topic));
    let full = "create function full_disk() returns trigger language plpgsql as $$ begin
            raise exception 'could not extend file' using errcode = '53100'; end $$;
        create trigger full_disk before insert on execlog_batch
            for each row execute function full_disk()";
    run(&cluster, full.to_owned()).await;
    let task =
        |number: i64| json!({ "topic": topic, "due_at": now_ms() + 1500, "payload": number });
    let tasks: Vec<_> = (0..10).map(task).collect();
    ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
    eventually("the node goes on saying that its claims fail", DEADLINE, async || {
        let why = lacks_claims(&node).await.unwrap_or_default();
        let for_s =
            why.split_once(" have failed for ").and_then(|(_, rest)| rest.split_once(" s:"));
        for_s.is_some_and(|(seconds, cause)| {
            seconds.parse::<u64>().unwrap() >= 15 && cause.contains("could not extend file")
        })
    })
    .await;
    run(&cluster, "drop function full_disk cascade".to_owned()).await;
    eventually("the node is ready again", DEADLINE, async || lacks_claims(&node).await.is_none())
        .await;
    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.published_count, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_cannot_be_claimed_goes_into_quarantine_and_all_others_arrive() {
    let cluster = Cluster::start("poison").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let consumer = cluster.consumer(&topic);
    // As a damaged page would.
    run(
        &cluster,
        "create function damaged() returns trigger language plpgsql as $$ begin
           if old.payload = 'poison' then raise exception
             using errcode = 'data_corrupted', message = 'invalid page'; end if; return old;
         end $$;
         create trigger damaged before delete on task for each row execute function damaged()"
            .to_owned(),
    )
    .await;
    node.api().learn(&topic).await;
    let start = now_ms() + 8_000;
    let text = |n| if n == 70 { "poison" } else { "x" };
    let tasks: Vec<_> = (0..200)
        .map(|n| json!({ "topic": topic, "due_at": start + 10 * n, "payload_text": text(n) }))
        .collect();
    let poison = node.api().submit_all(&tasks).await[70].id;
    let records = consumer.wait_count(tasks.len() - 1, DEADLINE).await;
    assert!(records.iter().all(|record| record.task_id() != poison));
    eventually("it is counted", DEADLINE, async || {
        node.api().metric("punctual_in_quarantine_tasks").await == 1.0
    })
    .await;
    let named: (uuid::Uuid, String) =
        sqlx::query_as("select id, reason from quarantine").fetch_one(&cluster.sql).await.unwrap();
    assert!(named.0 == poison && named.1.contains("invalid page"), "{named:?}");
    // The watermark moves on meanwhile.
    node.api().submit(&json!({ "topic": topic, "delay": 500, "payload_text": "later" })).await;
    consumer.wait_count(tasks.len(), DEADLINE).await;
    // An alert of its own tells the quarantine.
    let since = now_ms() as f64 / 1000.0;
    eventually("the overdue tasks are counted again", DEADLINE, async || {
        node.api().metric("punctual_counted_seconds").await > since
    })
    .await;
    assert_eq!(node.api().metric("punctual_oldest_overdue_seconds").await, 0.0);

    run(&cluster, "drop trigger damaged on task; delete from quarantine".to_owned()).await;
    consumer
        .wait_for("the mended row arrives", DEADLINE, |records| {
            records.iter().any(|record| record.task_id() == poison)
        })
        .await;
    eventually("nothing is in quarantine", DEADLINE, async || {
        node.api().metric("punctual_in_quarantine_tasks").await == 0.0
    })
    .await;
    cluster.wait_final(tasks.len() + 1, DEADLINE).await;
}
