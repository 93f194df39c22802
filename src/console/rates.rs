//! Rates and lateness of the answering node, from two samples of its metrics.
//!
//! No sample is taken while nobody opens a page. A sample compares the counters with those of an
//! earlier one, so the first one after a pause shows the average since the last.

pub mod inbound;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use az::SaturatingAs as _;

use self::inbound::{Inbound, InboundKind};
use super::format::span;
use crate::domain::Monotonic;

/// The samples that are kept, and the shortest time between two of them.
const SAMPLES_MAX: usize = 13;
const APART: Duration = Duration::from_secs(5);
/// A comparison is about at most this span, if there is a sample within it.
const RECENT: Duration = Duration::from_secs(60);
/// A shorter span says little about a rate.
const SHORTEST: Duration = Duration::from_secs(2);

/// The counters of a node at a moment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    at: Monotonic,
    counters: [u64; COUNTERS.len()],
    /// Upper bounds of the buckets of the lateness, in milliseconds, with the number of records up
    /// to each. `None` is the last bucket.
    lateness: Vec<(Option<u64>, u64)>,
    pub in_flight: u64,
    pub submit_queue: u64,
    pub inbound: Inbound,
}

/// The counters whose rates are shown, with their titles.
const COUNTERS: [(&str, &str); 5] = [
    ("punctual_tasks_submitted_total", "Submitted"),
    ("punctual_tasks_published_total", "Published"),
    ("punctual_tasks_cancelled_total", "Cancelled"),
    ("punctual_tasks_deferred_total", "Retried"),
    ("punctual_tasks_dead_total", "Dead letters"),
];

impl Sample {
    /// Reads the metrics of the node, in the text format.
    pub fn read(metrics: &str, at: Monotonic) -> Self {
        let mut sample = Self { at, ..Self::default() };
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.split_once(' ') else { continue };
            sample.inbound.take(name, value.trim());
            let Ok(value) = value.trim().parse::<u64>() else { continue };
            let counters = COUNTERS.iter().zip(&mut sample.counters);
            for (_, counter) in counters.filter(|((counted, _), _)| *counted == name) {
                *counter = value;
            }
            match name {
                "punctual_in_flight_tasks" => sample.in_flight = value,
                "punctual_submit_queue_tasks" => sample.submit_queue = value,
                _ => sample.lateness.extend(bucket_of(name).map(|bound| (bound, value))),
            }
        }
        sample
    }
}

/// Returns the upper bound in milliseconds of a bucket of the lateness.
fn bucket_of(name: &str) -> Option<Option<u64>> {
    let label = name.strip_prefix("punctual_lateness_seconds_bucket{le=\"")?;
    let seconds = label.strip_suffix("\"}")?.parse::<f64>().ok()?;
    let bound = Duration::try_from_secs_f64(seconds).ok();
    Some(bound.map(|bound| bound.as_millis().saturating_as::<u64>()))
}

/// The change between two samples.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rates {
    /// `None` for everything since the start of the node.
    pub over: Option<Duration>,
    /// Titles and rates per second. Empty without an earlier sample.
    pub per_second: Vec<(&'static str, String)>,
    pub p50: Option<String>,
    pub p99: Option<String>,
    /// Rows or records that were carried out per second. Empty without an earlier sample.
    inbound: BTreeMap<(InboundKind, String), String>,
}

impl Rates {
    /// Returns how many rows of an outbox, or records of an intake topic, were carried out per
    /// second.
    pub fn of_inbound(&self, kind: InboundKind, name: &str) -> Option<&str> {
        self.inbound.get(&(kind, name.to_owned())).map(String::as_str)
    }
}

/// The latest samples.
#[derive(Debug, Default)]
pub struct Samples(VecDeque<Sample>);

impl Samples {
    /// Keeps a sample, and compares it with an earlier one.
    pub fn compare(&mut self, now: &Sample) -> Rates {
        let age = |sample: &Sample| now.at.since(sample.at);
        let recent = self.0.iter().find(|sample| (SHORTEST..=RECENT).contains(&age(sample)));
        let earlier = recent.or_else(|| self.0.back()).filter(|sample| age(sample) >= SHORTEST);
        let rates = match earlier {
            Some(earlier) => now.since(earlier),
            None => Rates {
                over: None,
                per_second: Vec::new(),
                p50: quantile(&now.lateness, 50),
                p99: quantile(&now.lateness, 99),
                inbound: BTreeMap::new(),
            },
        };
        if self.0.back().is_none_or(|last| age(last) >= APART) {
            self.0.push_back(now.clone());
        }
        while self.0.len() > SAMPLES_MAX {
            self.0.pop_front();
        }
        rates
    }
}

impl Sample {
    fn since(&self, earlier: &Self) -> Rates {
        let over = self.at.since(earlier.at);
        let counts = self.counters.iter().zip(&earlier.counters);
        let rates = counts.map(|(now, before)| per_second(now.saturating_sub(*before), over));
        let titles = COUNTERS.iter().map(|(_, title)| *title);
        let buckets = self.lateness.iter().enumerate().map(|(index, (bound, count))| {
            let before = earlier.lateness.get(index).map_or(0, |(_, before)| *before);
            (*bound, count.saturating_sub(before))
        });
        let buckets: Vec<(Option<u64>, u64)> = buckets.collect();
        let inbound = self.inbound.carried_out_since(&earlier.inbound);
        let inbound = inbound.map(|(one, count)| (one, per_second(count, over)));
        Rates {
            over: Some(over),
            per_second: titles.zip(rates).collect(),
            p50: quantile(&buckets, 50),
            p99: quantile(&buckets, 99),
            inbound: inbound.collect(),
        }
    }
}

