//! Consumers without Kafka. Callers of `pop` take tasks of one topic; some vanish while they wait.
//! Services are called back for those of other topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::access;
use super::caller::{Answer, Caller, Refusal};
use super::consumers::{Consumer, Delivery};
use super::deliveries::{Delivered, Route};
use super::field::Field;
use super::history::{BACKOFF_MAX_MS, LIMITED, Outcome, PROMPT, SERVED, STEADY, Tracked};
use super::services::Services;
use super::traffic::{Ledger, Load};
use crate::support::wait::look_for;
use crate::support::{now_ms, wait};

/// The topic whose tasks are popped.
const POPPED: usize = STEADY;

const GROUP: &str = "callers";
const CALLERS: u64 = 3;
const WAIT: Duration = Duration::from_secs(2);
const RETRY_MS: i64 = 300;
/// At the end of a round, a task is delivered within this time.
const DELIVERY_DEADLINE: Duration = Duration::from_secs(90);
const SUBMIT_EVERY_MS: i64 = 1000;
/// The pauses between tasks that only a service gets.
const SERVED_EVERY_MS: i64 = 1200;
const PROMPT_EVERY_MS: i64 = 400;
/// Half of the tasks of the broken service outlive any fault of it. The others may die.
const PATIENT: Tracked =
    Tracked { ttr_ms: 5000, attempts_max: 1000, backoff_ms: 1200, dead_topic: None };
const MORTAL: Tracked = Tracked { ttr_ms: 4000, attempts_max: 3, ..PATIENT };
/// The other service has time enough for its tasks on a busy machine.
const UNHURRIED: Tracked = Tracked { ttr_ms: 20_000, attempts_max: 5, ..PATIENT };
const LAST: Tracked = Tracked { ttr_ms: 3000, attempts_max: 3, backoff_ms: 0, dead_topic: None };

/// The consumers of a round.
pub struct WithoutKafka {
    submitter: Submitter,
    is_done: Arc<AtomicBool>,
    /// Callers of `pop`, and submitters.
    clients: JoinSet<()>,
}

/// Submits tasks for consumers without Kafka.
#[derive(Clone)]
struct Submitter {
    load: Load,
    caller: Caller,
    ledger: Arc<Ledger>,
}

impl WithoutKafka {
    /// Starts the services, the callers, and submitters of tasks that only a service gets.
    /// `answering` answers for what is popped.
    pub async fn start(
        field: &Field,
        services: &Services,
        (load, caller, ledger): (&Load, &Caller, &Arc<Ledger>),
        answering: &Consumer,
    ) -> Self {
        let is_done = Arc::<AtomicBool>::default();
        services.start(field, ledger, load.seed).await;
        let mut clients = JoinSet::new();
        for number in 0..CALLERS {
            let popper = Popper {
                path: format!("/v1/topics/{}/pop", field.topic_name(POPPED)),
                caller: caller.clone(),
                ledger: Arc::clone(ledger),
                answering: answering.clone(),
                is_done: Arc::clone(&is_done),
                are_gone: services.are_callers_gone(),
                chance: StdRng::seed_from_u64(load.seed ^ number),
            };
            clients.spawn(popper.run());
        }
        let submitter =
            Submitter { load: load.clone(), caller: caller.clone(), ledger: Arc::clone(ledger) };
        let served = submitter.clone().run(SERVED, SERVED_EVERY_MS, [PATIENT, MORTAL]);
        clients.spawn(served);
        let prompt = submitter.clone().run(PROMPT, PROMPT_EVERY_MS, [UNHURRIED, UNHURRIED]);
        clients.spawn(prompt);
        Self { submitter, is_done, clients }
    }

    /// Waits until a task of each topic is delivered: no fault is left. Then ends the callers.
    /// Returns a message about a topic whose tasks are not.
    pub async fn stop(mut self) -> Option<String> {
        let mut missing = None;
        for topic in [POPPED, LIMITED, SERVED, PROMPT] {
            missing = missing.or(self.missing(topic).await);
        }
        self.is_done.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("a client goes on to its end");
        }
        missing
    }

    /// Submits tasks until one is delivered. A Kafka consumer may have finished one before.
    async fn missing(&self, topic: usize) -> Option<String> {
        let since = now_ms();
        let delivered = look_for(DELIVERY_DEADLINE, async || {
            self.submitter.submit(topic, LAST).await;
            wait::until(now_ms() + SUBMIT_EVERY_MS).await;
            let all = self.submitter.ledger.delivered.lock().unwrap();
            all.iter().any(|one| one.at > since && one.topic == topic).then_some(())
        });
        let by = if topic == POPPED { "pop" } else { "the callback" };
        let name = &self.submitter.load.topics[topic];
        let what = || format!("nothing of {name} came by {by} for {DELIVERY_DEADLINE:?}");
        if delivered.await.is_some() { None } else { Some(what()) }
    }
}

