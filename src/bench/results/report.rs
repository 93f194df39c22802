//! The report of a run: a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::quantiles::{Quantiles, Spans, shown};
use super::{float, ratio};
use crate::client::output::figures::grouped;

/// The report of one run of one scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    pub scenario: String,
    /// Start of the run by the machine's clock (RFC 3339). `version` is the release.
    pub taken_at: String,
    pub version: String,
    pub settings: BTreeMap<String, String>,
    /// The quantity whose distribution is in `spans`.
    pub measured: String,
    pub spans: Option<Quantiles>,
    pub counts: GuaranteeCounts,
    /// Per second.
    pub rate: f64,
    /// Single figures by name. The name contains the unit.
    pub facts: BTreeMap<String, f64>,
    pub usage: Vec<Usage>,
    pub series: Vec<SeriesPoint>,
    /// The reason for the first refusal or missing answer, if there was one.
    pub reason: Option<String>,
}

/// How well the guarantees were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuaranteeCounts {
    pub submitted: u64,
    pub accepted: u64,
    pub refused: u64,
    /// Number of submits whose answer was lost: the tasks may be stored.
    pub unknown: u64,
    pub arrived: u64,
    /// Number of tasks appended before they were due.
    pub early: u64,
    /// Number of accepted tasks that are not in the topic.
    pub lost: u64,
    /// Number of records beyond the first of a task.
    pub duplicates: u64,
    pub refused_but_published: u64,
}

impl GuaranteeCounts {
    /// Adds the counts of other tasks.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self {
            submitted: self.submitted + others.submitted,
            accepted: self.accepted + others.accepted,
            refused: self.refused + others.refused,
            unknown: self.unknown + others.unknown,
            arrived: self.arrived + others.arrived,
            early: self.early + others.early,
            lost: self.lost + others.lost,
            duplicates: self.duplicates + others.duplicates,
            refused_but_published: self.refused_but_published + others.refused_but_published,
        }
    }
}

/// Resources that a process and its children used during the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    pub name: String,
    pub us_per_task: f64,
    /// Average number of busy cores.
    pub cores: f64,
    /// Resident memory in bytes at the end, without the children's.
    pub resident_bytes: u64,
}

/// One point of a time series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesPoint {
    /// Seconds since the start of the measurement.
    pub at: f64,
    pub count: u64,
    pub rate: f64,
    /// In milliseconds. Zero when the step has no tasks.
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl SeriesPoint {
    /// Summarises a step of `seconds` seconds.
    pub fn of(at: f64, spans: &Spans, seconds: f64) -> Self {
        let Some(quantiles) = spans.quantiles() else { return Self { at, ..Self::default() } };
        let Quantiles { count, p50, p99, max, .. } = quantiles;
        Self { at, count, rate: ratio(float(count), seconds), p50, p99, max }
    }
}

impl GuaranteeCounts {
    /// Returns true when no task was early, lost, published twice, or published although it was
    /// refused.
    pub fn are_clean(&self) -> bool {
        self.early == 0 && self.lost == 0 && self.duplicates == 0 && self.refused_but_published == 0
    }
}

impl BenchReport {
    pub fn fact(&mut self, name: &str, value: f64) {
        self.facts.insert(name.to_owned(), value);
    }

    /// Returns the CPU time of all processes together, in microseconds per task.
    pub fn us_per_task(&self) -> f64 {
        self.usage.iter().map(|usage| usage.us_per_task).sum()
    }

    /// Formats the report as a table.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let settings: Vec<String> =
            self.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        push_line(&mut text, &format!("{}: {}", self.scenario, settings.join(", ")));
        push_line(&mut text, &format!("{}, punctual {}", self.taken_at, self.version));
        push_line(&mut text, "");
        if let Some(spans) = &self.spans {
            push_line(
                &mut text,
                &row(
                    &self.measured,
                    &["p50", "p90", "p99", "p99.9", "max", "count"].map(str::to_owned),
                ),
            );
            let figures = [spans.p50, spans.p90, spans.p99, spans.p999, spans.max].map(shown);
            push_line(&mut text, &row("ms", &[&figures[..], &[grouped(spans.count)]].concat()));
        }
        push_line(&mut text, &row("tasks per second", &[format!("{:.0}", self.rate)]));
        for (name, value) in &self.facts {
            push_line(&mut text, &row(name, &[shown(*value)]));
        }
        push_line(&mut text, &self.promises());
        if let Some(reason) = &self.reason {
            push_line(&mut text, &format!("the first refusal or lost answer: {reason}"));
        }
        if !self.usage.is_empty() {
            push_line(&mut text, "");
            push_line(
                &mut text,
                &row("process", &["us/task", "% of core", "MiB"].map(str::to_owned)),
            );
        }
        for usage in &self.usage {
            let mebibytes = float(usage.resident_bytes) / 1_048_576.0;
            let figures =
                [shown(usage.us_per_task), shown(usage.cores * 100.0), format!("{mebibytes:.0}")];
            push_line(&mut text, &row(&usage.name, &figures));
        }
        text
    }

    fn promises(&self) -> String {
        let GuaranteeCounts {
            submitted,
            accepted,
            refused,
            unknown,
            early,
            lost,
            duplicates,
            refused_but_published,
            ..
        } = self.counts;
        let mut line = format!("early {early}, lost {lost}, duplicates {duplicates}");
        let told = format!(
            " (submitted {}, accepted {}, refused {refused}, unknown {unknown}",
            grouped(submitted),
            grouped(accepted)
        );
        line.push_str(&told);
        if refused_but_published > 0 {
            line.push_str(&format!("; REFUSED BUT PUBLISHED {refused_but_published}"));
        }
        line.push(')');
        line
    }
}

fn row(first: &str, figures: &[String]) -> String {
    let mut line = format!("{first:<28}");
    figures.iter().for_each(|figure| line.push_str(&format!("{figure:>10}")));
    line
}

fn push_line(text: &mut String, line: &str) {
    let written = writeln!(text, "{line}");
    debug_assert!(written.is_ok(), "a string takes all that is written");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> BenchReport {
        let mut spans = Spans::default();
        (1..=1000).for_each(|millis| spans.record_millis(millis));
        let counts = GuaranteeCounts {
            submitted: 1000,
            accepted: 1000,
            arrived: 1000,
            duplicates: 2,
            ..GuaranteeCounts::default()
        };
        let usage = Usage {
            name: "node".to_owned(),
            us_per_task: 7.25,
            cores: 0.125,
            resident_bytes: 1 << 20,
        };
        BenchReport {
            scenario: "lateness".to_owned(),
            measured: "append - due".to_owned(),
            spans: spans.quantiles(),
            counts,
            usage: vec![usage],
            ..BenchReport::default()
        }
    }

    #[test]
    fn the_table_says_what_people_look_for() {
        let table = report().table();
        for wanted in ["lateness", "p99.9", "999", "duplicates 2", "7.2", "12.5"] {
            assert!(table.contains(wanted), "{wanted} is missing in\n{table}");
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let text = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<BenchReport>(&text).unwrap(), report());
    }

    #[test]
    fn a_duplicate_is_not_clean() {
        assert!(!report().counts.are_clean());
        assert!(GuaranteeCounts::default().are_clean());
    }
}
