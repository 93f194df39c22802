//! Tells whether a broker can be reached now.
//!
//! An acknowledgement proves contact. So does an answer to the probe that the thread of
//! [`super::TopicCache`] sends when there was no proof for a while, if one of the brokers also
//! takes a connection at its advertised address. Any answer will do: a refusal proves contact, too.
//! Contact is lost when a probe gets no answer within the patience that earlier answers have earned
//! ([`super::patience`]). A broken connection is no loss, because there may be other brokers: it
//! only makes the next probe come at once. A broker that is gone is thus noticed within a second. A
//! broker that hangs is noticed within 2 s, if its answers took less than a third of a second
//! before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::KafkaMetrics;
use super::patience::KafkaPatience;
use super::topics::question::TopicRequest;
use crate::domain::Monotonic;

/// The topic of a probe for which any answer will do.
pub(super) const PROBE_TOPIC: &str = "__consumer_offsets";

/// The contact with Kafka. Cheap to clone: all clones share the same contact.
#[derive(Clone, Debug)]
pub struct KafkaContact {
    shared: Arc<SharedContact>,
}

#[derive(Debug)]
struct SharedContact {
    state: watch::Sender<ContactState>,
    /// The number of records acknowledged so far, by all producers. The prober checks whether it
    /// grows, so the report thread need not read a clock.
    acknowledged: AtomicU64,
    is_in_doubt: AtomicBool,
    patience: Mutex<KafkaPatience>,
    /// The last trouble reported by librdkafka, for the log line about lost contact.
    trouble: Mutex<Option<String>>,
    prober: SyncSender<TopicRequest>,
    metrics: KafkaMetrics,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ContactState {
    /// No probe has ended yet.
    Unknown,
    Held {
        last_at: Monotonic,
    },
    Lost {
        last_at: Option<Monotonic>,
    },
}

impl KafkaContact {
    pub(super) fn new(prober: SyncSender<TopicRequest>, metrics: KafkaMetrics) -> Self {
        let shared = SharedContact {
            state: watch::Sender::new(ContactState::Unknown),
            acknowledged: AtomicU64::new(0),
            is_in_doubt: AtomicBool::new(false),
            patience: Mutex::default(),
            trouble: Mutex::new(None),
            prober,
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns true while a broker answers, and false before the first answer.
    pub fn is_held(&self) -> bool {
        matches!(*self.shared.state.borrow(), ContactState::Held { .. })
    }

    /// Returns true once a probe has found that no broker answers.
    pub fn is_lost(&self) -> bool {
        matches!(*self.shared.state.borrow(), ContactState::Lost { .. })
    }

    /// Returns when a broker was last known to answer, with a precision of one second.
    pub fn last_at(&self) -> Option<Monotonic> {
        match *self.shared.state.borrow() {
            ContactState::Unknown => None,
            ContactState::Held { last_at } => Some(last_at),
            ContactState::Lost { last_at } => last_at,
        }
    }

    /// Returns the reason why there is no contact, as far as it is known.
    pub fn trouble(&self) -> String {
        self.trouble_lock().clone().unwrap_or_else(|| "no broker has answered".to_owned())
    }

    pub(super) fn acknowledged(&self) {
        self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of records acknowledged so far, by all producers.
    pub(super) fn acknowledged_count(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Records a trouble, for messages to people.
    pub(super) fn note(&self, trouble: &str) {
        *self.trouble_lock() = Some(trouble.to_owned());
    }

    /// Reports trouble of a connection: the prober checks now whether all of Kafka is away.
    pub(super) fn mark_in_doubt(&self, trouble: Option<&str>) {
        if let Some(trouble) = trouble {
            self.note(trouble);
        }
        if self.is_held() && !self.shared.is_in_doubt.swap(true, Ordering::Relaxed) {
            // A full queue means that the prober is at work. It checks the flag after each request.
            let woken = self.shared.prober.try_send(TopicRequest::Wake);
            tracing::trace!(?woken, "asked for a probe");
        }
    }

    /// Returns how long an answer may take.
    pub(super) fn patience(&self) -> KafkaPatience {
        *self.shared.patience.lock()
    }

    pub(super) fn set_patience(&self, patience: KafkaPatience) {
        *self.shared.patience.lock() = patience;
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.shared.is_in_doubt.load(Ordering::Relaxed)
    }

    /// Records that a broker answered at `now`.
    pub(super) fn hold(&self, now: Monotonic) {
        let before = self.shared.state.send_replace(ContactState::Held { last_at: now });
        self.shared.is_in_doubt.store(false, Ordering::Relaxed);
        *self.trouble_lock() = None;
        match before {
            ContactState::Held { .. } => return,
            ContactState::Unknown => tracing::info!("Kafka answers"),
            ContactState::Lost { last_at } => {
                let away_ms = last_at.map(|last_at| now.since(last_at).as_millis());
                tracing::info!(away_ms, "Kafka answers again");
            }
        }
        self.shared.metrics.has_contact.set(1);
    }

    /// Records that no broker answered. This is logged once, until a broker answers.
    pub(super) fn lose(&self, reason: &str) {
        self.shared.is_in_doubt.store(false, Ordering::Relaxed);
        let state = *self.shared.state.borrow();
        let last_at = match state {
            ContactState::Lost { .. } => return,
            ContactState::Unknown => None,
            ContactState::Held { last_at } => Some(last_at),
        };
        self.shared.state.send_replace(ContactState::Lost { last_at });
        self.shared.metrics.has_contact.set(0);
        self.shared.metrics.contact_losses.inc();
        let trouble = self.trouble_lock().get_or_insert_with(|| reason.to_owned()).clone();
        tracing::warn!(reason, trouble, "no Kafka broker answers; claims pause until one does");
    }

    fn trouble_lock(&self) -> MutexGuard<'_, Option<String>> {
        self.shared.trouble.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;
    use crate::telemetry::Registry;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn trouble_asks_for_one_probe_and_loses_nothing() {
        let (prober, probes) = sync_channel(8);
        let contact = KafkaContact::new(prober, KafkaMetrics::register(&mut Registry::default()));
        assert!(!contact.is_held() && !contact.is_lost());
        contact.hold(at(5));
        contact.mark_in_doubt(Some("one broker hung up"));
        contact.mark_in_doubt(Some("one broker hung up"));
        assert!(contact.is_held() && contact.is_in_doubt());
        assert_eq!(probes.try_iter().count(), 1);
    }

    #[test]
    fn what_was_lost_remembers_when_it_was_held() {
        let (prober, _probes) = sync_channel(8);
        let contact = KafkaContact::new(prober, KafkaMetrics::register(&mut Registry::default()));
        contact.hold(at(5));
        contact.mark_in_doubt(Some("connection refused"));
        contact.mark_in_doubt(None);
        contact.lose("timed out");
        contact.lose("timed out");
        assert!(contact.is_lost() && !contact.is_held());
        assert_eq!(
            (contact.last_at(), contact.trouble().as_str()),
            (Some(at(5)), "connection refused")
        );
        assert_eq!(contact.shared.metrics.contact_losses.get(), 1);
        contact.hold(at(9));
        assert_eq!((contact.is_held(), contact.last_at()), (true, Some(at(9))));
        contact.mark_in_doubt(Some("disconnected"));
        contact.hold(at(10));
        contact.lose("timed out");
        assert_eq!(
            contact.trouble(),
            "timed out",
            "what was overcome is not to blame for what comes later"
        );
    }
}
