//! The ways in beside the API that a node serves: outboxes and intake topics.

use tokio::sync::watch;

use crate::config::Settings;
use crate::inbound::carrier::CarrierParts;
use crate::inbound::intake::IntakeMetrics;
use crate::inbound::intake::keeper::{IntakeKeeper, IntakeKeeperParts};
use crate::inbound::outbox::OutboxMetrics;
use crate::inbound::outbox::drainer::{Drainer, DrainerParts};
use crate::kafka::{KafkaSettings, TopicCache};
use crate::node::membership::Bulletin;
use crate::postgres::PostgresSettings;
use crate::shutdown::{TaskFailure, Tasks};
use crate::telemetry::Registry;

/// The metrics of all outboxes and intake topics.
#[derive(Clone, Debug)]
pub(super) struct InboundMetrics {
    outboxes: OutboxMetrics,
    intakes: IntakeMetrics,
}

impl InboundMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            outboxes: OutboxMetrics::register(registry),
            intakes: IntakeMetrics::register(registry),
        }
    }
}

/// The parts of a node that its outboxes and intake topics need.
pub(super) struct InboundParts<'a> {
    pub carrier: &'a CarrierParts,
    pub kafka: &'a KafkaSettings,
    pub topics: &'a TopicCache,
    pub metrics: &'a InboundMetrics,
    pub bulletin: watch::Receiver<Bulletin>,
}

/// Starts to drain the outboxes and to read the intake topics of the settings, each in a background
/// task.
///
/// # Errors
/// When a URL is none. The settings were checked.
pub(super) fn start(
    settings: &Settings,
    parts: &InboundParts<'_>,
    tasks: &Tasks,
) -> Result<(), TaskFailure> {
    for outbox in &settings.outboxes {
        let database = PostgresSettings::new(outbox.database_url.expose())
            .map_err(|text| format!("--outbox {}: {text}", outbox.name))?;
        let drainer = Drainer::new(DrainerParts {
            name: outbox.name.clone(),
            database,
            carrier: parts.carrier.clone(),
            bulletin: parts.bulletin.clone(),
            metrics: parts.metrics.outboxes.of(&outbox.name),
            draining: tasks.draining.clone(),
        });
        tasks.spawn("outbox", drainer.run());
    }
    for intake in &settings.intakes.topics {
        let keeper = IntakeKeeper::new(IntakeKeeperParts {
            topic: intake.topic.clone(),
            rejected_topic: intake.rejected_topic.clone(),
            skips: settings.intakes.skips,
            kafka: parts.kafka.clone(),
            topics: parts.topics.clone(),
            carrier: parts.carrier.clone(),
            bulletin: parts.bulletin.clone(),
            metrics: parts.metrics.intakes.of(intake.topic.as_str()),
            draining: tasks.draining.clone(),
        });
        tasks.spawn("intake topic", keeper.run());
    }
    Ok(())
}
