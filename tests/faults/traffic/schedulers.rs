//! The traffic of schedules: each has one client, which changes, pauses and triggers it.

use std::sync::atomic::Ordering;

use rand::Rng as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use xxhash_rust::xxh3::xxh3_64;

use super::{Client, id_of};
use crate::caller::{Answer, Refusal};
use crate::history::{Outcome, SCHEDULED};
use crate::schedule_history::{Command, Order, Put, Timing};
use crate::support::ledger::SERIAL_HEADER;
use crate::support::{now_ms, wait};

/// The pause before an order is repeated.
const AGAIN_MS: i64 = 100;
const LOOK_EVERY_MS: i64 = 100;
/// A pause after which instants were missed: these are older than 10 s then.
const LONG_PAUSE_MS: std::ops::Range<i64> = 12_000..15_000;

/// A kind of schedule.
#[derive(Clone, Copy)]
struct Style {
    timing: Timing,
    missed: &'static str,
    skips: bool,
    /// Half of its changes are about its instants.
    changes_timing: bool,
}

const fn every(period_ms: i64) -> Timing {
    Timing { period_ms, is_cron: false }
}

const fn cron(period_ms: i64) -> Timing {
    Timing { period_ms, is_cron: true }
}

const STYLES: [Style; 6] = [
    Style { timing: every(1000), missed: "last", skips: false, changes_timing: false },
    Style { timing: cron(1000), missed: "all", skips: false, changes_timing: false },
    Style { timing: cron(2000), missed: "none", skips: false, changes_timing: false },
    Style { timing: every(3000), missed: "last", skips: true, changes_timing: false },
    Style { timing: cron(2000), missed: "all", skips: true, changes_timing: false },
    Style { timing: every(1000), missed: "last", skips: false, changes_timing: true },
];

/// A schedule, and its client.
struct Scheduler {
    client: Client,
    style: Style,
    name: String,
    /// Its last known revision; 0 before it exists.
    revision: u64,
    /// As it was put last.
    body: Value,
}

/// Starts a client for each schedule.
pub(super) fn start(client: impl Fn(u64) -> Client) -> Vec<JoinHandle<()>> {
    let schedulers = STYLES.into_iter().zip(0..).map(|(style, number)| Scheduler {
        client: client(number),
        style,
        name: format!("schedule-{number}"),
        revision: 0,
        body: Value::Null,
    });
    schedulers.map(|scheduler| tokio::spawn(scheduler.run())).collect()
}

impl Scheduler {
    async fn run(mut self) {
        self.put().await;
        while !self.is_over() {
            let pause = self.client.chance.random_range(500..5000);
            self.wait(pause).await;
            match self.client.chance.random_range(0..100) {
                _ if self.is_over() => {}
                0..40 => {
                    if self.style.changes_timing && self.client.chance.random() {
                        self.style.timing = match self.style.timing.period_ms {
                            1000 => cron(2000),
                            _ if self.style.timing.is_cron => every(2000),
                            _ => every(1000),
                        };
                    }
                    self.put().await;
                }
                40..70 => self.pause_for_a_while().await,
                70..85 => self.trigger().await,
                _ => {}
            }
        }
        self.pause().await;
    }

    fn is_over(&self) -> bool {
        self.client.load.is_over.load(Ordering::Relaxed)
    }

    async fn wait(&self, millis: i64) {
        let until = now_ms() + millis;
        while now_ms() < until && !self.is_over() {
            wait::until(until.min(now_ms() + LOOK_EVERY_MS)).await;
        }
    }

    async fn pause_for_a_while(&mut self) {
        let chance = &mut self.client.chance;
        let lasts = match chance.random_range(0..4) {
            0 => chance.random_range(LONG_PAUSE_MS),
            _ => chance.random_range(300..4000),
        };
        let is_by_put = chance.random_ratio(1, 3);
        self.pause().await;
        self.wait(lasts).await;
        if is_by_put {
            self.put().await;
        } else {
            self.insist(self.body.clone(), Order::Resume).await;
        }
    }

    /// Pauses the schedule by a PUT, because only this takes a precondition.
    async fn pause(&mut self) {
        let mut body = self.body.clone();
        body["paused"] = true.into();
        self.insist(body, Order::Pause).await;
    }

