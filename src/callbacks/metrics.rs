//! The metrics of callbacks.

use crate::telemetry::{Counter, Family, Gauge, Histogram, Registry, Unit, durations};

type Outcome = [(&'static str, &'static str); 1];

/// The metrics of all callbacks of a node.
#[derive(Clone, Debug)]
pub struct CallbackMetrics {
    requests: Family<Outcome, Counter>,
    pub in_flight: Gauge,
    pub paused: Gauge,
    pub unopened: Gauge,
    pub key_failures: Counter,
    pub delay: Histogram,
}

impl CallbackMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            in_flight: Gauge::default(),
            paused: Gauge::default(),
            unopened: Gauge::default(),
            key_failures: Counter::default(),
            delay: durations(),
        };
        registry.register(
            "punctual_callback_requests",
            "Requests of callbacks by outcome: finished, failed, later (the service asked for a \
             later attempt), gone (it wants no more), unanswered",
            metrics.requests.clone(),
        );
        registry.register(
            "punctual_callback_in_flight",
            "Requests of callbacks that wait for an answer",
            metrics.in_flight.clone(),
        );
        registry.register(
            "punctual_callbacks_paused",
            "Callbacks that a node has paused because their service answered 410",
            metrics.paused.clone(),
        );
        registry.register(
            "punctual_callbacks_unopened",
            "Callbacks whose headers this node cannot decrypt, so that it sends nothing for them",
            metrics.unopened.clone(),
        );
        registry.register(
            "punctual_callback_key_reload_failures",
            "Failed attempts to read the file with the keys that sign requests of callbacks",
            metrics.key_failures.clone(),
        );
        registry.register_with_unit(
            "punctual_callback_delay",
            "Time from the append of a record until its callback is sent, by the clocks of the \
             broker and of Postgres",
            Unit::Seconds,
            metrics.delay.clone(),
        );
        metrics
    }

    pub(super) fn count(&self, outcome: &'static str) {
        self.requests.get_or_create(&[("outcome", outcome)]).inc();
    }
}
