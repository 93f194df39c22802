//! Tests full topics and hotspots: the rules of claiming on a table of several topics.

use std::collections::BTreeMap;

use super::*;

/// A topic with an in-flight limit, as the claimer sees it.
struct Bounded {
    name: TopicName,
    max: usize,
    in_flight: usize,
    is_full: bool,
    /// The number of tasks published in a tick.
    pace: usize,
}

/// Several such topics, and a table of their tasks.
struct Busy {
    claiming: Claiming,
    topics: Vec<Bounded>,
    table: BTreeMap<Uuid, usize>,
    claims: usize,
}

impl Busy {
    fn new(topics: &[(usize, usize)]) -> Self {
        let bounded = |(index, (max, pace)): (usize, &(usize, usize))| Bounded {
            name: TopicName::stored(&format!("topic-{index}")),
            max: *max,
            in_flight: 0,
            is_full: false,
            pace: *pace,
        };
        let topics = topics.iter().enumerate().map(bounded).collect();
        Self {
            claiming: Claiming::new(SETTINGS, &SHARDS),
            topics,
            table: BTreeMap::new(),
            claims: 0,
        }
    }

    fn full(&self) -> BTreeSet<TopicName> {
        self.topics.iter().filter(|topic| topic.is_full).map(|topic| topic.name.clone()).collect()
    }

    fn carry_out(&mut self, claim: &Claim) {
        self.claims += 1;
        let range = self.table.range(claim.range.from..claim.range.to);
        let is_open = |topic: &Bounded| !topic.is_full && !claim.left_out.contains(&topic.name);
        let open: Vec<(Uuid, usize)> = range
            .filter(|(_, topic)| is_open(&self.topics[**topic]))
            .map(|(id, topic)| (*id, *topic))
            .collect();
        if open.len() > ROWS_MAX {
            return self.claiming.was_too_large(
                claim,
                Some(*self.table.range(claim.range.from..).next().unwrap().0),
            );
        }
        let full = self.full();
        let mut counts = vec![0; self.topics.len()];
        for (id, topic) in &open {
            self.table.remove(id);
            self.topics[*topic].in_flight += 1;
            counts[*topic] += 1;
        }
        let hotspot_topics =
            hotspot_topics(self.topics.iter().map(|topic| &topic.name).zip(counts));
        self.topics.iter_mut().for_each(|topic| topic.is_full |= topic.in_flight >= topic.max);
        self.claiming.took(claim, &Taken { full, hotspot_topics, ..taken(open.len()) });
    }

    fn tick(&mut self, now: Timestamp) {
        for topic in &mut self.topics {
            topic.in_flight -= topic.pace.min(topic.in_flight);
            topic.is_full &= topic.in_flight > topic.max / 4 * 3;
        }
        let full = self.full();
        self.claiming.there_is_room(&full);
        self.turn(now, 40);
    }

    /// Claims at the watermark as far as it is due, and then `pieces` pieces of deferred ranges.
    fn turn(&mut self, now: Timestamp, pieces: usize) {
        while let Some(claim) = self.claiming.next_at_watermark(now) {
            self.carry_out(&claim);
        }
        for _ in 0..pieces {
            let Some(claim) = self.claiming.next_deferred() else { return };
            self.carry_out(&claim);
        }
    }

    fn left_of(&self, topic: usize) -> usize {
        self.table.values().filter(|of| **of == topic).count()
    }
}

#[test]
fn what_is_skipped_for_a_full_topic_is_claimed_as_soon_as_there_is_room_and_others_do_not_wait() {
    let mut busy = Busy::new(&[(25_000, 2_000), (25_000, 2_000)]);
    busy.table.extend((0..100_000_u64).map(|n| (id(1_000, n << 45), 0)));
    let others: Vec<Uuid> = (0..500).map(|n| id(1_000 + n * 2, 1)).collect();
    busy.table.extend(others.iter().map(|id| (*id, 1)));
    for millis in (0..2_000).step_by(20) {
        busy.tick(at(millis));
        let is_late =
            |other: &&Uuid| **other < floor_of(at(millis)) && busy.table.contains_key(other);
        assert_eq!(others.iter().filter(is_late).count(), 0, "at {millis} ms");
        let in_flight = busy.topics[0].in_flight;
        assert!(
            busy.left_of(0) == 0 || in_flight >= 10_000 || millis < 850,
            "at {millis} ms only {in_flight} are in flight"
        );
    }
    assert!(busy.table.is_empty(), "{} are left", busy.table.len());
    assert!(busy.claims < 1_000, "{} claims", busy.claims);
}

/// Claims until the last task of `topic` is claimed. Returns the number of tasks of other topics
/// claimed meanwhile.
fn claimed_before(busy: &mut Busy, topic: usize) -> usize {
    let others = |busy: &Busy| busy.table.len() - busy.left_of(topic);
    let before = others(busy);
    for millis in (0..10_000).step_by(20) {
        busy.turn(at(millis), 4);
        if busy.left_of(topic) == 0 {
            return before - others(busy);
        }
    }
    panic!("{} of it are left", busy.left_of(topic));
}

