//! The rule for a node without etcd: one node owns all shards. Another node waits, takes over, or
//! gives up.
//!
//! ```text
//!            no other node lives
//!   waiting ---------------------> alone
//!      |                             |  declared dead meanwhile, and another node lives;
//!      | another node still lives    |  or an older node lives beside it for 2 TTL
//!      | after 2 TTL                 |  (two nodes that started at the same moment)
//!      v                             v
//!   not alone  <------------------ not alone
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use super::Decision;
use crate::domain::{Monotonic, NodeId};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Another heartbeat may still be alive: wait for it.
    Wait { other: NodeId },
    /// No other node lives, or the other one must end: this node owns all shards.
    Alone,
    /// The other node lives: this node must end.
    NotAlone { other: NodeId },
}

/// The rule for a node that must be the only one. [`super::Liveness`] decides who lives, with a
/// view of etcd with no members.
#[derive(Debug)]
pub struct Alone {
    node: NodeId,
    patience: Duration,
    living_since: BTreeMap<NodeId, Monotonic>,
    is_alone: bool,
}

impl Alone {
    pub fn new(node: NodeId, ttl: Duration) -> Self {
        Self { node, patience: ttl * 2, living_since: BTreeMap::new(), is_alone: false }
    }

    /// Takes in the living nodes at `now`, by observations without a gap since `observed_since`.
    /// `is_revived`: this node had been declared dead.
    pub fn take_in(
        &mut self,
        decision: &Decision,
        observed_since: Monotonic,
        is_revived: bool,
        now: Monotonic,
    ) -> Finding {
        let known = std::mem::take(&mut self.living_since);
        let living = decision.standings.iter().filter(|(_, standing)| standing.is_in());
        self.living_since = living
            .map(|(node, _)| (*node, known.get(node).copied().unwrap_or(now).max(observed_since)))
            .collect();
        let Some((&other, &since)) = self.living_since.first_key_value() else {
            self.is_alone = true;
            return Finding::Alone;
        };
        let has_lived_long = now.since(since) >= self.patience;
        match (self.is_alone, has_lived_long) {
            (false, false) => Finding::Wait { other },
            (false, true) => Finding::NotAlone { other },
            (true, _) if is_revived => Finding::NotAlone { other },
            (true, true) if other < self.node => Finding::NotAlone { other },
            (true, _) => Finding::Alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EtcdView, Liveness, Sign};
    use super::*;
    use crate::domain::Timestamp;

    const TTL: Duration = Duration::from_secs(3);

    fn node(started: i64) -> NodeId {
        NodeId::new(Timestamp::from_millis(started), 0, 0)
    }

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    fn sign(counter: i64) -> Sign {
        Sign { counter, has_left: false, is_dead: false, can_publish: true, has_broker: true }
    }

    /// A node that reads the heartbeats every half second.
    struct Reader {
        liveness: Liveness,
        alone: Alone,
    }

    impl Reader {
        fn new(id: NodeId) -> Self {
            Self { liveness: Liveness::new(TTL), alone: Alone::new(id, TTL) }
        }

        fn read(&mut self, rows: Vec<(NodeId, Sign)>, is_revived: bool, millis: u64) -> Finding {
            self.liveness.take_in(rows, at(millis), at(millis));
            let decision = self.liveness.decide(&EtcdView::Known([].into()));
            self.alone.take_in(
                &decision,
                self.liveness.observed_since().unwrap(),
                is_revived,
                at(millis),
            )
        }
    }

    #[test]
    fn the_first_node_is_alone_at_once() {
        assert_eq!(Reader::new(node(2)).read(vec![], false, 0), Finding::Alone);
    }

    #[test]
    fn heartbeats_that_say_dead_or_left_are_not_waited_for() {
        let dead = Sign { is_dead: true, ..sign(4) };
        let left = Sign { has_left: true, ..sign(4) };
        assert_eq!(
            Reader::new(node(3)).read(vec![(node(1), dead), (node(2), left)], false, 0),
            Finding::Alone
        );
    }

    #[test]
    fn the_heartbeat_of_a_killed_node_is_waited_for_until_it_has_aged_a_ttl() {
        let mut reader = Reader::new(node(2));
        for millis in (0..3_000).step_by(500) {
            assert_eq!(
                reader.read(vec![(node(1), sign(4))], false, millis),
                Finding::Wait { other: node(1) }
            );
        }
        assert_eq!(reader.read(vec![(node(1), sign(4))], false, 3_000), Finding::Alone);
    }

    #[test]
    fn a_node_that_lives_is_not_pushed_aside() {
        let mut reader = Reader::new(node(2));
        for (counter, millis) in (0..).zip((0..6_000).step_by(500)) {
            assert_eq!(
                reader.read(vec![(node(1), sign(counter))], false, millis),
                Finding::Wait { other: node(1) }
            );
        }
        assert_eq!(
            reader.read(vec![(node(1), sign(99))], false, 6_000),
            Finding::NotAlone { other: node(1) }
        );
    }

    #[test]
    fn a_gap_while_waiting_starts_the_waiting_anew() {
        let mut reader = Reader::new(node(2));
        reader.read(vec![(node(1), sign(4))], false, 0);
        for millis in (60_000..63_000).step_by(500) {
            assert_eq!(
                reader.read(vec![(node(1), sign(4))], false, millis),
                Finding::Wait { other: node(1) }
            );
        }
        assert_eq!(reader.read(vec![(node(1), sign(4))], false, 63_000), Finding::Alone);
    }

    #[test]
    fn a_node_that_was_declared_dead_ends_when_it_finds_another_in_its_place() {
        let mut reader = Reader::new(node(1));
        reader.read(vec![], false, 0);
        assert_eq!(
            reader.read(vec![(node(2), sign(9))], true, 60_000),
            Finding::NotAlone { other: node(2) }
        );
    }

    #[test]
    fn of_two_that_started_at_one_moment_the_later_one_ends() {
        let (mut early, mut late) = (Reader::new(node(1)), Reader::new(node(2)));
        early.read(vec![], false, 0);
        late.read(vec![], false, 0);
        for (counter, millis) in (0..).zip((500..=6_500).step_by(500)) {
            assert_eq!(early.read(vec![(node(2), sign(counter))], false, millis), Finding::Alone);
            let finding = late.read(vec![(node(1), sign(counter))], false, millis);
            assert_eq!(
                finding == Finding::NotAlone { other: node(1) },
                millis == 6_500,
                "{millis} ms"
            );
        }
    }

    #[test]
    fn a_frozen_heartbeat_beside_a_running_node_disturbs_nobody() {
        let mut reader = Reader::new(node(2));
        reader.read(vec![], false, 0);
        for millis in (500..9_000).step_by(500) {
            assert_eq!(reader.read(vec![(node(1), sign(4))], false, millis), Finding::Alone);
        }
    }
}
