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
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::KafkaMetrics;
use super::patience::KafkaPatience;
use super::topics::question::TopicRequest;
use crate::clock;
use crate::domain::{Monotonic, Throttle};

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
    /// The last failure to get a token for a login.
    token_failure: Mutex<Option<TokenFailure>>,
    /// When a producer was last known to have a connection.
    connected_at: Mutex<Option<Monotonic>>,
    /// One line a minute says that there is no token.
    token_log: Mutex<Throttle>,
    /// One line a minute says why contact was lost.
    loss_log: Mutex<Throttle>,
    prober: SyncSender<TopicRequest>,
    metrics: KafkaMetrics,
}

#[derive(Debug)]
struct TokenFailure {
    at: Monotonic,
    reason: String,
    /// Since when brokers refuse the tokens of producers, and no producer has a connection.
    refused_at: Option<Monotonic>,
}

/// A failure to get a token counts for this long while a broker answers. A client tries again after
/// 10 s, and repeats a temporary failure for 50 s before it reports it.
const TOKEN_FAILURE_LASTS: Duration = Duration::from_secs(75);
/// Statistics tell within this time that another producer still has a connection.
const REFUSED_AFTER: Duration = Duration::from_secs(5);
const LOG_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ContactState {
    /// No probe has ended yet.
    Unknown,
    Reachable {
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
            token_failure: Mutex::new(None),
            connected_at: Mutex::new(None),
            token_log: Mutex::new(Throttle::new(LOG_EVERY)),
            loss_log: Mutex::new(Throttle::new(LOG_EVERY)),
            prober,
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns true while a broker answers, and false before the first answer.
    pub fn is_reachable(&self) -> bool {
        matches!(*self.shared.state.borrow(), ContactState::Reachable { .. })
    }

    /// Returns true once a probe has found that no broker answers.
    pub fn is_lost(&self) -> bool {
        matches!(*self.shared.state.borrow(), ContactState::Lost { .. })
    }

    /// Returns when a broker was last known to answer, with a precision of one second.
    pub fn last_at(&self) -> Option<Monotonic> {
        match *self.shared.state.borrow() {
            ContactState::Unknown => None,
            ContactState::Reachable { last_at } => Some(last_at),
            ContactState::Lost { last_at } => last_at,
        }
    }

    /// Returns the reason why there is no contact, as far as it is known.
    pub fn trouble(&self) -> String {
        // Without a token, the errors of the connections say less.
        if let Some(failure) = &*self.shared.token_failure.lock() {
            return format!("no token for the login to Kafka: {}", failure.reason);
        }
        self.trouble_lock().clone().unwrap_or_else(|| "no broker has answered".to_owned())
    }

    pub(super) fn acknowledged(&self) {
        self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of records acknowledged so far, by all producers.
    pub(super) fn acknowledged_count(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Records a trouble, for messages to people. The log has it, too, if it comes to be known only
    /// after contact was lost.
    pub(super) fn note(&self, trouble: &str) {
        let before = self.trouble_lock().replace(trouble.to_owned());
        if before.as_deref() != Some(trouble)
            && self.is_lost()
            && self.shared.loss_log.lock().lets_through(clock::monotonic())
        {
            tracing::warn!(trouble, "no Kafka broker answers");
        }
    }

    /// Records that a client got no token for its login at `now`. Existing connections may go on
    /// with an earlier token.
    pub(super) fn note_token_failure(&self, reason: &str, now: Monotonic) {
        let mut failure = self.shared.token_failure.lock();
        // The lock keeps the metric in step with the failure.
        self.shared.metrics.token_is_missing.set(1);
        let refused_at = failure.take().and_then(|failure| failure.refused_at);
        *failure = Some(TokenFailure { at: now, reason: reason.to_owned(), refused_at });
        drop(failure);
        if self.shared.token_log.lock().lets_through(now) {
            tracing::warn!(reason, "cannot get a token for the login to Kafka");
        }
    }

    /// Records that a broker refused the login of a producer. Without a newer token, the last one
    /// has run out.
    pub(super) fn note_refused_login(&self, now: Monotonic) {
        if let Some(failure) = &mut *self.shared.token_failure.lock() {
            failure.refused_at.get_or_insert(now);
        }
    }

    /// Records that a producer has a connection at `now`.
    pub(super) fn note_connection(&self, now: Monotonic) {
        *self.shared.connected_at.lock() = Some(now);
        if let Some(failure) = &mut *self.shared.token_failure.lock() {
            failure.refused_at = None;
        }
    }

    /// Returns true while a client cannot get a token.
    pub(super) fn lacks_a_token(&self) -> bool {
        self.shared.token_failure.lock().is_some()
    }

    /// Returns true when a client without an answer lacks a token, and producers have connections
    /// that they made with an earlier one.
    pub(super) fn goes_on_without_a_token(&self, now: Monotonic) -> bool {
        let connected_at = *self.shared.connected_at.lock();
        self.lacks_a_token() && connected_at.is_some_and(|at| now.since(at) < REFUSED_AFTER)
    }

    /// Returns true when no producer can log in, although the client that asks may still have a
    /// token.
    fn has_run_out_of_tokens(&self, now: Monotonic) -> bool {
        let failure = self.shared.token_failure.lock();
        let since = failure.as_ref().and_then(|failure| failure.refused_at);
        since.is_some_and(|since| now.since(since) >= REFUSED_AFTER)
    }

    /// Drops the token failure once it is overcome: a broker has taken a new login, or no client
    /// has failed for a while.
    fn forget_token_failure(&self, is_new_login: bool, now: Monotonic) {
        let mut failure = self.shared.token_failure.lock();
        let is_over =
            |failure: &TokenFailure| is_new_login || now.since(failure.at) >= TOKEN_FAILURE_LASTS;
        if failure.as_ref().is_some_and(is_over) {
            *failure = None;
            self.shared.metrics.token_is_missing.set(0);
        }
    }

    /// Reports trouble of a connection: the prober checks now whether all of Kafka is away.
    pub(super) fn mark_in_doubt(&self, trouble: Option<&str>) {
        if let Some(trouble) = trouble {
            self.note(trouble);
        }
        if self.is_reachable() && !self.shared.is_in_doubt.swap(true, Ordering::Relaxed) {
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
        self.forget_token_failure(false, now);
        if self.has_run_out_of_tokens(now) {
            return self.lose("no producer can log in");
        }
        let before = self.shared.state.send_replace(ContactState::Reachable { last_at: now });
        self.shared.is_in_doubt.store(false, Ordering::Relaxed);
        *self.trouble_lock() = None;
        self.forget_token_failure(!matches!(before, ContactState::Reachable { .. }), now);
        match before {
            ContactState::Reachable { .. } => return,
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
            ContactState::Reachable { last_at } => Some(last_at),
        };
        self.shared.state.send_replace(ContactState::Lost { last_at });
        self.shared.metrics.has_contact.set(0);
        self.shared.metrics.contact_losses.inc();
        self.trouble_lock().get_or_insert_with(|| reason.to_owned());
        let trouble = self.trouble();
        tracing::warn!(reason, trouble, "no Kafka broker answers; claims pause until one does");
    }

    fn trouble_lock(&self) -> MutexGuard<'_, Option<String>> {
        self.shared.trouble.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::telemetry::Registry;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn trouble_asks_for_one_probe_and_loses_nothing() {
        let (prober, probes) = sync_channel(8);
        let contact = KafkaContact::new(prober, KafkaMetrics::register(&mut Registry::default()));
        assert!(!contact.is_reachable() && !contact.is_lost());
        contact.hold(at(5));
        contact.mark_in_doubt(Some("one broker hung up"));
        contact.mark_in_doubt(Some("one broker hung up"));
        assert!(contact.is_reachable() && contact.is_in_doubt());
        assert_eq!(probes.try_iter().count(), 1);
    }

    #[test]
    fn what_was_lost_remembers_when_it_was_reachable() {
        let (prober, _probes) = sync_channel(8);
        let contact = KafkaContact::new(prober, KafkaMetrics::register(&mut Registry::default()));
        contact.hold(at(5));
        contact.mark_in_doubt(Some("connection refused"));
        contact.mark_in_doubt(None);
        contact.lose("timed out");
        contact.lose("timed out");
        assert!(contact.is_lost() && !contact.is_reachable());
        assert_eq!(
            (contact.last_at(), contact.trouble().as_str()),
            (Some(at(5)), "connection refused")
        );
        assert_eq!(contact.shared.metrics.contact_losses.get(), 1);
        contact.hold(at(9));
        assert_eq!((contact.is_reachable(), contact.last_at()), (true, Some(at(9))));
        contact.mark_in_doubt(Some("disconnected"));
        contact.hold(at(10));
        contact.lose("timed out");
        assert_eq!(
            contact.trouble(),
            "timed out",
            "what was overcome is not to blame for what comes later"
        );
    }

    #[test]
    fn a_missing_token_is_the_reason_until_a_broker_takes_a_login() {
        let (prober, _probes) = sync_channel(8);
        let contact = KafkaContact::new(prober, KafkaMetrics::register(&mut Registry::default()));
        let is_missing = || contact.shared.metrics.token_is_missing.get() == 1;
        let reason = "no token for the login to Kafka: invalid_client";
        contact.note_token_failure("invalid_client", at(0));
        contact.note("disconnected");
        contact.lose("timed out");
        assert_eq!((contact.trouble().as_str(), is_missing()), (reason, true));
        // A broker takes the login, and is on its own afterwards.
        contact.hold(at(100_000));
        assert!(!is_missing());
        contact.lose("timed out");
        assert_eq!(contact.trouble(), "timed out");

        // The connections go on with the token that they have.
        contact.hold(at(101_000));
        contact.note_token_failure("invalid_client", at(102_000));
        contact.hold(at(176_000));
        assert!(is_missing());
        contact.hold(at(177_000));
        assert!(!is_missing(), "no client has failed for 75 s");
        contact.note_token_failure("invalid_client", at(178_000));
        contact.lose("timed out");
        assert_eq!(contact.trouble(), reason, "the token has run out");
    }

    #[test]
    fn contact_is_lost_when_no_producer_can_log_in_although_a_broker_answers() {
        let (prober, _probes) = sync_channel(8);
        let contact = KafkaContact::new(prober, KafkaMetrics::register(&mut Registry::default()));
        contact.hold(at(0));
        contact.note_refused_login(at(1_000));
        contact.hold(at(9_000));
        assert!(contact.is_reachable(), "tokens are not missing");
        contact.note_token_failure("invalid_client", at(10_000));
        contact.note_refused_login(at(10_000));
        contact.note_connection(at(15_000));
        contact.hold(at(16_000));
        assert!(contact.is_reachable(), "another producer has a connection");
        contact.note_refused_login(at(17_000));
        contact.note_refused_login(at(20_000));
        contact.note_token_failure("invalid_client", at(21_000));
        contact.hold(at(21_999));
        assert!(contact.is_reachable());
        contact.hold(at(22_000));
        assert_eq!(contact.trouble(), "no token for the login to Kafka: invalid_client");
        assert!(contact.is_lost());
        contact.note_connection(at(22_500));
        assert!(contact.goes_on_without_a_token(at(23_000)));
        contact.hold(at(23_000));
        assert!(contact.is_reachable());
    }
}
