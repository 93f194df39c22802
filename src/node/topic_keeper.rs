//! Watches the topics: opens the circuit breakers of silent topics, and probes these topics.
//!
//! `policies` has the node's knowledge of policies and pauses. `policy_keeper` keeps the knowledge
//! up to date, and moves the tasks of paused topics out of the leaves and back. `pending_counter`
//! counts pending tasks for the limits on their number.

pub mod pending_counter;
pub mod policies;
pub mod policy_keeper;

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
use crate::domain::TopicName;
use crate::engine::topics::{Action, KafkaPace, Sight};
use crate::kafka::{LookUpError, TopicCache};
use crate::shutdown::TaskFailure;

const INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of topic look-ups under way. It leaves room in the queue of questions for
/// other callers, and lets each look-up have its turn.
const LOOK_UPS_MAX: usize = 64;

#[derive(Debug)]
pub struct TopicKeeper {
    pub shared: Arc<NodeShared>,
    pub publisher: Arc<Publisher>,
    pub topics: TopicCache,
    /// A topic is silent when one of its records has waited for this time.
    pub silence_max: Duration,
    pub stopping: CancellationToken,
}

impl TopicKeeper {
    /// Runs until the node stops.
    pub async fn run(self) -> Result<(), TaskFailure> {
        let mut look_ups = LookUps::default();
        let mut turn_at = clock::monotonic();
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => return Ok(()),
                (topic, sight) = look_ups.next(&self.topics) => {
                    self.probed(&topic, sight);
                    continue;
                }
                () = self.publisher.reports.topic_actions.arrival() => {}
                () = clock::sleep(turn_at.since(clock::monotonic())) => {}
            }
            turn_at = clock::monotonic().plus(INTERVAL);
            self.keep_pace();
            let now = clock::monotonic();
            let due_before = self.shared.now().minus(self.silence_max);
            let waiting: HashSet<TopicName> =
                self.shared.in_flight.silent_topics(due_before, now, self.silence_max);
            // While the node itself holds records back, no topic is to blame for the silence.
            let may_blame = self.shared.fence.has_broker() && self.shared.fence.may_publish();
            let mut actions = self.publisher.reports.topic_actions.take();
            actions.extend(
                self.shared
                    .in_flight
                    .topics()
                    .turn(now, may_blame, |topic| waiting.contains(topic)),
            );
            self.show();
            for action in actions {
                match action {
                    Action::Probe(topic) => look_ups.ask(topic),
                    other => self.carry_out(&other),
                }
            }
        }
    }

    /// Records the pace at which Kafka takes records, and shows it in the metrics.
    fn keep_pace(&self) {
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
    }

    fn probed(&self, topic: &TopicName, sight: Sight) {
        let next = self.shared.in_flight.topics().probed(topic, sight, clock::monotonic());
        if let Some(next) = next {
            self.show();
            self.carry_out(&next);
        }
    }

    /// Logs an action, and starts a sweep when tasks must be looked for. Call [`Self::show`] first.
    /// Otherwise, tasks of a gone topic that the sweep finds would be handed over again.
    fn carry_out(&self, action: &Action) {
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
            Action::Probe(_) => {}
        }
    }

    fn show(&self) {
        let (unavailable, gone) = {
            let topics = self.shared.in_flight.topics();
            (topics.open_count(), topics.gone_count())
        };
        self.shared.in_flight.set_gone_count(gone);
        self.shared.metrics.unavailable_topics.set(unavailable.saturating_as());
    }
}

/// Looks topics up, side by side. Each look-up may take seconds, and no other work waits for it.
#[derive(Debug, Default)]
struct LookUps {
    under_way: FuturesUnordered<BoxFuture<'static, (TopicName, Sight)>>,
    /// Topics waiting for their turn: at most the number of topics in trouble.
    waiting: VecDeque<TopicName>,
    /// The topics of both. No topic is looked up twice at a time.
    asked: HashSet<TopicName>,
}

impl LookUps {
    fn ask(&mut self, topic: TopicName) {
        if self.asked.insert(topic.clone()) {
            self.waiting.push_back(topic);
        }
    }

    /// Returns the next answered look-up. Cancel-safe: a dropped call loses no look-up.
    async fn next(&mut self, topics: &TopicCache) -> (TopicName, Sight) {
        while self.under_way.len() < LOOK_UPS_MAX
            && let Some(topic) = self.waiting.pop_front()
        {
            self.under_way.push(Box::pin(look_up(topics.clone(), topic)));
        }
        let Some((topic, sight)) = self.under_way.next().await else {
            return future::pending().await;
        };
        self.asked.remove(&topic);
        (topic, sight)
    }
}

async fn look_up(topics: TopicCache, topic: TopicName) -> (TopicName, Sight) {
    let sight = match topics.ask(&topic).await {
        Ok(_) => Sight::There,
        Err(LookUpError::Unknown) => Sight::Denied,
        Err(LookUpError::Denied { .. }) => Sight::Forbidden,
        Err(LookUpError::Unavailable { .. } | LookUpError::Busy) => Sight::Unknown,
    };
    (topic, sight)
}
