//! Takes in delivery reports: it records each outcome, and passes a batch to the settler when all
//! its outcomes are known.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{self, ClusterClock};
use crate::domain::task::feedback::{AttemptRow, due_after_silence};
use crate::domain::task::tracking::reason_without_words;
use crate::domain::{
    Failure, Outcome, Receipt, TaskId, Throttle, Timestamp, TopicName, TrackedRow, Unopened,
};
use crate::engine::expiry::{Turn, turn_of};
use crate::engine::failure::{Circumstances, Remedy, remedy, retry_delay};
use crate::engine::topics::Action;
use crate::failpoint::{Failpoint, reach};
use crate::kafka::{DeliveryFailure, DeliveryOutcome, DeliveryReport, KafkaContact};
use crate::node::in_flight::batches::{InFlightBatch, InFlightBatches, Noted};
use crate::node::in_flight::inbox::Inbox;
use crate::node::metrics::NodeMetrics;
use crate::node::topic_keeper::policies::TopicPolicies;

/// The interval of log lines about dead letters, however many there are, and about failed attempts.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// The reason for a task whose record fails its authentication.
const DAMAGED: &str =
    "the record cannot be decrypted: it was changed, or was not encrypted for this task";
/// The reason for the tasks of a topic that is given up.
const TOPIC_GONE: &str = "the topic does not exist";

/// The state that the threads of the producers share with the rest of the node.
#[derive(Debug)]
pub struct Reports {
    pub in_flight: Arc<InFlightBatches>,
    pub(super) clock: Arc<ClusterClock>,
    policies: Arc<TopicPolicies>,
    contact: KafkaContact,
    metrics: NodeMetrics,
    /// A record that was taken back and is younger than this is handed over again.
    publish_deadline: Duration,
    /// How long before their due times rows are claimed.
    window: Duration,
    /// Tasks whose record is handed over again at the next turn of the producer keeper. The pause
    /// matters: a producer without a leader for the topic refuses the record at once.
    pub(super) later: Inbox<(Arc<InFlightBatch>, u32)>,
    /// Tasks whose record is handed over again now.
    pub again: Inbox<(Arc<InFlightBatch>, u32)>,
    /// Tasks whose record is handed over alone, because its Kafka batch was refused.
    pub(super) alone: Inbox<(Arc<InFlightBatch>, u32)>,
    /// Batches whose outcomes are all known.
    pub completed: Inbox<Arc<InFlightBatch>>,
    /// Actions that follow from the states of the topics.
    pub topic_actions: Inbox<Action>,
    dead_log: Mutex<Throttle>,
    expired_log: Mutex<Throttle>,
    unread_log: Mutex<Throttle>,
    deferred_log: Mutex<Throttle>,
}

impl Reports {
    pub fn new(
        in_flight: Arc<InFlightBatches>,
        (clock, policies): (Arc<ClusterClock>, Arc<TopicPolicies>),
        contact: KafkaContact,
        metrics: NodeMetrics,
        (publish_deadline, window): (Duration, Duration),
    ) -> Self {
        Self {
            in_flight,
            clock,
            policies,
            contact,
            metrics,
            publish_deadline,
            window,
            later: Inbox::default(),
            again: Inbox::default(),
            alone: Inbox::default(),
            completed: Inbox::default(),
            topic_actions: Inbox::default(),
            dead_log: Mutex::new(Throttle::new(LOG_EVERY)),
            expired_log: Mutex::new(Throttle::new(LOG_EVERY)),
            unread_log: Mutex::new(Throttle::new(LOG_EVERY)),
            deferred_log: Mutex::new(Throttle::new(LOG_EVERY)),
        }
    }

    /// Takes in the delivery report of a record. `is_retired` says that its producer was replaced.
    /// Never blocks.
    pub(super) fn take_in(&self, report: DeliveryReport, is_retired: bool) {
        let (slot, index) = correlation_id::parts(report.correlation_id);
        let Some(held) = self.in_flight.in_slot(slot) else {
            // A batch leaves its slot only when no report is still to come.
            tracing::error!(slot, "a delivery report for a batch that is not in flight");
            return;
        };
        match report.outcome {
            DeliveryOutcome::Acknowledged(receipt) => self.acknowledged(&held, index, receipt),
            DeliveryOutcome::Failed(failed) => self.failed(held, index, failed, is_retired),
        }
    }

