//! Measures the lateness of the runs of schedules.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use az::SaturatingAs as _;
use bytes::Bytes;
use hyper::Method;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::bench::ledger::{Ledger, Reply, written};
use crate::bench::load::rest::{RestTarget, json, told};
use crate::bench::results::report::BenchReport;
use crate::bench::results::{float, float_of, ratio};
use crate::bench::run::{BenchRun, Setup, millis, now, print_line};
use crate::bench::scenarios::lateness;
use crate::client::output::figures::grouped;
use crate::clock;
use crate::domain::TopicName;
use crate::kafka::ReadMode;

/// Number of connections that store schedules.
const CONNECTIONS: u64 = 16;
/// Number of schedules from one progress message to the next.
const TELL_EVERY: u64 = 10_000;

#[derive(Clone, Debug)]
pub struct SchedulesPlan {
    pub topic: TopicName,
    /// Number of schedules that run during the measurement.
    pub count: u64,
    /// Number of schedules that run once a year.
    pub others: u64,
    pub every: Duration,
    /// Whether all are due at the same instants. Otherwise their phases are spread evenly.
    pub is_together: bool,
    pub measured: Duration,
    pub warm_up: Duration,
}

/// The measured runs, in the order of the ledger: all those of a schedule, then those of the next.
#[derive(Debug)]
struct Runs {
    first_key: u64,
    due: std::ops::Range<i64>,
    every: i64,
    phases: Vec<i64>,
    /// The number of the first run of each schedule.
    offsets: Vec<u64>,
}

/// A schedule as `PUT /v1/schedules/{topic}/{name}` takes it.
#[derive(Serialize)]
struct NewSchedule<'a> {
    #[serde(flatten)]
    timing: NewTiming,
    key: String,
    payload_text: &'a str,
}

/// When a schedule runs.
#[derive(Serialize)]
#[serde(untagged)]
enum NewTiming {
    Period { every: String, phase: String },
    Yearly { cron: &'static str, time_zone: &'static str },
}

impl NewTiming {
    const YEARLY: Self = Self::Yearly { cron: "0 0 1 1 *", time_zone: "UTC" };

    /// Returns the timing of the measured schedule with this number.
    fn measured(plan: &SchedulesPlan, number: u64) -> Self {
        let [every, phase] =
            [millis(plan.every), phase_of(plan, number)].map(|millis| format!("{millis}ms"));
        Self::Period { every, phase }
    }
}

/// Stores schedules, measures the lateness of their runs, and deletes them. Those that run once a
/// year stay.
///
/// # Errors
/// Returns the reason as text when the scenario cannot be run.
pub async fn schedules(
    setup: &Setup,
    plan: &SchedulesPlan,
    rest: &RestTarget,
) -> Result<BenchReport, String> {
    let runs: Arc<OnceLock<Runs>> = Arc::default();
    // The keys of the schedules are those of a ledger of their own.
    let schedules = Arc::new(Ledger::new(rand::random(), now()));
    let (of_record, known) = (Arc::clone(&schedules), Arc::clone(&runs));
    let run =
        BenchRun::reading(setup, "schedules", ReadMode::BulkWithHeaders, move |ledger, record| {
            let number = of_record.number_of(record.key);
            let at = record.run_at.and_then(|text| text.parse::<jiff::Timestamp>().ok());
            let place = number.zip(at).zip(known.get());
            let key =
                place.and_then(|((number, at), runs)| runs.key_of(number, at.as_millisecond()));
            if let Some(key) = key {
                ledger.arrived(&written(key), record.at);
            }
        })
        .await?;
    let others = Arc::new(Ledger::new(rand::random(), now()));
    store(&run, plan, rest, (plan.others, &others, false)).await?;
    let stored = store(&run, plan, rest, (plan.count, &schedules, true)).await;
    let measured = match stored {
        Ok(()) => Ok(measure(&run, plan, &runs).await),
        Err(failure) => Err(failure),
    };
    // Also after a failure: schedules that go on would disturb others.
    let deleted = delete(plan, rest, &schedules).await;
    let report = measured?;
    deleted.map(|()| report)
}

