//! The floor: Punctual's claim statement, producer and settle statement in a bare loop. The loop
//! has no membership, no limits, no retries and no API. A node cannot cost less than the floor. Its
//! tasks use the product's own schema.
//!
//! Usage: `floor DATABASE-URL KAFKA FROM-MS`. Claims the tasks due from that moment on, and
//! publishes each at its due time. Runs forever.
#![expect(
    clippy::print_stderr,
    clippy::as_conversions,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a program of the benchmarks: it ends where something is not as it should be, and \
              reads the clock by itself"
)]

mod held;
mod timer;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use punctual::domain::leaves::Rules;
use punctual::domain::{BatchId, IdRange, NodeId, Timestamp};
use punctual::kafka::{Hooks, KafkaMetrics, Mode, Producer, TopicCache};
use punctual::postgres::tasks::claim::{ClaimRequest, Claimed, Claims, Source};
use punctual::postgres::tasks::settle::{SettleTerms, Settlement, Settles};
use punctual::postgres::{self, PostgresSettings};
use tokio::sync::mpsc;
use uuid::Uuid;

use held::{Held, Slots};
use timer::{Timer, now};

/// How far ahead of due tasks are claimed, how often, and how many at once. The values are those of
/// a node.
const WINDOW: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(20);
const TARGET: u128 = 1_000;
const LOOPS: i16 = 2;
const IN_FLIGHT_MAX: usize = 80_000;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, database, bootstrap, from] = arguments.as_slice() else {
        eprintln!("usage: floor DATABASE-URL KAFKA FROM-MS");
        std::process::exit(2);
    };
    let from = from.parse().expect("milliseconds since the epoch");
    let settings = PostgresSettings::new(database).expect("a URL of a database");
    let cluster =
        postgres::cluster::schema::check(&settings).await.expect("a migrated database").cluster;
    let node = NodeId::new(now(), rand::random(), rand::random());
    let slots = Arc::new(Slots::default());
    let (settled, to_settle) = mpsc::channel(held::SLOTS);
    let producer = Arc::new(producer(bootstrap, &slots, settled));
    let timer = Timer::start(Arc::clone(&producer));
    for number in 0..LOOPS {
        let shards = (0..i16::try_from(cluster.shards.get()).expect("at most 4096"))
            .filter(|shard| shard % LOOPS == number);
        let (slots, timer) = (Arc::clone(&slots), timer.clone());
        let claiming = Claiming {
            claims: Claims::new(&settings, Rules::new(&cluster)),
            shards: shards.collect(),
            node,
            slots,
            producer: Arc::clone(&producer),
            timer,
        };
        tokio::spawn(claiming.run(Timestamp::from_millis(from)));
    }
    settle(Settles::new(&settings, node, Duration::ZERO), to_settle).await;
}

/// Creates the product's producer with the product's settings.
fn producer(bootstrap: &str, slots: &Arc<Slots>, settled: mpsc::Sender<Arc<Held>>) -> Producer {
    let settings = punctual::bench::kafka_settings(bootstrap, Vec::new());
    let metrics = KafkaMetrics::register(&mut punctual::telemetry::registry("floor", "floor"));
    let topics = TopicCache::start(&settings, metrics.clone()).expect("the thread of the topics");
    let slots = Arc::clone(slots);
    let on_report = move |report| {
        if let Some(whole) = slots.take_in(report) {
            settled.try_send(whole).expect("there is room for every slot");
        }
    };
    Producer::new(&settings, Mode::Together, topics.contact(), metrics, Hooks::new(on_report, now))
        .expect("a producer")
}

struct Claiming {
    claims: Claims,
    shards: Vec<i16>,
    node: NodeId,
    slots: Arc<Slots>,
    producer: Arc<Producer>,
    timer: Timer,
}

impl Claiming {
    async fn run(mut self, from: Timestamp) {
        let start = IdRange::of_times(from, from.plus(TICK));
        let (mut low, mut width) = (start.from.as_u128(), start.width());
        loop {
            let front = IdRange::of_times(now().plus(WINDOW), now()).from.as_u128();
            if low >= front {
                tokio::time::sleep(TICK).await;
                continue;
            }
            while self.slots.in_flight.load(Ordering::Relaxed) > IN_FLIGHT_MAX {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let to = low.saturating_add(width).min(front);
            let got = match self.claim(low, to).await {
                Claimed::TooLarge { .. } => {
                    width /= 2;
                    continue;
                }
                Claimed::Nothing => 0,
                Claimed::Batch(batch) => {
                    let count = batch.len();
                    self.publish(Held::new(batch));
                    count as u128
                }
            };
            // Sizes the next range to hold about the target number of tasks. A range that was cut
            // off at the watermark does not count, because its width says little.
            if to < front {
                width = (width / got.max(1))
                    .saturating_mul(TARGET)
                    .clamp(width / 2, width.saturating_mul(2));
            }
            low = to;
        }
    }

    async fn claim(&mut self, low: u128, to: u128) -> Claimed {
        let range = IdRange { from: Uuid::from_u128(low), to: Uuid::from_u128(to) };
        let request = ClaimRequest::of_all(
            BatchId::new(now(), rand::random(), rand::random()),
            self.node,
            &self.shards,
            range,
        );
        self.claims.claim(Source::Task, request).await.expect("a claim").claimed
    }

    fn publish(&self, held: Held) {
        let held = self.slots.put(held);
        let now = now();
        let (due, later): (Vec<usize>, Vec<usize>) =
            (0..held.batch.len()).partition(|index| held.batch.id_of(*index).due_at() <= now);
        held.send(due.into_iter(), &self.producer);
        self.timer.wait_for(held, later);
    }
}

/// Settles complete batches. Several complete batches share one statement.
async fn settle(mut settles: Settles, mut complete: mpsc::Receiver<Arc<Held>>) {
    let mut batches = Vec::new();
    while complete.recv_many(&mut batches, 8).await > 0 {
        let settlements: Vec<Settlement> =
            batches.drain(..).map(|held| held.settlement()).collect();
        let terms = SettleTerms::default();
        let (settled, outcome) =
            settles.settle(&settlements.iter().collect::<Vec<_>>(), terms).await;
        outcome.expect("a settle");
        assert_eq!(settled.batches.len(), settlements.len(), "nobody else settles these");
    }
}
