//! Steady traffic on a cluster that is being broken: single and bulk submits, with and without
//! names, cancels and replacements, and beside it tracked tasks. The history records every request
//! and its answer.

mod movers;
mod schedulers;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::caller::{Answer, Caller, Refusal, Reply};
use super::clock_file::ClockFile;
use super::deliveries::Delivered;
use super::history::{
    BACKOFF_MAX_MS, Call, Cancel, DEAD, DELETED, LIMITED, Move, Outcome, PAUSED, STEADY, Submit,
    Target, Tracked, UNAVAILABLE, Verdict,
};
use super::schedule_history::Command;
use crate::support::ledger::SERIAL_HEADER;
use crate::support::{now_ms, wait};

const BATCH_EVERY_MS: i64 = 50;
const NAMED_CLIENTS: u64 = 8;
/// The number of the first client of tracked tasks with names.
const TRACKED_NAMES: u64 = 100;
/// The number of the first client of schedules.
const SCHEDULERS: u64 = 200;
/// Tracked tasks come until this long before the end of the traffic, and consumers then finish all
/// their tasks. So the run does not wait for retries.
const TRACKED_END_MS: i64 = 4000;
/// How often a submit with a name is retried while it has no answer.
const TRIES_MAX: usize = 4;
/// The number of accepted tasks among which cancels choose.
const RECENT_MAX: usize = 400;
/// Tasks for the far table are due this far ahead.
const FAR_MS: std::ops::Range<i64> = 150_000..400_000;
/// An expiry that no task reaches.
const LATE_EXPIRY_MS: i64 = 600_000;
/// No near task is due later than this after the end of the traffic.
const AFTER_END_MS: i64 = 1500;

/// The traffic to send.
#[derive(Clone, Debug)]
pub struct Load {
    pub seed: u64,
    pub tasks_per_second: u32,
    /// The planned end of the traffic.
    pub until: i64,
    /// Set when the traffic ends. It ends later than planned if the operations on the cluster take
    /// longer.
    pub is_over: Arc<AtomicBool>,
    pub topics: Vec<String>,
    /// Tracked tasks come on top of the others: this many for a hundred of them.
    pub tracked_percent: u32,
    /// There are expiries, moves, conditions and schedules. Without, each task takes its usual way.
    pub is_varied: bool,
    /// Postgres's clock, which due times refer to.
    pub clock: Arc<ClockFile>,
}

/// Requests and their answers.
#[derive(Debug, Default)]
pub struct Ledger {
    pub submits: Mutex<Vec<Submit>>,
    pub cancels: Mutex<Vec<Cancel>>,
    pub moves: Mutex<Vec<Move>>,
    pub calls: Mutex<Vec<Call>>,
    pub delivered: Mutex<Vec<Delivered>>,
    pub commands: Mutex<Vec<Command>>,
    pub oddities: Mutex<Vec<String>>,
    recent: Mutex<Vec<Uuid>>,
    /// Tasks to move, with their topics. Each is moved by one client.
    movable: Mutex<Vec<(Uuid, usize)>>,
    serial: AtomicU64,
}

/// A client of the traffic and its state.
struct Client {
    load: Load,
    caller: Caller,
    ledger: Arc<Ledger>,
    chance: StdRng,
    /// Its tasks are tracked.
    is_tracked: bool,
}

impl Load {
    /// Returns true shortly before the end of the traffic, and from then on.
    pub fn is_ending(&self) -> bool {
        now_ms() >= self.until - TRACKED_END_MS
    }
}

/// Starts all clients. They end with the traffic.
pub fn start(load: &Load, caller: &Caller, ledger: &Arc<Ledger>) -> Vec<JoinHandle<()>> {
    let client = |number: u64| Client {
        load: load.clone(),
        caller: caller.clone(),
        ledger: Arc::clone(ledger),
        chance: StdRng::seed_from_u64(load.seed.wrapping_mul(1_000_003).wrapping_add(number)),
        is_tracked: false,
    };
    let mut clients = vec![
        tokio::spawn(client(0).submit_batches()),
        tokio::spawn(client(1).submit_alone()),
        tokio::spawn(client(2).cancel()),
    ];
    if load.is_varied {
        clients.push(tokio::spawn(client(3).move_tasks()));
        clients.extend(schedulers::start(|number| client(SCHEDULERS + number)));
    }
    clients.extend(
        (0..NAMED_CLIENTS).map(|number| tokio::spawn(client(10 + number).use_names(number))),
    );
    if load.tracked_percent > 0 {
        let client = |number: u64| Client { is_tracked: true, ..client(number) };
        clients.push(tokio::spawn(client(TRACKED_NAMES).use_names(TRACKED_NAMES)));
        clients.push(tokio::spawn(client(TRACKED_NAMES + 1).submit_batches()));
        clients.push(tokio::spawn(client(TRACKED_NAMES + 2).submit_alone()));
    }
    clients
}

