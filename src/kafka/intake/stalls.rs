//! Finds a client that has stopped reading a partition, or never begins.
//!
//! After a broker was away, librdkafka (2.12 at least) may never fetch from a partition again,
//! without an error or a log line (its issue 5153). Another client must take its place. The sign:
//! the log has records behind the place of the client, the client should be fetching them, and its
//! place stays the same.
//!
//! A client whose question about its topic fails while it joins its group waits for the next
//! regular refresh of the metadata, by default up to five minutes. The sign: its statistics say so,
//! although Kafka answers another client.
//!
//! When a starting broker lists no brokers at all, librdkafka (2.12) forgets those that it knew,
//! and never connects again (its issue 5301). The sign: its statistics name no broker. A client
//! that still has records of a forgotten broker names that broker. The other signs find it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use rdkafka::statistics::{Partition, Statistics};

use crate::domain::{Monotonic, TopicName};

/// How long a client may stand still. A broker holds back the answers to a client over its quota
/// for as long as it measures, which is 11 s by default.
const STANDS_MAX: Duration = Duration::from_secs(20);
/// How long a new client may take until it asks to join its group. It connects three times before,
/// each time with six round trips if it logs in over TLS.
const ASKS_FIRST_MAX: Duration = Duration::from_secs(90);
/// How long a client may take to join its group. Other programs in it may have five minutes to do
/// so, by default.
const JOINS_MAX: Duration = Duration::from_secs(315);
/// Older places are not used: nobody serves the client, or the node was frozen.
const PLACE_AGE_MAX: Duration = Duration::from_secs(10);

/// The sources of brokers with an address. Other entries of the statistics are internal ones of
/// librdkafka.
const BROKER_SOURCES: [&str; 2] = ["learned", "configured"];

/// The places of a client in the partitions from which it should be fetching, as of its last
/// statistics.
#[derive(Debug, Default)]
pub struct Places {
    at: Monotonic,
    next: HashMap<i32, i64>,
    membership: Membership,
    /// True when the client has forgotten all brokers. Then it asks nobody any more.
    knows_no_broker: bool,
}

/// How far a client is a member of its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Membership {
    /// The client has not asked to join. It waits for metadata, or for the coordinator. A client
    /// without a subscription stays so.
    #[default]
    Outside,
    /// The client waits for the other members, or for the coordinator.
    Joining,
    Member,
}

impl Places {
    /// `should_fetch` tells whether the client has room for records of a partition.
    pub fn new(
        statistics: &Statistics,
        topic: &TopicName,
        at: Monotonic,
        should_fetch: impl Fn(&Partition) -> bool,
    ) -> Self {
        let all = statistics.topics.get(topic.as_str()).into_iter();
        let all = all.flat_map(|topic| &topic.partitions);
        let fetching = all.filter(|(_, partition)| should_fetch(partition));
        let next = fetching.map(|(number, partition)| (*number, partition.next_offset)).collect();
        let membership = match statistics.cgrp.as_ref().map(|group| group.join_state.as_str()) {
            None | Some("init" | "wait-metadata") => Membership::Outside,
            Some("steady") => Membership::Member,
            Some(_) => Membership::Joining,
        };
        let mut sources = statistics.brokers.values().map(|broker| broker.source.as_str());
        let knows_no_broker = !sources.any(|source| BROKER_SOURCES.contains(&source));
        Self { at, next, membership, knows_no_broker }
    }

    /// Returns those of the partitions from which the client should be fetching. The ends of others
    /// tell nothing.
    pub fn fetching<'a>(&self, partitions: impl Iterator<Item = &'a i32>) -> Vec<i32> {
        partitions.copied().filter(|number| self.next.contains_key(number)).collect()
    }
}

/// The reason why another client must take the place of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stall {
    /// The client does not read this partition any more.
    Partition(i32),
    /// The client does not join its group.
    Group,
    /// The client knows no broker any more.
    Brokers,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(number) => write!(f, "it reads no records of partition {number}"),
            Self::Group => f.write_str("it does not join its group"),
            Self::Brokers => f.write_str("it knows no broker any more"),
        }
    }
}

