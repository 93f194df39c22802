//! Consumers without Kafka. Callers of `pop` take tasks of one topic; some vanish while they wait.
//! A service is called back for those of another topic, and answers well, badly, late or never.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use ring::hmac;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::access;
use super::caller::{Answer, Caller, Refusal};
use super::consumers::{Consumer, Delivery};
use super::deliveries::{Delivered, Route};
use super::field::Field;
use super::history::{Call, CallKind, CallVerdict, LIMITED, Outcome, STEADY, Tracked};
use super::traffic::{Ledger, Load};
use crate::support::wait::look_for;
use crate::support::{now_ms, wait};

/// The topic whose tasks are popped.
const POPPED: usize = STEADY;
/// The topic whose tasks the service gets.
const CALLED: usize = LIMITED;

const GROUP: &str = "callers";
const CALLERS: u64 = 3;
const WAIT: Duration = Duration::from_secs(2);
const RETRY_MS: i64 = 300;
/// How long the nodes wait for an answer of the service.
const TIMEOUT_MS: i64 = 1500;
/// What a service in trouble asks for.
const RETRY_AFTER_S: i64 = 1;
/// At the end of a round, a task is delivered within this time.
const DELIVERY_DEADLINE: Duration = Duration::from_secs(90);
const SUBMIT_EVERY_MS: i64 = 1000;
const KEY: &[u8] = b"key one key one key one key";

/// The consumers of a round.
pub struct WithoutKafka {
    ledger: Arc<Ledger>,
    is_done: Arc<AtomicBool>,
    callers: JoinSet<()>,
    /// Ends when it is dropped.
    _service: JoinSet<()>,
}

/// The address of the service, before it is started.
pub struct ServicePort {
    listener: TcpListener,
    arguments: Vec<String>,
}

impl ServicePort {
    /// Reserves a port, and writes the signing keys into a folder.
    pub async fn open(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = url_of(&listener);
        let keys = folder.join("callback.keys");
        std::fs::write(&keys, STANDARD.encode(KEY)).expect("write the keys");
        let keys = keys.to_str().expect("a path in UTF-8");
        let arguments = [
            "--callback-host",
            &url,
            "--callback-network",
            "127.0.0.1",
            "--callback-key-file",
            keys,
        ];
        Self { listener, arguments: arguments.map(str::to_owned).to_vec() }
    }

    /// Returns the flags of nodes that may call the service.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }
}

fn url_of(listener: &TcpListener) -> String {
    format!("http://{}", listener.local_addr().expect("it is bound"))
}

impl WithoutKafka {
    /// Starts the callers and the service, and sets the callback. `answering` answers for what is
    /// popped.
    pub async fn start(
        field: &Arc<Field>,
        port: ServicePort,
        caller: &Caller,
        (ledger, answering): (&Arc<Ledger>, &Consumer),
        seed: u64,
    ) -> Self {
        let is_done = Arc::<AtomicBool>::default();
        let url = url_of(&port.listener);
        let (ledger, topic) = (Arc::clone(ledger), field.topic_name(CALLED));
        let called = Service { ledger: Arc::clone(&ledger), seed, topic };
        let router = Router::new().fallback(answer).with_state(Arc::new(called));
        let mut service = JoinSet::new();
        service.spawn(async move {
            axum::serve(port.listener, router).await.expect("the service goes on");
        });
        let path = format!("/v1/topics/{}/callback", field.topic_name(CALLED));
        let callback = json!({ "url": url, "timeout": format!("{TIMEOUT_MS}ms"),
                               "concurrency": 30 });
        field.order(Method::PUT, &path, &callback).await;
        let mut callers = JoinSet::new();
        for number in 0..CALLERS {
            let popper = Popper {
                path: format!("/v1/topics/{}/pop", field.topic_name(POPPED)),
                caller: caller.clone(),
                ledger: Arc::clone(&ledger),
                answering: answering.clone(),
                is_done: Arc::clone(&is_done),
                chance: StdRng::seed_from_u64(seed ^ number),
            };
            callers.spawn(popper.run());
        }
        Self { ledger, is_done, callers, _service: service }
    }

