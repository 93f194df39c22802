//! The registry of a process, and its text format for Prometheus.

use std::fmt;

use prometheus_client::encoding::text;
use prometheus_client::metrics::info::Info;

use super::Registry;
use super::logging::Lost;
use super::process::Process;

/// The content type of the text that [`encode`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Creates a registry with the metrics of the build, the process and its log.
pub fn registry(version: &'static str, commit: &'static str) -> Registry {
    let mut registry = Registry::default();
    let build = Info::new([("version", version), ("commit", commit)]);
    registry.register("punctual_build", "Version and commit of the program; always 1", build);
    registry.register_collector(Box::new(Process));
    registry.register_collector(Box::new(Lost));
    registry
}

/// Returns all metrics as text of type [`CONTENT_TYPE`].
pub fn encode(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    text::encode(&mut text, registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{Counter, Unit, durations};

    #[test]
    fn what_is_registered_is_exposed_with_unit_and_help() {
        let mut registry = registry("1.2.3", "abc");
        let settled = Counter::<u64>::default();
        registry.register("punctual_tasks_settled", "Tasks settled", settled.clone());
        registry.register_with_unit(
            "punctual_claim",
            "What a claim takes",
            Unit::Seconds,
            durations(),
        );
        settled.inc();
        let text = encode(&registry).unwrap();
        for line in [
            "punctual_build_info{version=\"1.2.3\",commit=\"abc\"} 1",
            "punctual_tasks_settled_total 1",
            "# UNIT punctual_claim_seconds seconds",
            "punctual_claim_seconds_bucket{le=\"0.0001\"} 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