async fn measure(run: &BenchRun, plan: &SchedulesPlan, runs: &OnceLock<Runs>) -> BenchReport {
    let from = now() + millis(plan.warm_up);
    let due = from..from + millis(plan.measured);
    runs.get_or_init(|| Runs::plan(plan, due.clone(), &run.ledger));
    let (before, after) = run.marks(&due).await;
    run.wait_arrived(due.end).await;
    let settings = [
        ("schedules", plan.count.to_string()),
        ("every", format!("{:?}", plan.every)),
        ("due together", plan.is_together.to_string()),
        ("other schedules", plan.others.to_string()),
        ("measured", format!("{:?}", plan.measured)),
        ("warm-up", format!("{:?}", plan.warm_up)),
    ];
    let mut report = run.lateness_report(&settings, &due);
    report.rate = ratio(float(report.counts.arrived), plan.measured.as_secs_f64());
    report.usage = run.usage(&before, &after, report.counts.arrived);
    for (name, part) in lateness::spans("schedules", plan.measured) {
        let dues = due.start + millis(part.start)..due.start + millis(part.end);
        report.fact(&format!("p99 of the {name}, ms"), run.ledger.lateness(&dues).at(0.99));
    }
    report
}

impl Runs {
    /// Plans the runs that are due within `due`.
    fn plan(plan: &SchedulesPlan, due: std::ops::Range<i64>, ledger: &Ledger) -> Self {
        let every = millis(plan.every).max(1);
        let mut runs = Self { first_key: 0, due, every, phases: Vec::new(), offsets: Vec::new() };
        let mut count = 0;
        for number in 0..plan.count {
            let phase = phase_of(plan, number);
            runs.offsets.push(count);
            runs.phases.push(phase);
            let mut at = runs.first_after(phase);
            while at < runs.due.end {
                let task = ledger.plan(at);
                ledger.answered(&[task], |_| Reply::Accepted, None);
                if count == 0 {
                    runs.first_key = task.key;
                }
                count += 1;
                at += every;
            }
        }
        runs
    }

    /// Returns the first instant of a phase that is measured.
    fn first_after(&self, phase: i64) -> i64 {
        self.due.start + (phase - self.due.start).rem_euclid(self.every)
    }

    /// Returns the key of a run in the ledger. Returns `None` when it is not measured.
    fn key_of(&self, schedule: usize, at: i64) -> Option<u64> {
        if !self.due.contains(&at) {
            return None;
        }
        let first = self.first_after(*self.phases.get(schedule)?);
        let number = u64::try_from((at - first) / self.every).ok()?;
        Some(self.first_key + self.offsets.get(schedule)? + number)
    }
}

/// Returns the phase of a schedule in milliseconds.
fn phase_of(plan: &SchedulesPlan, number: u64) -> i64 {
    if plan.is_together {
        return 0;
    }
    let every = u128::try_from(millis(plan.every)).unwrap_or(1);
    (u128::from(number) * every / u128::from(plan.count.max(1))).saturating_as()
}

/// Stores `count` schedules, whose keys are those of `keys`. They run, or are due once a year.
async fn store(
    run: &BenchRun,
    plan: &SchedulesPlan,
    rest: &RestTarget,
    (count, keys, is_measured): (u64, &Arc<Ledger>, bool),
) -> Result<(), String> {
    if count == 0 {
        return Ok(());
    }
    let begun_at = clock::monotonic();
    let keys: Arc<Vec<u64>> = Arc::new((0..count).map(|_| keys.plan(0).key).collect());
    let body = {
        let (plan, rest) = (plan.clone(), rest.clone());
        move |number: u64, key: u64| {
            json(&NewSchedule {
                timing: match is_measured {
                    true => NewTiming::measured(&plan, number),
                    false => NewTiming::YEARLY,
                },
                key: String::from_utf8_lossy(&written(key)).into_owned(),
                payload_text: rest.payload(key),
            })
        }
    };
    each(rest, &keys, (Method::PUT, plan.topic.clone()), body).await?;
    let span = clock::monotonic().since(begun_at);
    let what = if is_measured { "schedules" } else { "other schedules" };
    run.print_line(&format!("{} {what} stored in {:.0} s", grouped(count), span.as_secs_f64()));
    Ok(())
}

