//! The bounds of a node as metrics: so that an alarm can say "nine tenths of it", whatever it is set to.

use super::assembly::IN_FLIGHT_BATCHES_MAX;
use crate::config::Bounds;
use crate::telemetry::{Family, Gauge, Registry};

/// One sample for each, labelled with the metric that it bounds, without its `punctual_`.
pub fn register(registry: &mut Registry, bounds: &Bounds) {
    let family: Family<[(&'static str, &'static str); 1], Gauge> = Family::default();
    let all = [
        ("in_flight_tasks", bounds.in_flight_tasks),
        ("in_flight_bytes", bounds.in_flight_bytes),
        ("in_flight_batches", IN_FLIGHT_BATCHES_MAX),
        ("remembered_batches", IN_FLIGHT_BATCHES_MAX),
        ("submit_queue_tasks", bounds.submit_queue_tasks),
        ("submit_queue_bytes", bounds.submit_queue_bytes),
        ("cancel_queue_tasks", bounds.cancel_queue),
        ("api_requests_in_flight", bounds.requests_max),
        ("api_connections", bounds.connections_max),
        ("api_body_memory_bytes", bounds.body_memory_bytes),
    ];
    for (bounded, bound) in all {
        family.get_or_create(&[("of", bounded)]).set(i64::try_from(bound).unwrap_or(i64::MAX));
    }
    registry.register("punctual_bound", "What this node has set as the bound of another metric, in that one's unit", family);
}
