//! The rows of the heartbeats.

use std::time::Duration;

use punctual::domain::NodeId;
use punctual::postgres::PostgresSettings;
use punctual::postgres::cluster::heartbeat::{Beat, Heartbeats};

use crate::membership_support::{Cluster, some_node};

/// Long enough that no test waits for a deadline. A beat may take half of this TTL.
const TTL: Duration = Duration::from_secs(30);

fn beat(node: NodeId, counter: i64) -> Beat {
    Beat {
        node,
        name: "a".to_owned(),
        address: "http://a:7070".to_owned(),
        version: "1".to_owned(),
        counter,
        has_broker: true,
        can_publish: true,
        has_left: false,
    }
}

fn heartbeats(cluster: &Cluster) -> Heartbeats {
    Heartbeats::new(&PostgresSettings::new(&cluster.database.url).unwrap(), TTL)
}

#[tokio::test]
async fn a_beat_writes_ones_own_row_and_reads_the_others() {
    let cluster = Cluster::new(TTL).await;
    let (first, second) = (some_node(), some_node());
    let mut own = heartbeats(&cluster);
    assert_eq!(own.beat(&beat(first, 1)).await.unwrap().rows, []);
    let mut other = heartbeats(&cluster);
    let answer = other.beat(&beat(second, 7)).await.unwrap();
    assert_eq!(
        answer.rows.iter().map(|row| (row.node, row.counter, row.is_dead)).collect::<Vec<_>>(),
        [(first, 1, false)]
    );
    assert!(answer.postgres_now >= answer.rows[0].beat_at);
    own.beat(&Beat { has_left: true, can_publish: false, ..beat(first, 2) }).await.unwrap();
    let row = other.read(second).await.unwrap().rows.remove(0);
    assert_eq!(
        (row.counter, row.has_left, row.can_publish, row.name.as_str()),
        (2, true, false, "a")
    );
    assert!(row.beat_at > row.started_at);
    assert!(other.stamp().await.unwrap() > row.beat_at);
}

#[tokio::test]
async fn a_node_is_declared_dead_only_while_its_counter_stands_still() {
    let cluster = Cluster::new(TTL).await;
    let (mut own, mut other, node) = (heartbeats(&cluster), heartbeats(&cluster), some_node());
    own.beat(&beat(node, 4)).await.unwrap();
    assert!(!other.declare_dead(node, 3).await.unwrap());
    assert!(other.declare_dead(node, 4).await.unwrap());
    assert!(!other.declare_dead(node, 4).await.unwrap(), "somebody was quicker");
    assert!(!other.declare_dead(some_node(), 4).await.unwrap());
}

#[tokio::test]
async fn a_beat_revives_a_node_and_says_so_once() {
    let cluster = Cluster::new(TTL).await;
    let (mut own, node) = (heartbeats(&cluster), some_node());
    assert!(!own.beat(&beat(node, 1)).await.unwrap().is_revived);
    assert!(heartbeats(&cluster).declare_dead(node, 1).await.unwrap());
    assert!(own.beat(&beat(node, 2)).await.unwrap().is_revived);
    assert_eq!(cluster.row(node).await, Some((2, false, false)));
    assert!(!own.beat(&beat(node, 3)).await.unwrap().is_revived);
    cluster.execute("delete from heartbeat").await;
    assert!(
        own.beat(&beat(node, 4)).await.unwrap().is_revived,
        "a node without a row counted as dead"
    );
    assert!(!own.beat(&beat(node, 5)).await.unwrap().is_revived);
}

#[tokio::test]
async fn only_dead_nodes_that_no_unsettled_batch_names_are_forgotten() {
    let cluster = Cluster::new(TTL).await;
    let (living, dead, holding) = (some_node(), some_node(), some_node());
    for node in [living, dead, holding] {
        heartbeats(&cluster).beat(&beat(node, 1)).await.unwrap();
    }
    for node in [dead, holding] {
        assert!(heartbeats(&cluster).declare_dead(node, 1).await.unwrap());
    }
    cluster
        .execute(&format!(
            "create table day partition of execlog_batch
              for values from (minvalue) to ('01934b2f-0000-0000-0000-000000000000');
            insert into execlog_batch (batch, owner, claimed_at, task_count, ids)
            values ('01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f', '{holding}', now(), 0, '{{}}')"
        ))
        .await;
    assert_eq!(
        heartbeats(&cluster).forget(Duration::from_secs(3600)).await.unwrap(),
        0,
        "too early"
    );
    assert_eq!(heartbeats(&cluster).forget(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(cluster.row(dead).await, None);
    assert!(cluster.row(holding).await.is_some() && cluster.row(living).await.is_some());
    cluster.execute("update execlog_batch set settled_at = now()").await;
    assert_eq!(heartbeats(&cluster).forget(Duration::ZERO).await.unwrap(), 1);
    assert!(cluster.row(living).await.is_some());
}
