//! The metrics of the backlog: one node counts for the cluster, so the sum over all nodes is right.

use std::time::Duration;

use punctual::domain::{ShardCount, Timestamp};
use punctual::postgres::PostgresSettings;
use punctual::postgres::cluster::schema;
use punctual::postgres::lists::backlog::BacklogCounter;
use serde_json::{Value, json};

use crate::support::{Cluster, Database, Node, Stack, eventually, now_ms};

const DEADLINE: Duration = Duration::from_secs(120);
const EXACT_PENDING: &str = "punctual_count_exact{of=\"pending_tasks\"}";

async fn sum(nodes: &[Node], metric: &str) -> f64 {
    let mut sum = 0.0;
    for node in nodes {
        sum += node.api().metric(metric).await;
    }
    sum
}

async fn adds_up(nodes: &[Node], metric: &str, wanted: f64) {
    let what = format!("the sum of {metric} is {wanted}");
    eventually(&what, DEADLINE, async || sum(nodes, metric).await == wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_counts_the_tasks_of_the_cluster_and_the_next_one_takes_over() {
    let cluster = Cluster::start("backlog").await;
    let (topic, gone) = (cluster.topic("orders").await, cluster.topic("gone").await);
    let mut nodes = vec![cluster.node().await, cluster.node().await];
    let later = |topic: &str, delay: &str| json!({ "topic": topic, "delay": delay, "payload": 1 });
    nodes[0].api().submit_all(&vec![later(&topic, "1h"); 3]).await;
    sqlx::query(
        "insert into dead_letter (id, row_id, topic, attempts, reason)
        select gen_random_uuid(), gen_random_uuid(), $1, 1, 'a test' from generate_series(1, 2)",
    )
    .bind(&topic)
    .execute(&cluster.sql)
    .await
    .unwrap();
    adds_up(&nodes, "punctual_pending_tasks", 3.0).await;
    adds_up(&nodes, "punctual_dead_letters", 2.0).await;
    adds_up(&nodes, EXACT_PENDING, 1.0).await;
    assert_eq!(sum(&nodes, "punctual_overdue_tasks").await, 0.0);
    assert_eq!(sum(&nodes, "punctual_oldest_overdue_seconds").await, 0.0);

    // Tasks of an unavailable topic wait in the table, apart from the probe. However long a count
    // takes, none is due while the topic is there.
    nodes[0].api().submit_all(&vec![later(&gone, "30s"); 6]).await;
    cluster.delete_topic(&gone).await;
    eventually("overdue tasks are counted", DEADLINE, async || {
        sum(&nodes, "punctual_overdue_tasks").await >= 5.0
            && sum(&nodes, "punctual_oldest_overdue_seconds").await >= 1.0
    })
    .await;

    // The other node counts after the one that did, and only that one.
    let mut counting = None;
    for (index, node) in nodes.iter().enumerate() {
        if node.api().metric("punctual_counted_seconds").await > 0.0 {
            assert_eq!(counting.replace(index), None, "one node counts");
        }
    }
    let mut counter = nodes.remove(counting.unwrap());
    counter.terminate();
    counter.wait_exit(DEADLINE).await;
    adds_up(&nodes, "punctual_dead_letters", 2.0).await;
    assert!(sum(&nodes, "punctual_pending_tasks").await >= 3.0);
    assert!(sum(&nodes, "punctual_counted_seconds").await > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chosen_topics_have_metrics_of_their_own() {
    let cluster = Cluster::start("topic-metrics").await;
    let [orders, bills] = [cluster.topic("orders").await, cluster.topic("bills").await];
    let pattern = format!("{}*", orders.trim_end_matches("orders"));
    let node = cluster.node_with(&["--metrics-topics", &pattern]).await;
    let of = |name: &str, topic: &str| format!("punctual_topic_{name}{{topic=\"{topic}\"}}");
    let tasks: Vec<Value> = [(&orders, "0ms"), (&orders, "1h"), (&orders, "2h"), (&bills, "1h")]
        .into_iter()
        .map(|(topic, delay)| json!({ "topic": topic, "delay": delay, "payload": 1 }))
        .collect();
    node.api().submit_all(&tasks).await;
    let late = json!({ "topic": orders, "due_at": now_ms() - 60_000, "payload": 1 });
    node.api().submit(&late).await;
    let too_far = json!({ "topic": orders, "delay": "3650d", "payload": 1 }).to_string();
    assert_eq!(node.api().post("/v1/tasks", too_far).await.status, 422);
    let unknown = json!({ "topic": format!("{orders}-unknown"), "delay": 0, "payload": 1 });
    assert_eq!(node.api().post("/v1/tasks", unknown.to_string()).await.status, 422);
    for (name, topic, wanted) in [
        ("tasks_published_total", &orders, 2.0),
        ("tasks_refused_total", &orders, 1.0),
        ("tasks_late_total", &orders, 0.0),
        ("pending_tasks", &orders, 2.0),
        ("pending_tasks", &bills, 1.0),
        ("overdue_tasks", &orders, 0.0),
        ("dead_letters", &orders, 0.0),
    ] {
        let metric = of(name, topic);
        let what = format!("{metric} is {wanted}");
        eventually(&what, DEADLINE, async || node.api().metric(&metric).await == wanted).await;
    }
    let metrics = node.metrics().await;
    assert!(!metrics.contains("-unknown"), "an unknown topic has no series");
    let reference = include_str!("../../docs/reference/metrics.md");
    for name in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE punctual_")) {
        let name = name.split(' ').next().unwrap();
        assert!(reference.contains(name), "docs/reference/metrics.md has no punctual_{name}");
    }
}

#[tokio::test]
async fn a_count_of_overdue_tasks_reads_few_of_many_also_of_paused_topics() {
    let database = Database::create(&Stack::shared(), "test-overdue").await;
    let settings = PostgresSettings::new(&database.url).unwrap();
    schema::migrate(&settings, Default::default()).await.unwrap();
    let mut sql = database.connect().await;
    let due_at = now_ms();
    let count = async || {
        // The end of the connection reports the reads.
        let counter = BacklogCounter::new(&settings, ShardCount::DEFAULT);
        let until = Timestamp::from_millis(due_at + 1);
        let backlog = counter.count(until.minus(Duration::from_secs(1)), until).await.unwrap();
        (backlog.task_count, backlog.is_exact, backlog.oldest_due_at.map(Timestamp::as_millis))
    };
    let fill = "insert into task (shard, id, topic)
        select n % 64, (lpad(to_hex($1), 12, '0') || substr(md5(n || $3), 1, 20))::uuid, $3
        from generate_series(1, $2::integer) n";
    let pause = "insert into topic_policy (topic, is_paused) values ('orders', true)";
    let read = "select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes
        where relname like 'task\\_2%'";
    assert_eq!(count().await, (0, true, None));
    for (tasks, topic) in [(70_000, "orders"), (5, "bills")] {
        let query = sqlx::query(fill).bind(due_at).bind(tasks).bind(topic);
        query.execute(&mut sql).await.unwrap();
    }
    assert_eq!(count().await, (10_000, false, Some(due_at)));
    let mut entries: i64 = 0;
    eventually("the connection reports what it has read", DEADLINE, async || {
        entries = sqlx::query_scalar(read).fetch_one(&mut sql).await.unwrap();
        entries >= 10_000
    })
    .await;
    assert!(entries < 20_000, "{entries} entries of the index were read");

    sqlx::query(pause).execute(&mut sql).await.unwrap();
    let (tasks, is_exact, _) = count().await;
    assert!(tasks <= 5 && !is_exact, "{tasks} {is_exact}");
    sqlx::query("delete from task where topic = 'orders' and shard < 60")
        .execute(&mut sql)
        .await
        .unwrap();
    assert_eq!(count().await, (5, true, Some(due_at)));
}

#[tokio::test]
async fn dead_letters_are_counted_by_topic_and_many_are_estimated() {
    let database = Database::create(&Stack::shared(), "test-backlog").await;
    let settings = PostgresSettings::new(&database.url).unwrap();
    schema::migrate(&settings, Default::default()).await.unwrap();
    let counter = BacklogCounter::new(&settings, ShardCount::DEFAULT);
    let none = counter.dead_letters().await.unwrap();
    assert_eq!((none.topics.len(), none.is_exact), (0, true));
    let mut sql = database.connect().await;
    for (from, to, is_exact) in [(1, 40, true), (41, 100_000, false)] {
        sqlx::query(
            "insert into dead_letter (id, row_id, topic, attempts, reason)
            select gen_random_uuid(), gen_random_uuid(),
              case when n % 4 = 0 then 'bills' else 'orders' end, 1, 'a test'
            from generate_series($1::integer, $2::integer) n",
        )
        .bind(from)
        .bind(to)
        .execute(&mut sql)
        .await
        .unwrap();
        let counted = counter.dead_letters().await.unwrap();
        assert_eq!(counted.is_exact, is_exact, "{counted:?}");
        assert_eq!(counted.topics.len(), 2, "{counted:?}");
        for (topic, count) in &counted.topics {
            let quarter = u64::try_from(to / 4).unwrap();
            let wanted = if topic.as_str() == "bills" { quarter } else { quarter * 3 };
            let error_max = if is_exact { 0 } else { wanted / 3 };
            assert!(count.abs_diff(wanted) <= error_max, "{topic}: {count}, not {wanted}");
        }
    }
}
