//! The consumers of tracked tasks read the topics and answer at random. A consumer finishes,
//! sometimes late, twice, or about an old attempt; fails or extends; or stays silent. The history
//! records every call and its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

use super::caller::{Answer, Caller, Refusal};
use super::field::Field;
use super::history::{Call, CallKind, CallVerdict, Outcome};
use super::traffic::{Ledger, Load, due_of};
use crate::support::{now_ms, wait};

const POLL_MS: i64 = 20;
/// Deliveries that are being answered. Above it consumers say nothing.
const UNDER_WAY_MAX: usize = 300;
/// How often a call is repeated while it has no answer.
const TRIES_MAX: usize = 3;
const RETRY_MS: i64 = 400;

/// The consumers of all topics.
pub struct Consumers {
    is_done: Arc<AtomicBool>,
    reading: JoinHandle<()>,
    consumer: Consumer,
}

/// A record of a tracked task, as its consumer reads it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub topic: usize,
    pub id: Uuid,
    pub attempt: u16,
    pub ttr_ms: i64,
}

/// One consumer.
#[derive(Clone)]
pub struct Consumer {
    load: Load,
    caller: Caller,
    ledger: Arc<Ledger>,
    is_done: Arc<AtomicBool>,
}

impl Consumers {
    pub fn start(field: &Arc<Field>, load: &Load, caller: &Caller, ledger: &Arc<Ledger>) -> Self {
        let is_done = Arc::<AtomicBool>::default();
        let consumer = Consumer {
            load: load.clone(),
            caller: caller.clone(),
            ledger: Arc::clone(ledger),
            is_done: Arc::clone(&is_done),
        };
        let reading = tokio::spawn(consumer.clone().read(Arc::clone(field)));
        Self { is_done, reading, consumer }
    }

    /// Returns a consumer that answers for deliveries without Kafka.
    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Stops reading, and waits for the calls that are under way.
    pub async fn stop(self) {
        self.is_done.store(true, Ordering::Relaxed);
        self.reading.await.expect("a consumer goes on to its end");
    }
}

impl Consumer {
    async fn read(self, field: Arc<Field>) {
        let (mut handled, mut under_way) = (Vec::new(), JoinSet::new());
        while !self.is_done.load(Ordering::Relaxed) {
            for delivery in field.deliveries(&mut handled) {
                if under_way.len() < UNDER_WAY_MAX {
                    under_way.spawn(self.clone().handle(delivery));
                }
            }
            while let Some(ended) = under_way.try_join_next() {
                ended.expect("a delivery is answered");
            }
            wait::until(now_ms() + POLL_MS).await;
        }
        while let Some(ended) = under_way.join_next().await {
            ended.expect("a delivery is answered");
        }
    }

    /// Answers about a delivery. The choice depends on the seed, the task and the attempt.
    pub async fn handle(self, delivery: Delivery) {
        let Delivery { id, attempt, ttr_ms, .. } = delivery;
        let seed = id.as_u64_pair().1 ^ self.load.seed ^ (u64::from(attempt) << 32);
        let mut chance = StdRng::seed_from_u64(seed);
        let about = (id, Some(attempt));
        let (fail, finish) =
            (|retry_in, is_final| CallKind::Fail { retry_in, is_final }, CallKind::Finish);
        let choice = chance.random_range(0..100);
        if self.load.is_ending() {
            self.insist(about, finish).await;
            return;
        }
        match choice {
            0..30 => self.insist(about, finish).await,
            30..36 => self.insist((id, None), finish).await,
            36..44 => {
                self.insist(about, finish).await;
                self.call(about, finish).await;
            }
            44..54 => {
                wait::until(now_ms() + ttr_ms + chance.random_range(-300..1500)).await;
                self.insist(about, finish).await;
            }
            54..62 => self.insist(about, fail(None, false)).await,
            62..70 => {
                let retry_in = chance.random_range(0..1500);
                self.insist(about, fail(Some(retry_in), false)).await;
            }
            70..75 => self.insist(about, fail(None, true)).await,
            75..82 => {
                let by = chance.random_range(1000..2500);
                self.insist(about, CallKind::Extend { by }).await;
                if chance.random_range(0..3) > 0 {
                    wait::until(now_ms() + by - 200).await;
                    self.insist(about, finish).await;
                }
            }
            82..88 => {
                self.call(about, fail(None, false)).await;
                self.call(about, fail(None, false)).await;
                self.call(about, CallKind::Extend { by: 1000 }).await;
                if chance.random_range(0..2) > 0 {
                    self.insist(about, finish).await;
                }
            }
            88..92 if attempt > 1 => {
                let old = (id, Some(attempt - 1));
                let kinds = [fail(None, false), CallKind::Extend { by: 1000 }, finish];
                self.call(old, kinds[chance.random_range(0..kinds.len())]).await;
            }
            // Silence.
            _ => {}
        }
    }