/// Watches one client.
#[derive(Debug, Default)]
pub struct StallWatch {
    /// The partitions with records behind the place of the client: the place, and since when it
    /// has been seen there.
    standing: BTreeMap<i32, (i64, Monotonic)>,
    /// True once the client has asked to join its group.
    has_asked: bool,
    outside_since: Option<Monotonic>,
    unjoined_since: Option<Monotonic>,
    /// The time of the first statistics that named no broker.
    brokerless_since: Option<Monotonic>,
}

impl StallWatch {
    /// Forgets what was seen of the partitions and of the group: Kafka does not answer.
    pub fn clear(&mut self) {
        let (has_asked, brokerless_since) = (self.has_asked, self.brokerless_since);
        *self = Self { has_asked, brokerless_since, ..Self::default() };
    }

    /// Looks whether the client knows a broker. Returns a stall when later statistics name none
    /// again. A client whose brokers are only away knows them.
    pub fn see_brokers(&mut self, places: &Places) -> Option<Stall> {
        if !places.knows_no_broker {
            self.brokerless_since = None;
            return None;
        }
        let since = *self.brokerless_since.get_or_insert(places.at);
        (places.at > since).then_some(Stall::Brokers)
    }

    /// Looks whether the client, which is to be a member of a group, joins it. Returns a stall that
    /// has lasted for 20 s outside (90 s if the client has never asked to join), or for 315 s with
    /// the time in which the client joins.
    pub fn see_group(&mut self, places: &Places, now: Monotonic) -> Option<Stall> {
        let is_old = now.since(places.at) > PLACE_AGE_MAX;
        self.has_asked |= places.membership != Membership::Outside;
        if is_old || places.membership != Membership::Outside {
            self.outside_since = None;
        }
        if is_old || places.membership == Membership::Member {
            self.unjoined_since = None;
            return None;
        }
        if places.membership == Membership::Outside {
            self.outside_since.get_or_insert(now);
        }
        let unjoined_since = *self.unjoined_since.get_or_insert(now);
        let outside_max = if self.has_asked { STANDS_MAX } else { ASKS_FIRST_MAX };
        let is_outside_long = self.outside_since.is_some_and(|at| now.since(at) >= outside_max);
        let is_long = is_outside_long || now.since(unjoined_since) >= JOINS_MAX;
        is_long.then_some(Stall::Group)
    }

