//! The doors beside REST while a cluster is being broken: an outbox in a database of its own, and
//! an intake topic. `asking` decides what is written, `shop` and `records` write it, `watch` sees
//! when it was taken, `evidence` completes the history, `faults` breaks the doors.

mod asking;
mod evidence;
mod faults;
mod records;
mod shop;
mod watch;

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub use faults::carry_out;

use super::consumers::Delivery;
use super::door_history::{Door, Request};
use super::field::Field;
use super::history::{BY_SQL, Submit};
use super::plan::{NODES, Server};
use super::traffic::{Ledger, Load};
use super::ways::Ways;
use crate::support::cluster::PARTITIONS;
use crate::support::node::program;
use crate::support::{Cluster, Consumer, OwnStack, now_ms, wait};
use asking::{Asked, Asker};
use shop::Shop;
use watch::Taken;

/// Clients of each door.
const CLIENTS: u64 = 2;
const POLL_MS: i64 = 50;
/// Of a hundred attempts, consumers finish this many by a record, and by SQL.
const FINISHED_PERCENT: u32 = 70;
/// Of a hundred finishes, this many come through the door that their task has not come through.
const OTHER_DOOR_PERCENT: u32 = 20;
/// The most finishes in a transaction.
const FINISHES_MAX: usize = 20;

/// A request that was written, and what is known of it meanwhile.
#[derive(Clone, Debug)]
pub struct Noted {
    request: Request,
    submit: Option<Submit>,
    /// The id of the row.
    row: Option<Uuid>,
    /// `None` while it is unknown whether its transaction was committed.
    is_committed: Option<bool>,
}

/// Both doors of a cluster.
#[derive(Debug)]
pub struct Doors {
    shop: Shop,
    kafka: String,
    intake: String,
    partitions: AtomicI32,
    rejected: Consumer,
    noted: Mutex<Vec<Noted>>,
    /// Attempts that are to be finished by a record or by SQL.
    finishes: Mutex<Vec<(Door, Delivery)>>,
    taken: Mutex<Taken>,
    left: Mutex<Vec<String>>,
    kills_at_store: AtomicUsize,
    watching: Mutex<Vec<JoinHandle<()>>>,
}

impl Doors {
    /// Creates the application's database with an outbox, and the intake topic.
    pub async fn open(own: &OwnStack, cluster: &Cluster) -> Self {
        let server = &own.extras.as_ref().expect("the stack is breakable").shop;
        let shop = Shop::open(server, &cluster.database.name).await;
        let mut words = vec!["outbox", "install", "--database-url", &shop.url];
        let drainers: Vec<String> = (1..=NODES).map(shop::role_of).collect();
        words.extend(drainers.iter().flat_map(|role| ["--drainer", role]));
        let output = program(&words).output().await.expect("run `punctual outbox`");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let intake = cluster.topic("intake").await;
        let rejected = format!("{intake}.rejected");
        cluster.create_topic(&rejected, &[]).await;
        Self {
            shop,
            kafka: own.stack.kafka.clone(),
            rejected: Consumer::start(&own.stack.kafka, &rejected, PARTITIONS),
            intake,
            partitions: AtomicI32::new(PARTITIONS),
            noted: Mutex::default(),
            finishes: Mutex::default(),
            taken: Mutex::default(),
            left: Mutex::default(),
            kills_at_store: AtomicUsize::new(0),
            watching: Mutex::default(),
        }
    }

    /// Returns the arguments of a node.
    pub fn arguments(&self, ways: &Ways, node: u8) -> Vec<String> {
        let outbox = self.shop.url_of(&ways.address(Server::Shop, node), node);
        ["--outbox", &format!("shop={outbox}"), "--intake-topic", &self.intake]
            .map(str::to_owned)
            .to_vec()
    }

    /// Starts all clients of the doors. They end with the traffic.
    pub fn start(
        self: &Arc<Self>,
        field: &Arc<Field>,
        load: &Load,
        ledger: &Arc<Ledger>,
    ) -> Vec<JoinHandle<()>> {
        let mut watching = self.watching.lock().unwrap();
        watching.push(tokio::spawn(Arc::clone(self).watch(Arc::clone(field))));
        watching.push(tokio::spawn(Arc::clone(self).consume(Arc::clone(field), load.clone())));
        let asker = |door, number| Asker::new(door, number, load, ledger);
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let [of_sql, of_records] = [Door::Sql, Door::Record].map(|door| asker(door, number));
            clients.push(tokio::spawn(Arc::clone(self).write_rows(of_sql, load.clone())));
            clients.push(tokio::spawn(Arc::clone(self).write_records(of_records, load.clone())));
        }
        clients
    }

    /// Reads attempts of tracked tasks that came through the doors, and has most of them finished
    /// through a door.
    async fn consume(self: Arc<Self>, field: Arc<Field>, load: Load) {
        let mut handled = Vec::new();
        while !load.is_over.load(Ordering::Relaxed) {
            for delivery in field.door_deliveries(&mut handled) {
                let seed = delivery.id.as_u64_pair().1 ^ load.seed ^ u64::from(delivery.attempt);
                let mut chance = StdRng::seed_from_u64(seed);
                if chance.random_range(0..100) < FINISHED_PERCENT {
                    let is_other = chance.random_range(0..100) < OTHER_DOOR_PERCENT;
                    let is_sql = (delivery.topic == BY_SQL) != is_other;
                    let door = if is_sql { Door::Sql } else { Door::Record };
                    self.finishes.lock().unwrap().push((door, delivery));
                }
            }
            wait::until(now_ms() + POLL_MS).await;
        }
    }

    /// Takes the latest attempts that are to be finished through a door.
    fn take_finishes(&self, door: Door) -> Vec<Delivery> {
        let mut finishes = self.finishes.lock().unwrap();
        let (mut taken, others): (Vec<_>, Vec<_>) =
            finishes.drain(..).partition(|(of, _)| *of == door);
        let kept = taken.len().saturating_sub(FINISHES_MAX);
        let latest = taken.split_off(kept);
        finishes.extend(others.into_iter().chain(taken));
        latest.into_iter().map(|(_, delivery)| delivery).collect()
    }

    /// Notes requests of one transaction. `rows` are the ids of their rows.
    fn note(
        &self,
        asked: Vec<Asked>,
        rows: Option<Vec<Uuid>>,
        (sent_at, is_committed): (i64, Option<bool>),
    ) {
        let ended_at = now_ms();
        let mut noted = self.noted.lock().unwrap();
        for (index, asked) in asked.into_iter().enumerate() {
            let row = rows.as_ref().and_then(|rows| rows.get(index).copied());
            let (request, submit) = asked.into_history((sent_at, ended_at));
            noted.push(Noted { request, submit, row, is_committed });
        }
    }
}
