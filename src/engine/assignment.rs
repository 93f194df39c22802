//! Assigns shards to nodes: rendezvous hashing with a cap.
//!
//! Every node computes the same answer from the same members, without a master. Each pair of shard
//! and node has a weight, a hash. Pairs are taken in order of descending weight, and a pair counts
//! when the shard is still free and the node has room. So a shard moves only when the owner left,
//! when a joiner outweighs the owner, or when the cap forces a move.

use std::cmp::Reverse;

use xxhash_rust::xxh3::Xxh3;

use crate::domain::{NodeId, Shard, ShardCount};

/// Returns the owner of each shard, in the order of the shards. Empty when there are no nodes. No
/// node owns more than [`cap`] shards. The order of `nodes` and repeated entries make no
/// difference.
pub fn assign(shards: ShardCount, nodes: &[NodeId]) -> Vec<NodeId> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    let Some(&first) = nodes.first() else {
        return Vec::new();
    };
    let mut room = vec![cap(shards, nodes.len()); nodes.len()];
    let mut owners: Vec<Option<NodeId>> = vec![None; usize::from(shards.get())];
    for (_, shard, index) in pairs_from_the_heaviest(shards, &nodes) {
        let (Some(owner), Some(room), Some(&node)) =
            (owners.get_mut(usize::from(shard.number())), room.get_mut(index), nodes.get(index))
        else {
            continue;
        };
        if owner.is_none() && *room > 0 {
            *owner = Some(node);
            *room -= 1;
        }
    }
    // Every shard has an owner: there is room for all of them, and each was tried with every node.
    owners.into_iter().map(|owner| owner.unwrap_or(first)).collect()
}

/// Returns how many shards one of `node_count` nodes may own: an even share, rounded up.
pub fn cap(shards: ShardCount, node_count: usize) -> usize {
    usize::from(shards.get()).div_ceil(node_count.max(1))
}

fn pairs_from_the_heaviest(shards: ShardCount, nodes: &[NodeId]) -> Vec<(u64, Shard, usize)> {
    let mut pairs: Vec<_> = shards
        .all()
        .flat_map(|shard| {
            nodes.iter().enumerate().map(move |(index, node)| (weight(shard, *node), shard, index))
        })
        .collect();
    // The index follows the order of the ids, so pairs of equal weight have the same order on every
    // node.
    pairs.sort_unstable_by_key(|pair| Reverse(*pair));
    pairs
}

/// XXH3-64 of the node's id and the shard's number. The hash is the same on every node and in every
/// release, because nodes of two releases work side by side.
fn weight(shard: Shard, node: NodeId) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(node.uuid().as_bytes());
    hash.update(&shard.number().to_be_bytes());
    hash.digest()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::domain::Timestamp;

    fn node(random: u64) -> NodeId {
        NodeId::new(Timestamp::from_millis(1_700_000_000_000), 0, random)
    }

    fn shards(count: u64) -> ShardCount {
        ShardCount::new(count).unwrap()
    }

    fn loads(owners: &[NodeId]) -> BTreeMap<NodeId, usize> {
        let mut loads = BTreeMap::new();
        for owner in owners {
            *loads.entry(*owner).or_default() += 1;
        }
        loads
    }

    proptest! {
        #[test]
        fn every_shard_has_one_owner_and_no_node_is_above_the_cap(
            randoms in prop::collection::hash_set(any::<u64>(), 1..40), power in 0_u32..9
        ) {
            let nodes: Vec<_> = randoms.into_iter().map(node).collect();
            let shards = shards(1 << power);
            let owners = assign(shards, &nodes);
            prop_assert_eq!(owners.len(), usize::from(shards.get()));
            prop_assert!(owners.iter().all(|owner| nodes.contains(owner)));
            prop_assert!(loads(&owners).values().all(|load| *load <= cap(shards, nodes.len())));
        }

        #[test]
        fn the_order_in_which_members_are_seen_makes_no_difference(
            randoms in prop::collection::hash_set(any::<u64>(), 1..9),
        ) {
            let nodes: Vec<_> = randoms.into_iter().map(node).collect();
            let mut shuffled: Vec<_> = nodes.iter().rev().copied().collect();
            shuffled.extend(nodes.first());
            prop_assert_eq!(assign(shards(64), &nodes), assign(shards(64), &shuffled));
        }
    }

    /// Returns the number of shards that move although the owner stays, when the last of `nodes`
    /// leaves. Read backwards for a join.
    fn forced_moves(nodes: &[NodeId]) -> usize {
        let (leaver, rest) = nodes.split_last().unwrap();
        let before = assign(shards(64), nodes);
        let after = assign(shards(64), rest);
        before
            .iter()
            .zip(&after)
            .filter(|(before, after)| before != after && *before != leaver)
            .count()
    }

    #[test]
    fn besides_the_share_of_who_leaves_or_joins_only_what_the_cap_forces_moves() {
        let mut random = SmallRng::seed_from_u64(5);
        let moves: Vec<_> = (0..100)
            .map(|_| {
                let count = random.random_range(2..=12);
                let nodes: Vec<_> = (0..count).map(|_| node(random.random())).collect();
                forced_moves(&nodes)
            })
            .collect();
        assert!(moves.iter().sum::<usize>() <= 4 * moves.len(), "at most 4 on average: {moves:?}");
        assert!(moves.iter().all(|moves| *moves <= 10), "at most 10 ever: {moves:?}");
    }

    #[test]
    fn without_nodes_nobody_owns_anything() {
        assert!(assign(shards(64), &[]).is_empty());
    }

    #[test]
    fn a_node_that_is_alone_owns_all_shards() {
        assert_eq!(assign(shards(64), &[node(1)]), vec![node(1); 64]);
    }

    #[test]
    fn the_weights_are_the_same_in_every_release() {
        let owners = assign(shards(8), &[node(1), node(2), node(3)]);
        let numbers: Vec<_> = owners.iter().map(|owner| owner.uuid().as_u128() & 0xff).collect();
        assert_eq!(numbers, PINNED);
    }

    const PINNED: [u128; 8] = [3, 2, 1, 1, 1, 3, 2, 2];
}