impl Client {
    fn is_over(&self) -> bool {
        self.is_tracked && self.load.is_ending() || self.load.is_over.load(Ordering::Relaxed)
    }

    /// Waits so `share` per cent of the rate in tasks is reached with `each` tasks at a time.
    async fn pace(&self, next: &mut i64, share: i64, each: i64) {
        let percent = if self.is_tracked { i64::from(self.load.tracked_percent) } else { 100 };
        let rate = i64::from(self.load.tasks_per_second) * share * percent / 100;
        *next += 100_000 * each / rate.max(1);
        // Missed requests are not made up for.
        *next = (*next).max(now_ms() - 1000);
        wait::until(*next).await;
    }

    async fn submit_batches(mut self) {
        let mut next = now_ms();
        let size = i64::from(self.load.tasks_per_second) * BATCH_EVERY_MS / 2000;
        while !self.is_over() {
            let size = self.chance.random_range(1..=(2 * size).max(1));
            self.pace(&mut next, 50, size).await;
            let tasks: Vec<(Submit, Value)> = (0..size).map(|_| self.task(None)).collect();
            self.dispatch(tasks, true);
        }
    }

    async fn submit_alone(mut self) {
        let mut next = now_ms();
        while !self.is_over() {
            self.pace(&mut next, 30, 1).await;
            let task = self.task(None);
            self.dispatch(vec![task], false);
        }
    }

    async fn cancel(mut self) {
        let mut next = now_ms();
        while !self.is_over() {
            self.pace(&mut next, 20, 1).await;
            let id = {
                let recent = self.ledger.recent.lock().unwrap();
                if recent.is_empty() {
                    None
                } else {
                    Some(recent[self.chance.random_range(0..recent.len())])
                }
            };
            let (Some(id), Some(seat)) = (id, self.caller.seat()) else { continue };
            let (caller, ledger) = (self.caller.clone(), Arc::clone(&self.ledger));
            tokio::spawn(async move {
                let reply =
                    caller.send(&seat, Method::DELETE, &format!("/v1/tasks/{id}"), None).await;
                ledger.note_cancel(seat.node, Target::Id(id), reply);
            });
        }
    }

    /// Uses one name after another, and sends one request after another for each. The answer to
    /// each request follows from the earlier ones.
    async fn use_names(mut self, number: u64) {
        let mut next = now_ms();
        let clients = if self.is_tracked { 1 } else { NAMED_CLIENTS };
        for count in 0.. {
            let name = format!("order-{number}-{count}");
            let (task, body) = self.task(Some(&name));
            let topic = task.topic;
            // The task that the name stands for, according to the answers so far.
            let mut stands: Option<Uuid> = None;
            for (method, share) in [
                (Method::POST, 100),
                (Method::POST, 20),
                (Method::PUT, 50),
                (Method::PUT, 30),
                (Method::DELETE, 40),
            ] {
                if self.is_over() {
                    return;
                }
                if self.chance.random_range(0..100) >= share {
                    continue;
                }
                self.pace(&mut next, 20, i64::try_from(clients).unwrap()).await;
                match method {
                    Method::POST => stands = self.post_named(&task, &body).await.or(stands),
                    Method::PUT => stands = self.put(topic, &name, stands).await,
                    _ => self.cancel_named(topic, &name).await,
                }
            }
        }
    }

    /// Submits a task with a name, and retries while there is no answer, which is the purpose of
    /// names. Returns the task that the name stands for.
    async fn post_named(&mut self, task: &Submit, body: &Value) -> Option<Uuid> {
        for _ in 0..TRIES_MAX {
            let seat = self.caller.seat()?;
            let (mut task, mut body) = (task.clone(), body.clone());
            self.ledger.number(&mut task, &mut body);
            let reply = self.caller.send(&seat, Method::POST, "/v1/tasks", Some(&body)).await;
            match self.ledger.note_submit(seat.node, task, reply) {
                Outcome::Accepted { id, .. } | Outcome::Known { id } => return Some(id),
                Outcome::Unknown { .. } if !self.is_over() => {}
                _ => return None,
            }
        }
        None
    }

