//! Decides what is written at a door: chains of requests about one name, spread over transactions.

use std::collections::VecDeque;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::consumers::Delivery;
use crate::door_history::{Door, Op, Request};
use crate::history::{BACKOFF_MAX_MS, BY_RECORD, BY_SQL, Outcome, Submit, Tracked};
use crate::support::now_ms;
use crate::traffic::{Ledger, Load};

/// Transactions of a client each second, with two requests on average.
pub const TRANSACTION_EVERY_MS: i64 = 125;
/// Of a hundred transactions, this many are rolled back.
const ROLLED_BACK_PERCENT: u32 = 15;
/// No task is due later than this after the end of the traffic.
const AFTER_END_MS: i64 = 1500;
/// How far Postgres's clock may be behind the machine's, by which a delay counts. It is only
/// stepped forward, and slewed.
const SLEW_MAX_MS: i64 = 50;
/// The back-off of tracked tasks.
const BACKOFF_MS: i64 = 300;

#[derive(Clone, Copy, Debug)]
pub enum Due {
    At(i64),
    /// A delay in milliseconds.
    After(i64),
}

/// A request to write.
#[derive(Clone, Debug)]
pub struct Asked {
    pub serial: u64,
    pub door: Door,
    pub op: Op,
    /// The topic of the door. A wrong request may name another one.
    pub topic: usize,
    pub topic_name: String,
    pub name: Option<String>,
    pub due: Due,
    pub key: Option<String>,
    pub text: String,
    pub is_wrong: bool,
    /// An insert into the table, instead of a call of a function.
    pub is_plain: bool,
    pub tracked: Option<Tracked>,
    pub finishes: Option<(Uuid, u16)>,
    /// Chooses the partition: all requests of one name have the same.
    pub place: u32,
}

/// Requests about one name that are still to be written.
#[derive(Clone, Debug)]
struct Chain {
    name: Option<String>,
    ops: VecDeque<Op>,
    is_wrong: bool,
    is_tracked: bool,
    place: u32,
}

/// Decides for one client.
#[derive(Debug)]
pub struct Asker {
    door: Door,
    number: u64,
    load: Load,
    ledger: Arc<Ledger>,
    chance: StdRng,
    count: u64,
    open: VecDeque<Chain>,
}

impl Asked {
    /// Returns the retry policy of a tracked task.
    pub fn retry(tracked: Tracked) -> String {
        let retry = serde_json::json!({
            "attempts_max": tracked.attempts_max,
            "backoff_min": format!("{}ms", tracked.backoff_ms),
            "backoff_max": format!("{BACKOFF_MAX_MS}ms"),
        });
        retry.to_string()
    }

    /// Returns the request, and its submit. `times` are the moment of sending, and the end of the
    /// transaction.
    pub fn into_history(self, (sent_at, ended_at): (i64, i64)) -> (Request, Option<Submit>) {
        let has_task = matches!(self.op, Op::Submit | Op::Replace);
        let (due_at, is_exact) = match self.due {
            Due::At(due_at) => (due_at, true),
            Due::After(delay) => (sent_at + delay - SLEW_MAX_MS, false),
        };
        let submit = Submit {
            serial: self.serial,
            node: 0,
            sent_at,
            answered_at: ended_at,
            topic: self.topic,
            name: self.name.clone(),
            is_put: self.op == Op::Replace,
            when: None,
            due_at,
            key: self.key,
            payload_hash: xxh3_64(self.text.as_bytes()),
            size: self.text.len(),
            expires_at: None,
            tracked: self.tracked,
            outcome: Outcome::Committed,
        };
        let request = Request {
            serial: self.serial,
            door: self.door,
            op: self.op,
            topic: self.topic,
            name: self.name,
            due_at: if has_task { due_at } else { 0 },
            is_exact,
            is_wrong: self.is_wrong,
            sent_at,
            ended_at,
            is_committed: false,
            taken_by: None,
            finishes: self.finishes,
        };
        (request, (has_task && !self.is_wrong).then_some(submit))
    }
}

impl Asker {
    pub fn new(door: Door, number: u64, load: &Load, ledger: &Arc<Ledger>) -> Self {
        let salt = 1000 + number + if door == Door::Sql { 0 } else { 100 };
        Self {
            door,
            number,
            load: load.clone(),
            ledger: Arc::clone(ledger),
            chance: StdRng::seed_from_u64(load.seed.wrapping_mul(1_000_003).wrapping_add(salt)),
            count: 0,
            open: VecDeque::new(),
        }
    }