    fn acknowledged(&self, held: &Arc<InFlightBatch>, index: u32, receipt: Receipt) {
        let place = correlation_id::place(index);
        let now = clock::monotonic();
        if held.takes_news(place, now) {
            let waited = held.waited(place, self.clock.now(), now);
            if let Some(action) = self.in_flight.acknowledged(held.topic_of(place), waited, now) {
                self.topic_actions.put(action);
            }
        }
        let task = held.batch.task(place);
        let tracked = task.tracked();
        if tracked.is_none() && task.tracking.is_some() && self.unread_log.lock().lets_through(now)
        {
            tracing::error!(
                task = %task.first_id,
                "a tracked task ends with its first record: this version cannot read its `ttr` and \
                 `retry` (logged once a minute at most)"
            );
        }
        let outcome = match tracked {
            None => {
                self.published(held.topic_of(place), task.promised_at(), receipt);
                Outcome::Published(receipt)
            }
            Some(tracking) if tracking.is_verdict => {
                return self.bury(held, place, &tracking.dead_reason(), Some(receipt));
            }
            Some(tracking) => {
                self.published(held.topic_of(place), task.id.due_at(), receipt);
                self.attempted(task.id, &tracking, receipt)
            }
        };
        self.note(held, place, outcome);
    }

    /// Counts a published record. The lateness leaves out the pauses of the topic.
    fn published(&self, topic: &TopicName, due_at: Timestamp, receipt: Receipt) {
        let from = self.policies.lateness_from(topic, due_at, receipt.published_at);
        self.metrics.published(topic, from.map(|from| receipt.published_at.since(from)));
    }

    /// Returns the outcome of a published attempt. The next row is due when the consumer's time to
    /// run is over. Before Postgres's clock is known nothing is published.
    fn attempted(&self, id: TaskId, tracking: &TrackedRow, receipt: Receipt) -> Outcome {
        let appended_at = self.clock.at_most().unwrap_or_else(|| id.due_at());
        let row = AttemptRow { attempt: tracking.attempt, is_verdict: false };
        let next = AttemptRow::after(row.attempt, tracking.attempts_max());
        let attempt = tracking.attempts_since_redrive(row.attempt);
        let random: u64 = rand::random();
        let wait = tracking.tracking.retry.wait_after_silence(attempt, random.to_be_bytes()[0]);
        let due_at =
            due_after_silence(next, appended_at, tracking.tracking.ttr, (wait, self.window));
        let next = TaskId::new(due_at.ceil_millis(), id.shard(), rand::random());
        Outcome::Attempted { receipt, appended_at, next }
    }

    /// Gives up a task that its consumer has not finished, if `index` is its verdict row and no
    /// record goes to a dead topic first. Returns false for all other rows.
    pub(super) fn bury_if_exhausted(&self, held: &Arc<InFlightBatch>, index: u32) -> bool {
        let place = correlation_id::place(index);
        let Some(bytes) = held.batch.task(place).tracking else { return false };
        if !TrackedRow::is_of_verdict(bytes) || TrackedRow::dead_topic_of_verdict(bytes).is_some() {
            return false;
        }
        let reason = TrackedRow::decode(bytes).map(|row| row.dead_reason());
        self.bury(held, place, reason.as_deref().unwrap_or("not finished"), None);
        true
    }

    /// Defers a verdict row whose dead topic takes no records now. Returns false for all other
    /// rows.
    pub(super) fn defer_if_dead_topic_is_open(
        &self,
        held: &Arc<InFlightBatch>,
        index: u32,
    ) -> bool {
        let place = correlation_id::place(index);
        let tracking = held.batch.task(place).tracking;
        let topic = held.topic_of(place);
        if tracking.and_then(TrackedRow::dead_topic_of_verdict).is_none()
            || self.in_flight.topics().lets_through(topic, clock::monotonic())
        {
            return false;
        }
        self.defer(held, place);
        true
    }

    /// Defers a task that cannot be published now, and counts it.
    fn defer(&self, held: &Arc<InFlightBatch>, place: usize) {
        self.metrics.deferred.inc();
        self.metrics.topics.deferred(held.topic_of(place));
        self.note(held, place, self.deferred(held, place, held.is_maybe_sent(place)));
    }

    /// Ends a task that is too late, `now` by the lower bound of the cluster's clock. Returns false
    /// for a task that must be handed over. See [`crate::engine::expiry`].
    pub(super) fn end_if_expired(
        &self,
        held: &Arc<InFlightBatch>,
        index: u32,
        now: Timestamp,
    ) -> bool {
        let place = correlation_id::place(index);
        let task = held.batch.task(place);
        let Some(expiry) = task.expiry() else { return false };
        let expires_at = expiry.at(task.promised_at());
        let latest = self.clock.at_most().unwrap_or(now);
        let is_maybe_sent = expiry.is_maybe_sent || held.is_maybe_sent(place);
        match turn_of(expires_at, latest, is_maybe_sent) {
            Turn::Publish => return false,
            Turn::GiveUp => {
                let reason = format!(
                    "the task expired at {expires_at}; it was not published again, and a record of \
                     it is or may be in the topic already"
                );
                self.bury(held, place, &reason, None);
            }
            Turn::Expire => {
                self.metrics.expired.inc();
                let (id, topic) = (task.first_id, held.topic_of(place));
                if self.expired_log.lock().lets_through(clock::monotonic()) {
                    tracing::warn!(
                        task = %id, %topic, %expires_at,
                        "a task has expired before it could be published (logged once a minute at \
                         most; the metric counts all)"
                    );
                } else {
                    tracing::debug!(task = %id, %topic, %expires_at, "expired");
                }
                self.note(held, place, Outcome::Expired { expires_at });
            }
        }
        true
    }

