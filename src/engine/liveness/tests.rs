use proptest::prelude::*;

use super::*;
use crate::domain::Timestamp;

const TTL: Duration = Duration::from_secs(3);

fn node(number: u64) -> NodeId {
    NodeId::new(Timestamp::from_millis(1), 0, number)
}

fn at(millis: u64) -> Monotonic {
    Monotonic::from_start(Duration::from_millis(millis))
}

fn sign(counter: i64) -> Sign {
    Sign { counter, has_left: false, is_dead: false, can_publish: true, has_broker: true }
}

fn with_key() -> EtcdView {
    EtcdView::Known(BTreeSet::from([node(1), node(2)]))
}

fn without_key() -> EtcdView {
    EtcdView::Known(BTreeSet::from([node(2)]))
}

/// Reads the same heartbeat of node 1 every half second, from 0 to `until` milliseconds.
fn observe_standing_still(sign: Sign, until: u64) -> Liveness {
    let mut liveness = Liveness::new(TTL);
    for millis in (0..=until).step_by(500) {
        liveness.take_in([(node(1), sign)], at(millis), at(millis));
    }
    liveness
}

fn standing(liveness: &mut Liveness, etcd: &EtcdView) -> (Standing, bool) {
    let decision = liveness.decide(etcd);
    (decision.standings[&node(1)], !decision.declare_dead.is_empty())
}

#[test]
fn the_table_of_the_design_holds() {
    use Standing::{Assigned, Dead, Left, Suspected};
    let left = Sign { has_left: true, ..sign(7) };
    let dead = Sign { is_dead: true, ..sign(7) };
    // heartbeat, how long it stands still, etcd, standing, and is the node declared dead now
    let table = [
        (sign(7), 2_500, with_key(), Assigned, false),
        (sign(7), 2_500, without_key(), Assigned, false),
        (sign(7), 2_500, EtcdView::Away, Assigned, false),
        (sign(7), 3_000, without_key(), Dead, true),
        (sign(7), 3_000, with_key(), Suspected, false),
        (sign(7), 3_000, EtcdView::Away, Suspected, false),
        (sign(7), 8_500, with_key(), Suspected, false),
        (sign(7), 8_500, EtcdView::Away, Suspected, false),
        (sign(7), 9_000, with_key(), Dead, true),
        (sign(7), 9_000, without_key(), Dead, true),
        (sign(7), 9_000, EtcdView::Away, Dead, true),
        (left, 0, with_key(), Left, false),
        (left, 0, without_key(), Left, false),
        (left, 0, EtcdView::Away, Left, false),
        (left, 3_000, with_key(), Left, false),
        (left, 3_000, EtcdView::Away, Left, false),
        (left, 3_000, without_key(), Left, true),
        (left, 9_000, with_key(), Left, true),
        (dead, 0, with_key(), Dead, false),
        (dead, 9_000, without_key(), Dead, false),
    ];
    for (sign, until, etcd, expected, is_declared) in table {
        let mut liveness = observe_standing_still(sign, until);
        assert_eq!(
            standing(&mut liveness, &etcd),
            (expected, is_declared),
            "{sign:?} for {until} ms, {etcd:?}"
        );
    }
}

#[test]
fn a_failed_read_starts_the_observation_anew() {
    let mut liveness = observe_standing_still(sign(7), 2_500);
    liveness.read_failed();
    liveness.take_in([(node(1), sign(7))], at(3_000), at(3_000));
    assert_eq!(standing(&mut liveness, &without_key()).0, Standing::Assigned);
    for millis in (3_500..=6_000).step_by(500) {
        liveness.take_in([(node(1), sign(7))], at(millis), at(millis));
    }
    assert_eq!(standing(&mut liveness, &without_key()).0, Standing::Dead);
}

#[test]
fn a_gap_of_more_than_half_a_ttl_between_reads_starts_the_observation_anew() {
    for (gap, expected) in [(1_500, Standing::Dead), (1_501, Standing::Assigned)] {
        let mut liveness = observe_standing_still(sign(7), 2_000);
        liveness.take_in([(node(1), sign(7))], at(2_000 + gap), at(2_000 + gap));
        assert_eq!(standing(&mut liveness, &without_key()).0, expected, "{gap} ms");
    }
}

#[test]
fn an_answer_that_comes_late_counts_from_its_question() {
    let mut liveness = observe_standing_still(sign(7), 2_500);
    liveness.take_in([(node(1), sign(7))], at(2_900), at(3_900));
    assert_eq!(standing(&mut liveness, &without_key()).0, Standing::Assigned);
}

#[test]
fn a_counter_that_moves_makes_a_suspected_node_fresh() {
    let mut liveness = observe_standing_still(sign(7), 5_000);
    assert_eq!(standing(&mut liveness, &with_key()).0, Standing::Suspected);
    liveness.take_in([(node(1), sign(8))], at(5_500), at(5_500));
    assert_eq!(standing(&mut liveness, &without_key()).0, Standing::Assigned);
}

#[test]
fn a_node_that_could_not_be_declared_dead_is_observed_anew() {
    let mut liveness = observe_standing_still(sign(7), 3_000);
    liveness.spare(node(1));
    assert_eq!(standing(&mut liveness, &without_key()).0, Standing::Assigned);
    liveness.take_in([(node(1), sign(7))], at(3_500), at(3_500));
    assert_eq!(standing(&mut liveness, &without_key()).0, Standing::Assigned);
}

