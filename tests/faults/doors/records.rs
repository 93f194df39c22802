//! Producers that write records to the intake topic in transactions of Kafka.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};

use super::Doors;
use super::asking::{Asked, Asker, Due, TRANSACTION_EVERY_MS};
use crate::door_history::{Door, Op};
use crate::support::ledger::SERIAL_HEADER;
use crate::support::{now_ms, wait};
use crate::traffic::Load;

const PATIENCE: Duration = Duration::from_secs(8);
const RETRY_MS: i64 = 100;

type Producer = ThreadedProducer<DefaultProducerContext>;

impl Doors {
    /// Writes records until the traffic ends.
    pub(super) async fn write_records(self: Arc<Self>, mut asker: Asker, load: Load) {
        let id = format!("{}-{}", self.intake, rand::random::<u32>());
        let mut producer: Option<Producer> = None;
        let (mut next, mut count) = (now_ms(), self.partition_count());
        while !load.is_over.load(Ordering::Relaxed) {
            next = (next + TRANSACTION_EVERY_MS).max(now_ms() - TRANSACTION_EVERY_MS);
            wait::until(next).await;
            let Some(ready) = (match producer.take() {
                Some(producer) => Some(producer),
                None => self.producer(&id).await,
            }) else {
                wait::until(now_ms() + RETRY_MS).await;
                continue;
            };
            let finishes = self.take_finishes(Door::Record);
            if count != self.partition_count() {
                // The next requests of a name would be in another partition.
                asker.forget();
                count = self.partition_count();
            }
            let (asked, commits) = asker.transaction(finishes);
            let is_certain;
            (producer, is_certain) = self.write_transaction(ready, asked, (commits, count)).await;
            if !is_certain {
                asker.forget();
            }
        }
    }

    pub(super) fn partition_count(&self) -> u32 {
        u32::try_from(self.partitions.load(Ordering::Relaxed)).unwrap()
    }

    /// Makes a producer, which ends the last transaction of this id. `None` while Kafka is away.
    pub(super) async fn producer(&self, id: &str) -> Option<Producer> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.kafka)
            .set("transactional.id", id)
            .set("transaction.timeout.ms", "10000")
            .set("message.timeout.ms", "8000")
            // New partitions are known soon.
            .set("topic.metadata.refresh.interval.ms", "1000");
        let make = move || {
            let producer: Producer = config.create().expect("create a producer");
            producer.init_transactions(PATIENCE).ok().map(|()| producer)
        };
        tokio::task::spawn_blocking(make).await.expect("a producer is made")
    }

    /// Writes a transaction to `count` partitions, and notes its requests. Returns the producer if
    /// it can go on, and whether the end of the transaction is known.
    pub(super) async fn write_transaction(
        &self,
        producer: Producer,
        asked: Vec<Asked>,
        (commits, count): (bool, u32),
    ) -> (Option<Producer>, bool) {
        let (intake, records, sent_at) = (self.intake.clone(), asked.clone(), now_ms());
        let write = move || {
            let outcome = write(&producer, (&intake, count), &records, commits);
            match outcome {
                (true, is_committed) => (Some(producer), is_committed),
                (false, is_committed) => (None, is_committed),
            }
        };
        let (producer, is_committed) =
            tokio::task::spawn_blocking(write).await.expect("a transaction ends");
        self.note(asked, None, (sent_at, is_committed));
        (producer, is_committed.is_some())
    }
}

/// Returns whether the producer can go on, and whether the transaction is committed, if known.
///
/// A producer that has given up a record does not go on. librdkafka (2.12.1 and 2.16.0) gives the
/// sequence number of a record that it gave up by an abort to the next record of the partition. If
/// the broker has the first one after all, it takes the second one for the same, and drops it,
/// and the commit succeeds. A new producer has a new epoch.
fn write(
    producer: &Producer,
    (intake, count): (&str, u32),
    records: &[Asked],
    commits: bool,
) -> (bool, Option<bool>) {
    if producer.begin_transaction().is_err() {
        return (false, Some(false));
    }
    let are_queued = records.iter().all(|asked| {
        let mut record = BaseRecord::<[u8], [u8]>::to(intake)
            .partition(i32::try_from(asked.place % count).unwrap())
            .headers(headers_of(asked));
        if let Some(key) = &asked.key {
            record = record.key(key.as_bytes());
        }
        if matches!(asked.op, Op::Submit | Op::Replace) {
            record = record.payload(asked.text.as_bytes());
        }
        producer.send(record).is_ok()
    });
    let are_sent = are_queued && producer.flush(PATIENCE).is_ok();
    if are_sent && commits {
        return match producer.commit_transaction(PATIENCE) {
            Ok(()) => (true, Some(true)),
            Err(_) => (false, None),
        };
    }
    // A transaction that is not asked to commit never does.
    (producer.abort_transaction(PATIENCE).is_ok() && are_sent, Some(false))
}

fn headers_of(asked: &Asked) -> OwnedHeaders {
    let mut headers = vec![(SERIAL_HEADER, asked.serial.to_string())];
    let op = match asked.op {
        Op::Submit => "submit",
        Op::Replace => "replace",
        Op::Cancel => "cancel",
        Op::Finish => "finish",
    };
    headers.push(("punctual-op", op.to_owned()));
    if let Some((task, attempt)) = asked.finishes {
        headers.push(("punctual-id", task.to_string()));
        headers.push(("punctual-attempt", attempt.to_string()));
    } else {
        headers.push(("punctual-topic", asked.topic_name.clone()));
    }
    headers.extend(asked.name.iter().map(|name| ("punctual-name", name.clone())));
    if matches!(asked.op, Op::Submit | Op::Replace) {
        match asked.due {
            // A wrong record with a right topic has no due time.
            _ if asked.is_wrong && asked.topic_name.contains("by-record") => {}
            Due::At(due_at) => headers.push(("punctual-due-at", due_at.to_string())),
            Due::After(delay) => headers.push(("punctual-delay", delay.to_string())),
        }
        if let Some(tracked) = asked.tracked {
            headers.push(("punctual-ttr", format!("{}ms", tracked.ttr_ms)));
            headers.push(("punctual-retry", Asked::retry(tracked)));
        }
    }
    headers.iter().fold(OwnedHeaders::new(), |owned, (key, value)| {
        owned.insert(Header { key, value: Some(value.as_str()) })
    })
}