    /// Returns the requests of the next transaction in their order, and whether it commits.
    pub fn transaction(&mut self, finishes: Vec<Delivery>) -> (Vec<Asked>, bool) {
        let mut asked = Vec::new();
        for _ in 0..self.chance.random_range(1..=3) {
            let is_old = !self.open.is_empty() && self.chance.random_range(0..100) < 60;
            let mut chain = match self.open.pop_front().filter(|_| is_old) {
                Some(chain) => chain,
                None => self.new_chain(),
            };
            let count = self.chance.random_range(1..=chain.ops.len());
            for op in chain.ops.drain(..count).collect::<Vec<_>>() {
                asked.push(self.ask(op, &chain));
            }
            if !chain.ops.is_empty() {
                self.open.push_back(chain);
            }
        }
        asked.extend(finishes.into_iter().map(|finish| self.ask_finish(finish)));
        (asked, self.chance.random_range(0..100) >= ROLLED_BACK_PERCENT)
    }

    /// Begins with new names: the order of requests is unknown after a transaction whose end is.
    pub fn forget(&mut self) {
        self.open.clear();
    }

    /// Returns a plain submit that is due at once.
    pub fn marker(&mut self, place: u32) -> Asked {
        let chain =
            Chain { name: None, ops: VecDeque::new(), is_wrong: false, is_tracked: false, place };
        Asked { due: Due::At(now_ms()), ..self.ask(Op::Submit, &chain) }
    }

    fn new_chain(&mut self) -> Chain {
        use Op::{Cancel, Replace, Submit};
        let choice = self.chance.random_range(0..100);
        let ops: &[Op] = match choice {
            0..35 => &[Submit],
            35..39 => &[Submit],
            39..45 => &[Submit],
            45..55 => &[Submit],
            55..70 => &[Submit, Cancel],
            70..78 => &[Cancel, Submit],
            78..88 => &[Submit, Replace],
            88..95 => &[Submit, Replace, Cancel],
            _ => &[Submit, Submit],
        };
        self.count += 1;
        let name = format!("{:?}-{}-{}", self.door, self.number, self.count).to_lowercase();
        Chain {
            name: (choice >= 45).then_some(name),
            ops: ops.iter().copied().collect(),
            is_wrong: (35..39).contains(&choice),
            // Retries take seconds, and the run does not wait for them.
            is_tracked: (39..45).contains(&choice) && !self.load.is_ending(),
            place: self.chance.random(),
        }
    }

    fn ask(&mut self, op: Op, chain: &Chain) -> Asked {
        let topic = if self.door == Door::Sql { BY_SQL } else { BY_RECORD };
        let (chance, now) = (&mut self.chance, now_ms());
        let wait = match chance.random_range(0..100) {
            0..15 => chance.random_range(0..200),
            15..80 => chance.random_range(200..4000),
            _ => chance.random_range(4000..8000),
        };
        let wait = wait.min((self.load.until - now).max(0) + AFTER_END_MS);
        let is_delay = chain.name.is_none() && chance.random_range(0..100) < 25;
        let tracked = Tracked {
            ttr_ms: chance.random_range(1000..12_000),
            attempts_max: chance.random_range(1..=2),
            backoff_ms: BACKOFF_MS,
            dead_topic: None,
        };
        let topic_name = match chain.is_wrong && chance.random() {
            true => format!("no-such-topic-{}", self.number),
            false => self.load.topics[topic].clone(),
        };
        let length = chance.random_range(10..200);
        Asked {
            serial: self.ledger.next_serial(),
            door: self.door,
            op,
            topic,
            is_wrong: chain.is_wrong,
            topic_name,
            name: chain.name.clone(),
            due: match is_delay {
                true => Due::After(wait),
                false => Due::At(now + wait + self.load.clock.offset_ms()),
            },
            key: (chance.random_range(0..10) > 0)
                .then(|| format!("key-{}", chance.random_range(0..100))),
            text: format!("{:08x} {}", chance.random::<u32>(), "x".repeat(length)),
            is_plain: chance.random_range(0..100) < 30,
            tracked: chain.is_tracked.then_some(tracked),
            finishes: None,
            place: chain.place,
        }
    }

    fn ask_finish(&mut self, Delivery { topic, id, attempt, .. }: Delivery) -> Asked {
        let chain = Chain {
            name: None,
            ops: VecDeque::new(),
            is_wrong: false,
            is_tracked: false,
            place: self.chance.random(),
        };
        let (topic_name, finishes) = (self.load.topics[topic].clone(), Some((id, attempt)));
        Asked { topic, topic_name, finishes, ..self.ask(Op::Finish, &chain) }
    }
}
