//! Nodes come, go, die, wake up again, and lose sight of one server or another.

use std::collections::BTreeSet;
use std::time::Duration;

use punctual::clock;
use punctual::engine::liveness::broker::BrokerContact;
use punctual::node::messages::Requirement;

use crate::membership_support::{Cluster, Node};
use crate::support::proxy::{Proxy, Target};
use crate::support::{Stack, eventually};

const TTL: Duration = Duration::from_secs(3);
/// A timed observer: a disk that stalls for half a TTL restarts the observation of a node, which is
/// no fault.
const LONG_TTL: Duration = Duration::from_secs(9);
const SOON: Duration = Duration::from_secs(90);

fn standing_of(node: &Node, other: &Node) -> &'static str {
    node.bulletin()
        .nodes
        .iter()
        .find(|view| view.id == other.id)
        .map_or("unknown", |view| view.standing)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_and_three_nodes_split_the_shards_within_the_cap() {
    let cluster = Cluster::new(TTL).await;
    let first = cluster.node("first");
    first.wait_for_shards(64, SOON).await;
    let second = cluster.node("second");
    first.wait_for_shards(32, SOON).await;
    second.wait_for_shards(32, SOON).await;
    assert_eq!(first.bulletin().owners, second.bulletin().owners);
    let before = first.bulletin().owners;
    let third = cluster.node("third");
    for node in [&first, &second, &third] {
        node.wait("at most 22 shards", SOON, |bulletin| {
            bulletin.owners.contains(&third.id) && bulletin.mine.len() <= 22
        })
        .await;
        assert_eq!(node.bulletin().owners, first.bulletin().owners);
    }
    let after = first.bulletin().owners;
    let forced = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after && **after != third.id)
        .count();
    assert!(forced <= 10, "{forced} shards moved between those who stayed");
    let all: BTreeSet<_> =
        [&first, &second, &third].iter().flat_map(|node| node.bulletin().mine).collect();
    assert_eq!(all.len(), 64);
    assert!(
        [&first, &second, &third]
            .iter()
            .all(|node| node.clock.is_steady() && node.bulletin().missing.is_empty())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shards_of_a_killed_node_are_taken_over_within_a_ttl_and_a_second() {
    let cluster = Cluster::new(LONG_TTL).await;
    let (first, second) = (cluster.node("first"), cluster.node("second"));
    first.wait_for_shards(32, SOON).await;
    second.wait_for_shards(32, SOON).await;
    // The events so far.
    let adopt_now = first.membership.adopt_now();
    let dead = second.kill();
    let notified = async {
        let from = clock::monotonic();
        while !cluster.row(dead).await.unwrap().1 {
            adopt_now.notified().await;
        }
        clock::monotonic().since(from)
    };
    let (taken_over, notified) = tokio::join!(first.wait_for_shards(64, SOON), notified);
    // Without the key in etcd, the limit would be three TTL. tests/timing measures the time on a
    // quiet machine.
    assert!(taken_over < LONG_TTL * 2, "{taken_over:?}");
    assert!(notified < LONG_TTL * 2, "{notified:?}");
    assert_eq!(first.metric("punctual_nodes_declared_dead_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_is_out_at_once_and_goes_on_to_beat() {
    let cluster = Cluster::new(LONG_TTL).await;
    let (first, second) = (cluster.node("first"), cluster.node("second"));
    first.wait_for_shards(32, SOON).await;
    second.wait_for_shards(32, SOON).await;
    let from = clock::monotonic();
    assert!(second.membership.leave(SOON).await);
    assert_eq!(second.bulletin().mine, []);
    first.wait_for_shards(64, SOON).await;
    let taken_over = clock::monotonic().since(from);
    assert!(taken_over < LONG_TTL, "{taken_over:?}");
    assert_eq!(standing_of(&first, &second), "left");
    let (counter, ..) = cluster.row(second.id).await.unwrap();
    eventually("it beats on for what it still holds", SOON, async || {
        cluster.row(second.id).await.unwrap().0 > counter + 10
    })
    .await;
    assert!(!cluster.row(second.id).await.unwrap().1, "who beats is not declared dead");
    // The node ends, and its possible batches are adopted.
    second.tasks.stop(SOON).await;
    eventually("declared dead", SOON, async || cluster.row(second.id).await.unwrap().1).await;
    assert_eq!(standing_of(&first, &second), "left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_drops_all_sessions_at_once_moves_nothing() {
    let cluster = Cluster::new(TTL).await;
    let nodes = [cluster.node("first"), cluster.node("second"), cluster.node("third")];
    for node in &nodes {
        node.wait("three nodes", SOON, |bulletin| {
            bulletin.mine.len() <= 22 && !bulletin.mine.is_empty()
        })
        .await;
    }
    eventually("three keys", SOON, async || nodes[0].metric("punctual_etcd_members") == 3.0).await;
    let (_, _, revoked) = tokio::join!(
        nodes[0].stays_put(TTL * 2),
        nodes[1].stays_put(TTL * 2),
        cluster.revoke_all_sessions()
    );
    assert_eq!(revoked, 3);
    eventually("three keys again", SOON, async || nodes[2].metric("punctual_etcd_members") == 3.0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_off_from_postgres_alone_is_replaced_and_asks_before_it_goes_on() {
    let cluster = Cluster::new(LONG_TTL).await;
    let mut proxy = Proxy::closed(Target::postgres(&Stack::shared())).await;
    proxy.open().await;
    let first = cluster.node("first");
    let second = Node::start(&cluster, "second", &cluster.database.url_by(proxy.address()), true);
    first.wait_for_shards(32, SOON).await;
    second.wait_for_shards(32, SOON).await;
    let mut fencing = second.membership.fencing();
    assert!(fencing.holds(0));
    proxy.close().await;
    // The node ends its own session, so no other node waits for three TTL.
    let taken_over = first.wait_for_shards(64, SOON).await;
    assert!(taken_over < LONG_TTL * 2, "{taken_over:?}");
    assert!(!fencing.holds(0));
    assert_eq!(second.bulletin().mine.len(), 32, "it cannot know, and does no harm");
    assert_eq!(second.bulletin().missing[0].what, Requirement::Postgres);
    proxy.open().await;
    let generation = tokio::time::timeout(SOON, fencing.regained()).await.unwrap();
    assert!(generation > 0 && fencing.holds(generation) && !fencing.holds(0));
    first.wait_for_shards(32, SOON).await;
    assert_eq!(cluster.row(second.id).await.map(|row| row.1), Some(false));
    eventually("its session is back", SOON, async || {
        second.metric("punctual_etcd_session_up") == 1.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_declared_dead_revives_itself_and_asks_which_batches_are_its_own() {
    let cluster = Cluster::new(TTL).await;
    let node = cluster.node("first");
    node.wait_for_shards(64, SOON).await;
    let fencing = node.membership.fencing();
    let before = fencing.generation();
    cluster.execute("update heartbeat set dead = true").await;
    eventually("revived", SOON, async || !cluster.row(node.id).await.unwrap().1).await;
    eventually("a new generation", SOON, async || {
        fencing.generation() > before && fencing.holds(fencing.generation())
    })
    .await;
    assert!(!fencing.holds(before));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_claim_loop_stands_still_stops_beating_and_is_replaced() {
    let cluster = Cluster::new(LONG_TTL).await;
    let (first, second) = (cluster.node("first"), cluster.node("second"));
    first.wait_for_shards(32, SOON).await;
    second.progress.tick(0);
    // Fifteen seconds until the node counts as stuck, and a TTL until its session ends. If the node
    // did not end the session, the wait would be three TTL.
    first.wait_for_shards(64, Duration::from_secs(15) + LONG_TTL * 2).await;
    assert_eq!(standing_of(&first, &second), "dead");
    second.progress.tick(0);
    first.wait_for_shards(32, SOON).await;
    assert!(second.membership.fencing().generation() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_brokers_gives_its_shards_away_while_others_have_contact() {
    let cluster = Cluster::new(Duration::from_secs(1)).await;
    let (first, second) = (cluster.node("first"), cluster.node("second"));
    first.wait_for_shards(32, SOON).await;
    second.wait_for_shards(32, SOON).await;
    *second.broker.lock().unwrap() = BrokerContact { has_broker: false, has_due: true };
    second.wait("cut off", SOON, |bulletin| bulletin.is_cut_off && bulletin.mine.is_empty()).await;
    first.wait_for_shards(64, SOON).await;
    *second.broker.lock().unwrap() = BrokerContact { has_broker: true, has_due: false };
    second.wait("back", SOON, |bulletin| !bulletin.is_cut_off && bulletin.mine.len() == 32).await;
    // Not ready: no producer yet.
    *first.broker.lock().unwrap() = BrokerContact::default();
    first.wait_for_shards(0, SOON).await;
    *second.broker.lock().unwrap() = BrokerContact::default();
    second.wait("nobody can, so everybody stays", SOON, |bulletin| bulletin.mine.len() == 32).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_etcd_a_second_node_fails_while_the_first_one_lives_and_takes_over_when_it_is_dead()
{
    let cluster = Cluster::new(Duration::from_secs(4)).await;
    let first = cluster.node_without_etcd("first");
    first.wait_for_shards(64, SOON).await;
    let second = cluster.node_without_etcd("second");
    eventually("it waits, and says so", SOON, async || {
        second.bulletin().missing.iter().any(|missing| missing.why.contains(&first.id.to_string()))
    })
    .await;
    tokio::time::timeout(SOON, second.tasks.draining.cancelled()).await.unwrap();
    let failure = second.tasks.failure().unwrap();
    assert!(failure.contains("first") && failure.contains("--etcd"), "{failure}");
    assert_eq!(second.bulletin().mine, []);
    assert_eq!(cluster.row(second.id).await, None, "it never said that it lives");
    first.stays_put(Duration::from_millis(1)).await;
    assert_eq!(first.tasks.failure(), None);

    let dead = first.kill();
    let third = cluster.node_without_etcd("third");
    // Not later than twice the TTL of a stale heartbeat: after that, the node would have given up.
    third.wait_for_shards(64, SOON).await;
    assert!(cluster.row(dead).await.unwrap().1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_etcd_a_node_takes_over_at_once_from_one_that_has_left() {
    let cluster = Cluster::new(LONG_TTL).await;
    let first = cluster.node_without_etcd("first");
    first.wait_for_shards(64, SOON).await;
    assert!(first.membership.leave(SOON).await);
    let taken_over = cluster.node_without_etcd("second").wait_for_shards(64, SOON).await;
    assert!(taken_over < LONG_TTL, "{taken_over:?}");
}