    /// Replaces the task `stands`, and then mostly cancels that task by its id. The new task must
    /// stay.
    async fn put(&mut self, topic: usize, name: &str, stands: Option<Uuid>) -> Option<Uuid> {
        let (task, mut body) = self.task_of(topic, Some(name));
        let seat = self.caller.seat()?;
        let fields = body.as_object_mut().expect("a task is an object");
        fields.remove("topic");
        fields.remove("name");
        let (when, query) = self.condition();
        let path = format!("/v1/topics/{}/tasks/{name}{query}", self.load.topics[topic]);
        let task = Submit { is_put: true, when, ..task };
        let reply = self.caller.send(&seat, Method::PUT, &path, Some(&body)).await;
        match self.ledger.note_submit(seat.node, task, reply) {
            Outcome::Accepted { id, has_replaced, .. } => {
                if let Some(former) =
                    stands.filter(|_| has_replaced && self.chance.random_range(0..100) < 70)
                {
                    self.cancel_replaced(former).await;
                }
                Some(id)
            }
            Outcome::Known { id } | Outcome::TooLate { id } | Outcome::Kept { id } => Some(id),
            Outcome::Refused { .. } => stands,
            Outcome::Unknown { .. } | Outcome::Committed => None,
        }
    }

    async fn cancel_replaced(&mut self, id: Uuid) {
        let Some(seat) = self.caller.seat() else { return };
        let reply = self.caller.send(&seat, Method::DELETE, &format!("/v1/tasks/{id}"), None).await;
        self.ledger.note_cancel(seat.node, Target::Id(id), reply);
    }

    async fn cancel_named(&mut self, topic: usize, name: &str) {
        let Some(seat) = self.caller.seat() else { return };
        let path = format!("/v1/topics/{}/tasks/{name}", self.load.topics[topic]);
        let reply = self.caller.send(&seat, Method::DELETE, &path, None).await;
        self.ledger.note_cancel(seat.node, Target::Name(topic, name.to_owned()), reply);
    }

    fn task(&mut self, name: Option<&str>) -> (Submit, Value) {
        let topic = match self.chance.random_range(0..100) {
            _ if self.load.is_varied && self.chance.random_ratio(3, 20) => PAUSED,
            0..40 => STEADY,
            40..60 => UNAVAILABLE,
            60..80 => DELETED,
            _ => LIMITED,
        };
        self.task_of(topic, name)
    }

    fn task_of(&mut self, topic: usize, name: Option<&str>) -> (Submit, Value) {
        let now = now_ms();
        let end = self.load.until.max(now) + AFTER_END_MS;
        let due_at = match self.chance.random_range(0..100) {
            0..20 => now + self.chance.random_range(0..200),
            20..75 => now + self.chance.random_range(200..4000),
            75..96 => now + self.chance.random_range(4000..12_000),
            _ => now + self.chance.random_range(FAR_MS),
        };
        let due_at = if due_at > now + FAR_MS.start { due_at } else { due_at.min(end) }
            + self.load.clock.offset_ms();
        let length = if topic == LIMITED && self.chance.random_range(0..10) == 0 {
            3000
        } else {
            self.chance.random_range(10..300)
        };
        let key = (self.chance.random_range(0..10) > 0)
            .then(|| format!("key-{}", self.chance.random_range(0..100)));
        let text = format!("{:08x} {}", self.chance.random::<u32>(), "x".repeat(length));
        let mut submit = Submit {
            serial: 0,
            node: 0,
            sent_at: now,
            answered_at: now,
            topic,
            name: name.map(str::to_owned),
            is_put: false,
            when: None,
            due_at,
            key: key.clone(),
            payload_hash: xxh3_64(text.as_bytes()),
            size: text.len(),
            expires_at: None,
            tracked: None,
            outcome: Outcome::Refused { why: "not sent".to_owned() },
        };
        let mut body =
            json!({ "topic": self.load.topics[topic], "due_at": due_at, "payload_text": text });
        if self.is_tracked {
            submit.tracked = Some(self.track(topic, &mut body));
        }
        if let Some(after) = self.expire_after(topic) {
            submit.expires_at = Some(due_at + after);
            body["expires_at"] = (due_at + after).into();
        }
        if let Some(key) = key {
            body["key"] = key.into();
        }
        if let Some(name) = name {
            body["name"] = name.into();
        }
        self.ledger.number(&mut submit, &mut body);
        (submit, body)
    }

    /// Draws how long after its due time a task expires, for a third of them.
    fn expire_after(&mut self, topic: usize) -> Option<i64> {
        if !self.load.is_varied {
            return None;
        }
        match self.chance.random_range(0..100) {
            0..14 => Some(self.chance.random_range(300..2000)),
            14..24 => Some(self.chance.random_range(2000..8000)),
            24..33 => Some(self.chance.random_range(20_000..60_000)),
            // Otherwise the policy of the topic counts.
            33..80 if topic == PAUSED => Some(LATE_EXPIRY_MS),
            _ => None,
        }
    }

