//! Which topics there are, and what they take.
//!
//! Answers are cached: a topic that is there for a minute, one that is not for a second. After the
//! minute the known answer goes on being given while the thread asks again, also while Kafka is
//! away; an answer older than ten minutes is given only then. All questions go through one thread
//! with a bounded queue, since librdkafka's blocks; callers that ask about the same topic at once
//! share one question.

mod cache;
mod known;
mod prober;
pub(super) mod question;

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use self::cache::Found;
use self::known::Known;
use self::prober::Prober;
use self::question::{Answer, Request};
use super::compression::Compression;
use super::{Contact, Error, Metrics, Settings};
use crate::clock;
use crate::domain::{Record, TopicName};

pub use self::question::{LookUpError, TopicFacts};

/// From the question to the answer, the wait in the queue included; more, where answers take
/// longer.
const LOOK_UP_DEADLINE: Duration = Duration::from_secs(3);
/// Questions that may wait for the thread. More would not be answered within the deadline.
const QUEUE_MAX: usize = 512;

/// Cheap to clone. The thread ends soon after the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Topics {
    known: Arc<Known>,
    handle: Arc<Handle>,
    contact: Contact,
    metrics: Metrics,
    compression: Arc<Compression>,
    /// Its other end is the thread's.
    thread: watch::Receiver<()>,
}

#[derive(Debug)]
struct Handle {
    known: Arc<Known>,
    requests: SyncSender<Request>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.known.stop();
        // When the queue is full the thread is busy, and looks at the flag after its next answer.
        let woken = self.requests.try_send(Request::Wake);
        tracing::trace!(?woken, "topics are no longer looked up");
    }
}

impl Topics {
    /// Starts the thread that looks topics up and keeps [`Contact`]; it connects in the background.
    ///
    /// # Errors
    /// When the settings are wrong, or files that they name cannot be used.
    pub fn start(settings: &Settings, metrics: Metrics) -> Result<Self, Error> {
        let (requests, receiver) = sync_channel(QUEUE_MAX);
        let contact = Contact::new(requests.clone(), metrics.clone());
        let known = Arc::new(Known::default());
        let thread = Prober::start(settings, receiver, Arc::clone(&known), contact.clone(), metrics.clone())?;
        let handle = Arc::new(Handle { known: Arc::clone(&known), requests });
        let compression = Arc::new(Compression::of(settings));
        Ok(Self { known, handle, contact, metrics, compression, thread })
    }

    /// Comes when the thread has ended, which it does only by a panic while there is a [`Topics`]:
    /// nobody watches the contact any more.
    pub async fn failure(&self) {
        let mut thread = self.thread.clone();
        while thread.changed().await.is_ok() {}
    }

    /// Whether a broker can be reached.
    pub fn contact(&self) -> Contact {
        self.contact.clone()
    }

    /// What is known of `topic`; Kafka is asked when the cache has nothing.
    ///
    /// # Errors
    /// When there is no such topic, we may not see it, or Kafka cannot say within 3 s.
    pub async fn look_up(&self, topic: &TopicName) -> Answer {
        if let Some(answer) = self.recall(topic) {
            return answer;
        }
        self.ask_or_remember(topic).await
    }

    /// As [`Self::look_up`], for who would refuse a record for good by what is cached: limits may
    /// have been raised since, so Kafka is asked unless it was within a second.
    ///
    /// # Errors
    /// As [`Self::look_up`].
    pub async fn confirm(&self, topic: &TopicName) -> Answer {
        if self.known.is_recent(topic) { self.look_up(topic).await } else { self.ask_or_remember(topic).await }
    }

    /// Bytes that `record` counts against its topic's limit, from above. Over the limit it is
    /// compressed as the producers would, if they do.
    pub async fn size(&self, record: &Record, facts: TopicFacts) -> usize {
        self.compression.size(record, facts.record_bytes_max, facts.compression).await
    }

    async fn ask_or_remember(&self, topic: &TopicName) -> Answer {
        match self.ask(topic).await {
            // Old, but better than nothing.
            Err(error @ (LookUpError::Unavailable { .. } | LookUpError::Busy)) => self.remembered(topic).ok_or(error),
            answer => answer,
        }
    }

    /// Asks Kafka about `topic` now, whatever is cached.
    ///
    /// # Errors
    /// As [`Self::look_up`].
    pub async fn ask(&self, topic: &TopicName) -> Answer {
        if self.contact.is_lost() {
            return Err(LookUpError::Unavailable { reason: self.contact.trouble() });
        }
        let mut answer = self.question(topic)?;
        let answered = tokio::time::timeout(self.deadline(), answer.wait_for(Option::is_some)).await;
        let reason = match answered {
            Ok(Ok(answer)) => return answer.clone().unwrap_or(Err(LookUpError::Busy)),
            Ok(Err(_sender_is_gone)) => "the node is stopping".to_owned(),
            Err(_elapsed) => format!("no answer within {:?}", self.deadline()),
        };
        Err(LookUpError::Unavailable { reason })
    }

    /// Two questions, the first of which may have to make a connection: a patience is three
    /// answers.
    fn deadline(&self) -> Duration {
        LOOK_UP_DEADLINE.max(self.contact.patience().span() * 2)
    }

    /// What is known of `topic` without asking: one hash look-up. An old answer starts a question
    /// in the background.
    fn recall(&self, topic: &TopicName) -> Option<Answer> {
        match self.known.find(topic)? {
            Found::Fresh(answer) => Some(answer),
            Found::Stale { facts, is_due } => {
                if is_due && !self.contact.is_lost() {
                    // Nobody waits for it: a full queue only leaves the answer stale for longer.
                    let asked = self.question(topic).is_ok();
                    tracing::debug!(%topic, asked, "looking up again");
                }
                Some(Ok(facts))
            }
            Found::Old(facts) => self.contact.is_lost().then_some(Ok(facts)),
        }
    }

    fn remembered(&self, topic: &TopicName) -> Option<TopicFacts> {
        match self.known.find(topic)? {
            Found::Fresh(answer) => answer.ok(),
            Found::Stale { facts, .. } | Found::Old(facts) => Some(facts),
        }
    }

    /// Joins the question about `topic` that is under way, or begins one.
    fn question(&self, topic: &TopicName) -> Result<watch::Receiver<Option<Answer>>, LookUpError> {
        let mut pending = self.known.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = pending.get(topic) {
            return Ok(answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        let until = clock::monotonic().plus(self.deadline());
        // Sent under the lock: the thread takes the question out of `pending` only after it stands
        // there.
        match self.handle.requests.try_send(Request::LookUp { topic: topic.clone(), until, answer: sender }) {
            Ok(()) => {
                pending.insert(topic.clone(), answer.clone());
                Ok(answer)
            }
            Err(TrySendError::Full(_)) => {
                self.metrics.look_ups.busy.inc();
                Err(LookUpError::Busy)
            }
            Err(TrySendError::Disconnected(_)) => Err(LookUpError::Unavailable { reason: "the node is stopping".to_owned() }),
        }
    }
}