    /// Defers a task whose record needs a payload key that this node lacks, and gives up one whose
    /// record is damaged. Neither record may be handed over. Returns false for all other tasks.
    pub(super) fn resolve_if_unopened(&self, held: &Arc<InFlightBatch>, index: u32) -> bool {
        let place = correlation_id::place(index);
        let Some(why) = held.batch.unopened(place) else { return false };
        match why {
            Unopened::Damaged => {
                self.metrics.unopened.damaged.inc();
                self.dead(held, place, DAMAGED);
            }
            Unopened::NoKey(id) => {
                self.metrics.unopened.without_key.inc();
                self.wait_for_key(held, place, id);
            }
        }
        true
    }

    /// Defers a task until this node, or another one, has the payload key. While no other record of
    /// the topic is acknowledged, its circuit breaker opens, so that its tasks stay in their table.
    fn wait_for_key(&self, held: &Arc<InFlightBatch>, place: usize, key_id: u32) {
        let (id, topic, now) =
            (held.batch.task(place).first_id, held.topic_of(place), clock::monotonic());
        let reason =
            format!("records are encrypted with payload key {key_id}, which this node lacks");
        let mut topics = self.in_flight.topics();
        topics.refused(topic, now);
        topics.failed(topic, &reason);
        drop(topics);
        if self.deferred_log.lock().lets_through(now) {
            tracing::error!(
                task = %id, %topic, reason,
                "a task waits for a payload key (logged once a minute at most; the metric counts \
                 all)"
            );
        }
        self.defer(held, place);
    }

    pub(super) fn failed(
        &self,
        held: Arc<InFlightBatch>,
        index: u32,
        failed: DeliveryFailure,
        is_retired: bool,
    ) {
        let place = correlation_id::place(index);
        let maybe_sent = held.note_maybe_sent(place, failed.maybe_sent);
        // Records of a producer are taken back together because some of them have waited too long.
        let is_early = failed.is_taken_back()
            && held.waited(place, self.clock.now(), clock::monotonic()) < self.publish_deadline;
        let failed = if failed.is_taken_back() { failed.timed_out() } else { failed };
        let circumstances = Circumstances {
            is_given_up: held.is_given_up(),
            is_blameless: is_retired || is_early || !self.contact.is_reachable(),
            is_topic_gone: self.is_topic_gone(&held, place),
        };
        match remedy(failed.failure, circumstances) {
            Remedy::Alone => self.alone.put((held, index)),
            Remedy::Later => self.later.put((held, index)),
            Remedy::GiveUp if failed.failure != Failure::RefusedForGood => {
                self.dead_with_its_topic(&held, place)
            }
            Remedy::GiveUp => self.dead(&held, place, &failed.reason.to_string()),
            Remedy::Defer if circumstances.is_given_up => {
                self.note(&held, place, self.deferred(&held, place, maybe_sent));
            }
            Remedy::Defer => {
                let is_last_denial = self.blame(&held, place, failed);
                if is_last_denial {
                    // Otherwise the task that probes a denied topic would never end.
                    self.dead_with_its_topic(&held, place);
                } else {
                    self.defer(&held, place);
                }
            }
        }
    }

    /// Records why a record was not acknowledged. The reason is in the log, and is shown for the
    /// topic while its breaker is open. Returns true when this failure has the topic given up.
    fn blame(&self, held: &InFlightBatch, place: usize, failed: DeliveryFailure) -> bool {
        let (id, topic, now) =
            (held.batch.task(place).first_id, held.topic_of(place), clock::monotonic());
        let reason = failed.reason.to_string();
        let mut topics = self.in_flight.topics();
        let action = match failed.failure {
            Failure::Forbidden => topics.forbidden(topic, now),
            Failure::Unavailable => {
                topics.refused(topic, now);
                None
            }
            _ => None,
        };
        topics.failed(topic, &reason);
        drop(topics);
        let gives_up = matches!(action, Some(Action::Gone(_) | Action::StillGone(_)));
        if let Some(action) = action {
            self.topic_actions.put(action);
        }
        if gives_up {
            return true;
        }
        if self.deferred_log.lock().lets_through(now) {
            tracing::warn!(
                task = %id, %topic, reason,
                "a record was not acknowledged; retrying (logged once a minute at most; the metric \
                 counts all)"
            );
        } else {
            tracing::debug!(task = %id, %topic, reason, "not acknowledged");
        }
        false
    }

