//! A poller as most teams write one, well tuned: one table, an index on (status, due_at),
//! `for update skip locked` in batches of 1000, and an idempotent producer with acks=all. The
//! transaction marks rows as done once Kafka has acknowledged their records. After a full batch the
//! poller polls again at once, otherwise after the given number of milliseconds.
//!
//! Usage: `poller DATABASE-URL KAFKA EVERY-MS WORKERS`. The records carry no headers, which saves a
//! microsecond each.
#![expect(
    clippy::print_stderr,
    clippy::expect_used,
    reason = "a program of the benchmarks: it ends where something is not as it should be"
)]

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseRecord, ProducerContext, ThreadedProducer};
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::sync::mpsc;

/// Uses `now()`, the time of the transaction. `clock_timestamp()` is volatile, so each poll would
/// read all pending rows.
const DUE: &str = "
select id, topic, key, payload from poll_task
where status = 0 and due_at <= now()
order by due_at limit $1
for update skip locked";

const DONE: &str =
    "update poll_task set status = 1, published_at = clock_timestamp() where id = any($1)";

const BATCH: i64 = 1_000;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, database, bootstrap, every, workers] = arguments.as_slice() else {
        eprintln!("usage: poller DATABASE-URL KAFKA EVERY-MS WORKERS");
        std::process::exit(2);
    };
    let every = Duration::from_millis(every.parse().expect("milliseconds"));
    let producer = Arc::new(producer(bootstrap));
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..workers.parse::<u32>().expect("a number of workers") {
        let connection = PgConnection::connect(database).await.expect("connect to Postgres");
        running.spawn(poll(connection, Arc::clone(&producer), every));
    }
    running.join_next().await;
}

/// Creates a producer with the same settings as Punctual's.
fn producer(bootstrap: &str) -> ThreadedProducer<Reports> {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "0.5")
        .set("partitioner", "murmur2_random")
        .set("socket.nagle.disable", "true")
        .create_with_context(Reports)
        .expect("a producer")
}

async fn poll(
    mut connection: PgConnection,
    producer: Arc<ThreadedProducer<Reports>>,
    every: Duration,
) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        while publish(&mut connection, &producer).await.expect("publish a batch") {}
    }
}

/// Publishes one batch. Returns true when the batch was full.
async fn publish(
    connection: &mut PgConnection,
    producer: &ThreadedProducer<Reports>,
) -> Result<bool, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let rows = sqlx::query(DUE).bind(BATCH).fetch_all(&mut *transaction).await?;
    if rows.is_empty() {
        transaction.rollback().await?;
        return Ok(false);
    }
    let (reports, mut arrived) = mpsc::channel(rows.len());
    let mut ids: Vec<i64> = Vec::with_capacity(rows.len());
    for row in &rows {
        let record = BaseRecord::with_opaque_to(row.try_get("topic")?, Box::new(reports.clone()))
            .key(row.try_get::<&[u8], _>("key")?)
            .payload(row.try_get::<&[u8], _>("payload")?);
        producer.send(record).map_err(|(error, _)| error).expect("the producer has room");
        ids.push(row.try_get("id")?);
    }
    drop(reports);
    let mut acknowledged = 0;
    while let Some(outcome) = arrived.recv().await {
        outcome.expect("a record was acknowledged");
        acknowledged += 1;
    }
    assert_eq!(acknowledged, rows.len(), "every record was acknowledged");
    sqlx::query(DONE).bind(&ids).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(i64::try_from(rows.len()).is_ok_and(|count| count == BATCH))
}

struct Reports;

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<mpsc::Sender<Result<i64, KafkaError>>>;

    fn delivery(&self, delivery: &DeliveryResult<'_>, batch: Self::DeliveryOpaque) {
        let outcome =
            delivery.as_ref().map(|message| message.offset()).map_err(|(error, _)| error.clone());
        batch.try_send(outcome).expect("there is room for every record of the batch");
    }
}
