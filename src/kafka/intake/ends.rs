//! Asks Kafka for the partitions of topics that other clients read, and for offsets in their logs.
//!
//! librdkafka ends the connection of a question that has no answer in time, with the records that
//! it is receiving there. So these questions have a client of their own.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataPartition;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};
use thiserror::Error;

use crate::clock;
use crate::domain::{Monotonic, Timestamp, TopicName};
use crate::kafka::context::QuietContext;
use crate::kafka::{ClientError, KafkaSettings};

/// The deadline of each of the two questions to Kafka.
pub const DEADLINE: Duration = Duration::from_secs(3);
/// How long Kafka may give no answer, or tell no ends, before another client asks. A client that
/// has forgotten all brokers never gets an answer (librdkafka's issue 5301).
const UNANSWERED_MAX: Duration = Duration::from_secs(20);
/// The same before the first answer. A new client connects twice, each time with six round trips if
/// it logs in over TLS, and may wait for a name server before that.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(90);
/// The events of the client that are served after a question. Nobody else serves them.
const EVENTS_MAX: usize = 64;

/// The reason why Kafka has told nothing about a topic.
#[derive(Debug, Error)]
pub enum EndsError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    #[error("Kafka refuses to tell about the topic: {0}")]
    Refused(Code),
    #[error("the question panicked")]
    Panicked,
}

/// The partitions of a topic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundPartitions {
    pub count: i32,
    /// The others can be neither read nor asked about.
    pub with_leader: BTreeSet<i32>,
}

/// The offsets of a log: the first, and the one after the last that a consumer may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogBounds {
    pub first: i64,
    pub end: i64,
}

/// The answers of Kafka about a topic.
#[derive(Debug)]
pub struct TopicEnds {
    /// `None` when there is no such topic.
    pub partitions: Option<FoundPartitions>,
    /// The ends of the partitions that were asked for and have a leader: the offset after the last
    /// record that a consumer may read. `None` without an answer.
    pub ends: Option<HashMap<i32, i64>>,
}

type AskingConsumer = BaseConsumer<QuietContext>;

/// A client, and the version of the operator's properties for which it was made.
struct MadeClient {
    version: u64,
    client: Arc<AskingConsumer>,
    has_answered: bool,
    /// The time of the first question without an answer since the last answer.
    silent_since: Option<Monotonic>,
    /// The time of the first question about offsets that failed since the last answer with offsets.
    without_offsets_since: Option<Monotonic>,
}

impl MadeClient {
    const fn new(version: u64, client: Arc<AskingConsumer>) -> Self {
        let (silent_since, without_offsets_since) = (None, None);
        Self { version, client, has_answered: false, silent_since, without_offsets_since }
    }

    fn note(&mut self, answer: &Result<TopicEnds, EndsError>, now: Monotonic) {
        match answer {
            Ok(TopicEnds { partitions: Some(_), ends: None }) => {
                self.without_offsets_since.get_or_insert(now);
            }
            Ok(TopicEnds { ends: Some(ends), .. }) if !ends.is_empty() => {
                self.without_offsets_since = None;
            }
            // Nothing was asked about the leader of a partition.
            Ok(_) | Err(EndsError::Refused(_)) => {}
            Err(EndsError::Kafka(_)) => {
                self.silent_since.get_or_insert(now);
                return;
            }
            Err(EndsError::Client(_) | EndsError::Panicked) => return,
        }
        (self.has_answered, self.silent_since) = (true, None);
    }

    fn note_offsets<T>(&mut self, answer: &Result<T, EndsError>, now: Monotonic) {
        match answer {
            Ok(_) => {
                (self.has_answered, self.silent_since) = (true, None);
                self.without_offsets_since = None;
            }
            Err(EndsError::Kafka(_)) => {
                self.without_offsets_since.get_or_insert(now);
            }
            Err(_) => {}
        }
    }

    /// Returns true when the client may have lost the leaders of partitions, or all brokers.
    fn is_lost(&self, now: Monotonic) -> bool {
        let span = if self.has_answered { UNANSWERED_MAX } else { FIRST_ANSWER_MAX };
        let signs = [self.silent_since, self.without_offsets_since];
        signs.into_iter().flatten().any(|since| now.since(since) >= span)
    }
}

/// A client for questions about topics. Clones share it.
#[derive(Clone)]
pub struct EndsClient {
    settings: KafkaSettings,
    /// Made for the first question, and again when the operator's properties have changed, or the
    /// client may have lost the leaders of partitions, or all brokers, for good.
    made: Arc<Mutex<Option<MadeClient>>>,
}

impl fmt::Debug for EndsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndsClient").finish_non_exhaustive()
    }
}

