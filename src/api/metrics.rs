//! The metrics of the API.

use std::time::Duration;

use axum::http::{Method, StatusCode};

use crate::telemetry::{Counter, Family, Gauge, Histogram, Registry, Unit, durations};

/// Label names with their values. Both come from tables of this crate and never from a request, so
/// the number of series is limited.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The limits that reject something, the service's own included. Each has a series from the start,
/// so that a rate does not miss the first event.
const LIMITS: [&str; 44] = [
    "requests_in_flight",
    "caller_requests",
    "caller_probes",
    "metrics_in_flight",
    "documents_in_flight",
    "connections",
    "caller_connections",
    "header_bytes",
    "body_bytes",
    "batch_tasks",
    "outcomes",
    "body_memory",
    "body_memory_share",
    "bodies_unpacked_at_once",
    "bodies_parsed_at_once",
    "request_deadline",
    "draining",
    "submit_queue",
    "submit_queue_bytes",
    "submit_queue_share",
    "submit_queue_bytes_share",
    "cancel_queue",
    "answer_queue",
    "answer_queue_share",
    "calls_of_task",
    "changes_of_task",
    "changes_share",
    "look_ups_share",
    "lists_share",
    "counts_share",
    "counts_at_once",
    "schedules_share",
    "topics_share",
    "callbacks_share",
    "schedules_max",
    "pop_groups",
    "pop_groups_share",
    "pops_waiting",
    "audit",
    "topic_look_ups",
    "topic_look_ups_share",
    "quota",
    "pending_max",
    "denials",
];
/// The deadlines that a slow caller can miss. Each has a series from the start, too.
const DEADLINES: [&str; 4] = ["header", "answer", "idle", "rest"];

#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: Family<Labels<3>, Counter>,
    duration: Family<Labels<1>, Histogram>,
    pub in_flight: Gauge,
    batch_tasks: Family<Labels<1>, Counter>,
    rejected: Family<Labels<1>, Counter>,
    cut_off: Family<Labels<1>, Counter>,
    pub connections: Gauge,
    pub body_memory: Gauge,
    handshakes_failed: Counter,
}

impl ApiMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(durations),
            in_flight: Gauge::default(),
            batch_tasks: Family::default(),
            rejected: Family::default(),
            cut_off: Family::default(),
            connections: Gauge::default(),
            body_memory: Gauge::default(),
            handshakes_failed: Counter::default(),
        };
        registry.register(
            "punctual_api_requests",
            "Requests answered, by route, method and status",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "punctual_api_request_duration",
            "Time from the header of a request to its answer, by route",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register(
            "punctual_api_requests_in_flight",
            "Requests in progress, from their header until their answer is written",
            metrics.in_flight.clone(),
        );
        registry.register(
            "punctual_api_batch_tasks",
            "Tasks of answered bulk submits, by their status",
            metrics.batch_tasks.clone(),
        );
        registry.register(
            "punctual_api_rejected",
            "Requests, parts of bulk submits and connections that were refused because a limit was \
             reached, by limit",
            metrics.rejected.clone(),
        );
        registry.register(
            "punctual_api_cut_off",
            "Connections and HTTP/2 streams that were ended because their caller was slow or \
             silent, by deadline",
            metrics.cut_off.clone(),
        );
        registry.register(
            "punctual_api_connections",
            "Open connections to the API",
            metrics.connections.clone(),
        );
        registry.register_with_unit(
            "punctual_api_body_memory",
            "Bytes of request bodies from reading until they are stored, and of large answers \
             until they are written",
            Unit::Bytes,
            metrics.body_memory.clone(),
        );
        registry.register(
            "punctual_api_handshakes_failed",
            "Connections that failed in their TLS handshake, including slow callers",
            metrics.handshakes_failed.clone(),
        );
        for limit in LIMITS {
            drop(metrics.rejected.get_or_create(&[("limit", limit)]));
        }
        for deadline in DEADLINES {
            drop(metrics.cut_off.get_or_create(&[("deadline", deadline)]));
        }
        metrics
    }

    pub fn answered(
        &self,
        route: &'static str,
        method: &'static str,
        status: StatusCode,
        took: Duration,
    ) {
        self.requests
            .get_or_create(&[
                ("route", route),
                ("method", method),
                ("status", status_label(status)),
            ])
            .inc();
        self.duration.get_or_create(&[("route", route)]).observe(took.as_secs_f64());
    }

    /// Counts a connection that ended in its TLS handshake.
    pub fn handshake_failed(&self) {
        self.handshakes_failed.inc();
    }

    /// Counts tasks of a bulk submit that were answered with `status`.
    pub fn batch_tasks(&self, status: StatusCode, count: u64) {
        self.batch_tasks.get_or_create(&[("status", status_label(status))]).inc_by(count);
    }

    /// Counts a caller that was cut off for slowness: with the `header`, while `idle`, in reading
    /// an `answer`, or with the `rest` of a body.
    pub fn cut_off(&self, deadline: &'static str) {
        debug_assert!(DEADLINES.contains(&deadline), "{deadline} is not in the list of deadlines");
        self.cut_off.get_or_create(&[("deadline", deadline)]).inc();
    }

    pub fn rejected(&self, limit: &'static str) {
        debug_assert!(LIMITS.contains(&limit), "{limit} is not in the list of limits");
        self.rejected.get_or_create(&[("limit", limit)]).inc();
    }
}

pub fn method_label(method: &Method) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];
    METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

fn status_label(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200 => "200",
        201 => "201",
        303 => "303",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        409 => "409",
        412 => "412",
        413 => "413",
        415 => "415",
        421 => "421",
        422 => "422",
        429 => "429",
        431 => "431",
        500 => "500",
        503 => "503",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::problems::problem_type::ProblemType;

    /// The words in backticks in the docs' table row of a metric.
    fn told(metric: &str) -> BTreeSet<&'static str> {
        let page = include_str!("../../docs/reference/metrics.md");
        let row =
            page.lines().find(|line| line.starts_with(&format!("| `{metric}` |"))).expect(metric);
        row.split('`').skip(3).step_by(2).collect()
    }

    #[test]
    fn every_status_of_a_problem_has_a_label_of_its_own() {
        for kind in ProblemType::ALL {
            assert_eq!(status_label(kind.status()), kind.status().as_str(), "{kind:?}");
        }
    }

    #[test]
    fn every_limit_and_deadline_has_a_series_from_the_start_and_is_told() {
        assert_eq!(told("punctual_api_rejected_total{limit}"), BTreeSet::from(LIMITS));
        assert_eq!(told("punctual_api_cut_off_total{deadline}"), BTreeSet::from(DEADLINES));
        let mut registry = Registry::default();
        let _metrics = ApiMetrics::register(&mut registry);
        let text = crate::telemetry::encode(&registry).unwrap();
        for limit in LIMITS {
            assert!(
                text.contains(&format!("punctual_api_rejected_total{{limit=\"{limit}\"}} 0\n")),
                "{limit}: {text}"
            );
        }
        for deadline in DEADLINES {
            assert!(
                text.contains(&format!(
                    "punctual_api_cut_off_total{{deadline=\"{deadline}\"}} 0\n"
                )),
                "{deadline}: {text}"
            );
        }
    }
}
