//! The consumer. It stands for any Kafka client, and records when each task arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use uuid::Uuid;

use crate::Failure;
use crate::servers::{PARTITIONS, Servers};

/// One record of the topic.
#[derive(Clone, Copy)]
pub struct Arrival {
    pub id: Uuid,
    pub partition: i32,
    pub offset: i64,
    /// Time when the broker appended the record, in ms since the epoch.
    pub appended_at: i64,
}

pub struct Consumer {
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    pub fn start(servers: &Servers) -> Result<Self, Failure> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &servers.kafka)
            .set("group.id", &servers.name)
            .set("enable.auto.commit", "false")
            .create()?;
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(&servers.name, partition, Offset::Beginning)?;
        }
        consumer.assign(&all)?;
        let (arrivals, is_done) = (Arc::default(), Arc::<AtomicBool>::default());
        let thread = std::thread::spawn({
            let (arrivals, is_done) = (Arc::clone(&arrivals), Arc::clone(&is_done));
            move || read(&consumer, &arrivals, &is_done)
        });
        Ok(Self { arrivals, is_done, thread: Some(thread) })
    }

    /// Returns all records that have arrived so far.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().clone()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("demo: the consumer has failed");
        }
    }
}

fn read(consumer: &BaseConsumer, arrivals: &Mutex<Vec<Arrival>>, is_done: &AtomicBool) {
    while !is_done.load(Ordering::Relaxed) {
        match consumer.poll(Duration::from_millis(50)) {
            None => {}
            Some(Err(error)) => eprintln!("demo: consumer: {error}"),
            Some(Ok(message)) => {
                let headers = message.headers();
                let id = headers.and_then(|headers| {
                    headers.iter().find(|header| header.key == "punctual-task-id")?.value
                });
                let Some(id) = id.and_then(|id| Uuid::try_parse_ascii(id).ok()) else {
                    eprintln!("demo: a record without a task's id");
                    continue;
                };
                let appended_at = message.timestamp().to_millis().unwrap_or(0);
                let arrival = Arrival {
                    id,
                    partition: message.partition(),
                    offset: message.offset(),
                    appended_at,
                };
                arrivals.lock().push(arrival);
            }
        }
    }
}
