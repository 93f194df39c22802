//! Watches the topics and the producers: opens the circuit breakers of topics that do not answer,
//! probes them, and replaces failed producers.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use futures_util::future::{self, BoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio_util::sync::CancellationToken;

use super::publish::publisher::Publisher;
use super::shared::NodeShared;
use crate::clock;
use crate::domain::{Monotonic, TopicName};
use crate::engine::topics::{Action, KafkaPace, Sight};
use crate::error_chain::chain;
use crate::kafka::{ClientError, LookUpError, TopicCache};
use crate::shutdown::TaskFailure;

const INTERVAL: Duration = Duration::from_millis(250);
/// The publish deadline is compared with waiting records this many times per deadline.
const HELD_FACTOR: u32 = 8;
/// The maximum number of topic look-ups under way. It leaves room in the queue of questions for
/// other callers, and lets each look-up have its turn.
const LOOKS_MAX: usize = 64;
/// Incomplete batches are eased after this time in flight. From its claim to its acknowledgement a
/// task takes little more than the window.
const EASED_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct TopicKeeper {
    pub shared: Arc<NodeShared>,
    pub publisher: Arc<Publisher>,
    pub topics: TopicCache,
    /// A topic is silent when one of its records has waited for this time.
    pub silence_max: Duration,
    /// A record that has waited for this time is taken back, unless Kafka is slow.
    pub publish_deadline: Duration,
    pub stopping: CancellationToken,
}

impl TopicKeeper {
    /// Closes the replaced producers, until the node stops. It runs apart from the rest because the
    /// end of a client may wait for a name server.
    pub async fn close_retired(
        publisher: Arc<Publisher>,
        stopping: CancellationToken,
    ) -> Result<(), TaskFailure> {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = clock::sleep(INTERVAL) => publisher.tidy().await,
            }
        }
    }

    /// Runs until the node stops, or the delivery reports of a producer stop. Its batches are then
    /// published by the node that adopts them.
    pub async fn run(self) -> Result<(), TaskFailure> {
        // The last turn could not replace the producers. This is logged once.
        let mut is_failing = false;
        let mut looks = Looks::default();
        let mut turn_at = clock::monotonic();
        let mut deadline = OwnDeadline::new(self.publish_deadline, turn_at);
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => return Ok(()),
                (topic, sight) = looks.next(&self.topics) => {
                    self.looked(&topic, sight);
                    continue;
                }
                () = self.publisher.reports.topic_actions.arrival() => {}
                () = clock::sleep(turn_at.since(clock::monotonic())) => {}
            }
            turn_at = clock::monotonic().plus(INTERVAL);
            if self.publisher.is_deaf() {
                return Err(
                    "the thread for the delivery reports of a Kafka producer has panicked".into()
                );
            }
            match self.mend().await {
                Ok(()) => is_failing = false,
                // The cause (a half-written file, or a lack of threads) may be gone at the next
                // turn.
                Err(error) if !std::mem::replace(&mut is_failing, true) => {
                    tracing::warn!(error = chain(&error), "cannot create a new producer; retrying");
                }
                Err(_) => {}
            }
            self.publisher.reports.try_again();
            let has_broker = self.shared.fence.has_broker();
            let now = clock::monotonic();
            let pace = self.keep_pace();
            if deadline.is_to_be_held(has_broker && pace == KafkaPace::Steady, now) {
                self.take_back_overdue(now);
            }
            let due_before = self.shared.now().minus(self.silence_max);
            let waiting: HashSet<TopicName> =
                self.shared.in_flight.silent_topics(due_before, now, self.silence_max);
            // While this node itself holds records back, no topic is to blame for the silence.
            let may_blame = has_broker && self.shared.fence.may_publish();
            let mut actions = self.publisher.reports.topic_actions.take();
            actions.extend(
                self.shared
                    .in_flight
                    .topics()
                    .turn(now, may_blame, |topic| waiting.contains(topic)),
            );
            for action in actions {
                match action {
                    Action::Look(topic) => looks.ask(topic),
                    told => self.tell(&told),
                }
            }
            self.shared.in_flight.ease(now, EASED_AFTER);
            self.show();
        }
    }

    /// Records the pace at which Kafka takes records, and shows it in the metrics.
    fn keep_pace(&self) -> KafkaPace {
        let (pace, throttle) = self.publisher.pace();
        let before = {
            let mut topics = self.shared.in_flight.topics();
            let before = topics.pace();
            topics.set_pace(pace);
            before
        };
        self.shared.metrics.throttled.set(i64::from(pace == KafkaPace::Throttled));
        match (before == KafkaPace::Throttled, throttle) {
            (false, Some(throttle)) => {
                let held_back_ms: u64 = throttle.as_millis().saturating_as();
                tracing::warn!(
                    held_back_ms,
                    "Kafka throttles this node by a quota; claims slow down to the rate of \
                     publishing"
                );
            }
            (true, None) => tracing::info!("Kafka does not throttle this node any more"),
            _ => {}
        }
        pace
    }

    /// A record that has waited until the publish deadline, although Kafka answers questions, will
    /// probably not be sent soon.
    fn take_back_overdue(&self, now: Monotonic) {
        let due_before = self.shared.now().minus(self.publish_deadline);
        if self.shared.in_flight.has_waiting(due_before, now, self.publish_deadline) {
            self.publisher.take_back_overdue();
        }
    }

    async fn mend(&self) -> Result<(), ClientError> {
        // A failure of one producer must not keep the others from their turn.
        let mended = self.publisher.mend().await;
        mended.and(self.publisher.publish_alone())
    }

    fn looked(&self, topic: &TopicName, sight: Sight) {
        let next = self.shared.in_flight.topics().looked(topic, sight, clock::monotonic());
        if let Some(next) = next {
            // This comes before the sweep: tasks of a gone topic that the sweep finds must not be
            // handed over again.
            self.show();
            self.tell(&next);
        }
    }

    fn tell(&self, action: &Action) {
        match action {
            Action::Opened(topic) => {
                let reason = self
                    .shared
                    .in_flight
                    .topics()
                    .reason(topic)
                    .unwrap_or("records wait without an acknowledgement")
                    .to_owned();
                tracing::warn!(
                    %topic, reason,
                    "the topic is unavailable; its tasks wait in their table"
                )
            }
            Action::Denied(topic, left) => {
                let left_s = left.as_secs();
                tracing::warn!(
                    %topic,
                    "the topic does not exist any more; unless it is created again, its tasks \
                     become dead letters in {left_s} s"
                );
            }
            Action::Forbidden(topic, left) => {
                let left_s = left.as_secs();
                tracing::warn!(
                    %topic,
                    "this node may not write to the topic; unless it gets the right, the tasks \
                     become dead letters in {left_s} s"
                );
            }
            Action::Gone(topic) => {
                let reason = self
                    .shared
                    .in_flight
                    .topics()
                    .forbidden_for(topic)
                    .unwrap_or("the topic does not exist")
                    .to_owned();
                tracing::warn!(
                    %topic, reason,
                    "the topic was denied for too long; its tasks become dead letters"
                );
                self.shared.sweep();
            }
            Action::StillGone(topic) => {
                tracing::debug!(%topic, "the topic still refuses all records");
                self.shared.sweep();
            }
            Action::Closed(topic) => {
                tracing::info!(%topic, "the topic is available for new attempts");
                self.shared.sweep();
            }
            Action::Look(_) => {}
        }
    }

    fn show(&self) {
        let (unavailable, gone) = {
            let topics = self.shared.in_flight.topics();
            (topics.open_count(), topics.gone_count())
        };
        self.shared.in_flight.set_gone_count(gone);
        let amount = self.shared.in_flight.amount();
        let metrics = &self.shared.metrics;
        metrics.unavailable_topics.set(unavailable.saturating_as());
        metrics.in_flight_tasks.set(amount.tasks.saturating_as());
        metrics.in_flight_bytes.set(amount.bytes.saturating_as());
        metrics.in_flight_batches.set(amount.batches.saturating_as());
        metrics.remembered_batches.set(amount.remembered.saturating_as());
    }
}