/// Returns `count` per second of `over`, with one decimal below 100.
fn per_second(count: u64, over: Duration) -> String {
    let millis = over.as_millis().max(1);
    let tenths = u128::from(count) * 10_000 / millis;
    match tenths {
        0 if count > 0 => "< 0.1".to_owned(),
        ..1_000 => format!("{}.{}", tenths / 10, tenths % 10),
        _ => super::format::grouped((tenths / 10).saturating_as::<u64>()),
    }
}

/// Returns the bucket that holds a percentile. The buckets count everything up to their bounds.
fn quantile(buckets: &[(Option<u64>, u64)], percent: u64) -> Option<String> {
    let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0)?;
    let rank = all.saturating_mul(percent).div_ceil(100);
    let found = buckets.iter().position(|(_, count)| *count >= rank)?;
    match buckets.get(found)? {
        (Some(bound), _) => Some(format!("≤ {}", span(*bound))),
        (None, _) => {
            let below = found.checked_sub(1).and_then(|index| buckets.get(index));
            Some(format!("> {}", span(below.and_then(|(bound, _)| *bound).unwrap_or_default())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64, published: u64, buckets: [u64; 3]) -> Sample {
        let [fast, slow, all] = buckets;
        let text = format!(
            "# TYPE punctual_tasks_published counter\n\
             punctual_tasks_published_total {published}\n\
             punctual_in_flight_tasks 12\n\
             punctual_lateness_seconds_bucket{{le=\"0.005\"}} {fast}\n\
             punctual_lateness_seconds_bucket{{le=\"3600.0\"}} {slow}\n\
             punctual_lateness_seconds_bucket{{le=\"+Inf\"}} {all}\n"
        );
        Sample::read(&text, Monotonic::from_start(Duration::from_secs(second)))
    }

    fn published(rates: &Rates) -> Option<&str> {
        rates.per_second.iter().find(|(title, _)| *title == "Published").map(|(_, rate)| &**rate)
    }

    #[test]
    fn the_first_sample_shows_the_lateness_since_the_start() {
        let rates = Samples::default().compare(&sample(9, 100, [98, 100, 100]));
        assert_eq!((rates.over, published(&rates)), (None, None));
        assert_eq!((rates.p50.as_deref(), rates.p99.as_deref()), (Some("≤ 5 ms"), Some("≤ 1 h")));
        assert_eq!(sample(9, 1, [0, 0, 0]).in_flight, 12);
        assert_eq!(Samples::default().compare(&sample(9, 0, [0, 0, 0])).p50, None);
    }

    #[test]
    fn later_samples_show_what_came_since_an_earlier_one() {
        let mut samples = Samples::default();
        samples.compare(&sample(0, 100, [0, 100, 100]));
        let rates = samples.compare(&sample(5, 1_100, [1_000, 1_100, 1_100]));
        assert_eq!((rates.over, published(&rates)), (Some(Duration::from_secs(5)), Some("200")));
        assert_eq!(rates.p99.as_deref(), Some("≤ 5 ms"));
        let rates = samples.compare(&sample(3_600, 1_101, [1_000, 1_100, 1_101]));
        assert_eq!(rates.over, Some(Duration::from_secs(3_595)), "nobody has looked for an hour");
        assert_eq!((published(&rates), rates.p99.as_deref()), (Some("< 0.1"), Some("> 1 h")));
        let rates = samples.compare(&sample(3_610, 1_101, [1_000, 1_100, 1_101]));
        assert_eq!((rates.over, rates.p99), (Some(Duration::from_secs(10)), None));
    }

    #[test]
    fn an_outbox_has_the_rate_of_its_rows() {
        let sample = |second: u64, stored: u64| {
            let text = format!("punctual_outbox_rows_stored_total{{outbox=\"shop\"}} {stored}\n");
            Sample::read(&text, Monotonic::from_start(Duration::from_secs(second)))
        };
        let mut samples = Samples::default();
        let first = samples.compare(&sample(0, 100));
        assert_eq!(first.of_inbound(InboundKind::Outbox, "shop"), None);
        let later = samples.compare(&sample(10, 150));
        assert_eq!(later.of_inbound(InboundKind::Outbox, "shop"), Some("5.0"));
        assert_eq!(later.of_inbound(InboundKind::Intake, "shop"), None);
    }

    #[test]
    fn samples_are_limited_and_apart() {
        let mut samples = Samples::default();
        for second in 0..1_000 {
            samples.compare(&sample(second, second, [0, 0, 0]));
        }
        assert_eq!(samples.0.len(), SAMPLES_MAX);
        let rates = samples.compare(&sample(1_000, 1_000, [0, 0, 0]));
        assert_eq!((rates.over, published(&rates)), (Some(Duration::from_secs(60)), Some("1.0")));
    }
}
