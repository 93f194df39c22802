//! Postgres closes idle sessions: in a restart, a failover, or by an operator. The next request
//! must not fail because of a closed session.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::support::{Api, Cluster, Node, eventually};

const DEADLINE: Duration = Duration::from_secs(120);
/// The connections that a node keeps open for its callers.
const KEPT: [&str; 8] = [
    "submit",
    "submit named",
    "cancel",
    "answers",
    "look up",
    "look up batches",
    "names",
    "replace",
];

/// Makes one call of each kind, each over another connection to Postgres. Returns the answers other
/// than 2xx.
async fn one_of_each(api: &Api, topic: &str, turn: u32) -> Vec<String> {
    let task = json!({ "topic": topic, "delay": "1h", "payload_text": "idle" });
    let named = json!({
        "topic": topic,
        "delay": "1h",
        "payload_text": "idle",
        "name": format!("named {turn}"),
    });
    let unnamed = api.post("/v1/tasks", task.to_string()).await;
    let id =
        unnamed.json()["id"].as_str().unwrap_or("00000000-0000-0000-0000-000000000000").to_owned();
    let by_name = format!("/v1/topics/{topic}/tasks/replaced");
    let replacement = json!({ "delay": "1h", "payload_text": "idle" }).to_string().into_bytes();
    let answers = [
        ("submit", unnamed),
        ("submit with a name", api.post("/v1/tasks", named.to_string()).await),
        ("replace", api.send(Method::PUT, &by_name, Some(("application/json", replacement))).await),
        ("look-up", api.get(&format!("/v1/tasks/{id}")).await),
        ("look-up by name", api.get(&by_name).await),
        ("list", api.get(&format!("/v1/tasks?topic={topic}")).await),
        ("counts", api.get("/v1/tasks/counts").await),
        ("dead letters", api.get("/v1/dead").await),
        ("cancel", api.send(Method::DELETE, &format!("/v1/tasks/{id}"), None).await),
    ];
    answers
        .iter()
        .filter(|(_, answer)| !(200..300).contains(&answer.status))
        .map(|(what, answer)| format!("{what}: {answer:?}"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_after_postgres_has_closed_idle_sessions_are_answered_at_once() {
    let cluster = Cluster::start("idle-sessions").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    assert_eq!(one_of_each(node.api(), &topic, 1).await, Vec::<String>::new());
    // Connections that are kept open are soon opened again: some are missing each time.
    eventually(
        "the sessions that serve callers are idle for more than a second, and \
                closed",
        DEADLINE,
        async || {
            let close = "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and application_name like 'punctual %'
              and state = 'idle'
              and state_change < now() - interval '1.2 s'";
            let left = "select count(*) from pg_stat_activity where datname = current_database()
          and application_name = any(array['punctual list',
            'punctual counts', 'punctual dead letters'])";
            cluster.count(close).await;
            cluster.count(left).await == 0
        },
    )
    .await;
    assert_eq!(one_of_each(node.api(), &topic, 2).await, Vec::<String>::new());
}

/// The names of sessions in the page for operators: those that a node always has, and all.
fn documented_sessions() -> (BTreeSet<String>, BTreeSet<String>) {
    let page = include_str!("../../docs/operate/postgres.md");
    let section = page.split("\n## Connections\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let quoted = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let (mut always, mut all) = (BTreeSet::from(["claim".to_owned()]), BTreeSet::new());
    for row in section.lines().filter(|line| line.starts_with('|')) {
        let names = quoted(row);
        if row.starts_with("| always |") && row.contains("| 1 each: ") {
            always.extend(names.iter().cloned());
        }
        all.extend(names);
    }
    (always, all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_for_operators_has_all_sessions_of_a_node() {
    let (always, all) = documented_sessions();
    let cluster = Cluster::start("sessions").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let sessions = async || -> BTreeSet<String> {
        let names: Vec<String> = sqlx::query_scalar(
            "select distinct substr(application_name, 10) from pg_stat_activity
             where datname = current_database() and application_name like 'punctual %'",
        )
        .fetch_all(&cluster.sql)
        .await
        .unwrap();
        names.into_iter().collect()
    };
    // The first task that is published opens the session for settles.
    node.api().submit(&json!({ "topic": topic, "delay": 0, "payload": 1 })).await;
    assert_eq!(one_of_each(node.api(), &topic, 1).await, Vec::<String>::new());
    eventually("a node has the sessions that it always has", DEADLINE, async || {
        sessions().await.is_superset(&always)
    })
    .await;
    let unknown: Vec<String> = sessions().await.difference(&all).cloned().collect();
    assert_eq!(unknown, Vec::<String>::new(), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_over_sessions_that_were_closed_just_after_their_use_are_answered() {
    let cluster = Cluster::start("closed-sessions").await;
    let topic = cluster.topic("orders").await;
    let node = cluster.node().await;
    let task = json!({ "topic": topic, "delay": "1h", "payload_text": "closed" });
    let id = node.api().submit(&task).await.id;
    let by_name = format!("/v1/topics/{topic}/tasks/replaced");
    let body = json!({ "delay": "1h", "payload_text": "closed" }).to_string().into_bytes();
    let put = node.api().send(Method::PUT, &by_name, Some(("application/json", body))).await;
    assert_eq!(put.status, 201);
    let reads = [
        format!("/v1/tasks/{id}"),
        by_name,
        format!("/v1/tasks?topic={topic}"),
        "/v1/dead".to_owned(),
        format!("/v1/topics/{topic}"),
        format!("/v1/schedules/{topic}"),
    ];
    for path in reads {
        // A session used within the last second is used again without asking whether it is alive.
        let before = node.api().get(&path).await;
        assert_eq!(before.status, 200, "{path}: {before:?}");
        let close = "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and application_name in ('punctual look up',
              'punctual look up batches', 'punctual names', 'punctual list',
              'punctual dead letters', 'punctual topics', 'punctual schedules')";
        cluster.count(close).await;
        let after = node.api().get(&path).await;
        assert_eq!(after.status, 200, "{path}: {after:?}");
    }
}

/// Why the node is not ready for want of connections.
async fn lacks_connections(node: &Node) -> Option<String> {
    let answer = node.api().get("/readyz").await;
    let missing = answer.json()["missing"].as_array().cloned().unwrap_or_default();
    missing
        .iter()
        .find(|one| one["what"] == "connections")
        .map(|one| one["why"].as_str().unwrap().to_owned())
}

async fn run(cluster: &Cluster, statement: String) {
    let mut connection = cluster.database.connect().await;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_ready_when_callers_find_their_connections_and_not_before() {
    let cluster = Cluster::start("few-sessions").await;
    let topic = cluster.topic("orders").await;
    let role = format!("few_{}", cluster.database.name);
    run(&cluster, format!("create role {role} login connection limit 6 in role punctual")).await;
    let url = cluster.database.url.replace("user=punctual", &format!("user={role}"));
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
    node.wait_listening().await;
    eventually("it says which connection it cannot open", DEADLINE, async || {
        lacks_connections(&node)
            .await
            .is_some_and(|why| why.contains("connect for") && why.contains("too many connections"))
    })
    .await;
    run(&cluster, format!("alter role {role} connection limit -1")).await;
    node.wait_ready().await;
    assert_eq!(one_of_each(node.api(), &topic, 1).await, Vec::<String>::new());

    // As after an outage: the sessions are gone, and not all come back.
    run(&cluster, format!("alter role {role} connection limit 6")).await;
    let end =
        format!("select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'");
    // The first six to come back may be those for callers: then all end once more.
    eventually("it is not ready any more", DEADLINE, async || {
        run(&cluster, end.clone()).await;
        let lacks = eventually("a connection is refused", DEADLINE, async || {
            lacks_connections(&node).await.is_some_and(|why| why.contains("too many connections"))
        });
        tokio::time::timeout(Duration::from_secs(5), lacks).await.is_ok()
    })
    .await;
    run(&cluster, format!("alter role {role} connection limit -1")).await;
    node.wait_ready().await;
    // A change over a session that has ended would have an unknown outcome. The node finds such a
    // session within a few seconds.
    let names = KEPT.map(|name| format!("'punctual {name}'")).join(", ");
    let kept = format!(
        "select count(distinct application_name) = {} from pg_stat_activity
        where usename = '{role}' and application_name in ({names})",
        KEPT.len()
    );
    eventually("each kind of session is there again", DEADLINE, async || {
        let mut connection = cluster.database.connect().await;
        let query = sqlx::query_scalar(AssertSqlSafe(kept.clone()));
        let are_all: bool = query.fetch_one(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        are_all
    })
    .await;
    assert_eq!(one_of_each(node.api(), &topic, 2).await, Vec::<String>::new());
    drop(node);
    run(&cluster, format!("drop owned by {role}; drop role {role}")).await;
}
