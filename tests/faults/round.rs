//! One round: a cluster, traffic on it, a plan carried out, and the oracle's judgement.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uuid::Uuid;

use super::caller::Caller;
use super::consumers::Consumers;
use super::door_history::Doors;
use super::field::{Field, Setup};
use super::history::{History, Line, Span, Topic};
use super::oracle::{self, Judgement, Rule, Violation};
use super::perform::{perform, resume_topic};
use super::plan::{COMPLETE_FROM_SECONDS, Plan};
use super::services;
use super::stalls::Stalls;
use super::traffic::{self, Ledger, Load};
use super::without_kafka::WithoutKafka;
use crate::support::wait::look_for;
use crate::support::{OwnStack, now_ms, wait};

/// How long the end of all tasks may take after the last fault. A deferred task is published after
/// up to a minute.
const DRAIN_DEADLINE: Duration = Duration::from_secs(240);
/// A node publishes and settles its in-flight tasks before it ends.
const END_DEADLINE: Duration = Duration::from_secs(120);
/// Tasks that were due this shortly before the end may not have been claimed yet.
const CLAIM_MS: i64 = 1000;
/// A record in a topic reaches the consumer a moment later.
const ARRIVAL_DEADLINE: Duration = Duration::from_secs(60);
const PROGRESS_EVERY_MS: i64 = 5000;
const UNABLE_EVERY_MS: i64 = 100;

/// A finished round.
pub struct Round {
    pub plan: Plan,
    pub history: History,
    pub judgement: Judgement,
    /// The folder with the logs of the nodes and the history.
    pub folder: PathBuf,
    pub took: Duration,
    /// The time from the end of the traffic until all tasks had ended.
    pub drained_after: Option<Duration>,
}

/// Runs a plan against a new cluster.
pub async fn run(own: &Arc<OwnStack>, setup: &Setup, plan: Plan) -> Round {
    let began = now_ms();
    let folder = folder_of(&setup.name);
    let field = Arc::new(Field::prepare(Arc::clone(own), setup, folder.clone()).await);
    println!("  a cluster of {} nodes is ready ({} ms)", field.slots.len(), now_ms() - began);
    let caller = Caller::new(&field.slots, field.access.as_ref().map(|access| access.owner()));
    let (ledger, started_at) = (Arc::new(Ledger::default()), now_ms());
    let load = Load {
        seed: plan.seed,
        tasks_per_second: setup.tasks_per_second,
        until: started_at + i64::try_from(plan.seconds).unwrap() * 1000,
        is_over: Arc::default(),
        topics: field.topics().into_iter().map(|topic| topic.name).collect(),
        tracked_percent: setup.tracked_percent,
        is_varied: setup.is_varied,
        clock: Arc::clone(&field.postgres_clock),
    };
    let mut clients = traffic::start(&load, &caller, &ledger);
    clients.extend(field.access.iter().flat_map(|access| access.start(&load, &caller, &ledger)));
    if let Some(doors) = &field.doors {
        clients.extend(doors.start(&field, &load, &ledger));
    }
    let consumers = Consumers::start(&field, &load, &caller, &ledger);
    let without_kafka = match &field.services {
        Some(services) => {
            let clients = (&load, &caller, &ledger);
            Some(WithoutKafka::start(&field, services, clients, consumers.consumer()).await)
        }
        None => None,
    };
    let progress = tokio::spawn(show_progress(Arc::clone(&field), Arc::clone(&ledger), started_at));
    let say = move |span: &Span| {
        println!(
            "  {:6.1} s  {} (took {} ms)",
            seconds(span.begin - started_at),
            span.operation,
            span.end - span.begin
        );
    };
    let unable = tokio::spawn(watch_unable(Arc::clone(&field)));
    let stalls = Stalls::watch(&field).await;
    let mut spans = perform(&field, &plan, started_at, say).await;
    wait::until(load.until).await;
    load.is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a client goes on to its end");
    }
    let traffic_ended_at = now_ms();
    let unready = field.unready().await;
    caller.wait_idle().await;
    if let Some(doors) = &field.doors {
        doors.finish(&field, &load, &ledger).await;
    }
    if setup.is_varied {
        resume_topic(&field).await;
    }
    let undelivered = match without_kafka {
        Some(without_kafka) => without_kafka.stop().await,
        None => None,
    };
    let undone = drain(&field, now_ms()).await;
    consumers.stop().await;
    progress.abort();
    unable.abort();
    let stalls = stalls.stop(&spans).await;
    stalls.iter().for_each(say);
    spans.extend(stalls);
    // No task may change while the history is written down. Far tasks may be due at any moment.
    // Tasks due from now on may be published or wait.
    let ended_at = now_ms() - CLAIM_MS;
    for slot in &field.slots {
        slot.end(END_DEADLINE).await;
    }
    let drained_after = undone.is_none().then(|| duration(now_ms() - traffic_ended_at));
    let mut history = write_down(&field, &ledger, spans, (started_at, ended_at)).await;
    if let Some(doors) = &field.doors {
        doors.add_to(&mut history).await;
    }
    if setup.is_varied {
        history.calls.extend(services::failures(&field));
    }
    let mut judgement =
        oracle::judge(&history, setup.is_deck && plan.seconds >= COMPLETE_FROM_SECONDS);
    judgement.violations.extend(undone.map(|what| Violation {
        rule: Rule::Lost,
        task: None,
        what,
    }));
    judgement.violations.extend(unready.into_iter().chain(undelivered).map(broken));
    judgement.violations.extend(broken_nodes(&field).await);
    if let Some(access) = &field.access {
        println!("  {}", access.figures());
        judgement.violations.extend(access.judge(&history.submits, &history.spans));
    }
    judgement.violations.sort_by_key(|violation| violation.rule);
    Round { plan, history, judgement, folder, took: duration(now_ms() - began), drained_after }
}

