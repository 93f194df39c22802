//! Runs one scenario against one contender.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use punctual::bench::load::http::Trust;
use punctual::bench::load::intake::LoadTarget;
use punctual::bench::load::record::Records;
use punctual::bench::load::rest::{RestTarget, WrittenDue};
use punctual::bench::nodes;
use punctual::bench::results::report::BenchReport;
use punctual::bench::run::{Setup, fill};
use punctual::bench::scenarios::drain::Order;
use punctual::bench::scenarios::{
    burst::{self, BurstPlan},
    drain::{self, DrainPlan},
    immediate::{self, ImmediatePlan},
    lateness::{self, LatenessPlan},
    submit::{self, SubmitPlan},
};
use punctual::bench::{cpu::CpuSample, kafka_settings};
use punctual::domain::TopicName;
use punctual::postgres::PostgresSettings;
use punctual::postgres::connection::OldSnapshot;
use punctual::shutdown::TaskFailure;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::contender::{Door, Running, Who, bench, free_address, may_call, open_door, words};
use crate::intakes::{FloorIntake, PollerIntake};
use crate::observer::Observer;
use crate::plan::{
    self, Cell, Consumers, Inbound, InboundPace, Job, Resume, Schedules, Size, Steady, Tracked,
    WithoutKafka,
};
use crate::results::{Results, short};
use crate::servers::{
    COMMIT, KAFKA, MACHINE, Place, Servers, WRITE_BACK, commit, machine, write_back,
};
use crate::{retry_topics, take_over};

const PAYLOAD_BYTES: usize = 256;
const CONNECTIONS: usize = 8;
/// Maximum number of warm-up rounds of 25 s. A broker that was just started took 5.4, 9.3, 4.5 and
/// 4.3 us of CPU per task in the first four (2 cores, 2026-11-23).
const WARM_UP_ROUNDS_MAX: u32 = 6;
const WARM_WITHIN: f64 = 0.15;

/// Measures every scenario and contender with no result yet.
pub async fn all(
    servers: &Servers,
    results: &Results,
    size: Size,
    only: &[String],
    again: bool,
) -> Result<(), TaskFailure> {
    let begun_at = Instant::now();
    let cells = plan::cells(size);
    if let Some(unknown) = only.iter().find(|name| !cells.iter().any(|cell| cell.name == *name)) {
        let names: Vec<&str> = cells.iter().map(|cell| cell.name).collect();
        return Err(
            format!("there is no scenario {unknown}; there are {}", names.join(", ")).into()
        );
    }
    let cells: Vec<Cell> = cells
        .into_iter()
        .filter(|cell| only.is_empty() || only.iter().any(|name| name == cell.name))
        .collect();
    let mut is_warm = size == Size::Tiny;
    let commit = commit();
    for cell in &cells {
        println!("\n== {}: {}", cell.name, cell.title);
        for who in &cell.contenders {
            if !again && results.load(cell.name, *who)?.is_some() {
                println!("   {}: measured before", who.label());
                continue;
            }
            if !is_warm {
                warm_up(servers, results, size).await?;
                is_warm = true;
            }
            let started_at = Instant::now();
            let mut report = one(servers, results, size, cell, *who)
                .await
                .map_err(|failure| format!("{}, {}: {failure}", cell.name, who.label()))?;
            report.settings.insert(WRITE_BACK.to_owned(), write_back());
            report.settings.insert(COMMIT.to_owned(), commit.clone());
            report.settings.insert(MACHINE.to_owned(), machine());
            results.store(cell.name, *who, &report)?;
            println!(
                "   {}: {} ({:.0} s)",
                who.label(),
                short(&report),
                started_at.elapsed().as_secs_f64()
            );
        }
    }
    println!("\nmeasured in {:.1} minutes", begun_at.elapsed().as_secs_f64() / 60.0);
    Ok(())
}