    /// Makes a task a tracked one. Its dead topic is another than its own.
    fn track(&mut self, topic: usize, body: &mut Value) -> Tracked {
        let dead_topic = match self.chance.random_range(0..100) {
            0..30 => Some(DEAD),
            30..38 => Some(DELETED),
            38..46 => Some(UNAVAILABLE),
            _ => None,
        };
        let dead_topic = dead_topic.filter(|dead_topic| *dead_topic != topic);
        let tracked = Tracked {
            ttr_ms: self.chance.random_range(1000..3000),
            attempts_max: self.chance.random_range(1..=3),
            backoff_ms: [0, 0, 300, 1200][self.chance.random_range(0..4)],
            dead_topic,
        };
        body["ttr"] = format!("{}ms", tracked.ttr_ms).into();
        body["retry"] = json!({
            "attempts_max": tracked.attempts_max,
            "backoff_min": format!("{}ms", tracked.backoff_ms),
            "backoff_max": format!("{BACKOFF_MAX_MS}ms"),
        });
        if let Some(dead_topic) = dead_topic {
            body["retry"]["dead_topic"] = self.load.topics[dead_topic].clone().into();
        }
        tracked
    }

    /// Sends tasks without waiting for the answer. Drops them when no node has room.
    fn dispatch(&self, tasks: Vec<(Submit, Value)>, is_batch: bool) {
        let Some(seat) = self.caller.seat() else { return };
        let (caller, ledger) = (self.caller.clone(), Arc::clone(&self.ledger));
        tokio::spawn(async move {
            if is_batch {
                let bodies: Vec<&Value> = tasks.iter().map(|(_, body)| body).collect();
                let reply = caller
                    .send(&seat, Method::POST, "/v1/tasks/batch", Some(&json!({ "tasks": bodies })))
                    .await;
                ledger.note_batch(
                    seat.node,
                    tasks.into_iter().map(|(submit, _)| submit).collect(),
                    reply,
                );
            } else {
                for (submit, body) in tasks {
                    let reply = caller.send(&seat, Method::POST, "/v1/tasks", Some(&body)).await;
                    ledger.note_submit(seat.node, submit, reply);
                }
            }
        });
    }
}

pub(super) fn id_of(task: &Value) -> Option<Uuid> {
    task["id"].as_str()?.parse().ok()
}

/// Returns the task that a PUT with a condition has left as it is.
fn current_of(problem: &Value) -> Option<Uuid> {
    problem["current_id"].as_str()?.parse().ok()
}

/// Returns a time of a task in JSON.
pub fn due_of(task: &Value, member: &str) -> Option<i64> {
    task[member].as_str()?.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
}

/// Returns the refusals that a submit may get.
fn allowed(submit: &Submit) -> &'static [&'static str] {
    let dead_topic = submit.tracked.and_then(|tracked| tracked.dead_topic);
    match (submit.topic, dead_topic) {
        (LIMITED, Some(DELETED)) => &["record-too-large", "unknown-topic"],
        (DELETED, _) | (_, Some(DELETED)) => &["unknown-topic"],
        (LIMITED, _) => &["record-too-large"],
        _ => &[],
    }
}

impl Ledger {
    /// Returns a number that no other submit has.
    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Gives each submit a serial of its own, also when it is retried.
    pub(super) fn number(&self, submit: &mut Submit, body: &mut Value) {
        submit.serial = self.next_serial();
        body["headers"] = json!({ SERIAL_HEADER: submit.serial.to_string() });
    }

    pub(super) fn refused(&self, refusal: Refusal) -> Outcome {
        match refusal {
            Refusal::Certain(why) => Outcome::Refused { why },
            Refusal::Unknown(why) => Outcome::Unknown { why },
            Refusal::Odd(what) => {
                self.oddities.lock().unwrap().push(what.clone());
                Outcome::Unknown { why: what }
            }
        }
    }