/// Decides when the publish deadline is compared with waiting records: only after Kafka has kept
/// its pace for that long. No record has then waited because of a slow broker. An answer that is
/// still to come must find its record.
#[derive(Debug)]
struct OwnDeadline {
    span: Duration,
    steady_since: Monotonic,
    held_at: Monotonic,
}

impl OwnDeadline {
    const fn new(span: Duration, now: Monotonic) -> Self {
        Self { span, steady_since: now, held_at: now }
    }

    fn is_to_be_held(&mut self, is_steady: bool, now: Monotonic) -> bool {
        if !is_steady {
            self.steady_since = now;
        }
        let is_due = now.since(self.steady_since) >= self.span
            && now.since(self.held_at) >= self.span / HELD_FACTOR;
        if is_due {
            self.held_at = now;
        }
        is_due
    }
}

/// Looks topics up, side by side. Each look-up may take seconds, and no other work waits for it.
#[derive(Debug, Default)]
struct Looks {
    under_way: FuturesUnordered<BoxFuture<'static, (TopicName, Sight)>>,
    /// Topics that wait for their turn: at most the number of topics in trouble.
    waiting: VecDeque<TopicName>,
    /// The topics of both. No topic is looked up twice at a time.
    asked: HashSet<TopicName>,
}

impl Looks {
    fn ask(&mut self, topic: TopicName) {
        if self.asked.insert(topic.clone()) {
            self.waiting.push_back(topic);
        }
    }

    /// Returns the next answered look-up. The future can be dropped and called again without a
    /// loss.
    async fn next(&mut self, topics: &TopicCache) -> (TopicName, Sight) {
        while self.under_way.len() < LOOKS_MAX
            && let Some(topic) = self.waiting.pop_front()
        {
            self.under_way.push(Box::pin(look(topics.clone(), topic)));
        }
        let Some((topic, sight)) = self.under_way.next().await else {
            return future::pending().await;
        };
        self.asked.remove(&topic);
        (topic, sight)
    }
}

async fn look(topics: TopicCache, topic: TopicName) -> (TopicName, Sight) {
    let sight = match topics.ask(&topic).await {
        Ok(_) => Sight::There,
        Err(LookUpError::Unknown) => Sight::Denied,
        Err(LookUpError::Denied { .. }) => Sight::Forbidden,
        Err(LookUpError::Unavailable { .. } | LookUpError::Busy) => Sight::Unknown,
    };
    (topic, sight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_held_against_what_waited_while_kafka_kept_its_pace() {
        let at = |seconds| Monotonic::from_start(Duration::from_secs(seconds));
        let mut deadline = OwnDeadline::new(Duration::from_secs(30), at(0));
        let held = |deadline: &mut OwnDeadline,
                    seconds: std::ops::Range<u64>,
                    is_steady: bool|
         -> Vec<u64> {
            seconds.filter(|second| deadline.is_to_be_held(is_steady, at(*second))).collect()
        };
        assert_eq!(held(&mut deadline, 1..40, true), [30, 34, 38]);
        assert_eq!(held(&mut deadline, 40..100, false), Vec::<u64>::new());
        assert_eq!(
            held(&mut deadline, 100..135, true),
            [129, 133],
            "slow at 99: it has its time from then on"
        );
    }
}
