//! The parts of a node from before its servers are reachable, and the parts that its end needs.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::inbound::InboundMetrics;
use crate::app::credentials::{CredentialKeeper, ServerSettings, etcd_credentials};
use crate::app::kafka_settings;
use crate::callbacks::CallbackMetrics;
use crate::config::Settings;
use crate::domain::NodeId;
use crate::error_chain::chain;
use crate::etcd::{self, EtcdMetrics, EtcdSettings};
use crate::kafka::{KafkaContact, KafkaMetrics, KafkaSettings, TopicCache};
use crate::node::in_flight::batches::InFlightBatches;
use crate::node::maintenance::run_keeper::ScheduleMetrics;
use crate::node::maintenance::{KeyKeeper, MaintenanceMetrics};
use crate::node::membership::{Membership, MembershipMetrics};
use crate::node::messages::{NotReady, Requirement};
use crate::node::metrics::NodeMetrics;
use crate::node::publish::publisher::Publisher;
use crate::node::requests::group_commit::GroupCommit;
use crate::node::requests::service::pops::calls::PopMetrics;
use crate::node::topic_keeper::policies::TopicPolicies;
use crate::postgres::PostgresSettings;
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::Registry;
use crate::telemetry::traces::Traces;

/// The parts that can be built before the servers are reachable.
#[derive(Debug)]
pub struct NodeParts {
    pub node: NodeId,
    pub postgres: PostgresSettings,
    pub kafka: KafkaSettings,
    pub contact: KafkaContact,
    pub(super) topics: TopicCache,
    pub(super) kafka_metrics: KafkaMetrics,
    /// `None` when this node is the only one.
    pub etcd: Option<(etcd::Session, watch::Receiver<etcd::View>)>,
    pub(super) membership_metrics: MembershipMetrics,
    pub(super) maintenance_metrics: MaintenanceMetrics,
    pub(super) metrics: NodeMetrics,
    pub(super) inbound_metrics: InboundMetrics,
    pub(super) pop_metrics: PopMetrics,
    pub(super) callback_metrics: CallbackMetrics,
    pub(super) schedule_metrics: ScheduleMetrics,
    pub key_keeper: Option<KeyKeeper>,
    pub policies: Arc<TopicPolicies>,
    pub traces: Option<Traces>,
    pub(super) advertise: String,
}

/// The parts that are needed to end a node.
#[derive(Debug)]
pub struct Running {
    pub membership: Membership,
    pub in_flight: Arc<InFlightBatches>,
    pub(super) publisher: Arc<Publisher>,
    pub(super) group_commit: GroupCommit,
    pub(super) callbacks: CallbackMetrics,
}

/// Fails when the thread that probes Kafka has panicked. Only that thread sees whether Kafka is
/// reachable.
async fn watch_prober(topics: TopicCache, stopping: CancellationToken) -> Result<(), TaskFailure> {
    tokio::select! {
        () = stopping.cancelled() => Ok(()),
        () = topics.failure() => Err("the thread that asks Kafka about topics has panicked".into()),
    }
}

impl NodeParts {
    pub fn new(
        settings: &Settings,
        node: NodeId,
        advertise: &str,
        registry: &mut Registry,
        tasks: &Tasks,
    ) -> Result<Self, TaskFailure> {
        let kafka = kafka_settings::of(settings);
        let kafka_metrics = KafkaMetrics::register(registry);
        let topics = TopicCache::start(&kafka, kafka_metrics.clone())?;
        tasks.spawn("kafka prober", watch_prober(topics.clone(), tasks.stopping.clone()));
        let etcd_metrics = EtcdMetrics::register(registry);
        let etcd_settings = etcd_settings(settings);
        let postgres = PostgresSettings::new(settings.database_url.expose())?;
        let payload_keys = settings.access.payload_keys.clone();
        let servers = ServerSettings {
            postgres: postgres.clone(),
            kafka: kafka.properties.clone(),
            etcd: etcd_settings.clone(),
        };
        let keeper = CredentialKeeper::new(settings, servers, registry);
        tasks.spawn("credentials", keeper.run(tasks.clone()));
        let etcd = etcd_settings.map(|etcd| etcd::start(&etcd, node, tasks, etcd_metrics));
        Ok(Self {
            node,
            policies: Arc::default(),
            traces: None,
            key_keeper: Some(KeyKeeper::new(payload_keys, &postgres, registry)),
            postgres,
            contact: topics.contact(),
            kafka,
            topics,
            kafka_metrics,
            etcd,
            membership_metrics: MembershipMetrics::register(registry),
            maintenance_metrics: MaintenanceMetrics::register(registry),
            metrics: NodeMetrics::register(registry)
                .with_topics(registry, &settings.metrics_topics),
            inbound_metrics: InboundMetrics::register(registry),
            pop_metrics: PopMetrics::register(registry),
            callback_metrics: CallbackMetrics::register(registry),
            schedule_metrics: ScheduleMetrics::register(registry),
            advertise: advertise.to_owned(),
        })
    }

    /// Returns the missing requirements of a starting node: Postgres, for this reason, and other
    /// servers that are away.
    pub fn missing(&self, reason: String) -> Vec<NotReady> {
        let mut missing = vec![NotReady { what: Requirement::Postgres, why: reason }];
        if !self.contact.is_reachable() {
            missing.push(NotReady { what: Requirement::Kafka, why: self.contact.trouble() });
        }
        if let Some((_, view)) = &self.etcd
            && matches!(*view.borrow(), etcd::View::Away { .. })
        {
            missing.push(NotReady {
                what: Requirement::Etcd,
                why: "no usable answer yet; the log has the reason".to_owned(),
            });
        }
        missing
    }
}

impl Running {
    /// Returns true when no task waits to be stored, published or settled, and no callback for its
    /// answer.
    pub fn is_idle(&self) -> bool {
        let has_callbacks = self.callbacks.in_flight.get() > 0;
        self.group_commit.is_idle() && self.in_flight.is_idle() && !has_callbacks
    }

    /// Gives up the remaining work when the time has run out. This node publishes none of it any
    /// more, and other nodes adopt it.
    pub fn give_up(&self) {
        let batches = self.in_flight.give_up_all();
        if let Err(error) = self.publisher.purge() {
            tracing::warn!(
                error = chain(&error),
                batches = batches.len(),
                "cannot empty the producer"
            );
        }
    }
}

/// Converts the settings of a node for etcd. Returns `None` when this node is the only one.
fn etcd_settings(settings: &Settings) -> Option<EtcdSettings> {
    let wanted = settings.etcd.as_ref()?;
    Some(EtcdSettings::new(
        wanted.endpoints.clone(),
        &settings.cluster,
        settings.session_ttl,
        etcd_credentials(wanted),
    ))
}
