//! Builds the core of a node: its membership, its fence, its publisher, and its tasks in flight.

use std::sync::Arc;
use std::time::Duration;

use super::{Core, IN_FLIGHT_BATCHES_MAX, Site};
use crate::access::PolicyHandle;
use crate::clock::{self, ClusterClock};
use crate::config;
use crate::domain::SubmitOrder;
use crate::engine::liveness::broker::BrokerContact;
use crate::engine::topics::{TopicBreakers, TopicSettings};
use crate::error_chain::chain;
use crate::node::fence::Fence;
use crate::node::in_flight::batches::{InFlightBatches, InFlightLimits};
use crate::node::maintenance::Leaves;
use crate::node::membership::{
    self, LoopProgress, Membership, MembershipParts, MembershipSettings,
};
use crate::node::publish::publisher::{Publisher, Reports};
use crate::node::publish::wheel;
use crate::node::shared::{CallerNumbers, Calls, NodeShared};
use crate::postgres::tasks::adopt::recent_topics;
use crate::postgres::tasks::principals::Principals;
use crate::shutdown::TaskFailure;

/// The circuit breaker of a topic opens when records wait and no acknowledgement came for this
/// long. Half of the publish deadline applies when that is shorter, because no record waits past
/// the deadline.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of connections for the numbers of principals. Each node asks once for each.
const PRINCIPALS_MAX: usize = 1;
/// Maximum delay of a start by a Kafka that does not answer.
const PRELOAD_DEADLINE: Duration = Duration::from_secs(2);

impl Site<'_> {
    /// Fetches the metadata of recently used topics, so that first records do not wait
    /// for metadata.
    pub(super) async fn preload(&self, publisher: &Publisher) {
        match recent_topics(&self.parts.postgres).await {
            Ok(topics) if topics.is_empty() => {}
            Ok(topics) => {
                let loaded = publisher.preload(&topics, PRELOAD_DEADLINE).await;
                tracing::debug!(loaded, "topics preloaded");
            }
            Err(error) => tracing::debug!(error = chain(&error), "preload topics"),
        }
    }

    pub(super) fn silence_max(&self) -> Duration {
        SILENCE_MAX.min(self.settings.kafka.publish_deadline / 2)
    }

    pub(super) fn core(
        &self,
        leaves: Arc<Leaves>,
        clock: Arc<ClusterClock>,
        policy: &PolicyHandle,
    ) -> Result<Core, TaskFailure> {
        let (settings, parts, tasks) = (self.settings, self.parts, self.tasks);
        let limits = InFlightLimits {
            tasks_max: settings.limits.in_flight_tasks,
            bytes_max: settings.limits.in_flight_bytes,
            batches_max: IN_FLIGHT_BATCHES_MAX,
        };
        let topic_rules = TopicSettings {
            silence_max: self.silence_max(),
            denial_max: settings.kafka.topic_denial_max,
            tasks_max: settings.limits.topic_in_flight_tasks,
            bytes_max: settings.limits.in_flight_bytes / 4,
        };
        let in_flight = Arc::new(InFlightBatches::new(limits, TopicBreakers::new(topic_rules)));
        let policies = Arc::clone(&parts.policies);
        let progress = LoopProgress::new(settings.claim_loops);
        let membership = self.start_membership(&clock, &in_flight, &progress);
        let contact = parts.contact.clone();
        let fence = Arc::new(Fence::new(
            Arc::clone(&clock),
            contact.clone(),
            tasks.draining.clone(),
            membership.fencing(),
        ));
        let reports = Reports::new(
            Arc::clone(&in_flight),
            (Arc::clone(&clock), Arc::clone(&policies)),
            contact.clone(),
            parts.metrics.clone(),
            (settings.kafka.publish_deadline, self.cluster.window),
        );
        let publisher = Arc::new(Publisher::new(
            Arc::new(reports),
            parts.kafka.clone(),
            (parts.kafka_metrics.clone(), parts.traces.clone()),
            contact,
            Arc::clone(&fence),
        )?);
        let wheel =
            wheel::start(Arc::clone(&publisher), Arc::clone(&clock), settings.precision, tasks)?;
        let shared = Arc::new(NodeShared {
            node: parts.node,
            cluster: self.cluster,
            clock,
            in_flight,
            fence,
            leaves,
            policies,
            pending: Arc::clone(policy.quotas().pending()),
            wheel,
            metrics: parts.metrics.clone(),
            calls: Calls::default(),
            submit_order: SubmitOrder::default(),
            callers: CallerNumbers {
                principals: Principals::new(&parts.postgres, PRINCIPALS_MAX),
                metrics: parts.metrics.clone(),
            },
        });
        Ok(Core { shared, membership, publisher, progress })
    }

    fn start_membership(
        &self,
        clock: &Arc<ClusterClock>,
        in_flight: &Arc<InFlightBatches>,
        progress: &LoopProgress,
    ) -> Membership {
        let (settings, parts) = (self.settings, self.parts);
        let (contact, held) = (parts.contact.clone(), Arc::clone(in_flight));
        let broker = move || BrokerContact {
            has_broker: contact.is_reachable(),
            has_due: held.amount().tasks > 0,
        };
        let identity = MembershipSettings {
            node: parts.node,
            name: settings.node_name.clone(),
            address: parts.advertise.clone(),
            version: config::RELEASE.to_owned(),
            started_at: clock::wall(),
            ttl: settings.session_ttl,
            shards: self.cluster.shards,
        };
        let works_with = MembershipParts {
            postgres: parts.postgres.clone(),
            etcd: parts.etcd.clone(),
            clock: Arc::clone(clock),
            progress: progress.clone(),
            broker: Arc::new(broker),
            metrics: parts.membership_metrics.clone(),
        };
        membership::start(identity, works_with, self.tasks)
    }
}