    /// Waits until the task of each topic is delivered: no fault is left. Then ends the callers.
    /// Returns a message about a topic whose tasks are not.
    pub async fn stop(mut self, load: &Load, caller: &Caller) -> Option<String> {
        let is_pop = |route: Route| matches!(route, Route::Pop { .. });
        let is_callback = |route: Route| route == Route::Callback;
        let popped = self.missing(load, caller, (POPPED, "pop"), is_pop).await;
        let called = self.missing(load, caller, (CALLED, "the callback"), is_callback).await;
        self.is_done.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended.expect("a caller of pop goes on to its end");
        }
        popped.or(called)
    }

    /// Submits tasks until one is delivered. A Kafka consumer may have finished one before.
    async fn missing(
        &self,
        load: &Load,
        caller: &Caller,
        (topic, by): (usize, &str),
        is_wanted: impl Fn(Route) -> bool,
    ) -> Option<String> {
        let since = now_ms();
        let delivered = look_for(DELIVERY_DEADLINE, async || {
            self.submit(load, caller, topic).await;
            wait::until(now_ms() + SUBMIT_EVERY_MS).await;
            let all = self.ledger.delivered.lock().unwrap();
            all.iter().any(|one| one.at > since && is_wanted(one.route)).then_some(())
        });
        let what = || format!("nothing was delivered by {by} for {DELIVERY_DEADLINE:?}");
        if delivered.await.is_some() { None } else { Some(what()) }
    }

    async fn submit(&self, load: &Load, caller: &Caller, topic: usize) {
        let Some(seat) = caller.seat() else { return };
        let (mut submit, mut body) = access::task(load, &self.ledger, topic, None);
        let tracked = Tracked { ttr_ms: 3000, attempts_max: 3, backoff_ms: 0, dead_topic: None };
        body["ttr"] = format!("{}ms", tracked.ttr_ms).into();
        body["retry"] = json!({ "attempts_max": tracked.attempts_max, "backoff_min": "0ms" });
        submit.tracked = Some(tracked);
        let reply = caller.send(&seat, Method::POST, "/v1/tasks", Some(&body)).await;
        // The history has the answer, whatever it was.
        let _outcome: Outcome = self.ledger.note_submit(seat.node, submit, reply);
    }
}

/// A caller of `pop`.
struct Popper {
    path: String,
    caller: Caller,
    ledger: Arc<Ledger>,
    answering: Consumer,
    is_done: Arc<AtomicBool>,
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
        let seat = self.caller.seat()?;
        let max = self.chance.random_range(1..=5);
        let wait = format!("{}ms", WAIT.as_millis());
        let body = json!({ "group": GROUP, "wait": wait, "max": max });
        let asked = self.caller.send(&seat, Method::POST, &self.path, Some(&body));
        let reply = if self.chance.random_range(0..8) == 0 {
            // The caller vanishes. What it would have got comes again.
            let patience = Duration::from_millis(self.chance.random_range(0..1500));
            tokio::time::timeout(patience, asked).await.ok()?
        } else {
            asked.await
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
        Delivery { id, attempt, ttr_ms: time("finish_by") - time("published_at") }
    }
}

/// The service, as its requests see it.
struct Service {
    ledger: Arc<Ledger>,
    seed: u64,
    topic: String,
}

