//! A consumer of one topic: reads all of it, from its beginning, and keeps the records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, Timestamp, TopicPartitionList};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::wait::look_for;

/// The consumer keeps only the hash of payloads above this size.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// The longest use of one client. After a broker's restart librdkafka may permanently lose track of
/// a partition's leader (its issue 5430), which nodes meet as well. The next client continues where
/// the last one ended.
const CLIENT_SPAN: Duration = Duration::from_secs(10);

/// A record as it is in the topic.
#[derive(Clone, Debug)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    /// The record's timestamp, and whether the broker set it.
    pub timestamp: i64,
    pub is_append_time: bool,
    pub key: Option<Vec<u8>>,
    /// `None` for a large payload.
    pub payload: Option<Vec<u8>>,
    pub payload_hash: Option<u64>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// Returns the id of the task according to the record.
    pub fn task_id(&self) -> Uuid {
        let id =
            self.header("punctual-task-id").unwrap_or_else(|| panic!("no task id in {self:?}"));
        Uuid::try_parse_ascii(id).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(found, _)| found == name).and_then(|(_, value)| value.as_deref())
    }

    fn read(message: &BorrowedMessage<'_>) -> Self {
        let (timestamp, is_append_time) = match message.timestamp() {
            Timestamp::LogAppendTime(millis) => (millis, true),
            Timestamp::CreateTime(millis) => (millis, false),
            Timestamp::NotAvailable => panic!("a record without a timestamp"),
        };
        let headers = message.headers().map(|headers| {
            headers
                .iter()
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect()
        });
        Self {
            partition: message.partition(),
            offset: message.offset(),
            timestamp,
            is_append_time,
            key: message.key().map(<[u8]>::to_vec),
            payload: message
                .payload()
                .filter(|payload| payload.len() <= KEPT_BYTES_MAX)
                .map(<[u8]>::to_vec),
            payload_hash: message.payload().map(xxh3_64),
            headers: headers.unwrap_or_default(),
        }
    }
}

/// Reads a topic in a separate thread until dropped.
#[derive(Debug)]
pub struct Consumer {
    seen: Arc<Mutex<Vec<Record>>>,
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    /// Starts to read `topic`, which has `partitions` partitions, at `kafka`.
    pub fn start(kafka: &str, topic: &str, partitions: i32) -> Self {
        let reader = Reader {
            kafka: kafka.to_owned(),
            topic: topic.to_owned(),
            next: vec![0; usize::try_from(partitions).unwrap()],
        };
        let (seen, is_done) = (Arc::<Mutex<Vec<Record>>>::default(), Arc::<AtomicBool>::default());
        let thread = std::thread::spawn({
            let (seen, is_done) = (Arc::clone(&seen), Arc::clone(&is_done));
            move || reader.run(&seen, &is_done)
        });
        Self { seen, is_done, thread: Some(thread) }
    }

    /// Returns the records so far, in the order of arrival.
    pub fn records(&self) -> Vec<Record> {
        self.seen.lock().unwrap().clone()
    }

    /// Calls `view` with the records so far.
    pub fn look<T>(&self, view: impl FnOnce(&[Record]) -> T) -> T {
        view(&self.seen.lock().unwrap())
    }

    /// Waits until the records fulfil `holds`, and returns them.
    pub async fn wait_for(
        &self,
        what: &str,
        deadline: Duration,
        holds: impl Fn(&[Record]) -> bool,
    ) -> Vec<Record> {
        let found =
            look_for(deadline, async || holds(&self.seen.lock().unwrap()).then_some(())).await;
        assert!(
            found.is_some(),
            "not within {deadline:?}: {what}; records that arrived: {}",
            self.records().len()
        );
        self.records()
    }

    /// Waits for a number of records while they keep coming, with pauses of at most `pause`.
    pub async fn wait_count_while_they_come(&self, count: usize, pause: Duration) -> Vec<Record> {
        let mut seen = 0;
        while seen < count {
            let more = look_for(pause, async || {
                Some(self.look(<[Record]>::len)).filter(|now| *now > seen)
            })
            .await;
            seen = more.unwrap_or_else(|| {
                panic!("none came for {pause:?}: {seen} of {count} have arrived")
            });
        }
        self.records()
    }

    /// Waits for a number of records.
    pub async fn wait_count(&self, count: usize, deadline: Duration) -> Vec<Record> {
        self.wait_for(&format!("{count} records arrive"), deadline, |records| {
            records.len() >= count
        })
        .await
    }

    /// Stops reading. Keeps the records so far.
    pub fn end(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("the consumer's thread has panicked");
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.end();
    }
}

/// The position of a consumer.
struct Reader {
    kafka: String,
    topic: String,
    /// The next offset of each partition.
    next: Vec<i64>,
}

impl Reader {
    fn run(mut self, seen: &Mutex<Vec<Record>>, is_done: &AtomicBool) {
        while !is_done.load(Ordering::Relaxed) {
            let client = self.open();
            self.read(&client, seen, is_done);
        }
    }

    /// Opens a client that continues where the last one ended.
    fn open(&self) -> BaseConsumer {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.kafka)
            .set("group.id", format!("test-{}", Uuid::from_u128(rand::random())))
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("fetch.wait.max.ms", "100")
            .set("fetch.message.max.bytes", "4194304")
            .set("reconnect.backoff.max.ms", "500")
            .create()
            .unwrap();
        let mut assignment = TopicPartitionList::new();
        for (partition, next) in (0..).zip(&self.next) {
            assignment.add_partition_offset(&self.topic, partition, Offset::Offset(*next)).unwrap();
        }
        consumer.assign(&assignment).unwrap();
        consumer
    }

    fn read(&mut self, client: &BaseConsumer, seen: &Mutex<Vec<Record>>, is_done: &AtomicBool) {
        let began = Instant::now();
        while !is_done.load(Ordering::Relaxed) && began.elapsed() < CLIENT_SPAN {
            // Errors mean that the broker is down, as in some tests. The client reconnects by
            // itself.
            if let Some(Ok(message)) = client.poll(Duration::from_millis(50)) {
                let record = Record::read(&message);
                self.next[usize::try_from(record.partition).unwrap()] = record.offset + 1;
                seen.lock().unwrap().push(record);
            }
        }
    }
}