impl EndsClient {
    pub fn new(settings: &KafkaSettings) -> Self {
        Self { settings: settings.clone(), made: Arc::default() }
    }

    /// Asks Kafka about a topic, and about the ends of some of its partitions. Takes three times
    /// [`DEADLINE`] at most: finding a broker may take it once.
    ///
    /// # Errors
    /// When Kafka does not answer the first question or refuses it, or the settings are wrong.
    pub async fn ask(
        &self,
        topic: &TopicName,
        partitions: Vec<i32>,
    ) -> Result<TopicEnds, EndsError> {
        let topic = topic.clone();
        let question = move |client: &_| answer_of(client, &topic, &partitions);
        self.answer(question, MadeClient::note).await
    }

    /// Asks Kafka for the bounds of a partition's log. Takes twice [`DEADLINE`] at most.
    ///
    /// # Errors
    /// When Kafka does not answer or refuses, or the settings are wrong.
    pub async fn bounds(&self, topic: &TopicName, partition: i32) -> Result<LogBounds, EndsError> {
        let topic = topic.clone();
        let question = move |client: &AskingConsumer| {
            let (first, end) = client.fetch_watermarks(topic.as_str(), partition, DEADLINE)?;
            Ok(LogBounds { first, end })
        };
        self.answer(question, MadeClient::note_offsets).await
    }

    /// Asks Kafka for the offset of a partition's first record with a later timestamp than `at`.
    /// Returns `None` when there is none. Takes twice [`DEADLINE`] at most.
    ///
    /// # Errors
    /// When Kafka does not answer or refuses, or the settings are wrong.
    pub async fn first_after(
        &self,
        topic: &TopicName,
        partition: i32,
        at: Timestamp,
    ) -> Result<Option<i64>, EndsError> {
        let topic = topic.clone();
        let question = move |client: &_| first_after(client, &topic, partition, at);
        self.answer(question, MadeClient::note_offsets).await
    }

    /// Asks on a thread for blocking work, and notes whether there was an answer.
    async fn answer<T: Send + 'static>(
        &self,
        question: impl FnOnce(&AskingConsumer) -> Result<T, EndsError> + Send + 'static,
        note: fn(&mut MadeClient, &Result<T, EndsError>, Monotonic),
    ) -> Result<T, EndsError> {
        let asker = self.clone();
        let asking = tokio::task::spawn_blocking(move || {
            let client = asker.client()?;
            let answer = question(&client);
            // A poll returns nothing, too, when it has served a line of the log.
            for _event in 0..EVENTS_MAX {
                drop(client.poll(Duration::ZERO));
            }
            asker.note(&client, |made, now| note(made, &answer, now));
            give_back(client);
            answer
        });
        asking.await.unwrap_or(Err(EndsError::Panicked))
    }

    fn client(&self) -> Result<Arc<AskingConsumer>, ClientError> {
        let version = self.settings.properties.version();
        let mut made = self.made.lock();
        if let Some(made) = &*made
            && made.version == version
        {
            return Ok(Arc::clone(&made.client));
        }
        let create = |source| ClientError::Create { what: "Kafka client for questions", source };
        let mut config = self.settings.consumer_config();
        config.set("isolation.level", "read_committed");
        let client = Arc::new(config.create_with_context(QuietContext).map_err(create)?);
        let former = made.replace(MadeClient::new(version, Arc::clone(&client)));
        drop(made);
        if let Some(former) = former {
            give_back(former.client);
        }
        Ok(client)
    }

    /// Notes whether Kafka has answered, and forgets a client that gets no answer for long.
    fn note(&self, client: &Arc<AskingConsumer>, note: impl FnOnce(&mut MadeClient, Monotonic)) {
        let mut made = self.made.lock();
        let Some(current) = made.as_mut().filter(|made| Arc::ptr_eq(&made.client, client)) else {
            return;
        };
        let now = clock::monotonic();
        note(current, now);
        if current.is_lost(now) {
            *made = None;
        }
    }
}

/// Gives a handle back. The last one ends the client, away from the question: threads of the client
/// may wait for a name server, or for a server of tokens.
fn give_back(client: Arc<AskingConsumer>) {
    if let Some(client) = Arc::into_inner(client) {
        // Nobody needs to know when it has ended, nor how.
        drop(tokio::task::spawn_blocking(move || drop(client)));
    }
}

