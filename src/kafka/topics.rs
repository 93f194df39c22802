//! Which topics there are, and what they take.
//!
//! Answers are cached: a topic that is there for a minute, one that is not for a second. After the minute the known answer goes on being given while the
//! thread asks again, also while Kafka is away; an answer older than ten minutes is given only then. All questions go through one thread with a bounded
//! queue, since librdkafka's blocks; callers that ask about the same topic at once share one question.

mod cache;
mod prober;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

use self::cache::{Cache, Found};
use self::prober::Prober;
use super::{Contact, Error, Metrics, Settings};
use crate::clock;
use crate::domain::{Monotonic, TopicName};

/// What is known of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopicFacts {
    pub partitions: i32,
    /// The topic's `max.message.bytes`; Kafka's default where we may not read it.
    pub record_bytes_max: usize,
}

/// Why nothing is known of a topic.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookUpError {
    #[error("Kafka has no such topic")]
    Unknown,
    #[error("not allowed to see the topic: {reason}")]
    Denied { reason: String },
    #[error("Kafka did not say whether there is such a topic: {reason}")]
    Unavailable { reason: String },
    #[error("too many topics are being looked up")]
    Busy,
}

type Answer = Result<TopicFacts, LookUpError>;

/// From the question to the answer, the wait in the queue included.
const LOOK_UP_DEADLINE: Duration = Duration::from_secs(3);
/// Questions that may wait for the thread. More would not be answered within the deadline.
const QUEUE_MAX: usize = 512;

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Request {
    LookUp {
        topic: TopicName,
        until: Monotonic,
        answer: watch::Sender<Option<Answer>>,
    },
    /// Look at the flags.
    Wake,
}

/// Cheap to clone. The thread ends soon after the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Topics {
    known: Arc<Known>,
    handle: Arc<Handle>,
    contact: Contact,
    metrics: Metrics,
}

/// What callers and the thread share.
#[derive(Debug)]
struct Known {
    cache: RwLock<Cache>,
    /// Questions under way.
    pending: Mutex<HashMap<TopicName, watch::Receiver<Option<Answer>>>>,
    is_stopping: AtomicBool,
}

#[derive(Debug)]
struct Handle {
    known: Arc<Known>,
    requests: SyncSender<Request>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.known.is_stopping.store(true, Ordering::Relaxed);
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
        let problems = settings.problems();
        if !problems.is_empty() {
            return Err(Error::Settings(problems));
        }
        let (requests, receiver) = sync_channel(QUEUE_MAX);
        let contact = Contact::new(requests.clone(), metrics.clone());
        let known = Arc::new(Known {
            cache: RwLock::new(Cache::default()),
            pending: Mutex::new(HashMap::new()),
            is_stopping: AtomicBool::new(false),
        });
        Prober::start(settings, receiver, Arc::clone(&known), contact.clone(), metrics.clone())?;
        let handle = Arc::new(Handle { known: Arc::clone(&known), requests });
        Ok(Self { known, handle, contact, metrics })
    }

    /// Whether a broker can be reached.
    pub fn contact(&self) -> Contact {
        self.contact.clone()
    }

    /// What is known of `topic` without asking: one hash look-up. An old answer starts a question in the background.
    pub fn cached(&self, topic: &TopicName) -> Option<TopicFacts> {
        self.recall(topic)?.ok()
    }

    /// What is known of `topic`; Kafka is asked when the cache has nothing.
    ///
    /// # Errors
    /// When there is no such topic, we may not see it, or Kafka cannot say within 3 s.
    pub async fn look_up(&self, topic: &TopicName) -> Answer {
        if let Some(answer) = self.recall(topic) {
            return answer;
        }
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
        let answered = tokio::time::timeout(LOOK_UP_DEADLINE, answer.wait_for(Option::is_some)).await;
        let reason = match answered {
            Ok(Ok(answer)) => return answer.clone().unwrap_or(Err(LookUpError::Busy)),
            Ok(Err(_sender_is_gone)) => "the node is stopping".to_owned(),
            Err(_elapsed) => format!("no answer within {LOOK_UP_DEADLINE:?}"),
        };
        Err(LookUpError::Unavailable { reason })
    }

    /// The answer that the cache gives, if it does.
    fn recall(&self, topic: &TopicName) -> Option<Answer> {
        let found = self.known.cache.read().unwrap_or_else(PoisonError::into_inner).find(topic, clock::monotonic())?;
        match found {
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
        let found = self.known.cache.read().unwrap_or_else(PoisonError::into_inner).find(topic, clock::monotonic())?;
        match found {
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
        let until = clock::monotonic().plus(LOOK_UP_DEADLINE);
        // Sent under the lock: the thread takes the question out of `pending` only after it stands there.
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

impl Known {
    /// Keeps what Kafka said, or that it said nothing, and tells who waits.
    fn settle(&self, topic: &TopicName, answer: Answer, sender: &watch::Sender<Option<Answer>>) {
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        cache.keep(topic, &answer, clock::monotonic());
        drop(cache);
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
        sender.send_replace(Some(answer));
    }

    fn topic_count(&self) -> usize {
        self.cache.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}
