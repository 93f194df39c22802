//! Knows which topics exist, and which records they take.
//!
//! Answers are cached: for a minute when the topic exists, for a second when it does not. After the
//! minute, callers still get the known answer while the thread asks again, also while Kafka is
//! away. An answer older than ten minutes is given only while Kafka is away. All questions go
//! through one thread with a bounded queue, because librdkafka's questions block. Callers that ask
//! about the same topic at the same time share one question.

mod cache;
mod known;
mod login;
mod prober;
pub(super) mod question;

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tokio::sync::watch;

use self::cache::CachedAnswer;
use self::known::KnownTopics;
use self::prober::Prober;
use self::question::{TopicAnswer, TopicRequest};
use super::compression::Compression;
use super::{ClientError, KafkaContact, KafkaMetrics, KafkaSettings};
use crate::clock;
use crate::domain::{Record, TopicName};

pub use self::question::{LookUpError, TopicFacts};

/// The time from the question to the answer, including the wait in the queue. It is longer where
/// answers take longer.
const LOOK_UP_DEADLINE: Duration = Duration::from_secs(3);
/// The number of questions that may wait for the thread. More would not be answered within the
/// deadline.
const QUEUE_MAX: usize = 512;

/// The topics of Kafka. Cheap to clone. The thread ends soon after the last clone is dropped.
#[derive(Clone, Debug)]
pub struct TopicCache {
    known: Arc<KnownTopics>,
    handle: Arc<Handle>,
    contact: KafkaContact,
    metrics: KafkaMetrics,
    compression: Arc<Compression>,
    /// The thread keeps the other end.
    thread: watch::Receiver<()>,
}

#[derive(Debug)]
struct Handle {
    known: Arc<KnownTopics>,
    requests: SyncSender<TopicRequest>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.known.stop();
        // When the queue is full, the thread is busy, and checks the flag after its next answer.
        let woken = self.requests.try_send(TopicRequest::Wake);
        tracing::trace!(?woken, "topics are no longer looked up");
    }
}

impl TopicCache {
    /// Starts the thread that looks topics up and keeps [`KafkaContact`]. It connects in the
    /// background.
    ///
    /// # Errors
    /// When the settings are wrong, or files named there cannot be used.
    pub fn start(settings: &KafkaSettings, metrics: KafkaMetrics) -> Result<Self, ClientError> {
        let (requests, receiver) = sync_channel(QUEUE_MAX);
        let contact = KafkaContact::new(requests.clone(), metrics.clone());
        let known = Arc::new(KnownTopics::default());
        let thread = Prober::start(
            settings,
            receiver,
            Arc::clone(&known),
            contact.clone(),
            metrics.clone(),
        )?;
        let handle = Arc::new(Handle { known: Arc::clone(&known), requests });
        let compression = Arc::new(Compression::of(settings));
        Ok(Self { known, handle, contact, metrics, compression, thread })
    }

    /// Completes when the thread has ended: contact is then no longer watched. While there is a
    /// [`TopicCache`], the thread ends only by a panic.
    pub async fn failure(&self) {
        let mut thread = self.thread.clone();
        while thread.changed().await.is_ok() {}
    }

    /// Returns the contact: whether a broker can be reached.
    pub fn contact(&self) -> KafkaContact {
        self.contact.clone()
    }

    /// Returns the facts about `topic`. Kafka is asked when the cache has none.
    ///
    /// # Errors
    /// When the topic does not exist, this node may not see it, or Kafka does not answer within 3
    /// s.
    pub async fn look_up(&self, topic: &TopicName) -> TopicAnswer {
        if let Some(answer) = self.recall(topic) {
            return answer;
        }
        self.ask_or_remember(topic).await
    }

    /// Returns the cached facts about `topic`, for callers that want to know whether a look-up
    /// would wait for Kafka.
    pub fn cached(&self, topic: &TopicName) -> Option<TopicAnswer> {
        self.recall(topic)
    }

