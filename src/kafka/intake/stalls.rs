//! Finds a client that has stopped reading a partition, or never begins.
//!
//! After a broker was away, librdkafka (2.12 at least) may never fetch from a partition again,
//! without an error or a log line (its issue 5153). Another client must take its place. The sign:
//! the log has records behind the place of the client, the client has none ready, and its place
//! stays the same. Or the client cannot ask for the end of the log, although it gets metadata.
//!
//! A client whose question about its topic fails while it joins its group waits for the next
//! regular refresh of the metadata, up to five minutes. The sign: its statistics say so, although
//! it gets metadata.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use rdkafka::consumer::{Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, TopicPartitionList};

use crate::domain::{Monotonic, TopicName};

/// The deadline of each of the two questions to Kafka.
pub const DEADLINE: Duration = Duration::from_secs(3);
/// How long a client may stand still. A broker holds back the answers to a client over its quota
/// for as long as it measures, which is 11 s by default.
const STANDS_MAX: Duration = Duration::from_secs(20);
/// Older places are not used: nobody serves the client, or the node was frozen.
const PLACE_AGE_MAX: Duration = Duration::from_secs(10);

/// The partitions of a topic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundPartitions {
    pub count: i32,
    /// The others can be neither read nor asked about.
    pub with_leader: BTreeSet<i32>,
}

/// The answers of Kafka about a topic.
#[derive(Debug)]
pub struct TopicProbe {
    /// `None` when there is no such topic.
    pub partitions: Option<FoundPartitions>,
    /// The ends of the partitions that were asked for and have a leader: the offset after the last
    /// record that a consumer may read. `None` without an answer.
    pub ends: Option<HashMap<i32, i64>>,
}

impl TopicProbe {
    /// Asks Kafka about a topic, and about the ends of some of its partitions. Blocks for twice
    /// [`DEADLINE`] at most.
    ///
    /// # Errors
    /// When Kafka does not answer the first question.
    pub fn ask<C: ConsumerContext>(
        consumer: &impl Consumer<C>,
        topic: &TopicName,
        partitions: &[i32],
    ) -> Result<Self, KafkaError> {
        let metadata = consumer.fetch_metadata(Some(topic.as_str()), DEADLINE)?;
        let found = metadata.topics().first();
        let found = match found.map(|found| (found, found.error().map(Code::from))) {
            None | Some((_, Some(Code::UnknownTopicOrPartition | Code::UnknownTopic))) => {
                return Ok(Self { partitions: None, ends: None });
            }
            Some((_, Some(code))) => return Err(KafkaError::MetadataFetch(code)),
            Some((found, None)) => found.partitions(),
        };
        let with_leader = found.iter().filter(|partition| partition.leader() >= 0);
        let with_leader: BTreeSet<i32> =
            with_leader.map(rdkafka::metadata::MetadataPartition::id).collect();
        let asked = partitions.iter().copied().filter(|number| with_leader.contains(number));
        let asked: Vec<i32> = asked.collect();
        let ends = ends(consumer, topic, &asked);
        if let Err(error) = &ends {
            tracing::debug!(%topic, %error, "ask for the ends of partitions");
        }
        let count = i32::try_from(found.len()).unwrap_or(i32::MAX);
        Ok(Self { partitions: Some(FoundPartitions { count, with_leader }), ends: ends.ok() })
    }
}

fn ends<C: ConsumerContext>(
    consumer: &impl Consumer<C>,
    topic: &TopicName,
    partitions: &[i32],
) -> Result<HashMap<i32, i64>, KafkaError> {
    if partitions.is_empty() {
        return Ok(HashMap::new());
    }
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition_offset(topic.as_str(), *partition, Offset::End)?;
    }
    let found = consumer.offsets_for_times(list, DEADLINE)?;
    let end_of = |element: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
        element.error().ok()?;
        Some((element.partition(), element.offset().to_raw().filter(|offset| *offset >= 0)?))
    };
    Ok(found.elements().iter().filter_map(end_of).collect())
}

/// The places of a client in the partitions of which it has no records ready, as of its last
/// statistics.
#[derive(Debug, Default)]
pub struct Places {
    at: Monotonic,
    next: HashMap<i32, i64>,
    /// The client has not asked to join its group. It waits for metadata, or for the coordinator.
    /// A client without a subscription stays so.
    is_outside: bool,
}

impl Places {
    pub fn new(statistics: &Statistics, topic: &TopicName, at: Monotonic) -> Self {
        let all = statistics.topics.get(topic.as_str()).into_iter();
        let all = all.flat_map(|topic| &topic.partitions);
        let waiting = all.filter(|(_, partition)| partition.fetchq_cnt == 0);
        let next = waiting.map(|(number, partition)| (*number, partition.next_offset)).collect();
        let is_outside = statistics
            .cgrp
            .as_ref()
            .is_some_and(|group| matches!(group.join_state.as_str(), "init" | "wait-metadata"));
        Self { at, next, is_outside }
    }
}