    /// Compares the ends of the client's partitions, as of now, with its places. Returns a stall
    /// that has lasted for 20 s. Without the ends, nothing is known of it.
    pub fn see(
        &mut self,
        ends: Option<&HashMap<i32, i64>>,
        places: &Places,
        now: Monotonic,
    ) -> Option<Stall> {
        let Some(ends) = ends.filter(|_ends| now.since(places.at) <= PLACE_AGE_MAX) else {
            self.standing.clear();
            return None;
        };
        let place_of = |(number, end): (&i32, &i64)| {
            let next = *places.next.get(number).filter(|next| *next < end)?;
            let before = self.standing.get(number).filter(|(before, _)| *before == next);
            Some((*number, (next, before.map_or(now, |(_, since)| *since))))
        };
        self.standing = ends.iter().filter_map(place_of).collect();
        let mut standing = self.standing.iter();
        let stalled = standing.find(|(_, (_, since))| now.since(*since) >= STANDS_MAX);
        stalled.map(|(number, _)| Stall::Partition(*number))
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::statistics::{Broker, ConsumerGroup};

    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(1000 + seconds))
    }

    fn places(seconds: u64, next: &[(i32, i64)]) -> Places {
        let next = next.iter().copied().collect();
        Places { at: at(seconds), next, membership: Membership::Member, knows_no_broker: false }
    }

    /// The second of a probe, the ends of partitions, and the places of the client.
    struct Seen<'a>(u64, &'a [(i32, i64)], &'a [(i32, i64)]);

    fn stalls<const N: usize>(looks: [Seen<'_>; N]) -> [Option<Stall>; N] {
        let mut watch = StallWatch::default();
        looks.map(|Seen(second, ends, next)| {
            let ends = ends.iter().copied().collect();
            watch.see(Some(&ends), &places(second, next), at(second))
        })
    }

    #[test]
    fn a_client_that_stands_still_before_the_end_of_the_log_is_stalled_after_20_seconds() {
        let looks = [
            Seen(0, &[(0, 9), (1, 7)], &[(0, 9), (1, 5)]),
            Seen(5, &[(0, 9), (1, 8)], &[(0, 9), (1, 5)]),
            Seen(19, &[(0, 9), (1, 8)], &[(0, 9), (1, 5)]),
            Seen(20, &[(0, 9), (1, 8)], &[(0, 9), (1, 5)]),
        ];
        assert_eq!(stalls(looks), [None, None, None, Some(Stall::Partition(1))]);
    }

    #[test]
    fn a_client_that_goes_on_or_is_at_the_end_or_has_records_ready_is_not_stalled() {
        let goes_on = [
            Seen(0, &[(0, 9)], &[(0, 5)]),
            Seen(15, &[(0, 90)], &[(0, 6)]),
            Seen(30, &[(0, 90)], &[(0, 7)]),
        ];
        assert_eq!(stalls(goes_on), [None; 3]);
        let is_at_the_end = [
            Seen(0, &[(0, 9)], &[(0, 5)]),
            Seen(15, &[(0, 5)], &[(0, 5)]),
            Seen(30, &[(0, 9)], &[(0, 5)]),
        ];
        assert_eq!(stalls(is_at_the_end), [None; 3]);
        let has_records_ready = [
            Seen(0, &[(0, 9)], &[(0, 5)]),
            Seen(15, &[(0, 9)], &[]),
            Seen(30, &[(0, 9)], &[(0, 5)]),
        ];
        assert_eq!(stalls(has_records_ready), [None; 3]);
    }

    #[test]
    fn a_client_that_nobody_serves_is_not_stalled() {
        let mut watch = StallWatch::default();
        let ends = HashMap::from([(0, 9)]);
        for second in [0, 10, 20, 30] {
            assert_eq!(watch.see(Some(&ends), &places(0, &[(0, 5)]), at(second)), None);
        }
    }

    #[test]
    fn while_kafka_does_not_tell_the_ends_no_client_is_stalled() {
        let mut watch = StallWatch::default();
        let ends = HashMap::from([(0, 9)]);
        let mut see = |second, ends| watch.see(ends, &places(second, &[(0, 5)]), at(second));
        assert_eq!(see(0, Some(&ends)), None);
        assert_eq!(see(15, None), None);
        assert_eq!(see(20, Some(&ends)), None);
        assert_eq!(see(39, Some(&ends)), None);
        assert_eq!(see(40, Some(&ends)), Some(Stall::Partition(0)));
    }

    /// The places of a member of a group, whose statistics tell this state.
    fn member(seconds: u64, join_state: &str) -> Places {
        let group = ConsumerGroup { join_state: join_state.to_owned(), ..Default::default() };
        let statistics = Statistics { cgrp: Some(group), ..Default::default() };
        Places::new(&statistics, &TopicName::stored("t"), at(seconds), |_| true)
    }

    #[test]
    fn a_member_that_does_not_ask_to_join_for_20_seconds_is_stalled() {
        let stalls = |states: [(u64, &str); 4]| {
            let mut watch = StallWatch { has_asked: true, ..StallWatch::default() };
            states.map(|(second, state)| watch.see_group(&member(second, state), at(second)))
        };
        let waits = [(0, "init"), (5, "wait-metadata"), (19, "wait-metadata"), (20, "init")];
        assert_eq!(stalls(waits), [None, None, None, Some(Stall::Group)]);
        let asks = [(0, "init"), (15, "wait-join"), (20, "init"), (39, "wait-metadata")];
        assert_eq!(stalls(asks), [None; 4]);
        let joined = [(0, "steady"), (20, "steady"), (40, "wait-sync"), (60, "steady")];
        assert_eq!(stalls(joined), [None; 4]);
    }

    #[test]
    fn a_new_member_has_90_seconds_to_ask_and_20_after_it_has_asked() {
        let mut watch = StallWatch::default();
        let mut see = |second, state| watch.see_group(&member(second, state), at(second));
        assert_eq!([0, 20, 89].map(|second| see(second, "init")), [None; 3]);
        assert_eq!(see(90, "init"), Some(Stall::Group));
        assert_eq!(see(91, "wait-join"), None);
        assert_eq!([92, 111].map(|second| see(second, "init")), [None; 2]);
        assert_eq!(see(112, "init"), Some(Stall::Group));
    }

    #[test]
    fn a_member_that_does_not_end_joining_for_315_seconds_is_stalled() {
        let mut watch = StallWatch::default();
        let mut see = |second, state| watch.see_group(&member(second, state), at(second));
        assert_eq!(see(0, "wait-join"), None);
        assert_eq!(see(314, "wait-join"), None);
        assert_eq!(see(315, "wait-sync"), Some(Stall::Group));
        assert_eq!(see(320, "steady"), None);
        assert_eq!(see(325, "wait-join"), None);
        assert_eq!(see(639, "wait-join"), None);
    }

    #[test]
    fn only_partitions_from_which_the_client_should_fetch_are_asked_about() {
        let places = places(0, &[(0, 9), (2, 5)]);
        assert_eq!(places.fetching([0, 1, 2, 3].iter()), [0, 2]);
    }

    #[test]
    fn a_member_that_nobody_serves_or_without_an_answer_of_kafka_is_not_stalled() {
        let mut watch = StallWatch::default();
        let old = member(0, "wait-metadata");
        assert_eq!([0, 10, 20, 30].map(|second| watch.see_group(&old, at(second))), [None; 4]);
        let mut watch = StallWatch::default();
        assert_eq!(watch.see_group(&member(0, "init"), at(0)), None);
        watch.clear();
        assert_eq!(watch.see_group(&member(25, "init"), at(25)), None);
    }

    /// The places of a client whose statistics name brokers of these sources.
    fn of_brokers(seconds: u64, sources: &[&str]) -> Places {
        let broker = |source: &&str| {
            let broker = Broker { source: (*source).to_owned(), ..Default::default() };
            ((*source).to_owned(), broker)
        };
        let brokers = sources.iter().map(broker).collect();
        let statistics = Statistics { brokers, ..Default::default() };
        Places::new(&statistics, &TopicName::stored("t"), at(seconds), |_| true)
    }

    #[test]
    fn a_client_that_names_no_broker_twice_is_stalled_even_while_kafka_does_not_answer() {
        let mut watch = StallWatch::default();
        assert_eq!(watch.see_brokers(&Places::default()), None, "no statistics yet");
        let none = ["internal", "logical"];
        assert_eq!(watch.see_brokers(&of_brokers(0, &none)), None);
        assert_eq!(watch.see_brokers(&of_brokers(0, &none)), None, "the same statistics");
        watch.clear();
        assert_eq!(watch.see_brokers(&of_brokers(5, &none)), Some(Stall::Brokers));
    }

    #[test]
    fn a_client_that_names_a_broker_knows_one() {
        for source in BROKER_SOURCES {
            let mut watch = StallWatch::default();
            assert_eq!(watch.see_brokers(&of_brokers(0, &[])), None);
            assert_eq!(watch.see_brokers(&of_brokers(5, &["logical", source])), None);
            assert_eq!(watch.see_brokers(&of_brokers(10, &[])), None, "it counts anew");
        }
    }
}
