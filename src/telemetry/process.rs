//! Memory, CPU time and start time of the process, read from `/proc` at each scrape.

use std::fmt;

use az::Az as _;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Unit;

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(own) = procfs::process::Process::myself() else { return Ok(()) };
        if let Some(kibibytes) = own.status().ok().and_then(|status| status.vmrss) {
            let metric = ConstGauge::new(kibibytes.saturating_mul(1024));
            let help = "Resident memory of the process";
            metric.encode(encoder.encode_descriptor(
                "process_resident_memory",
                help,
                Some(&Unit::Bytes),
                metric.metric_type(),
            )?)?;
        }
        let Ok(stat) = own.stat() else { return Ok(()) };
        let metric = ConstCounter::new(seconds(stat.utime.saturating_add(stat.stime)));
        let help = "CPU time of the process, all threads";
        metric.encode(encoder.encode_descriptor(
            "process_cpu",
            help,
            Some(&Unit::Seconds),
            metric.metric_type(),
        )?)?;
        let Ok(booted_at) = procfs::boot_time_secs() else { return Ok(()) };
        let metric = ConstGauge::new(booted_at.az::<f64>() + seconds(stat.starttime));
        let help = "Start time of the process, since the Unix epoch, by this machine's clock";
        metric.encode(encoder.encode_descriptor(
            "process_start_time",
            help,
            Some(&Unit::Seconds),
            metric.metric_type(),
        )?)
    }
}

/// Converts the kernel's ticks.
fn seconds(ticks: u64) -> f64 {
    ticks.az::<f64>() / procfs::ticks_per_second().az::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_time_and_a_start() {
        let mut registry = crate::telemetry::Registry::default();
        registry.register_collector(Box::new(Process));
        let text = crate::telemetry::encode(&registry).unwrap();
        for name in [
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
            "process_start_time_seconds ",
        ] {
            assert!(
                text.lines().any(|line| line.starts_with(name)),
                "{name} is missing in\n{text}"
            );
        }
    }
}