    /// Resolves a task that need not be handed over: the batch is no longer this node's, or the
    /// topic is given up. An adopted task of a paused topic waits in a table. Returns false when
    /// the task must be handed over.
    pub(super) fn resolve_if_moot(&self, held: &Arc<InFlightBatch>, index: u32) -> bool {
        let place = correlation_id::place(index);
        if held.has_outcome(place) {
            return true;
        }
        if held.is_given_up() || held.is_left_out(place) {
            self.note(held, place, self.deferred(held, place, true));
            return true;
        }
        if self.is_topic_gone(held, place) {
            self.dead_with_its_topic(held, place);
            return true;
        }
        false
    }

    fn is_topic_gone(&self, held: &InFlightBatch, place: usize) -> bool {
        self.in_flight.is_topic_gone(held.topic_of(place))
    }

    fn dead_with_its_topic(&self, held: &Arc<InFlightBatch>, place: usize) {
        let reason = self
            .in_flight
            .topics()
            .forbidden_for(held.topic_of(place))
            .unwrap_or(TOPIC_GONE)
            .to_owned();
        self.dead(held, place, &reason);
    }

    /// Gives up a record that Kafka does not take.
    fn dead(&self, held: &Arc<InFlightBatch>, place: usize, reason: &str) {
        let tracking = held.batch.task(place).tracking;
        let verdict = tracking.filter(|bytes| TrackedRow::is_of_verdict(bytes));
        match verdict.and_then(|bytes| TrackedRow::decode(bytes).ok()) {
            None => self.bury(held, place, reason, None),
            // No record of it goes anywhere.
            Some(verdict) if verdict.tracking.dead_topic.is_none() => {
                self.bury(held, place, &verdict.dead_reason(), None);
            }
            Some(verdict) => {
                let topic = held.topic_of(place);
                let reason = format!(
                    "{}; the dead topic {topic} did not take the record: {reason}",
                    verdict.dead_reason()
                );
                self.bury(held, place, &reason, None);
            }
        }
    }

    /// Makes a task a dead letter. `receipt` is the place of its record in its dead topic.
    fn bury(
        &self,
        held: &Arc<InFlightBatch>,
        place: usize,
        reason: &str,
        receipt: Option<Receipt>,
    ) {
        self.metrics.dead.inc();
        self.metrics.topics.dead(held.topic_of(place));
        let said = reason_without_words(reason);
        let (id, topic, now) =
            (held.batch.task(place).first_id, held.topic_of(place), clock::monotonic());
        if self.dead_log.lock().lets_through(now) {
            tracing::warn!(
                task = %id, %topic, reason = said,
                "a task became a dead letter (logged once a minute at most; the metric counts all)"
            );
        } else {
            tracing::debug!(task = %id, %topic, reason = said, "dead letter");
        }
        self.note(held, place, Outcome::Dead { reason: reason.into(), receipt });
    }

    fn deferred(&self, held: &InFlightBatch, place: usize, maybe_sent: bool) -> Outcome {
        let task = held.batch.task(place);
        let random: u64 = rand::random();
        let delay = retry_delay(task.attempt, random.to_be_bytes()[0]);
        let now = self.clock.at_most().unwrap_or_else(|| task.id.due_at());
        let next = TaskId::new(now.plus(delay).ceil_millis(), task.id.shard(), rand::random());
        Outcome::Deferred { next, maybe_sent }
    }

    fn note(&self, held: &Arc<InFlightBatch>, place: usize, outcome: Outcome) {
        match held.note(place, outcome) {
            Noted::MoreToCome => {}
            Noted::Complete => {
                reach(Failpoint::LastAcknowledged);
                self.completed.put(Arc::clone(held));
            }
            Noted::GivenUp => self.in_flight.let_go(held),
        }
    }
}

/// The correlation id names a record to a producer, and comes back with its delivery report. It
/// holds the slot of the batch, and the place in the batch.
pub(super) mod correlation_id {
    use az::SaturatingAs as _;

    /// Returns the correlation id. The low half is the place in the batch, the high half the slot.
    pub fn of(slot: u32, index: u32) -> usize {
        place(slot) << 32 | place(index)
    }

    /// Returns the slot and the place.
    pub fn parts(correlation_id: usize) -> (u32, u32) {
        let low = (correlation_id & place(u32::MAX)).saturating_as::<u32>();
        ((correlation_id >> 32).saturating_as::<u32>(), low)
    }

    pub fn place(index: u32) -> usize {
        index.saturating_as::<usize>()
    }
}
