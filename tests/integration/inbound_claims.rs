//! Tasks of outboxes and intake topics that are due at once are claimed by their insert.

use std::time::Duration;

use crate::intake_topics::Intake;
use crate::outbox::Shop;
use crate::support::{Cluster, Node, eventually};

const DEADLINE: Duration = Duration::from_secs(60);

async fn claimed_on_insert(node: &Node) -> f64 {
    node.api().metric("punctual_tasks_claimed_on_insert_total").await
}

/// Returns the statement that submits tasks that are due at once: some with a name, and some
/// without.
fn rows(topic: &str) -> String {
    format!(
        "select punctual.submit('{topic}', payload_text => i::text, delay => '0 s')
         from generate_series(1, 20) i;
         select punctual.submit('{topic}', payload_text => i::text, delay => '0 s',
           name => 'row-' || i)
         from generate_series(1, 20) i"
    )
}

#[tokio::test]
async fn tasks_that_are_due_at_once_are_claimed_by_their_insert() {
    let cluster = Cluster::start("inbound-claims").await;
    let intake = Intake::open(&cluster).await;
    let mut shop = Shop::open(&cluster.stack).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let flags = ["--intake-topic", &intake.topic, "--outbox", &shop.flag()];
    let mut node = cluster.node_with(&flags).await;
    let (to, now) = (("punctual-topic", topic.as_str()), ("punctual-delay", "0s"));
    for number in 0..20 {
        let name = format!("record-{number}");
        intake.append(number % 2, Some("plain"), None, &[to, now]).await;
        let named = [to, now, ("punctual-name", &name)];
        intake.append(number % 2, Some("named"), None, &named).await;
    }
    shop.run(&rows(&topic)).await;
    consumer.wait_count(80, DEADLINE).await;
    assert_eq!(claimed_on_insert(&node).await, 80.0);
    assert_eq!(node.api().metric("punctual_tasks_claimed_total").await, 80.0);

    // The known names leave nothing behind for which the node would wait at its end.
    let again = format!(
        "select punctual.submit('{topic}', payload_text => 'again', delay => '0 s',
           name => 'row-' || i)
         from generate_series(1, 20) i"
    );
    shop.run(&again).await;
    shop.wait_empty().await;
    assert_eq!(node.api().metric("punctual_names_known_total").await, 20.0);
    node.terminate();
    assert!(node.wait_exit(DEADLINE).await.success(), "{}", node.log_tail());
    cluster.wait_final(80, DEADLINE).await;
    assert_eq!(consumer.records().len(), 80);
}

#[tokio::test]
async fn tasks_of_a_paused_topic_are_stored_although_no_insert_may_claim_them() {
    let cluster = Cluster::start("inbound-claims").await;
    let mut shop = Shop::open(&cluster.stack).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let flag = shop.flag();
    let flags = ["--outbox", flag.as_str()];
    let (one, two) = tokio::join!(cluster.node_with(&flags), cluster.node_with(&flags));
    let drains = |node: &Node| node.log().contains("draining an outbox");
    eventually("a node drains the outbox", DEADLINE, async || drains(&one) || drains(&two)).await;
    let (node, other) = if drains(&one) { (one, two) } else { (two, one) };
    // This node is not told of the pause, and learns of it when Postgres refuses a claim.
    let path = format!("/v1/topics/{topic}");
    assert_eq!(other.api().post(&format!("{path}/pause"), "{}").await.status, 200);
    shop.run(&rows(&topic)).await;
    shop.wait_empty().await;
    assert_eq!(cluster.count("select count(*) from task").await, 40);
    assert_eq!(claimed_on_insert(&node).await, 0.0);
    assert_eq!(other.api().post(&format!("{path}/resume"), "").await.status, 200);
    consumer.wait_count(40, DEADLINE).await;
    eventually("all of them are final", DEADLINE, async || {
        cluster.count("select count(*) from task").await == 0
    })
    .await;
}
