//! Benchmarks a running cluster through its public interface: the subcommand `bench`. Tasks go in
//! over REST, an outbox or an intake topic, and records are read from the topic. Lateness is the
//! broker's append time minus the due time. docs/benchmarks.md is made with it.
//!
//! - A scenario ([`lateness`], [`burst`], [`drain`], [`submit`], [`cancel`], [`finish`],
//!   [`tracked`], [`without_kafka`], [`immediate`], [`take_in`], [`resume`], [`spread`],
//!   [`schedules`]) submits by `load/flow` into a
//!   `LoadTarget` and ends in a `BenchReport`.
//! - The [`ledger`] compares the submitted tasks with the records that arrived: early, lost,
//!   duplicates, lateness.
//! - The targets here are Punctual's ways in: `load/rest`, `outbox`, `intake_topic`. The programs
//!   that Punctual is compared with (`benches/`) have their own and run the same scenarios.

pub mod args;
pub mod consumers;
pub mod cpu;
pub mod ledger;
pub mod load;
pub mod nodes;
pub mod results;
pub mod run;
pub mod scenarios;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use args::{
    BenchArgs, CallbackBenchArgs, Common, Drain, FinishBenchArgs, PopBenchArgs, ResumeBenchArgs,
    Scenario, SchedulesBenchArgs, Soak, SpreadBenchArgs, Steady, SubmitBenchArgs, TrackedBenchArgs,
    TrackedSteady, WriteArgs, topics_in_turn,
};
use az::SaturatingAs as _;
use consumers::pollers::PollersPlan;
use consumers::service::ServicePlan;
use load::http::{Http, Trust};
use load::intake::LoadTarget;
use load::intake_topic::IntakeTarget;
use load::outbox::OutboxTarget;
use load::record::Records;
use load::rest::{RestTarget, TrackedLoad, WrittenDue};
use results::report::BenchReport;
use results::svg;
use run::{Setup, print_line};
use scenarios::{
    burst::{self, BurstPlan},
    cancel::{self, CancelPlan},
    drain::{self, DrainPlan},
    finish::{self, FinishPlan},
    immediate::{self, ImmediatePlan},
    lateness::{self, LatenessPlan},
    submit::{self, SubmitPlan},
    take_in::{self, TakeInPlan},
    topics::{
        resume::{self, ResumePlan},
        schedules::{self, SchedulesPlan},
        spread::{self, SpreadPlan},
    },
    tracked::{self, TrackedPlan},
    without_kafka::{self, ConsumersPlan, WithoutKafkaPlan},
};

use crate::client::access::{Credential, check_plaintext};
use crate::domain::TopicName;
use crate::error_chain::chain;
use crate::kafka::KafkaSettings;
use crate::postgres::connection::OldSnapshot;
use crate::postgres::connection::PostgresSettings;

/// Sessions of the database of an outbox, and writers of an intake topic at full speed.
const CONNECTIONS: u16 = 8;
/// Writers of an intake topic at a rate. They share a producer, and each waits for its record:
/// eight of them write no more than 8 records in the time of an acknowledgement.
const WRITERS: u16 = 256;

/// Runs a scenario and prints its report. `kafka_properties` are librdkafka properties for the
/// consumer.
pub async fn run(bench: BenchArgs, kafka_properties: Vec<(String, String)>) -> ExitCode {
    let credential = match bench.check().and_then(|()| credential_of(&bench.common)) {
        Ok(credential) => credential,
        Err(wrong) => {
            print_line(&format!("bench: {wrong}"));
            return ExitCode::from(2);
        }
    };
    let outcome = match measure(&bench, kafka_properties, credential).await {
        Ok(report) if report.counts.accepted == 0 => {
            Err(format!("no task was accepted: {}", report.reason.unwrap_or_default()))
        }
        Ok(report) => tell(&report, &bench.common).map(|()| report),
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(report) if report.counts.are_clean() => ExitCode::SUCCESS,
        Ok(_) => {
            print_line("bench: a guarantee was broken, see above");
            ExitCode::FAILURE
        }
        Err(failure) => {
            print_line(&format!("bench: {failure}"));
            ExitCode::FAILURE
        }
    }
}