    async fn put(&mut self) {
        let Style { timing, missed, skips, .. } = self.style;
        let serial = self.client.ledger.next_serial();
        let text = format!("{:08x} of {}", self.client.chance.random::<u32>(), self.name);
        let mut body = json!({
            "missed": { "policy": missed },
            "key": self.name,
            "payload_text": text,
            "headers": { SERIAL_HEADER: serial.to_string() },
        });
        let seconds = timing.period_ms / 1000;
        if timing.is_cron {
            body["cron"] = format!("*/{seconds} * * * * *").into();
            body["seconds"] = true.into();
            body["time_zone"] = "UTC".into();
        } else {
            body["every"] = format!("{seconds}s").into();
        }
        if skips {
            body["overlap"] = "skip".into();
            body["ttr"] = "1500ms".into();
            body["retry"] = json!({ "attempts_max": 2 });
        }
        let put = Put { serial, timing, skips, payload_hash: xxh3_64(text.as_bytes()) };
        self.body.clone_from(&body);
        self.insist(body, Order::Put(put)).await;
    }

    fn path(&self) -> String {
        format!("/v1/schedules/{}/{}", self.client.load.topics[SCHEDULED], self.name)
    }

    /// Repeats an order until it has taken effect. Its precondition is the last revision, so a
    /// request that a node carries out late changes nothing.
    async fn insist(&mut self, body: Value, order: Order) {
        let path = self.path();
        let condition = match self.revision {
            0 => ("if-none-match", "*".to_owned()),
            revision => ("if-match", format!("\"{revision}\"")),
        };
        let caller = self.client.caller.with_condition(condition);
        let (mut first_sent_at, mut may_be_done) = (None, false);
        let answered_at = loop {
            let Some(seat) = caller.seat() else {
                wait::until(now_ms() + AGAIN_MS).await;
                continue;
            };
            let reply = caller.send(&seat, Method::PUT, &path, Some(&body)).await;
            first_sent_at.get_or_insert(reply.sent_at);
            drop(seat);
            match &reply.answer {
                Answer::Said { status: 200 | 201, body, .. } if body["revision"].is_u64() => {
                    self.revision = body["revision"].as_u64().unwrap_or_default();
                    break reply.answered_at;
                }
                Answer::Said { status: 412, .. } if may_be_done => {
                    if let Some(revision) = self.look_up().await
                        && revision != self.revision
                    {
                        self.revision = revision;
                        break now_ms();
                    }
                }
                Answer::Said { status, has_retry_after, body } => {
                    let refusal = Refusal::of(*status, body, *has_retry_after, &[]);
                    let outcome = self.client.ledger.refused(refusal);
                    may_be_done |= matches!(outcome, Outcome::Unknown { .. });
                }
                Answer::Lost(_) => may_be_done = true,
                Answer::NotSent => {}
            }
            wait::until(now_ms() + AGAIN_MS).await;
        };
        self.note(first_sent_at.unwrap_or(answered_at), answered_at, order);
    }

    async fn look_up(&self) -> Option<u64> {
        let seat = self.client.caller.seat()?;
        let reply = self.client.caller.send(&seat, Method::GET, &self.path(), None).await;
        match reply.answer {
            Answer::Said { status: 200, body, .. } => body["revision"].as_u64(),
            _ => None,
        }
    }

    async fn trigger(&mut self) {
        let path = format!("{}/trigger", self.path());
        let Some(seat) = self.client.caller.seat() else { return };
        let reply = self.client.caller.send(&seat, Method::POST, &path, None).await;
        let id = match &reply.answer {
            Answer::Said { status: 201, body, .. } if id_of(body).is_some() => id_of(body),
            Answer::Said { status, has_retry_after, body } => {
                let refusal = Refusal::of(*status, body, *has_retry_after, &[]);
                match self.client.ledger.refused(refusal) {
                    Outcome::Refused { .. } => return,
                    _ => None,
                }
            }
            Answer::NotSent => return,
            Answer::Lost(_) => None,
        };
        self.note(reply.sent_at, reply.answered_at, Order::Trigger(id));
    }

    fn note(&self, sent_at: i64, answered_at: i64, order: Order) {
        let command = Command { schedule: self.name.clone(), sent_at, answered_at, order };
        self.client.ledger.commands.lock().unwrap().push(command);
    }
}