/// Returns an empty folder for the logs of a round.
pub fn folder_of(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults").join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("remove what an earlier run has left");
    }
    std::fs::create_dir_all(&folder).expect("make a folder for the logs");
    folder
}

pub fn seconds(millis: i64) -> f64 {
    millis as f64 / 1000.0
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

async fn show_progress(field: Arc<Field>, ledger: Arc<Ledger>, started_at: i64) {
    for count in 1.. {
        wait::until(started_at + count * PROGRESS_EVERY_MS).await;
        let (submits, cancels) =
            (ledger.submits.lock().unwrap().len(), ledger.cancels.lock().unwrap().len());
        let records = field.record_count();
        println!(
            "  {:6.1} s  {submits} submits and {cancels} cancels answered, {records} records",
            seconds(now_ms() - started_at)
        );
    }
}

/// Records when each node first reported that it cannot publish.
async fn watch_unable(field: Arc<Field>) {
    for count in 0.. {
        wait::until(now_ms() + UNABLE_EVERY_MS).await;
        let query =
            "select name from heartbeat where not can_publish and not has_left and not dead";
        // Postgres may be down at this moment.
        let names: Vec<String> =
            sqlx::query_scalar(query).fetch_all(&field.cluster.sql).await.unwrap_or_default();
        let now = now_ms();
        let mut unable = field.unable.lock().unwrap();
        for name in names {
            // A starting node has not reported anything yet.
            let is_known = unable.iter().any(|(known, _)| *known == name);
            if count > 20 && !is_known {
                unable.push((name, now));
            }
        }
    }
}

/// Waits until all tasks due by the end of the traffic have ended. Returns a message about those
/// that have not.
async fn drain(field: &Field, ended_at: i64) -> Option<String> {
    let mut last = String::new();
    let drained = look_for(DRAIN_DEADLINE, async || {
        match field.undone(ended_at + 2000 + field.postgres_clock.offset_ms()).await {
            Ok((0, 0)) => Some(()),
            Ok((waiting, batches)) => {
                last = format!(
                    "{waiting} tasks wait and {batches} batches are not settled {DRAIN_DEADLINE:?} \
                     after the end"
                );
                None
            }
            Err(error) => {
                last = format!("what is undone was not answered: {error}");
                None
            }
        }
    });
    if drained.await.is_some() { None } else { Some(last) }
}

/// Collects everything that the oracle needs.
async fn write_down(
    field: &Field,
    ledger: &Ledger,
    spans: Vec<Span>,
    (started_at, ended_at): (i64, i64),
) -> History {
    let lines = field.lines().await;
    let topics = field.topics();
    let mut wanted: Vec<(usize, i32, i64)> = lines
        .iter()
        .filter_map(|line| {
            let topic = topics.iter().position(|topic| Some(&topic.name) == line.topic.as_ref())?;
            let is_excused =
                line.published_at.is_none_or(|at| topics[topic].may_be_unread(at, &spans));
            let (partition, offset) = line.position.filter(|_| !is_excused)?;
            Some((topic, partition, offset))
        })
        .collect();
    wanted.extend(dead_records(ledger, &lines, &topics));
    // If a record is missing, the oracle reports it.
    let _arrived = look_for(ARRIVAL_DEADLINE, async || {
        let positions: HashSet<_> = field.positions();
        wanted.iter().all(|position| positions.contains(position)).then_some(())
    })
    .await;
    let pending = field.pending().await.into_iter().collect();
    let runs = field.runs().await;
    field
        .postgres_clock
        .note_reading(&field.cluster.sql)
        .await
        .expect("Postgres says what its clock shows");
    History {
        submits: std::mem::take(&mut ledger.submits.lock().unwrap()),
        cancels: std::mem::take(&mut ledger.cancels.lock().unwrap()),
        moves: std::mem::take(&mut ledger.moves.lock().unwrap()),
        commands: std::mem::take(&mut ledger.commands.lock().unwrap()),
        runs,
        calls: std::mem::take(&mut ledger.calls.lock().unwrap()),
        delivered: std::mem::take(&mut ledger.delivered.lock().unwrap()),
        doors: Doors::default(),
        records: field.arrivals(),
        lines,
        pending,
        spans,
        topics,
        clock: field.postgres_clock.done(),
        oddities: std::mem::take(&mut ledger.oddities.lock().unwrap()),
        unable: std::mem::take(&mut field.unable.lock().unwrap()),
        started_at,
        ended_at,
    }
}

/// Returns the places of the records of dead tasks, in dead topics that were not deleted.
fn dead_records(ledger: &Ledger, lines: &[Line], topics: &[Topic]) -> Vec<(usize, i32, i64)> {
    let submits = ledger.submits.lock().unwrap();
    let dead_topics: HashMap<Uuid, usize> = submits
        .iter()
        .filter_map(|submit| Some((submit.accepted()?, submit.tracked?.dead_topic?)))
        .filter(|(_, topic)| topics[*topic].absences.is_empty())
        .collect();
    lines
        .iter()
        .filter(|line| line.is_exhausted())
        .filter_map(|line| {
            let (partition, offset) = line.position?;
            Some((*dead_topics.get(&line.id)?, partition, offset))
        })
        .collect()
}

fn broken(what: String) -> Violation {
    Violation { rule: Rule::BrokenNode, task: None, what }
}

/// Returns nodes that ended without being killed, and panics in their logs.
async fn broken_nodes(field: &Field) -> Vec<Violation> {
    let mut violations = Vec::new();
    for slot in &field.slots {
        violations.extend(slot.ended_by_themselves().await.into_iter().map(broken));
    }
    for entry in std::fs::read_dir(&field.folder)
        .expect("read the folder of the logs")
        .filter_map(Result::ok)
    {
        let log = std::fs::read(entry.path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let panics = log.lines().filter(|line| line.contains("panicked"));
        violations.extend(panics.map(|line| broken(format!("{}: {line}", entry.path().display()))));
    }
    violations
}