async fn measure(
    bench: &BenchArgs,
    kafka_properties: Vec<(String, String)>,
    credential: Option<Credential>,
) -> Result<BenchReport, String> {
    let common = &bench.common;
    let topics =
        topics_in_turn(&common.topic, common.topics).map_err(|why| format!("--topic: {why}"))?;
    let setup = setup_of(common, topics.clone(), kafka_properties);
    let due = if matches!(bench.scenario, Scenario::Immediate(_)) {
        WrittenDue::Now
    } else {
        WrittenDue::At
    };
    let records = Records::new(usize::try_from(common.payload_bytes).unwrap_or(0));
    let ca_file = common.ca_file.as_deref();
    let trust = Trust::new(ca_file).map_err(|why| format!("--ca-file: {why}"))?;
    let rest = RestTarget::new(&common.urls, trust.clone(), topics.clone(), records.clone(), due)
        .authorized(credential.map(|credential| credential.header()));
    match &bench.scenario {
        Scenario::Lateness(args) => {
            Box::pin(lateness::lateness(
                &setup,
                &steady("lateness", &args.steady, args.measured),
                &rest,
            ))
            .await
        }
        Scenario::Soak(args) => Box::pin(soak(&setup, args, &rest)).await,
        Scenario::Burst(args) => {
            let plan = BurstPlan { count: u64::from(args.count), lead: args.lead };
            burst::burst(&setup, &plan, &rest).await
        }
        Scenario::Drain(args) => {
            let mut nodes = nodes::ByHand { urls: common.urls.clone(), trust };
            drain::drain(&setup, &drain_plan(args), &rest, &mut nodes).await
        }
        Scenario::Submit(args) => {
            let report = submit::submit(&setup, &submit_plan(args), &rest).await?;
            print_stored(&setup.topics);
            Ok(report)
        }
        Scenario::Outbox(args) => {
            let database = PostgresSettings::new(&args.database_url)
                .map_err(|wrong| format!("--database-url: {wrong}"))?;
            let held = match args.hold_snapshot {
                true => Some(hold_snapshot(&args.database_url).await?),
                false => None,
            };
            let outbox = OutboxTarget::new(database, topics, records);
            let writing = written(&setup, ("outbox", CONNECTIONS), &args.write, &outbox);
            let report = Box::pin(writing).await;
            drop(held);
            report
        }
        Scenario::Intake(args) => {
            let intake = IntakeTarget::new(&setup.kafka, args.intake.clone(), topics, records)?;
            Box::pin(written(&setup, ("intake", WRITERS), &args.write, &intake)).await
        }
        Scenario::Cancel(args) => {
            let count = |count: u32| count.saturating_as::<usize>();
            let plan = CancelPlan {
                count: count(args.count),
                warm_up: count(args.warmup),
                connections: usize::from(args.connections),
            };
            cancel::cancel(&setup, &plan, &rest).await
        }
        Scenario::Finish(args) => finish::finish(&setup, &finish_plan(args), &rest).await,
        Scenario::Tracked(args) => {
            Box::pin(tracked::tracked(&setup, &tracked_plan(args), &rest)).await
        }
        Scenario::Pop(args) => {
            let plan = pop_plan(args, common.topic.clone());
            Box::pin(without_kafka::without_kafka(&setup, &plan, &rest)).await
        }
        Scenario::Callback(args) => {
            let plan = callback_plan(args, common.topic.clone());
            Box::pin(without_kafka::without_kafka(&setup, &plan, &rest)).await
        }
        Scenario::Resume(args) => {
            let paused = rest.clone().to_topic(args.paused_topic.clone());
            Box::pin(resume::resume(&setup, &resume_plan(args), (&rest, &paused))).await
        }
        Scenario::Spread(args) => {
            let plan = spread_plan(args, common.topic.clone());
            Box::pin(spread::spread(&setup, &plan, &rest)).await
        }
        Scenario::Schedules(args) => {
            let plan = schedules_plan(args, common.topic.clone());
            Box::pin(schedules::schedules(&setup, &plan, &rest)).await
        }
        Scenario::Immediate(args) => {
            let (rate, connections) = (args.rate, usize::from(args.connections));
            let (measured, warm_up) = (args.measured, args.warmup);
            let plan =
                ImmediatePlan { scenario: "immediate", rate, connections, measured, warm_up };
            immediate::immediate(&setup, &plan, &rest).await
        }
    }
}