    /// Works like [`Self::look_up`], for callers that would otherwise refuse a record for good
    /// because of a cached limit. The limit may have been raised since, so Kafka is asked again
    /// unless the answer is younger than a second.
    ///
    /// # Errors
    /// As [`Self::look_up`].
    pub async fn confirm(&self, topic: &TopicName) -> TopicAnswer {
        if self.known.is_recent(topic) {
            self.look_up(topic).await
        } else {
            self.ask_or_remember(topic).await
        }
    }

    /// Returns an upper estimate of the bytes that `record` counts against its topic's limit. Over
    /// the limit, the record is compressed as the producers would do, if they compress.
    pub async fn size(&self, record: &Record, facts: TopicFacts) -> usize {
        self.compression.size(record, facts.record_bytes_max, facts.compression).await
    }

    async fn ask_or_remember(&self, topic: &TopicName) -> TopicAnswer {
        match self.ask(topic).await {
            // An old answer is better than none.
            Err(error @ (LookUpError::Unavailable { .. } | LookUpError::Busy)) => {
                self.remembered(topic).ok_or(error)
            }
            answer => answer,
        }
    }

    /// Asks Kafka about `topic` now, whatever is cached.
    ///
    /// # Errors
    /// As [`Self::look_up`].
    pub async fn ask(&self, topic: &TopicName) -> TopicAnswer {
        if self.contact.is_lost() {
            return Err(LookUpError::Unavailable { reason: self.contact.trouble() });
        }
        let mut answer = self.question(topic)?;
        let answered =
            tokio::time::timeout(self.deadline(), answer.wait_for(Option::is_some)).await;
        let reason = match answered {
            Ok(Ok(answer)) => return answer.clone().unwrap_or(Err(LookUpError::Busy)),
            Ok(Err(_sender_is_gone)) => "the node is stopping".to_owned(),
            Err(_elapsed) => format!("no answer within {:?}", self.deadline()),
        };
        Err(LookUpError::Unavailable { reason })
    }

    /// There are two questions, and the first may have to make a connection. Patience is the time
    /// of three answers.
    fn deadline(&self) -> Duration {
        LOOK_UP_DEADLINE.max(self.contact.patience().span() * 2)
    }

    /// Returns the cached answer for `topic`, with one hash look-up. An old answer starts a
    /// question in the background.
    fn recall(&self, topic: &TopicName) -> Option<TopicAnswer> {
        match self.known.find(topic)? {
            CachedAnswer::Fresh(answer) => Some(answer),
            CachedAnswer::Stale { facts, is_due } => {
                if is_due && !self.contact.is_lost() {
                    // No caller waits for the answer. A full queue only leaves the cached answer
                    // stale for longer.
                    let asked = self.question(topic).is_ok();
                    tracing::debug!(%topic, asked, "looking up again");
                }
                Some(Ok(facts))
            }
            CachedAnswer::Old(facts) => self.contact.is_lost().then_some(Ok(facts)),
        }
    }

    fn remembered(&self, topic: &TopicName) -> Option<TopicFacts> {
        match self.known.find(topic)? {
            CachedAnswer::Fresh(answer) => answer.ok(),
            CachedAnswer::Stale { facts, .. } | CachedAnswer::Old(facts) => Some(facts),
        }
    }

    /// Joins the question about `topic` that is under way, or begins one.
    fn question(
        &self,
        topic: &TopicName,
    ) -> Result<watch::Receiver<Option<TopicAnswer>>, LookUpError> {
        let mut pending = self.known.pending.lock();
        if let Some(answer) = pending.get(topic) {
            return Ok(answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        let until = clock::monotonic().plus(self.deadline());
        // The question is sent under the lock: the thread can remove it from `pending` only after
        // it was added.
        match self.handle.requests.try_send(TopicRequest::LookUp {
            topic: topic.clone(),
            until,
            answer: sender,
        }) {
            Ok(()) => {
                pending.insert(topic.clone(), answer.clone());
                Ok(answer)
            }
            Err(TrySendError::Full(_)) => {
                self.metrics.look_ups.busy.inc();
                Err(LookUpError::Busy)
            }
            Err(TrySendError::Disconnected(_)) => {
                Err(LookUpError::Unavailable { reason: "the node is stopping".to_owned() })
            }
        }
    }
}