    /// Returns the answer to one task of a request.
    fn outcome(
        &self,
        submit: &Submit,
        status: u16,
        has_retry_after: bool,
        body: &Value,
    ) -> Outcome {
        let (task, known) =
            (id_of(body).zip(due_of(body, "due_at")), status == 200 && !submit.is_put);
        match (status, task) {
            (200 | 201, Some((id, _))) if known => Outcome::Known { id },
            (200 | 201, Some((id, due_at))) => {
                Outcome::Accepted { id, due_at, has_replaced: status == 200 }
            }
            (409, _) if submit.is_put && id_of(&body["task"]).is_some() => {
                Outcome::TooLate { id: id_of(&body["task"]).unwrap_or_default() }
            }
            (412, _) if submit.when.is_some() && current_of(body).is_some() => {
                Outcome::Kept { id: current_of(body).unwrap_or_default() }
            }
            _ => self.refused(Refusal::of(status, body, has_retry_after, allowed(submit))),
        }
    }

    pub fn note_submit(&self, node: u8, submit: Submit, reply: Reply) -> Outcome {
        let outcome = match reply.answer {
            Answer::Said { status, has_retry_after, ref body } => {
                self.outcome(&submit, status, has_retry_after, body)
            }
            Answer::NotSent => Outcome::Refused { why: "connect".to_owned() },
            Answer::Lost(ref why) => Outcome::Unknown { why: why.clone() },
        };
        self.note(node, submit, &reply, outcome.clone());
        outcome
    }

    fn note_batch(&self, node: u8, submits: Vec<Submit>, reply: Reply) {
        let results = match &reply.answer {
            Answer::Said { status: 200, body, .. } => {
                body["results"].as_array().filter(|results| results.len() == submits.len())
            }
            _ => None,
        };
        for (index, submit) in submits.into_iter().enumerate() {
            let outcome = match (&reply.answer, results) {
                (_, Some(results)) => {
                    let result = &results[index];
                    let status = result["status"]
                        .as_u64()
                        .and_then(|status| u16::try_from(status).ok())
                        .unwrap_or_default();
                    let shown = if result["task"].is_object() {
                        &result["task"]
                    } else {
                        &result["problem"]
                    };
                    self.outcome(&submit, status, false, shown)
                }
                (Answer::Said { status, has_retry_after, body }, None) => {
                    self.refused(Refusal::of(*status, body, *has_retry_after, &[]))
                }
                (Answer::NotSent, None) => Outcome::Refused { why: "connect".to_owned() },
                (Answer::Lost(why), None) => Outcome::Unknown { why: why.clone() },
            };
            self.note(node, submit, &reply, outcome);
        }
    }

    fn note(&self, node: u8, submit: Submit, reply: &Reply, outcome: Outcome) {
        if let (Outcome::Accepted { id, .. }, None) = (&outcome, &submit.name) {
            self.offer_to_movers(*id, submit.topic);
            let mut recent = self.recent.lock().unwrap();
            if recent.len() >= RECENT_MAX {
                recent.swap_remove(rand::random_range(0..RECENT_MAX));
            }
            recent.push(*id);
        }
        let noted = Submit {
            node,
            sent_at: reply.sent_at,
            answered_at: reply.answered_at,
            outcome,
            ..submit
        };
        self.submits.lock().unwrap().push(noted);
    }

    fn note_cancel(&self, node: u8, target: Target, reply: Reply) {
        let verdict = match &reply.answer {
            Answer::Said { status, has_retry_after, body } => {
                match (status, body["verdict"].as_str()) {
                    (200, Some("cancelled")) => Verdict::Cancelled { id: id_of(&body["task"]) },
                    (409, Some("too_late")) => Verdict::TooLate {
                        id: id_of(&body["task"]),
                        receipt: receipt_of(&body["task"]),
                    },
                    (409, Some("replaced")) => {
                        let by = body["replaced_by"].as_str().and_then(|id| id.parse().ok());
                        Verdict::Replaced { id: id_of(&body["task"]), by }
                    }
                    (404, Some("not_found")) => Verdict::NotFound,
                    _ => match self.refused(Refusal::of(*status, body, *has_retry_after, &[])) {
                        Outcome::Refused { why } => Verdict::Refused { why },
                        other => Verdict::Unknown { why: format!("{other:?}") },
                    },
                }
            }
            Answer::NotSent => Verdict::Refused { why: "connect".to_owned() },
            Answer::Lost(why) => Verdict::Unknown { why: why.clone() },
        };
        let (sent_at, answered_at) = (reply.sent_at, reply.answered_at);
        self.cancels.lock().unwrap().push(Cancel { node, sent_at, answered_at, target, verdict });
    }
}

fn receipt_of(task: &Value) -> Option<(i32, i64)> {
    let receipt = task.get("receipt").filter(|receipt| !receipt.is_null())?;
    let partition = i32::try_from(receipt["partition"].as_i64()?).ok()?;
    Some((partition, receipt["offset"].as_i64()?))
}