#[test]
fn batches_are_looked_for_once_when_a_node_dies_leaves_or_loses_its_row() {
    let left = Sign { has_left: true, ..sign(7) };
    for rows in [vec![(node(1), left)], vec![(node(1), Sign { is_dead: true, ..sign(7) })], vec![]]
    {
        let mut liveness = observe_standing_still(sign(7), 500);
        assert!(!liveness.decide(&with_key()).adopt);
        liveness.take_in(rows, at(1_000), at(1_000));
        assert!(liveness.decide(&with_key()).adopt);
        assert!(!liveness.decide(&with_key()).adopt);
    }
}

#[test]
fn once_declared_dead_a_node_is_not_declared_again() {
    let mut liveness = observe_standing_still(sign(7), 3_000);
    assert_eq!(
        liveness.decide(&without_key()).declare_dead,
        [DeclareDead { node: node(1), counter: 7 }]
    );
    liveness.declared_dead(node(1));
    assert_eq!(liveness.decide(&without_key()).declare_dead, []);
}

#[test]
fn who_cannot_publish_gets_no_shards_while_others_can() {
    let mute = Sign { can_publish: false, ..sign(7) };
    let mut liveness = Liveness::new(TTL);
    let own = |can_publish| Some((node(9), can_publish));
    liveness.take_in([(node(1), sign(7)), (node(2), mute)], at(0), at(0));
    let decision = liveness.decide(&EtcdView::Away);
    assert_eq!(liveness.assignable(&decision, own(true)), [node(1), node(9)]);
    assert_eq!(liveness.assignable(&decision, own(false)), [node(1)]);
    assert_eq!(liveness.assignable(&decision, None), [node(1)]);
    liveness.take_in([(node(1), mute), (node(2), mute)], at(500), at(500));
    let decision = liveness.decide(&EtcdView::Away);
    assert_eq!(liveness.assignable(&decision, own(false)), [node(1), node(2), node(9)]);
    assert_eq!(liveness.assignable(&decision, own(true)), [node(9)]);
}

#[test]
fn only_living_nodes_vouch_for_the_brokers() {
    let left = Sign { has_left: true, ..sign(7) };
    let silent = Sign { has_broker: false, ..sign(7) };
    for (sign, until, vouches) in
        [(sign(7), 0, true), (sign(7), 3_000, false), (left, 0, false), (silent, 0, false)]
    {
        assert_eq!(
            observe_standing_still(sign, until).others_have_broker(),
            vouches,
            "{sign:?} for {until} ms"
        );
    }
}

#[test]
fn the_next_check_is_when_somebody_may_be_stale() {
    let mut liveness = observe_standing_still(sign(7), 1_000);
    assert_eq!(liveness.next_check_at(), Some(at(3_000)));
    for millis in [1_500, 2_000, 2_500, 3_000] {
        liveness.take_in([(node(1), sign(7))], at(millis), at(millis));
    }
    assert_eq!(liveness.next_check_at(), Some(at(9_000)));
    assert_eq!(Liveness::new(TTL).next_check_at(), None);
}

proptest! {
    /// Reads at arbitrary moments, some of which fail or are slow, of a node whose counter moves at
    /// least every half TTL.
    #[test]
    fn a_node_that_beats_each_half_ttl_is_never_declared_dead(
        beats in prop::collection::vec(1_u64..=1_500, 40),
        reads in prop::collection::vec(
            (0_u64..4_000, 0_u64..2_000, 0_u8..10, any::<bool>()),
            1..60,
        ),
    ) {
        let mut moments = Vec::new();
        let mut beat_at = 0;
        for pause in beats {
            beat_at += pause;
            moments.push(beat_at);
        }
        let counter_at = |millis: u64| {
            i64::try_from(moments.iter().filter(|moment| **moment <= millis).count()).unwrap()
        };
        let mut liveness = Liveness::new(TTL);
        let mut now = 0;
        for (pause, round_trip, luck, is_early) in reads {
            let asked_at = now + pause;
            let arrived_at = asked_at + round_trip;
            now = arrived_at;
            if arrived_at >= beat_at {
                break;
            }
            if luck == 0 {
                liveness.read_failed();
                continue;
            }
            let seen_at = if is_early { asked_at } else { arrived_at };
            liveness.take_in([(node(1), sign(counter_at(seen_at)))], at(asked_at), at(arrived_at));
            let decision = liveness.decide(&without_key());
            prop_assert_eq!(decision.declare_dead, []);
            prop_assert_eq!(decision.standings[&node(1)], Standing::Assigned);
        }
    }

    #[test]
    fn a_node_that_stands_still_is_declared_dead_whatever_the_moments_of_reading(
        pauses in prop::collection::vec(1_u64..=1_500, 40),
    ) {
        let mut liveness = Liveness::new(TTL);
        let mut now = 0;
        let mut died_at = None;
        for pause in pauses {
            liveness.take_in([(node(1), sign(7))], at(now), at(now));
            if died_at.is_none() && !liveness.decide(&without_key()).declare_dead.is_empty() {
                died_at = Some(now);
            }
            now += pause;
        }
        prop_assert!(
            now < 4_500 || died_at.is_some_and(|died_at| (3_000..=4_500).contains(&died_at))
        );
    }
}