impl Submitter {
    /// Submits tasks of two sorts in turn until the traffic ends.
    async fn run(self, topic: usize, every_ms: i64, sorts: [Tracked; 2]) {
        for tracked in sorts.into_iter().cycle() {
            if self.load.is_over.load(Ordering::Relaxed) {
                return;
            }
            self.submit(topic, tracked).await;
            wait::until(now_ms() + every_ms).await;
        }
    }

    async fn submit(&self, topic: usize, tracked: Tracked) {
        let Some(seat) = self.caller.seat() else { return };
        let (mut submit, mut body) = access::task(&self.load, &self.ledger, topic, None);
        body["ttr"] = format!("{}ms", tracked.ttr_ms).into();
        body["retry"] = json!({
            "attempts_max": tracked.attempts_max,
            "backoff_min": format!("{}ms", tracked.backoff_ms),
            "backoff_max": format!("{BACKOFF_MAX_MS}ms"),
        });
        submit.tracked = Some(tracked);
        let reply = self.caller.send(&seat, Method::POST, "/v1/tasks", Some(&body)).await;
        // The history has the answer, whatever it was.
        let _outcome: Outcome = self.ledger.note_submit(seat.node, submit, reply);
    }
}

/// Waits until all callers are killed.
async fn killed(are_gone: &mut watch::Receiver<bool>) {
    let is_killed = are_gone.wait_for(|are_gone| *are_gone).await.is_ok();
    assert!(is_killed, "the round has ended before its callers");
}

/// A caller of `pop`.
struct Popper {
    path: String,
    caller: Caller,
    ledger: Arc<Ledger>,
    answering: Consumer,
    is_done: Arc<AtomicBool>,
    are_gone: watch::Receiver<bool>,
    chance: StdRng,
}

impl Popper {
    async fn run(mut self) {
        let mut under_way = JoinSet::new();
        while !self.is_done.load(Ordering::Relaxed) {
            match self.pop().await {
                Some(deliveries) => {
                    for delivery in deliveries {
                        under_way.spawn(self.answering.clone().handle(delivery));
                    }
                }
                None => wait::until(now_ms() + RETRY_MS).await,
            }
            while let Some(ended) = under_way.try_join_next() {
                ended.expect("a delivery is answered");
            }
        }
        while let Some(ended) = under_way.join_next().await {
            ended.expect("a delivery is answered");
        }
    }

    /// Asks once. Returns `None` when there was no answer.
    async fn pop(&mut self) -> Option<Vec<Delivery>> {
        if *self.are_gone.borrow() {
            return None;
        }
        let seat = self.caller.seat()?;
        let max = self.chance.random_range(1..=5);
        let wait = format!("{}ms", WAIT.as_millis());
        let body = json!({ "group": GROUP, "wait": wait, "max": max });
        // Some callers vanish. What they would have got comes again.
        let patience = match self.chance.random_range(0..8) {
            0 => Duration::from_millis(self.chance.random_range(0..1500)),
            _ => Duration::MAX,
        };
        let asked = self.caller.send(&seat, Method::POST, &self.path, Some(&body));
        let reply = tokio::select! {
            reply = tokio::time::timeout(patience, asked) => reply.ok()?,
            () = killed(&mut self.are_gone) => return None,
        };
        match reply.answer {
            Answer::Said { status: 200, body, .. } => {
                let tasks = body["tasks"].as_array().expect("an answer has tasks");
                Some(tasks.iter().map(|task| self.note(task, reply.answered_at)).collect())
            }
            Answer::Said { status, has_retry_after, body } => {
                let refusal = Refusal::of(status, &body, has_retry_after, &[]);
                // Oddities are noted, and nothing else follows from a refused pop.
                let _outcome: Outcome = self.ledger.refused(refusal);
                None
            }
            Answer::NotSent | Answer::Lost(_) => None,
        }
    }

    fn note(&self, task: &Value, at: i64) -> Delivery {
        let number = |name: &str| task[name].as_i64().expect("a number");
        let time = |name: &str| {
            let text = task[name].as_str().expect("a time");
            text.parse::<jiff::Timestamp>().expect("a time").as_millisecond()
        };
        let id: Uuid = task["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
        let attempt = u16::try_from(number("attempt")).expect("an attempt");
        let partition = i32::try_from(number("partition")).expect("a partition");
        let payload_hash = xxh3_64(task["payload_text"].as_str().unwrap_or_default().as_bytes());
        let route = Route::Pop { partition, offset: number("offset") };
        let delivered = Delivered { at, topic: POPPED, id, attempt, payload_hash, route };
        self.ledger.delivered.lock().unwrap().push(delivered);
        Delivery { topic: POPPED, id, attempt, ttr_ms: time("finish_by") - time("published_at") }
    }
}
