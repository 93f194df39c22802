//! Memory, CPU time and start time of this process, read from `/proc` at each scrape. Absent on
//! systems other than Linux.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Unit;

/// Linux reports process times in ticks of 1/100 s on every supported platform, whatever the tick
/// of its kernel.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub(super) struct Process;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Times {
    cpu_seconds: f64,
    /// Seconds since the machine was started.
    started_seconds: f64,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |path: &str| fs::read_to_string(path).ok();
        if let Some(bytes) = read("/proc/self/status").as_deref().and_then(resident_bytes) {
            let metric = ConstGauge::new(bytes);
            let help = "Resident memory of the process";
            metric.encode(encoder.encode_descriptor(
                "process_resident_memory",
                help,
                Some(&Unit::Bytes),
                metric.metric_type(),
            )?)?;
        }
        let Some(times) = read("/proc/self/stat").as_deref().and_then(times) else { return Ok(()) };
        let metric = ConstCounter::new(times.cpu_seconds);
        let help = "CPU time of the process, all threads";
        metric.encode(encoder.encode_descriptor(
            "process_cpu",
            help,
            Some(&Unit::Seconds),
            metric.metric_type(),
        )?)?;
        let Some(booted_at) = read("/proc/stat").as_deref().and_then(boot_seconds) else {
            return Ok(());
        };
        let metric = ConstGauge::new(booted_at + times.started_seconds);
        let help = "Start time of the process, since the Unix epoch, by this machine's clock";
        metric.encode(encoder.encode_descriptor(
            "process_start_time",
            help,
            Some(&Unit::Seconds),
            metric.metric_type(),
        )?)
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn times(stat: &str) -> Option<Times> {
    // The name of the program is in brackets and may contain spaces and brackets. The third field
    // follows the last bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let ticks = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<f64>().ok();
    Some(Times {
        cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS_PER_SECOND,
        started_seconds: ticks(22)? / TICKS_PER_SECOND,
    })
}

fn boot_seconds(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status() {
        assert_eq!(resident_bytes("VmPeak:\t  9 kB\nVmRSS:\t    2048 kB\n"), Some(2_097_152));
        assert_eq!(resident_bytes("nothing"), None);
    }

    #[test]
    fn times_are_read_whatever_the_program_is_called() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 4 0 12345 1 1";
        assert_eq!(times(stat), Some(Times { cpu_seconds: 2.0, started_seconds: 123.45 }));
        assert_eq!(times("7 (x) S 1"), None);
    }

    #[cfg(target_os = "linux")]
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