/// Publishes without measuring until two rounds in a row cost the broker about the same. Its JVM
/// compiles hot code, and costs more until it has finished.
async fn warm_up(servers: &Servers, results: &Results, size: Size) -> Result<(), TaskFailure> {
    let mut before = f64::INFINITY;
    for round in 1..=WARM_UP_ROUNDS_MAX {
        println!(
            "   warming up the servers, which is not measured: round {round}, {WARM_UP_ROUNDS_MAX} \
             at most"
        );
        let report = one(servers, results, size, &plan::warm_up_cell(), Who::FloorInOrder).await?;
        let broker = report
            .usage
            .iter()
            .find(|usage| usage.name == KAFKA)
            .ok_or("nobody looked at the broker")?;
        println!("   the broker took {:.1} us of CPU per task", broker.us_per_task);
        if (broker.us_per_task / before - 1.0).abs() < WARM_WITHIN {
            break;
        }
        before = broker.us_per_task;
    }
    Ok(())
}

async fn one(
    servers: &Servers,
    results: &Results,
    size: Size,
    cell: &Cell,
    who: Who,
) -> Result<BenchReport, TaskFailure> {
    if let Job::TakeOver { rounds, is_kill } = cell.job {
        return take_over::rounds(servers, rounds, is_kill).await;
    }
    let place = servers.place(cell.topics, cell.partitions).await?;
    let has_short_leaves =
        matches!(cell.job, Job::Steady(Steady { is_soak: true, .. }) | Job::Resume(_));
    let cluster: &[&str] =
        if has_short_leaves { &["--leaf", "2m", "--horizon", "1h"] } else { &[] };
    let service = free_address().await?;
    let flags = match &cell.job {
        Job::Inbound(inbound) => open_door(servers, &place, cell.partitions, inbound.door).await?,
        Job::WithoutKafka(_) => may_call(servers, service)?,
        _ => Vec::new(),
    };
    let mut running = Running::prepare(servers, &place, who, cluster, &flags).await?;
    running.spawn()?;
    running.ready().await?;
    let run = One { servers, results, place: &place, cell, who, size, service };
    let observer = run.observer(&running);
    let mut outcome =
        if who.is_ours() { run.ours(&mut running).await } else { run.theirs(&mut running).await };
    if let (Ok(report), Some((observer, lead, measured))) = (&mut outcome, observer) {
        observer.end(report, lead, measured).await?;
    }
    running.end().await?;
    servers.forget(&place).await?;
    outcome
}

struct One<'a> {
    servers: &'a Servers,
    results: &'a Results,
    place: &'a Place,
    cell: &'a Cell,
    who: Who,
    size: Size,
    /// The address of a service that callbacks call.
    service: SocketAddr,
}

