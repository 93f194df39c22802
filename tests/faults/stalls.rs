//! Stalls of the servers that no operation has caused. On a busy machine Postgres or Kafka may take
//! seconds for a commit or an acknowledgement, and a node whose heartbeat is that late seems dead.
//! The runner asks both itself, past the proxies, so that its oracle can tell stalls from faults of
//! the program.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::task::JoinHandle;

use super::field::Field;
use super::history::Span;
use super::plan::{Kind, Operation, STEPS_MAX, Server};
use crate::support::cluster::PARTITIONS;
use crate::support::{now_ms, wait};

const EVERY_MS: i64 = 200;
/// The session TTL is 2 s in rounds with faults, and a heartbeat may be due just before the stall.
const STALL_MIN_MS: i64 = 1000;
/// A server that was just started, or is stopping, is slow because of that operation.
const OPERATION_MARGIN_MS: i64 = 2000;

/// Observes both servers until it is stopped.
pub struct Stalls {
    observed: Arc<Mutex<Vec<Span>>>,
    observers: Vec<JoinHandle<()>>,
}

impl Stalls {
    pub async fn watch(field: &Arc<Field>) -> Self {
        let observed: Arc<Mutex<Vec<Span>>> = Arc::default();
        let topic = field.cluster.topic("stalls").await;
        let kafka = field.own.stack.kafka.clone();
        let mut observers =
            vec![tokio::spawn(watch_postgres(Arc::clone(field), Arc::clone(&observed)))];
        // Each broker of three leads one of the partitions.
        for partition in 0..PARTITIONS {
            let place = (topic.clone(), partition);
            let watching = watch_kafka(kafka.clone(), place, Arc::clone(&observed));
            observers.push(tokio::spawn(watching));
        }
        Self { observed, observers }
    }

    /// Returns the stalls that none of the operations explains.
    pub async fn stop(self, operations: &[Span]) -> Vec<Span> {
        for observer in self.observers {
            observer.abort();
            assert!(!observer.await.is_err_and(|error| error.is_panic()), "an observer panicked");
        }
        let mut stalls = std::mem::take(&mut *self.observed.lock().unwrap());
        stalls.retain(|stall| {
            !operations.iter().any(|span| {
                // A quota holds back the runner itself, and no node for good. An operation on one
                // topic makes no broker stall.
                let is_quota = span.operation.kind == Kind::Quota;
                let is_of_topic =
                    matches!(span.operation.kind, Kind::TopicDeleted | Kind::TopicLimit);
                let is_of_server = span.operation.resource() == stall.operation.resource();
                (is_quota || is_of_server && !is_of_topic)
                    && span.begin <= stall.end
                    && stall.begin <= span.end + OPERATION_MARGIN_MS
            })
        });
        stalls
    }
}

/// Commits something again and again. A server that is down is no stall.
async fn watch_postgres(field: Arc<Field>, observed: Arc<Mutex<Vec<Span>>>) {
    loop {
        let began = now_ms();
        let committed = sqlx::query("select pg_logical_emit_message(true, 'stalls', '')")
            .execute(&field.cluster.sql)
            .await;
        note(&observed, Server::Postgres, began, committed.is_ok());
        wait::until(began + EVERY_MS).await;
    }
}

/// Appends something to a partition again and again.
async fn watch_kafka(
    address: String,
    (topic, partition): (String, i32),
    observed: Arc<Mutex<Vec<Span>>>,
) {
    let make = || -> FutureProducer {
        let made = ClientConfig::new()
            .set("bootstrap.servers", &address)
            .set("acks", "all")
            .set("linger.ms", "0")
            .set("message.timeout.ms", "120000")
            .create();
        made.expect("make a producer")
    };
    let mut producer = make();
    loop {
        let began = now_ms();
        let record = FutureRecord::<(), [u8]>::to(&topic).partition(partition).payload(b"");
        let appended = producer.send(record, Duration::ZERO).await;
        note(&observed, Server::Kafka, began, appended.is_ok());
        if appended.is_err() {
            // It may have forgotten all brokers (librdkafka's issue 5301).
            producer = make();
        }
        wait::until(began + EVERY_MS).await;
    }
}

fn note(observed: &Mutex<Vec<Span>>, server: Server, began: i64, is_done: bool) {
    let ended = now_ms();
    if is_done && ended - began >= STALL_MIN_MS {
        let operation = Operation {
            at: 0,
            kind: Kind::Stall(server),
            node: 0,
            lasts: 0,
            by: 0,
            steps: [0; STEPS_MAX],
        };
        observed.lock().unwrap().push(Span { operation, begin: began, end: ended });
    }
}