/// Measures lateness for hours, if wanted while an old snapshot is held.
async fn soak(setup: &Setup, args: &Soak, rest: &RestTarget) -> Result<BenchReport, String> {
    let held = match &args.hold_snapshot {
        Some(url) => Some(hold_snapshot(url).await?),
        None => None,
    };
    let plan = steady(lateness::SOAK, &args.steady, args.measured);
    let report = Box::pin(lateness::lateness(setup, &plan, rest)).await;
    drop(held);
    report
}

/// Returns the credential, if one is given and may be sent to all nodes.
fn credential_of(common: &Common) -> Result<Option<Credential>, String> {
    let credential = Credential::read(&common.credentials)?;
    if credential.is_some() {
        let trust = Trust::new(None)?;
        for url in common.urls.iter().filter(|url| url.starts_with("http://")) {
            check_plaintext(Http::new(url, &trust)?.host(), &common.credentials)
                .map_err(|text| format!("{url}: {text}"))?;
        }
    }
    Ok(credential)
}

/// Measures a way in beside REST: at a rate tasks that are due at once, otherwise how many tasks a
/// cluster can take in.
async fn written<I: LoadTarget>(
    setup: &Setup,
    (scenario, at_a_rate): (&'static str, u16),
    args: &WriteArgs,
    target: &I,
) -> Result<BenchReport, String> {
    let by_default = if args.rate.is_some() { at_a_rate } else { CONNECTIONS };
    let connections = usize::from(args.connections.unwrap_or(by_default));
    let report = match args.rate {
        Some(rate) => {
            let (measured, warm_up) = (args.measured, args.warmup);
            let plan = ImmediatePlan { scenario, rate, connections, measured, warm_up };
            immediate::immediate(setup, &plan, target).await?
        }
        None => {
            let (count, call) = (u64::from(args.count), args.batch.saturating_as());
            let plan = TakeInPlan { scenario, count, call, connections };
            let report = take_in::take_in(setup, &plan, target).await?;
            print_stored(&setup.topics);
            report
        }
    };
    if report.counts.arrived == 0 {
        return Err(report.reason.unwrap_or_else(|| take_in::NOT_TAKEN.to_owned()));
    }
    Ok(report)
}

fn print_stored(topics: &[TopicName]) {
    let [topic, others @ ..] = topics else { return };
    let others = if others.is_empty() { "" } else { ", and likewise for each other topic" };
    print_line(&format!(
        "bench: the stored tasks are due in two to four hours; `punctual cancel --topic {topic} \
         --yes` cancels them{others}"
    ));
}

fn submit_plan(args: &SubmitBenchArgs) -> SubmitPlan {
    SubmitPlan {
        connections: usize::from(args.connections),
        call: args.batch.saturating_as(),
        rate: args.rate,
        measured: args.measured,
        warm_up: args.warmup,
    }
}

fn finish_plan(args: &FinishBenchArgs) -> FinishPlan {
    FinishPlan {
        count: args.count.saturating_as(),
        warm_up: args.warmup.saturating_as(),
        connections: usize::from(args.connections),
        call: args.batch.saturating_as(),
        rate: args.rate,
    }
}

fn tracked_plan(args: &TrackedBenchArgs) -> TrackedPlan {
    let tracking = TrackedLoad { ttr: args.tracked.ttr, backoff: args.backoff };
    TrackedPlan {
        steady: steady("tracked", &args.tracked.steady, args.tracked.measured),
        tracking: (!args.untracked).then_some(tracking),
        consumers: usize::from(args.consumers),
        work: args.work,
        unfinished_percent: u64::from(args.unfinished),
    }
}

/// The group is new: it reads the topic from its first record on.
fn pop_plan(args: &PopBenchArgs, topic: TopicName) -> WithoutKafkaPlan {
    let group = format!("punctual-bench-{:08x}", rand::random::<u32>());
    let (pollers, max) = (usize::from(args.pollers), args.max);
    let consumers = ConsumersPlan::Pop(PollersPlan { topic, group, pollers, max });
    without_kafka_plan("pop", &args.tracked, consumers)
}

fn callback_plan(args: &CallbackBenchArgs, topic: TopicName) -> WithoutKafkaPlan {
    let (listen, concurrency, ttr) = (args.listen, args.concurrency, args.tracked.ttr);
    let consumers = ConsumersPlan::Callback(ServicePlan { topic, listen, concurrency, ttr });
    without_kafka_plan("callback", &args.tracked, consumers)
}

fn drain_plan(args: &Drain) -> DrainPlan {
    let order = drain::Order::Random;
    DrainPlan { count: u64::from(args.count), lead: args.lead, spread: args.spread, order }
}

fn resume_plan(args: &ResumeBenchArgs) -> ResumePlan {
    ResumePlan {
        paused_topic: args.paused_topic.clone(),
        count: u64::from(args.count),
        pause: args.pause,
        steady: steady("resume", &args.steady, args.measured),
    }
}

fn spread_plan(args: &SpreadBenchArgs, topic: TopicName) -> SpreadPlan {
    SpreadPlan { topic, count: u64::from(args.count), lead: args.lead, spread: args.spread }
}

fn schedules_plan(args: &SchedulesBenchArgs, topic: TopicName) -> SchedulesPlan {
    SchedulesPlan {
        topic,
        count: u64::from(args.count),
        others: u64::from(args.others),
        every: args.every,
        is_together: args.together,
        measured: args.measured,
        warm_up: args.warmup,
    }
}

fn without_kafka_plan(
    scenario: &'static str,
    tracked: &TrackedSteady,
    consumers: ConsumersPlan,
) -> WithoutKafkaPlan {
    let steady = steady(scenario, &tracked.steady, tracked.measured);
    WithoutKafkaPlan { steady, ttr: tracked.ttr, consumers }
}

fn steady(scenario: &'static str, args: &Steady, measured: Duration) -> LatenessPlan {
    LatenessPlan {
        scenario,
        rate: args.rate,
        measured,
        warm_up: args.warmup,
        ahead: args.ahead_min..args.ahead_max,
        call_max: args.batch,
        connections: usize::from(args.connections),
        pending: args.pending,
    }
}

async fn hold_snapshot(url: &str) -> Result<OldSnapshot, String> {
    let settings =
        PostgresSettings::new(url).map_err(|wrong| format!("--hold-snapshot: {wrong}"))?;
    OldSnapshot::hold(&settings).await.map_err(|error| chain(&error))
}

/// Returns the Kafka settings for a consumer. The remaining settings apply only to producers.
pub fn kafka_settings(bootstrap: &str, properties: Vec<(String, String)>) -> KafkaSettings {
    KafkaSettings {
        bootstrap: bootstrap.to_owned(),
        properties: properties.into(),
        client_id: "punctual-bench".to_owned(),
        linger: Duration::from_micros(500),
        publish_deadline: Duration::from_secs(30),
        producers: NonZeroUsize::MIN,
        records_in_flight_max: 120_000,
        bytes_in_flight_max: 512 << 20,
    }
}

fn setup_of(
    common: &Common,
    topics: Vec<TopicName>,
    kafka_properties: Vec<(String, String)>,
) -> Setup {
    let settings = [
        ("payload bytes", common.payload_bytes.to_string()),
        ("nodes", common.urls.len().to_string()),
        ("topics", common.topics.to_string()),
    ];
    Setup {
        topics,
        kafka: kafka_settings(&common.kafka, kafka_properties),
        watched: common.pids.clone(),
        settings: settings
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect::<BTreeMap<_, _>>(),
    }
}

fn tell(report: &BenchReport, common: &Common) -> Result<(), String> {
    let printed = writeln!(std::io::stdout(), "{}", report.table());
    printed.map_err(|error| format!("cannot print the report: {error}"))?;
    if let Some(path) = &common.json {
        let text = serde_json::to_string_pretty(report)
            .map_err(|error| format!("cannot write the report as JSON: {error}"))?;
        write(path, &text)?;
    }
    if let Some(path) = &common.svg {
        match svg::of_report(report) {
            Some(picture) => write(path, &picture)?,
            None => print_line("bench: there is no distribution to draw"),
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("write {}: {error}", path.display()))
}
