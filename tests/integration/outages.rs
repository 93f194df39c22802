//! Each server stops and comes back under traffic, in a stack of its own.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::traffic::Plan;
use crate::support::{Api, Cluster, Ledger, NONE, OwnStack, Traffic, Wishes, eventually, now_ms};

/// The start of a server, the back-off of a node, and the deferrals of tasks in flight.
const DEADLINE: Duration = Duration::from_secs(120);
const READY_DEADLINE: Duration = Duration::from_secs(120);

/// The kinds of outages.
#[derive(Clone, Copy, Debug)]
enum Outage {
    Stopped,
    Crashed,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_when_a_server_goes_away_and_comes_back_under_traffic() {
    let own = OwnStack::start("outages").await;
    let cluster = Cluster::at(&own.stack, "outages", Wishes::default()).await;
    let (first, second) = tokio::join!(cluster.node(), cluster.node());
    let nodes = [first.api().clone(), second.api().clone()];
    // One after the other on the same cluster: "in any order" includes the consequences of earlier
    // outages.
    for (service, outage) in [
        ("postgres", Outage::Stopped),
        ("kafka", Outage::Stopped),
        ("etcd", Outage::Stopped),
        ("postgres", Outage::Crashed),
        ("etcd", Outage::Crashed),
    ] {
        eprintln!("{service}: {outage:?}");
        go_through(&own, &cluster, &nodes, service, outage).await;
    }
    see_members_in_silence(&cluster).await;
}

/// Traffic before, during and after an outage of `service`; then everything is held against the
/// ledger.
async fn go_through(
    own: &OwnStack,
    cluster: &Cluster,
    nodes: &[Api],
    service: &str,
    outage: Outage,
) {
    let topic = cluster.topic(&format!("{service}-{outage:?}")).await;
    let consumer = cluster.consumer(&topic);
    let ledger = Arc::new(Ledger::default());
    let traffic = Traffic::start(
        Plan { topic: topic.clone(), tasks_per_second: 150, ahead: 0..4000 },
        &ledger,
        nodes,
    );
    consumer.wait_count(150, DEADLINE).await;
    match outage {
        Outage::Stopped => own.stop(service).await,
        Outage::Crashed => own.kill(service).await,
    }
    let gone_at = now_ms();
    if service == "etcd" {
        // The outage stops nothing: tasks due meanwhile, for longer than a session lives, arrive on
        // time.
        let arrived =
            |due_after: i64| consumer.records().iter().any(|record| record.timestamp > due_after);
        eventually("tasks arrive without etcd", DEADLINE, async || arrived(gone_at + 5000)).await;
    } else {
        eventually("nodes notice", READY_DEADLINE, async || !nodes[0].is_ready().await).await;
        let missing = format!("punctual_missing{{what=\"{service}\"}}");
        eventually("its metrics say what is missing", READY_DEADLINE, async || {
            nodes[0].metric(&missing).await == 1.0 && nodes[0].metric("punctual_ready").await == 0.0
        })
        .await;
    }
    if service == "kafka" {
        submit_without_kafka(cluster, &nodes[0], &topic, &ledger).await;
    }
    own.start_again(service).await;
    let back_at = now_ms();
    for node in nodes {
        eventually("the node is ready again", READY_DEADLINE, async || node.is_ready().await).await;
    }
    let is_after = || consumer.records().iter().any(|record| record.timestamp > back_at + 1000);
    eventually("records of after the outage", DEADLINE, async || is_after()).await;
    traffic.stop().await;
    check(cluster, &ledger, &consumer, service).await;
}

/// An outage of Kafka refuses no submit for a topic that the node has seen before. Tasks due
/// meanwhile stay in their table.
async fn submit_without_kafka(cluster: &Cluster, node: &Api, topic: &str, ledger: &Ledger) {
    assert_eq!(node.metric("punctual_kafka_contact").await, 0.0);
    for delay in [0, 1000] {
        let text = format!("in the outage, {delay}");
        let task =
            node.submit(&json!({ "topic": topic, "delay": delay, "payload_text": text })).await;
        assert_eq!(task.state, "scheduled", "nothing is claimed");
        ledger.accept(&task, Some(text.as_bytes()));
    }
    let unknown =
        json!({ "topic": format!("{topic}.never-heard-of"), "delay": 0, "payload_text": "x" });
    assert_eq!(
        node.post("/v1/tasks", unknown.to_string()).await.status,
        503,
        "only Kafka can say whether it exists"
    );
    let overdue =
        "select count(*) from task where punctual_time(id) < clock_timestamp() - interval '1 s'";
    eventually("what is due waits in its table", DEADLINE, async || {
        cluster.count(overdue).await >= 150
    })
    .await;
}

/// While no key in etcd changes, a node still sees the members, for longer than a session lives. A
/// node waiting for Postgres writes no keys itself.
async fn see_members_in_silence(cluster: &Cluster) {
    let stack = &cluster.stack;
    let nowhere = "postgres://punctual@127.0.0.1:1/punctual";
    let arguments = [
        "--database-url",
        nowhere,
        "--kafka",
        &stack.kafka,
        "--etcd",
        &stack.etcd,
        "--cluster",
        &cluster.name,
    ];
    let mut node = cluster.spawn_bare(&arguments);
    node.wait_listening().await;
    let metric = async |name: &str| node.api().metric(name).await;
    eventually("it sees the members", DEADLINE, async || {
        metric("punctual_etcd_watch_up").await == 1.0
    })
    .await;
    let (mut failures, mut since) = (metric("punctual_etcd_failures_total").await, now_ms());
    // A stalled disk may cost a view or two. A view that is lost because etcd is quiet is lost
    // every 1.6 s.
    eventually("the members are seen for 4 s on end", DEADLINE, async || {
        let count = metric("punctual_etcd_failures_total").await;
        if count != failures {
            (failures, since) = (count, now_ms());
        }
        now_ms() > since + 4000
    })
    .await;
}

async fn check(
    cluster: &Cluster,
    ledger: &Ledger,
    consumer: &crate::support::Consumer,
    service: &str,
) {
    let findings = ledger.settle_up(cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.dead, NONE, "an outage of {service} is no reason to give up a task");
    if service == "etcd" {
        assert_eq!(findings.duplicates, NONE, "nobody was declared dead");
        // A node waiting for its session would be late for the whole outage.
        assert!(
            findings.lateness_at(0.9) < 3000,
            "{} ms late without etcd",
            findings.lateness_at(0.9)
        );
    }
}
