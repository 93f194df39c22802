//! Consumers without Kafka. Callers of `pop` take tasks of one topic; some vanish while they wait.
//! A service is called back for those of another topic, and answers well, badly, late or never.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::caller::{Answer, Caller, Refusal};
use super::consumers::{Consumer, Delivery};
use super::field::Field;
use super::handed::{Handed, Way};
use super::history::{Call, CallKind, CallVerdict, LIMITED, Outcome, STEADY};
use super::traffic::Ledger;
use crate::support::wait::look_for;
use crate::support::{now_ms, wait};

/// The topic whose tasks are popped.
pub const POPPED: usize = STEADY;
/// The topic whose tasks the service gets.
pub const CALLED: usize = LIMITED;

const GROUP: &str = "callers";
const CALLERS: u64 = 3;
const WAIT: Duration = Duration::from_secs(2);
const RETRY_MS: i64 = 300;
/// How long the nodes wait for an answer of the service.
const TIMEOUT_MS: i64 = 1500;
/// At the end of a round, a node answers a pop within this time.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// The consumers of a round.
pub struct WithoutKafka {
    is_done: Arc<AtomicBool>,
    callers: JoinSet<()>,
    /// Ends with it.
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
        std::fs::write(&keys, "a2V5IG9uZSBrZXkgb25lIGtleSBvbmUga2V5").expect("write the keys");
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
        let router = Router::new().fallback(answer).with_state((Arc::clone(ledger), seed));
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
                ledger: Arc::clone(ledger),
                answering: answering.clone(),
                is_done: Arc::clone(&is_done),
                chance: StdRng::seed_from_u64(seed ^ number),
            };
            callers.spawn(popper.run());
        }
        Self { is_done, callers, _service: service }
    }

    /// Waits until a node answers a pop: no fault is left. Then ends the callers. Returns a message
    /// if none answers.
    pub async fn stop(mut self, field: &Field, caller: &Caller) -> Option<String> {
        let path = format!("/v1/topics/{}/pop", field.topic_name(POPPED));
        let body = json!({ "group": GROUP, "wait": "0s" });
        let answered = look_for(ANSWER_DEADLINE, async || {
            let seat = caller.seat()?;
            let reply = caller.send(&seat, Method::POST, &path, Some(&body)).await;
            matches!(reply.answer, Answer::Said { status: 200, .. }).then_some(())
        });
        let is_answered = answered.await.is_some();
        self.is_done.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended.expect("a caller of pop goes on to its end");
        }
        let what = || format!("no node answers {path} {ANSWER_DEADLINE:?} after the end");
        (!is_answered).then(what)
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
        let way = Way::Pop { partition, offset: number("offset") };
        self.ledger.handed.lock().unwrap().push(Handed { at, topic: POPPED, id, attempt, way });
        Delivery { id, attempt, ttr_ms: time("finish_by") - time("published_at") }
    }
}

/// Answers a request of a callback. The choice depends on the seed, the task and the attempt.
async fn answer(
    State((ledger, seed)): State<(Arc<Ledger>, u64)>,
    headers: HeaderMap,
    _body: Bytes,
) -> Response {
    let at = now_ms();
    let header = |name: &str| headers[name].to_str().expect("a header in ASCII");
    let id: Uuid = header("punctual-task-id").parse().expect("an id");
    let attempt: u16 = header("punctual-attempt").parse().expect("a number");
    let handed = Handed { at, topic: CALLED, id, attempt, way: Way::Callback };
    ledger.handed.lock().unwrap().push(handed);
    let mut chance = StdRng::seed_from_u64(id.as_u64_pair().1 ^ seed ^ (u64::from(attempt) << 32));
    // The work is done when the answer is on its way. The node may not get it.
    let finish = || {
        let at = now_ms();
        let verdict = CallVerdict::Unknown { why: "the answer of the service".to_owned() };
        let (attempt, kind) = (Some(attempt), CallKind::Finish);
        let call = Call { node: 0, sent_at: at, answered_at: at, id, attempt, kind, verdict };
        ledger.calls.lock().unwrap().push(call);
    };
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
        65..70 => std::future::pending::<Infallible>().await.into_response(),
        70..85 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        85..92 => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")]).into_response(),
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