#[test]
fn what_is_due_in_the_very_millisecond_of_a_hotspot_does_not_wait_for_it() {
    // No topic is ever full. A few tasks of the last topic are among the hotspot.
    for hotspot_topics in [1, 2, 4] {
        let mut busy = Busy::new(&vec![(usize::MAX, 0); hotspot_topics + 1]);
        busy.table.extend(
            (0..200_000)
                .map(|n: usize| (id(1_000, u64::try_from(n).unwrap() << 44), n % hotspot_topics)),
        );
        busy.table.extend((0..50_u64).map(|n| (id(1_000, (n << 56) + 1), hotspot_topics)));
        let before = claimed_before(&mut busy, hotspot_topics);
        assert!(before <= 20_000, "{before} of {hotspot_topics} topics before them");
        (0..100).for_each(|_| busy.tick(at(1_000)));
        assert!(busy.table.is_empty(), "{} are left", busy.table.len());
        assert!(busy.claims < 300, "{} claims", busy.claims);
        assert_eq!(busy.claiming.deferred_count() + busy.claiming.skipped_count(), 0);
    }
}

#[test]
fn a_small_hotspot_within_a_hotspot_is_looked_past_as_well() {
    let mut busy = Busy::new(&[(usize::MAX, 0), (usize::MAX, 0), (usize::MAX, 0)]);
    // Of every twenty tasks, nineteen are of the first topic and one of the second. One task of the
    // third comes last.
    busy.table.extend((0..400_000_u64).map(|n| (id(1_000, n << 43), usize::from(n % 20 == 0))));
    busy.table.insert(id(1_000, (1 << 62) - 1), 2);
    let before = claimed_before(&mut busy, 2);
    assert!(before <= 30_000, "{before} before it");
    (0..200).for_each(|_| busy.tick(at(1_000)));
    assert!(busy.table.is_empty(), "{} are left", busy.table.len());
}

#[test]
fn a_hotspot_that_goes_on_for_many_milliseconds_is_looked_past_to_its_end() {
    let mut busy = Busy::new(&[(usize::MAX, 0), (usize::MAX, 0)]);
    // The hotspot is deferred as the watermark reaches it, a little more at each tick.
    let hotspot = |millis: i64| (0..5_000_u64).map(move |n| (id(millis, n << 48), 0));
    busy.table.extend((1_000..1_100).flat_map(hotspot));
    let others: Vec<Uuid> = (1_000..1_100).map(|millis| id(millis, (1 << 62) - 1)).collect();
    busy.table.extend(others.iter().map(|id| (*id, 1)));
    for millis in (0..1_200).step_by(20) {
        busy.turn(at(millis), 10);
        let is_late =
            |other: &&Uuid| **other < floor_of(at(millis)) && busy.table.contains_key(other);
        assert_eq!(others.iter().filter(is_late).count(), 0, "at {millis} ms");
    }
    assert!(busy.left_of(0) > 100_000, "most of the hotspot is still to come");
    (0..200).for_each(|_| busy.tick(at(1_200)));
    assert!(busy.table.is_empty(), "{} are left", busy.table.len());
}

#[test]
fn a_backlog_that_is_spread_over_minutes_is_not_looked_past() {
    let mut busy = Busy::new(&[(usize::MAX, 0), (usize::MAX, 0)]);
    busy.tick(at(0));
    // Claims paused for a minute, in which 500 tasks a second became due.
    busy.table.extend((0..30_000).map(|n| (id(n * 2, 1), usize::from(n % 100 == 0))));
    busy.turn(at(60_000), 1);
    for turn in 1..1_000 {
        busy.turn(at(60_000 + turn * 20), 1);
        assert!(busy.claiming.deferred_count() <= 1, "what is longest overdue comes first");
    }
    assert!(busy.table.is_empty(), "{} are left", busy.table.len());
}

#[test]
fn a_hotspot_does_not_wait_for_the_sweep_that_ends_where_it_begins() {
    let mut busy = Busy::new(&[(usize::MAX, 0)]);
    busy.table.extend((0..50_000_u64).map(|n| (id(1_000, n << 46), 0)));
    busy.turn(at(801), 0);
    // The sweep covers everything behind the watermark, including the hotspot. The hotspot has a
    // first turn: one piece too large, and one that fits.
    busy.claiming.sweep(at(-900_000), at(801), Scope::Mine);
    busy.turn(at(801), 2);
    busy.table.extend((0..50_000_u64).map(|n| (id(1_001, n << 46), 0)));
    busy.turn(at(802), 0);
    let end_of = |kind: Kind| {
        busy.claiming
            .deferred_ranges
            .all()
            .filter(|deferred| deferred.kind == kind)
            .map(|deferred| deferred.rest.to)
            .max()
    };
    assert_eq!(end_of(Kind::Sweep), Some(floor_of(at(1_001))));
    assert_eq!(
        end_of(Kind::Deferred),
        Some(floor_of(at(1_002))),
        "the hotspots are one deferred range, the sweep another"
    );
}