impl Service {
    /// Returns the task and the attempt of a request, or what is wrong with it.
    fn read(&self, headers: &HeaderMap, body: &[u8]) -> Result<(Uuid, u16), String> {
        let header = |name: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.ok_or_else(|| format!("no {name}: {headers:?}"))
        };
        let signature = header("punctual-signature")?;
        let (time, digest) = signature
            .strip_prefix("t=")
            .and_then(|rest| rest.split_once(",v1="))
            .ok_or_else(|| format!("no signature: {signature}"))?;
        let digest = hex::decode(digest).map_err(|error| format!("{signature}: {error}"))?;
        let signed = [format!("{time}\n{}\n", self.topic).as_bytes(), body].concat();
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, KEY), &signed, &digest)
            .map_err(|_unspecified| format!("a wrong signature: {signature}"))?;
        if header("punctual-topic")? != self.topic {
            return Err(format!("another topic: {headers:?}"));
        }
        let id = header("punctual-task-id")?.parse().map_err(|_error| "no id".to_owned())?;
        let attempt = header("punctual-attempt")?.parse();
        Ok((id, attempt.map_err(|_error| "no attempt".to_owned())?))
    }

    /// Records that the node may do this to an attempt now. It may not get the answer.
    fn note(&self, (id, attempt): (Uuid, u16), kind: CallKind) {
        let at = now_ms();
        let verdict = CallVerdict::Unknown { why: "the answer of the service".to_owned() };
        let attempt = Some(attempt);
        let call = Call { node: 0, sent_at: at, answered_at: at, id, attempt, kind, verdict };
        self.ledger.calls.lock().unwrap().push(call);
    }
}

/// Answers a request of a callback. The choice depends on the seed, the task and the attempt.
async fn answer(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    let at = now_ms();
    let (id, attempt) = match service.read(&headers, &body) {
        Ok(about) => about,
        Err(wrong) => {
            service.ledger.oddities.lock().unwrap().push(format!("a callback: {wrong}"));
            return StatusCode::BAD_REQUEST.into_response();
        }
    };
    let (payload_hash, route) = (xxh3_64(&body), Route::Callback);
    let delivered = Delivered { at, topic: CALLED, id, attempt, payload_hash, route };
    service.ledger.delivered.lock().unwrap().push(delivered);
    let mixed = id.as_u64_pair().1 ^ service.seed ^ (u64::from(attempt) << 32);
    let mut chance = StdRng::seed_from_u64(mixed);
    let finish = || service.note((id, attempt), CallKind::Finish);
    match chance.random_range(0..100) {
        0..45 => {
            finish();
            StatusCode::NO_CONTENT.into_response()
        }
        // Half an answer.
        45..52 => {
            finish();
            let broken = futures_util::stream::once(async { Err::<Bytes, _>("lost") });
            Response::new(Body::from_stream(broken))
        }
        52..65 => {
            wait::until(at + chance.random_range(100..2 * TIMEOUT_MS)).await;
            finish();
            StatusCode::OK.into_response()
        }
        65..70 => std::future::pending::<Response>().await,
        70..85 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        85..92 => {
            let retry_in = Some(RETRY_AFTER_S * 1000);
            service.note((id, attempt), CallKind::Fail { retry_in, is_final: false });
            let after = [("retry-after", RETRY_AFTER_S.to_string())];
            (StatusCode::SERVICE_UNAVAILABLE, after).into_response()
        }
        _ => StatusCode::BAD_REQUEST.into_response(),
    }
}

/// Returns a call for each attempt that the service may have got: a node that gets no answer of it,
/// or no connection to it, fails the attempt, and nobody else sees that.
pub fn failures(field: &Field) -> Vec<Call> {
    let arrivals = field.arrivals();
    let called = arrivals.iter().filter(|arrival| arrival.topic == CALLED);
    let call = |(id, attempt, at)| Call {
        node: 0,
        sent_at: at,
        answered_at: at,
        id,
        attempt: Some(attempt),
        kind: CallKind::Fail { retry_in: None, is_final: false },
        verdict: CallVerdict::Unknown { why: "the node, about the service".to_owned() },
    };
    called.filter_map(|one| Some(call((one.id, one.attempt?, one.at)))).collect()
}
