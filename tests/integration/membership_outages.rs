//! Servers that stop and come back, in a stack of their own.

use std::time::Duration;

use punctual::etcd::SessionState;
use punctual::node::messages::Requirement;

use crate::membership_support::{Cluster, Node};
use crate::support::{OwnStack, eventually};

const TTL: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(90);

async fn pair(cluster: &Cluster) -> [Node; 2] {
    let nodes = [cluster.node("first"), cluster.node("second")];
    for node in &nodes {
        node.wait_for_shards(32, SOON).await;
        eventually("a session", SOON, async || is_held(node)).await;
    }
    nodes
}

fn is_held(node: &Node) -> bool {
    matches!(node.session.as_ref().unwrap().state(), SessionState::Held)
}

async fn nothing_moves(nodes: &[Node; 2], span: Duration) {
    tokio::join!(nodes[0].stays_put(span), nodes[1].stays_put(span));
}

#[tokio::test(flavor = "multi_thread")]
async fn outages_of_etcd_and_of_postgres_move_nothing_and_kill_nobody() {
    let own = OwnStack::start("membership").await;
    let cluster = Cluster::on(&own.stack, TTL).await;
    let nodes = pair(&cluster).await;

    own.stop("etcd").await;
    nothing_moves(&nodes, TTL * 4).await;
    assert!(!is_held(&nodes[0]));
    eventually("only etcd is missing", SOON, async || {
        nodes[0].bulletin().missing.iter().map(|missing| missing.what).eq([Requirement::Etcd])
    })
    .await;
    let fencing = nodes[0].membership.fencing();
    // A slow disk may have fenced the node for a moment.
    eventually("heartbeats alone keep a node unfenced", SOON, async || {
        fencing.holds(fencing.generation())
    })
    .await;
    own.start_again("etcd").await;
    for node in &nodes {
        eventually("the session is back", SOON, async || is_held(node)).await;
        eventually("nothing is missing", SOON, async || node.bulletin().missing.is_empty()).await;
    }

    own.stop("postgres").await;
    nothing_moves(&nodes, TTL * 4).await;
    assert!(!is_held(&nodes[0]), "who cannot reach Postgres ends its session");
    let generation = fencing.generation();
    assert!(!fencing.holds(generation));
    own.start_again("postgres").await;
    for node in &nodes {
        eventually("heartbeats again", SOON, async || node.bulletin().missing.is_empty()).await;
    }
    nothing_moves(&nodes, TTL * 2).await;
    for node in &nodes {
        assert_eq!(node.metric("punctual_nodes_declared_dead_total"), 0.0);
        assert!(
            node.membership.fencing().generation() > 0,
            "after so long it asks which batches are its own"
        );
        eventually("the session is back", SOON, async || is_held(node)).await;
    }

    // Without etcd a death is noticed all the same, after three TTL.
    own.stop("etcd").await;
    let [first, second] = nodes;
    second.kill();
    let taken_over = first.wait_for_shards(64, SOON).await;
    assert!(taken_over >= TTL * 2, "{taken_over:?}");
}