/// The reason why another client must take the place of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stall {
    /// The client does not read this partition any more.
    Partition(i32),
    /// The client does not reach the leaders of its partitions.
    Leaders,
    /// The client does not join its group.
    Group,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(number) => write!(f, "it reads no records of partition {number}"),
            Self::Leaders => f.write_str("it does not reach the leaders of its partitions"),
            Self::Group => f.write_str("it does not join its group"),
        }
    }
}

/// Watches one client.
#[derive(Debug, Default)]
pub struct StallWatch {
    /// The partitions with records behind the place of the client: the place, and since when it
    /// has been seen there.
    standing: BTreeMap<i32, (i64, Monotonic)>,
    unanswered_since: Option<Monotonic>,
    outside_since: Option<Monotonic>,
}

impl StallWatch {
    /// Forgets what was seen: Kafka does not answer.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Looks whether the client, which is to be a member of a group, joins it. Returns a stall that
    /// has lasted for 20 s.
    pub fn see_group(&mut self, places: &Places, now: Monotonic) -> Option<Stall> {
        if !places.is_outside || now.since(places.at) > PLACE_AGE_MAX {
            self.outside_since = None;
            return None;
        }
        let since = *self.outside_since.get_or_insert(now);
        (now.since(since) >= STANDS_MAX).then_some(Stall::Group)
    }

    /// Compares the ends of the client's partitions, as of now, with its places. Returns a stall
    /// that has lasted for 20 s.
    pub fn see(
        &mut self,
        ends: Option<&HashMap<i32, i64>>,
        places: &Places,
        now: Monotonic,
    ) -> Option<Stall> {
        let lasts = |since: Monotonic| now.since(since) >= STANDS_MAX;
        let Some(ends) = ends else {
            self.standing.clear();
            let since = *self.unanswered_since.get_or_insert(now);
            return lasts(since).then_some(Stall::Leaders);
        };
        self.unanswered_since = None;
        if now.since(places.at) > PLACE_AGE_MAX {
            self.standing.clear();
            return None;
        }
        let place_of = |(number, end): (&i32, &i64)| {
            let next = *places.next.get(number).filter(|next| *next < end)?;
            let before = self.standing.get(number).filter(|(before, _)| *before == next);
            Some((*number, (next, before.map_or(now, |(_, since)| *since))))
        };
        self.standing = ends.iter().filter_map(place_of).collect();
        let stalled = self.standing.iter().find(|(_, (_, since))| lasts(*since));
        stalled.map(|(number, _)| Stall::Partition(*number))
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::statistics::ConsumerGroup;

    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(1000 + seconds))
    }

    fn places(seconds: u64, next: &[(i32, i64)]) -> Places {
        Places { at: at(seconds), next: next.iter().copied().collect(), is_outside: false }
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
    fn a_client_that_gets_metadata_alone_is_stalled_and_one_without_any_answer_is_not() {
        let mut watch = StallWatch::default();
        let seen = [0, 19, 20].map(|second| watch.see(None, &Places::default(), at(second)));
        assert_eq!(seen, [None, None, Some(Stall::Leaders)]);
        watch.clear();
        assert_eq!(watch.see(None, &Places::default(), at(21)), None);
        assert_eq!(watch.see(Some(&HashMap::new()), &Places::default(), at(22)), None);
        assert_eq!(watch.see(None, &Places::default(), at(41)), None);
    }

    /// The places of a member of a group, whose statistics tell this state.
    fn member(seconds: u64, join_state: &str) -> Places {
        let group = ConsumerGroup { join_state: join_state.to_owned(), ..Default::default() };
        let statistics = Statistics { cgrp: Some(group), ..Default::default() };
        Places::new(&statistics, &TopicName::stored("t"), at(seconds))
    }

    #[test]
    fn a_member_that_does_not_ask_to_join_for_20_seconds_is_stalled() {
        let stalls = |states: [(u64, &str); 4]| {
            let mut watch = StallWatch::default();
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
    fn a_member_that_nobody_serves_or_without_an_answer_of_kafka_is_not_stalled() {
        let mut watch = StallWatch::default();
        let old = member(0, "wait-metadata");
        assert_eq!([0, 10, 20, 30].map(|second| watch.see_group(&old, at(second))), [None; 4]);
        let mut watch = StallWatch::default();
        assert_eq!(watch.see_group(&member(0, "init"), at(0)), None);
        watch.clear();
        assert_eq!(watch.see_group(&member(25, "init"), at(25)), None);
    }
}