impl One<'_> {
    /// Returns an observer of Postgres and of the claims for a long run. Also returns the start and
    /// the length of the measurement.
    fn observer(&self, running: &Running) -> Option<(Observer, Duration, Duration)> {
        let Job::Steady(steady) = self.cell.job else { return None };
        let observer =
            || Observer::start(&self.place.url, running.urls.first().map(String::as_str));
        let lead = Duration::from_secs(steady.ahead.1) + plan::warm_up(self.size);
        (steady.is_held || steady.is_soak)
            .then(|| (observer(), lead, Duration::from_secs(steady.seconds)))
    }

    /// Measures Punctual with the subcommand `bench`, as any user would.
    async fn ours(&self, running: &mut Running) -> Result<BenchReport, TaskFailure> {
        let json = self.servers.folder.join(format!("{}.json", self.place.name));
        let arguments = match &self.cell.job {
            Job::Drain { count, lead, spread } => words(
                &[("--count", count), ("--lead", &secs(*lead)), ("--spread", &secs(*spread))],
                "drain",
            ),
            Job::Burst { count, lead } => {
                words(&[("--count", count), ("--lead", &secs(*lead))], "burst")
            }
            Job::Steady(steady) => self.steady_words(steady),
            Job::Submit { call, connections, seconds, at_half, .. } => {
                let mut words = words(
                    &[
                        ("--connections", connections),
                        ("--batch", call),
                        ("--for", &secs(*seconds)),
                        ("--warmup", &self.warm_up()),
                    ],
                    "submit",
                );
                if *at_half {
                    words.extend(["--rate".to_owned(), self.half_of("submit-one")?.to_string()]);
                }
                words
            }
            Job::Cancel { count } => {
                words(&[("--count", count), ("--warmup", &(count / 10))], "cancel")
            }
            Job::Finish { count, call, connections, at_half } => {
                let mut words = words(
                    &[
                        ("--count", count),
                        ("--warmup", &(count / 10)),
                        ("--batch", call),
                        ("--connections", connections),
                    ],
                    "finish",
                );
                if *at_half {
                    words.extend(["--rate".to_owned(), self.half_of("finish")?.to_string()]);
                }
                words
            }
            Job::Tracked(tracked) => self.tracked_words(tracked),
            Job::WithoutKafka(consumers) => self.without_kafka_words(consumers),
            Job::Immediate { rate, seconds } => words(
                &[("--rate", rate), ("--for", &secs(*seconds)), ("--warmup", &self.warm_up())],
                "immediate",
            ),
            Job::Inbound(inbound) => self.inbound_words(inbound),
            Job::Resume(resume) => self.resume_words(resume).await?,
            Job::Spread { count, lead, spread } => words(
                &[("--count", count), ("--lead", &secs(*lead)), ("--spread", &secs(*spread))],
                "spread",
            ),
            Job::Schedules(schedules) => self.schedules_words(schedules),
            Job::Idle { pending, seconds } => {
                let rest = RestTarget::new(
                    &running.urls,
                    Trust::new(None)?,
                    self.place.topics.clone(),
                    Records::new(PAYLOAD_BYTES),
                    WrittenDue::At,
                );
                return self.idle(running, &rest, *pending, *seconds).await;
            }
            Job::TakeOver { .. } => return Err("a take-over is measured elsewhere".into()),
        };
        let neighbour = self.begin_burst(running).await?;
        let mut bench = bench(self.servers, running, &self.place.topic);
        bench.args(arguments).arg("--json").arg(&json);
        let mut child = bench.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().ok_or("no stderr")?).lines();
        let mut last = String::new();
        while let Some(line) = lines.next_line().await? {
            if line == nodes::STOP {
                running.end().await?;
            } else if line == nodes::START {
                running.spawn()?;
            } else {
                println!("   {line}");
            }
            last = line;
        }
        let status = child.wait().await?;
        if let Some(mut neighbour) = neighbour {
            neighbour.wait().await?;
        }
        if !json.exists() {
            return Err(format!("punctual bench ended with {status}: {last}").into());
        }
        let report = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
        std::fs::remove_file(json)?;
        Ok(report)
    }

    fn steady_words(&self, steady: &Steady) -> Vec<String> {
        let scenario = if steady.is_held || steady.is_soak { lateness::SOAK } else { "lateness" };
        let mut words = words(
            &[
                ("--topics", &self.cell.topics),
                ("--rate", &steady.rate),
                ("--for", &secs(steady.seconds)),
                ("--ahead-min", &secs(steady.ahead.0)),
                ("--ahead-max", &secs(steady.ahead.1)),
                ("--pending", &steady.pending),
                ("--warmup", &self.warm_up()),
            ],
            scenario,
        );
        if steady.is_held {
            words.extend(["--hold-snapshot".to_owned(), self.place.url.clone()]);
        }
        words
    }

    async fn resume_words(&self, resume: &Resume) -> Result<Vec<String>, TaskFailure> {
        let paused = format!("{}-paused", self.place.topic);
        self.servers.topic(&paused, self.cell.partitions).await?;
        Ok(words(
            &[
                ("--rate", &resume.rate),
                ("--for", &secs(resume.seconds)),
                ("--warmup", &self.warm_up()),
                ("--paused-topic", &paused),
                ("--count", &resume.count),
                ("--pause", &secs(resume.pause)),
            ],
            "resume",
        ))
    }

    fn schedules_words(&self, plan: &Schedules) -> Vec<String> {
        let mut words = words(
            &[
                ("--count", &plan.count),
                ("--every", &secs(plan.every)),
                ("--others", &plan.others),
                ("--for", &secs(plan.seconds)),
                ("--warmup", &self.warm_up()),
            ],
            "schedules",
        );
        if plan.is_together {
            words.push("--together".to_owned());
        }
        words
    }

    fn tracked_words(&self, tracked: &Tracked) -> Vec<String> {
        let mut words = words(
            &[
                ("--rate", &tracked.rate),
                ("--for", &secs(tracked.seconds)),
                ("--pending", &tracked.pending),
                ("--warmup", &self.warm_up()),
                ("--ttr", &secs(Tracked::TTR.as_secs())),
                ("--backoff", &secs(Tracked::BACKOFF.as_secs())),
            ],
            "tracked",
        );
        if tracked.is_tracked {
            words.extend(["--unfinished".to_owned(), tracked.unfinished.to_string()]);
        } else {
            words.push("--untracked".to_owned());
        }
        words
    }

    fn without_kafka_words(&self, plan: &WithoutKafka) -> Vec<String> {
        let (scenario, flag, value) = match plan.consumers {
            Consumers::Pop(pollers) => ("pop", "--pollers", pollers.to_string()),
            Consumers::Callback => ("callback", "--listen", self.service.to_string()),
        };
        words(
            &[
                ("--rate", &plan.rate),
                ("--for", &secs(plan.seconds)),
                ("--warmup", &self.warm_up()),
                (flag, &value),
            ],
            scenario,
        )
    }

    fn inbound_words(&self, inbound: &Inbound) -> Vec<String> {
        let mut words = match inbound.door {
            Door::Outbox => words(&[("--database-url", &self.place.shop_url)], "outbox"),
            Door::Intake => words(&[("--intake", &self.place.intake())], "intake"),
        };
        let more: [(&str, String); 2] = match inbound.pace {
            InboundPace::Rate { rate, seconds } => {
                words.extend(["--rate".to_owned(), rate.to_string()]);
                [("--for", secs(seconds)), ("--warmup", self.warm_up())]
            }
            InboundPace::Full { count, call } => {
                [("--count", count.to_string()), ("--batch", call.to_string())]
            }
        };
        words.extend(more.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        if inbound.is_held {
            words.push("--hold-snapshot".to_owned());
        }
        words
    }

    /// Starts a burst on another topic, due while this one is measured.
    async fn begin_burst(
        &self,
        running: &Running,
    ) -> Result<Option<tokio::process::Child>, TaskFailure> {
        let Job::Steady(Steady { burst: count @ 1.., seconds, ahead, .. }) = self.cell.job else {
            return Ok(None);
        };
        let topic = format!("{}-burst", self.place.topic);
        self.servers.topic(&topic, self.cell.partitions).await?;
        let lead = ahead.1 + plan::warm_up(self.size).as_secs() + seconds / 2;
        let mut bench = bench(self.servers, running, &topic);
        bench.args(words(&[("--count", &count), ("--lead", &secs(lead))], "burst"));
        Ok(Some(bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    fn warm_up(&self) -> String {
        secs(plan::warm_up(self.size).as_secs())
    }

    /// Returns half of the rate that this contender reached in another scenario.
    fn half_of(&self, cell: &str) -> Result<u32, TaskFailure> {
        let report =
            self.results.load(cell, self.who)?.ok_or_else(|| format!("measure {cell} first"))?;
        Ok(format!("{:.0}", report.rate / 2.0).parse()?)
    }

    /// Runs the same scenarios with another intake.
    async fn theirs(&self, running: &mut Running) -> Result<BenchReport, TaskFailure> {
        let records = Records::new(PAYLOAD_BYTES);
        let (url, topic) = (self.place.url.clone(), self.place.topic.clone());
        match self.who {
            Who::RetryTopics => {
                let Job::Tracked(tracked) = &self.cell.job else {
                    return Err("retry topics only retry".into());
                };
                let run = (self.cell.partitions, plan::warm_up(self.size));
                retry_topics::measure(self.servers, self.place, tracked, run).await
            }
            Who::Poller(_) | Who::FourPollers(_) => {
                Box::pin(self.by(running, &PollerIntake { url, topic, records })).await
            }
            _ => {
                let topic = TopicName::new(&topic)?;
                Box::pin(self.by(running, &FloorIntake { url, topic, records })).await
            }
        }
    }

    async fn by<I: LoadTarget>(
        &self,
        running: &mut Running,
        intake: &I,
    ) -> Result<BenchReport, TaskFailure> {
        let setup = Setup {
            topics: self.place.topics.clone(),
            kafka: kafka_settings(&self.servers.kafka, Vec::new()),
            watched: running.watched().to_vec(),
            settings: Default::default(),
        };
        let (span, warm_up) = (Duration::from_secs, plan::warm_up(self.size));
        let report = match &self.cell.job {
            Job::Drain { count, lead, spread } => {
                let order = if self.who == Who::FloorInOrder { Order::Due } else { Order::Random };
                let plan = DrainPlan {
                    count: u64::from(*count),
                    lead: span(*lead),
                    spread: span(*spread),
                    order,
                };
                drain::drain(&setup, &plan, intake, running).await?
            }
            Job::Burst { count, lead } => {
                burst::burst(
                    &setup,
                    &BurstPlan { count: u64::from(*count), lead: span(*lead) },
                    intake,
                )
                .await?
            }
            Job::Steady(steady) => {
                let held = match steady.is_held {
                    true => {
                        Some(OldSnapshot::hold(&PostgresSettings::new(&self.place.url)?).await?)
                    }
                    false => None,
                };
                let report =
                    lateness::lateness(&setup, &steady_plan(steady, warm_up), intake).await?;
                drop(held);
                report
            }
            Job::Submit { call, poller_call, poller_connections, seconds, .. } => {
                let (call, connections) = if self.who == Who::Floor {
                    (call, &1)
                } else {
                    (poller_call, poller_connections)
                };
                let plan = SubmitPlan {
                    connections: *connections,
                    call: *call,
                    rate: None,
                    measured: span(*seconds),
                    warm_up,
                };
                submit::submit(&setup, &plan, intake).await?
            }
            Job::Immediate { rate, seconds } => {
                let (scenario, measured) = ("immediate", span(*seconds));
                let plan =
                    ImmediatePlan { scenario, rate: *rate, connections: 16, measured, warm_up };
                immediate::immediate(&setup, &plan, intake).await?
            }
            Job::Idle { pending, seconds } => {
                self.idle(running, intake, *pending, *seconds).await?
            }
            Job::Cancel { .. }
            | Job::Finish { .. }
            | Job::Tracked(_)
            | Job::WithoutKafka(_)
            | Job::Inbound(_)
            | Job::Resume(_)
            | Job::Spread { .. }
            | Job::Schedules(_)
            | Job::TakeOver { .. } => {
                return Err("only Punctual can do that".into());
            }
        };
        Ok(report)
    }

    /// Measures the cost of an idle contender.
    async fn idle<I: LoadTarget>(
        &self,
        running: &Running,
        intake: &I,
        pending: u64,
        seconds: u64,
    ) -> Result<BenchReport, TaskFailure> {
        fill(intake, pending, Duration::from_secs(7_200)..Duration::from_secs(93_600)).await?;
        // The load has after-effects (a checkpoint's writes, the vacuum of the loaded rows) that
        // would distort the idle cost.
        tokio::time::sleep(plan::warm_up(self.size)).await;
        let before = CpuSample::take(running.watched());
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let after = CpuSample::take(running.watched());
        let usage = after.since(&before, running.watched(), 0, Duration::from_secs(seconds));
        let settings =
            [("pending".to_owned(), pending.to_string()), ("measured".to_owned(), secs(seconds))];
        Ok(BenchReport {
            scenario: "idle".to_owned(),
            usage,
            settings: settings.into(),
            ..BenchReport::default()
        })
    }
}

fn steady_plan(steady: &Steady, warm_up: Duration) -> LatenessPlan {
    let span = Duration::from_secs;
    LatenessPlan {
        scenario: if steady.is_held || steady.is_soak { lateness::SOAK } else { "lateness" },
        rate: steady.rate,
        measured: span(steady.seconds),
        warm_up,
        ahead: span(steady.ahead.0)..span(steady.ahead.1),
        call_max: 100,
        connections: CONNECTIONS,
        pending: steady.pending,
    }
}

fn secs(seconds: u64) -> String {
    format!("{seconds}s")
}