async fn delete(plan: &SchedulesPlan, rest: &RestTarget, keys: &Ledger) -> Result<(), String> {
    let stored = keys.numbers(&(i64::MIN..i64::MAX), false);
    let keys: Vec<u64> = stored.into_iter().filter_map(|number| keys.key_of(number)).collect();
    let body = |_number, _key| Ok(Bytes::new());
    each(rest, &Arc::new(keys), (Method::DELETE, plan.topic.clone()), body).await
}

/// Makes one call for each schedule, over several connections.
async fn each(
    rest: &RestTarget,
    keys: &Arc<Vec<u64>>,
    (method, topic): (Method, TopicName),
    body: impl Fn(u64, u64) -> Result<Bytes, String> + Clone + Send + Sync + 'static,
) -> Result<(), String> {
    let mut workers: JoinSet<Result<(), String>> = JoinSet::new();
    for lane in 0..CONNECTIONS {
        let mut http = rest.connection(lane.saturating_as())?;
        let (keys, body) = (Arc::clone(keys), body.clone());
        let (method, topic) = (method.clone(), topic.clone());
        workers.spawn(async move {
            let mine =
                (0_u64..).zip(keys.iter()).filter(|(number, _)| number % CONNECTIONS == lane);
            for (number, key) in mine {
                if number > 0 && number % TELL_EVERY == 0 {
                    let all = float_of(keys.len());
                    print_line(&format!(
                        "schedules: {method} {:.0} %",
                        float(number) * 100.0 / all
                    ));
                }
                let path = format!("/v1/schedules/{topic}/bench-{key:016x}");
                let answer = http.call(method.clone(), &path, body(number, *key)?).await?;
                // A schedule that was not stored cannot be deleted.
                let is_gone = method == Method::DELETE && answer.status == 404;
                if !(200..300).contains(&answer.status) && !is_gone {
                    return Err(format!("{method} {path}: {}", told(&answer)));
                }
            }
            Ok(())
        });
    }
    workers.join_all().await.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(is_together: bool) -> SchedulesPlan {
        SchedulesPlan {
            topic: TopicName::new("orders").unwrap(),
            count: 4,
            others: 0,
            every: Duration::from_secs(1),
            is_together,
            measured: Duration::from_secs(2),
            warm_up: Duration::ZERO,
        }
    }

    #[test]
    fn each_measured_run_is_found_by_its_schedule_and_instant() {
        let ledger = Ledger::new(7, 0);
        let runs = Runs::plan(&plan(false), 10_100..12_100, &ledger);
        assert_eq!(ledger.counts().accepted, 8);
        assert_eq!(runs.phases, [0, 250, 500, 750]);
        let places = [(0, 11_000), (0, 12_000), (1, 10_250), (1, 11_250), (2, 10_500), (3, 11_750)];
        let numbers = places.map(|(schedule, at)| {
            runs.key_of(schedule, at).and_then(|key| ledger.number_of(&written(key)))
        });
        assert_eq!(numbers, [0, 1, 2, 3, 4, 7].map(Some));
        assert_eq!(runs.key_of(0, 10_000), None, "before the measurement");
        assert_eq!(runs.key_of(4, 11_000), None, "no such schedule");
        let together = Runs::plan(&plan(true), 10_100..12_100, &Ledger::new(7, 0));
        assert_eq!(together.phases, [0; 4]);
    }
}