#[test]
fn many_small_topics_are_no_hotspot_of_any() {
    let names: Vec<TopicName> = (0..20).map(|n| TopicName::stored(&format!("topic-{n}"))).collect();
    assert_eq!(hotspot_topics(names.iter().map(|name| (name, 50))), BTreeSet::new());
    let counts =
        names.iter().enumerate().map(|(index, name)| (name, if index < 2 { 300 } else { 20 }));
    assert_eq!(hotspot_topics(counts), names[..2].iter().cloned().collect());
}

#[test]
fn a_topic_that_stays_full_does_not_hold_up_what_was_skipped_for_another() {
    let mut busy = Busy::new(&[(25_000, 0), (25_000, 2_000)]);
    // The hotspot of the topic that accepts no tasks comes before that of the other topic, in the
    // same range.
    busy.table.extend((0..60_000_u64).map(|n| (id(1_000, n << 45), 0)));
    busy.table.extend((0..60_000_u64).map(|n| (id(1_010, n << 45), 1)));
    for millis in (0..3_000).step_by(20) {
        busy.tick(at(millis));
    }
    assert_eq!(busy.left_of(1), 0);
    assert!(
        (30_000..=35_000).contains(&busy.left_of(0)),
        "{} are left of the other",
        busy.left_of(0)
    );
    assert!(busy.claiming.skipped_count() > 0, "and it is remembered where they are");
}

#[test]
fn the_watermark_keeps_up_beside_a_topic_that_stays_full() {
    let mut busy = Busy::new(&[(1, 0), (usize::MAX, 0)]);
    busy.table.insert(id(0, 1), 0);
    busy.tick(at(0));
    assert!(busy.topics[0].is_full);
    // A hotspot narrows the claims at the watermark down to a millisecond.
    busy.table.extend((0..50_000_u64).map(|n| (id(500, n << 45), 1)));
    (20..=520).step_by(20).for_each(|millis| busy.tick(at(millis)));
    let before = busy.claims;
    (540..=1_520).step_by(20).for_each(|millis| busy.tick(at(millis)));
    assert!(busy.claims - before < 300, "{} claims in 50 ticks", busy.claims - before);
}

#[test]
fn what_is_remembered_has_a_limit_and_nothing_of_it_is_dropped() {
    let mut busy = Busy::new(&[(1, 0)]);
    busy.table.extend((0..2_000).map(|n| (id(1_000 + n * 10, 1), 0)));
    // The late ranges do not touch.
    for n in 0..2_000 {
        busy.claiming.inserted_late(
            IdRange { from: id(1_000 + n * 10, 0), to: id(1_000 + n * 10, 9) },
            at(30_000),
        );
        busy.tick(at(0));
    }
    assert!(busy.claiming.skipped_count() + busy.claiming.deferred_count() < 70 * 2);
    (busy.topics[0].max, busy.topics[0].is_full) = (usize::MAX, false);
    for _ in 0..100 {
        busy.tick(at(0));
    }
    assert!(busy.table.is_empty(), "{} are left", busy.table.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn everything_is_claimed_of_whichever_topic_without_a_sweep(
        // The time of insert, the delay until the due time, the topic, and the number of tasks.
        hotspots in proptest::collection::vec(
            (0_i64..1_500, 300_i64..900, 0_usize..3, 0_u64..20_000),
            1..5,
        ),
        lone in proptest::collection::vec(
            (0_i64..1_500, 300_i64..900, 0_usize..3, any::<u64>()),
            1..50,
        ),
        limits in proptest::collection::vec(
            prop_oneof![Just(3_000_usize), Just(25_000), Just(usize::MAX)],
            3,
        ),
        pieces in 1_usize..20,
    ) {
        let topics: Vec<(usize, usize)> = limits.iter().map(|max| (*max, 2_000)).collect();
        let mut busy = Busy::new(&topics);
        for tick in 0..2_000 {
            let now = tick * 20;
            for (_, after, topic, count) in
                hotspots.iter().filter(|(when, ..)| (now..now + 20).contains(when))
            {
                // The due times are the same few instants for all topics, so their hotspots
                // coincide.
                let due = (now + after) / 400 * 400 + 400;
                let random = |n: u64| {
                    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        .wrapping_add(u64::try_from(*topic).unwrap())
                };
                busy.table.extend((0..*count).map(|n| (id(due, random(n)), *topic)));
            }
            let alone = lone.iter().filter(|(when, ..)| (now..now + 20).contains(when));
            busy.table.extend(alone.map(|(_, after, topic, random)| {
                (id((now + after) / 400 * 400 + 400, *random), *topic)
            }));
            for topic in &mut busy.topics {
                topic.in_flight -= topic.pace.min(topic.in_flight);
                topic.is_full &= topic.in_flight > topic.max / 4 * 3;
            }
            let full = busy.full();
            busy.claiming.there_is_room(&full);
            busy.turn(at(now), pieces);
            if now > 3_000 && busy.table.is_empty() {
                break;
            }
        }
        prop_assert!(
            busy.table.is_empty(),
            "{} are left after {} claims",
            busy.table.len(),
            busy.claims
        );
        prop_assert!(busy.claiming.deferred_count() <= 64 && busy.claiming.skipped_count() <= 66);
    }
}