    /// Repeats a call until it is answered, which is always safe.
    async fn insist(&self, about: (Uuid, Option<u16>), kind: CallKind) {
        for _ in 0..TRIES_MAX {
            match self.call(about, kind).await {
                Some(CallVerdict::NotTaken { .. } | CallVerdict::Unknown { .. }) | None => {
                    wait::until(now_ms() + RETRY_MS).await;
                }
                Some(_) => return,
            }
            if self.is_done.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Calls once. Returns `None` when no node has room.
    async fn call(
        &self,
        (id, attempt): (Uuid, Option<u16>),
        kind: CallKind,
    ) -> Option<CallVerdict> {
        let seat = self.caller.seat()?;
        let mut body = json!({});
        if let Some(attempt) = attempt {
            body["attempt"] = attempt.into();
        }
        let name = match kind {
            CallKind::Finish => "finish",
            CallKind::Fail { retry_in, is_final } => {
                if let Some(retry_in) = retry_in {
                    body["retry_in"] = format!("{retry_in}ms").into();
                }
                if is_final {
                    body["final"] = true.into();
                }
                body["reason"] = "the shop does not answer".into();
                "fail"
            }
            CallKind::Extend { by } => {
                body["by"] = format!("{by}ms").into();
                "extend"
            }
        };
        // Some consumers use the call for many outcomes.
        let is_bulk = id.as_u128().is_multiple_of(5);
        let (path, body) = if is_bulk {
            body["id"] = id.to_string().into();
            body["outcome"] = name.into();
            ("/v1/outcomes".to_owned(), json!({ "outcomes": [body] }))
        } else {
            (format!("/v1/tasks/{id}/{name}"), body)
        };
        let reply = self.caller.send(&seat, Method::POST, &path, Some(&body)).await;
        let verdict = match &reply.answer {
            Answer::Said { status: 200, body, .. } if is_bulk => {
                let result = &body["results"][0];
                let status =
                    result["status"].as_u64().and_then(|status| u16::try_from(status).ok());
                let shown = if result["problem"].is_object() { &result["problem"] } else { result };
                self.ledger.verdict(status.unwrap_or_default(), false, shown)
            }
            Answer::Said { status, has_retry_after, body } => {
                self.ledger.verdict(*status, *has_retry_after, body)
            }
            Answer::NotSent => CallVerdict::NotTaken { why: "connect".to_owned() },
            Answer::Lost(why) => CallVerdict::Unknown { why: why.clone() },
        };
        let (node, sent_at, answered_at) = (seat.node, reply.sent_at, reply.answered_at);
        let call = Call { node, sent_at, answered_at, id, attempt, kind, verdict: verdict.clone() };
        self.ledger.calls.lock().unwrap().push(call);
        Some(verdict)
    }
}

impl Ledger {
    /// Returns the verdict of an answer to a call.
    fn verdict(&self, status: u16, has_retry_after: bool, body: &Value) -> CallVerdict {
        let task = &body["task"];
        match (status, body["verdict"].as_str()) {
            (200, Some("finished")) => {
                CallVerdict::Finished { in_flight: body["in_flight"] == true }
            }
            (200, Some("noted")) => CallVerdict::Noted,
            (200, Some("retrying")) => CallVerdict::Retrying { at: due_of(task, "retry_at") },
            (200, Some("dead")) => CallVerdict::Dying,
            (200, Some("extended")) => CallVerdict::Extended,
            (404 | 409, Some(verdict)) => CallVerdict::Refused(verdict.to_owned()),
            _ => match self.refused(Refusal::of(status, body, has_retry_after, &[])) {
                Outcome::Refused { why } => CallVerdict::NotTaken { why },
                other => CallVerdict::Unknown { why: format!("{other:?}") },
            },
        }
    }
}
