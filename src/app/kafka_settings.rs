//! What the settings of a node mean for Kafka.

use crate::config::Settings;
use crate::kafka;

/// The producer holds more than the node lets itself have in flight, so that a full queue is rare: a claim may pass the bound by its own size.
const HEADROOM_TASKS: usize = 20_000;

pub fn of(settings: &Settings) -> kafka::Settings {
    kafka::Settings {
        bootstrap: settings.kafka.bootstrap.clone(),
        properties: settings.kafka.properties.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
        client_id: format!("punctual-{}", settings.node_name),
        linger: settings.kafka.linger,
        publish_deadline: settings.kafka.publish_deadline,
        records_in_flight_max: settings.bounds.in_flight_tasks.saturating_add(HEADROOM_TASKS),
        bytes_in_flight_max: settings.bounds.in_flight_bytes.saturating_mul(2),
    }
}
