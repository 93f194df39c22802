//! Nodes share the shards, and only the necessary shards move.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Cluster, Ledger, NONE, Node, Wishes, eventually_some};

const DEADLINE: Duration = Duration::from_secs(120);
const SHARDS: u16 = 64;
/// Moves that the limit per node forces, besides the share of a new or departed node.
const FORCED_MOVES_MAX: usize = 10;

type Owners = BTreeMap<u64, Uuid>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_the_shards_within_the_cap_and_move_only_what_they_must() {
    let cluster = Cluster::with("members", Wishes { shards: SHARDS, ..Wishes::default() }).await;
    let topic = cluster.topic("orders").await;
    let consumer = cluster.consumer(&topic);
    let first = cluster.node().await;
    let alone = agreed(&[&first]).await;
    assert!(alone.values().all(|owner| alone.values().all(|other| owner == other)));

    let second = cluster.node().await;
    let two = agreed(&[&first, &second]).await;
    check_cap(&two, 2);
    // Each node accepts every task, whoever owns the shard.
    let ledger = Ledger::default();
    for node in [&first, &second] {
        let tasks: Vec<Value> = (0..200)
            .map(|number| {
                json!({
                    "topic": topic,
                    "delay": rand::random_range(0..2000),
                    "payload_text": number.to_string(),
                    "key": number.to_string(),
                })
            })
            .collect();
        ledger.accept_all(&node.api().submit_all(&tasks).await, &tasks);
    }

    let mut third = cluster.node().await;
    let third_id = third.id().await;
    let three = agreed(&[&first, &second, &third]).await;
    check_cap(&three, 3);
    assert!(moved(&two, &three, third_id) <= FORCED_MOVES_MAX, "{two:?}\n{three:?}");

    third.terminate();
    assert!(third.wait_exit(DEADLINE).await.success());
    let two_again = agreed(&[&first, &second]).await;
    check_cap(&two_again, 2);
    assert!(moved(&three, &two_again, third_id) <= FORCED_MOVES_MAX, "{three:?}\n{two_again:?}");
    assert_eq!(two, two_again, "the same members, the same assignment");

    let findings = ledger.settle_up(&cluster, || consumer.records(), DEADLINE).await;
    assert_eq!(findings.duplicates, NONE, "members came and went in good order");
}

/// Returns the owner of each shard, once all nodes agree and each has some.
async fn agreed(nodes: &[&Node]) -> Owners {
    let mut ids = Vec::new();
    for node in nodes {
        ids.push(node.id().await);
    }
    eventually_some("all nodes see the same assignment", DEADLINE, async || {
        let mut views = Vec::new();
        for node in nodes {
            views.push(owners(&node.assignment().await)?);
        }
        let is_whole = views[0].len() == usize::from(SHARDS)
            && ids.iter().all(|id| views[0].values().any(|owner| owner == id));
        let has_others = views[0].values().any(|owner| !ids.contains(owner));
        (is_whole && !has_others && views.iter().all(|view| *view == views[0]))
            .then(|| views.swap_remove(0))
    })
    .await
}

/// The owner of each shard; none while a shard is shown with two owners.
fn owners(assignment: &HashMap<Uuid, Vec<u64>>) -> Option<Owners> {
    let pairs =
        || assignment.iter().flat_map(|(node, shards)| shards.iter().map(|shard| (*shard, *node)));
    let owners: Owners = pairs().collect();
    (owners.len() == pairs().count()).then_some(owners)
}

fn check_cap(owners: &Owners, node_count: usize) {
    let mut counts: HashMap<Uuid, usize> = HashMap::new();
    for owner in owners.values() {
        *counts.entry(*owner).or_default() += 1;
    }
    let cap = usize::from(SHARDS).div_ceil(node_count);
    assert!(
        counts.len() == node_count && counts.values().all(|count| *count <= cap),
        "cap {cap}: {counts:?}"
    );
}

/// Returns the number of shards that moved between nodes that were there before and after.
fn moved(before: &Owners, after: &Owners, came_or_left: Uuid) -> usize {
    let stayed = |owner: &Uuid| *owner != came_or_left;
    before
        .iter()
        .filter(|(shard, owner)| {
            stayed(owner) && stayed(&after[*shard]) && after[*shard] != **owner
        })
        .count()
}