fn answer_of(
    client: &AskingConsumer,
    topic: &TopicName,
    partitions: &[i32],
) -> Result<TopicEnds, EndsError> {
    let metadata = client.fetch_metadata(Some(topic.as_str()), DEADLINE)?;
    let found = metadata.topics().first();
    let found = match found.map(|found| (found, found.error().map(Code::from))) {
        None | Some((_, Some(Code::UnknownTopicOrPartition | Code::UnknownTopic))) => {
            return Ok(TopicEnds { partitions: None, ends: None });
        }
        Some((_, Some(code))) => return Err(EndsError::Refused(code)),
        Some((found, None)) => found.partitions(),
    };
    let with_leader = found.iter().filter(|partition| partition.leader() >= 0);
    let with_leader: BTreeSet<i32> = with_leader.map(MetadataPartition::id).collect();
    let asked = partitions.iter().copied().filter(|number| with_leader.contains(number));
    let asked: Vec<i32> = asked.collect();
    let ends = ends_of(client, topic, &asked);
    if let Err(error) = &ends {
        tracing::debug!(%topic, %error, "ask for the ends of partitions");
    }
    let count = i32::try_from(found.len()).unwrap_or(i32::MAX);
    let partitions = Some(FoundPartitions { count, with_leader });
    Ok(TopicEnds { partitions, ends: ends.ok() })
}

fn ends_of(
    client: &AskingConsumer,
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
    let found = client.offsets_for_times(list, DEADLINE)?;
    let end_of = |element: &TopicPartitionListElem<'_>| {
        element.error().ok()?;
        Some((element.partition(), element.offset().to_raw().filter(|offset| *offset >= 0)?))
    };
    Ok(found.elements().iter().filter_map(end_of).collect())
}

fn first_after(
    client: &AskingConsumer,
    topic: &TopicName,
    partition: i32,
    at: Timestamp,
) -> Result<Option<i64>, EndsError> {
    let mut list = TopicPartitionList::new();
    let time = Offset::Offset(at.as_millis().saturating_add(1));
    list.add_partition_offset(topic.as_str(), partition, time)?;
    let found = client.offsets_for_times(list, DEADLINE)?;
    let found = found.find_partition(topic.as_str(), partition);
    match found.as_ref().map(|element| (element.error(), element.offset())) {
        Some((Ok(()), Offset::Offset(offset))) => Ok(Some(offset)),
        Some((Err(error), _)) => Err(error.into()),
        Some((Ok(()), _)) | None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(1000 + seconds))
    }

    fn made() -> MadeClient {
        let client = rdkafka::ClientConfig::new().create_with_context(QuietContext).unwrap();
        MadeClient::new(1, Arc::new(client))
    }

    fn silence() -> Result<TopicEnds, EndsError> {
        Err(EndsError::Kafka(KafkaError::MetadataFetch(Code::OperationTimedOut)))
    }

    fn answer(ends: Option<&[(i32, i64)]>) -> Result<TopicEnds, EndsError> {
        let ends = ends.map(|ends| ends.iter().copied().collect());
        Ok(TopicEnds { partitions: Some(FoundPartitions::default()), ends })
    }

    #[test]
    fn a_client_without_answers_for_20_seconds_is_lost_and_a_new_one_has_90() {
        let mut made = made();
        made.note(&silence(), at(0));
        assert!(!made.is_lost(at(89)) && made.is_lost(at(90)));
        for heard in [answer(Some(&[])), Err(EndsError::Refused(Code::TopicAuthorizationFailed))] {
            made.note(&heard, at(100));
            assert!(!made.is_lost(at(1000)));
            made.note(&silence(), at(1000));
            made.note(&silence(), at(1010));
            assert!(!made.is_lost(at(1019)) && made.is_lost(at(1020)));
        }
    }

    #[test]
    fn a_client_that_gets_no_ends_for_20_seconds_is_lost() {
        let mut made = made();
        made.note(&answer(None), at(0));
        made.note(&answer(Some(&[])), at(10));
        assert!(!made.is_lost(at(19)) && made.is_lost(at(20)), "no leader was asked");
        made.note(&answer(Some(&[(0, 9)])), at(20));
        assert!(!made.is_lost(at(100)));
    }

    #[test]
    fn a_client_without_offsets_for_20_seconds_is_lost_though_kafka_answers() {
        let mut made = made();
        let failure = || silence().map(|_| 9);
        made.note_offsets(&failure(), at(0));
        assert!(!made.is_lost(at(89)) && made.is_lost(at(90)), "it may still connect");
        made.note(&answer(Some(&[])), at(15));
        made.note_offsets(&Ok(9), at(19));
        made.note_offsets(&failure(), at(20));
        made.note(&answer(Some(&[])), at(30));
        made.note_offsets(&failure(), at(39));
        assert!(!made.is_lost(at(39)) && made.is_lost(at(40)));
    }
}
