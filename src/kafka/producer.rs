//! Sends records to Kafka and passes on their delivery reports.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};

use super::contact::PROBE_TOPIC;
use super::context::{Context, LogThrottles, ProducerSigns};
use super::signs::Signs;
use super::{
    ClientError, Hooks, KafkaContact, KafkaMetrics, KafkaSettings, Mode, Reason, SendError,
};
use crate::clock;
use crate::domain::task::headers::{SUBMIT_TRACEPARENT, TRACEPARENT, TRACESTATE};
use crate::domain::task::{expiry, headers, spread};
use crate::domain::{BatchTask, Timestamp, TopicName};
use crate::telemetry::traces::Publications;

/// The header with the task's first id, as text. It distinguishes repetitions of one task from
/// other tasks.
pub(super) const TASK_ID: &str = "punctual-task-id";
/// The header with the requested due time, in milliseconds since the epoch, as decimal text.
pub(super) const DUE_AT: &str = "punctual-due-at";
/// The header with the time from which the task would not have been published, in milliseconds
/// since the epoch, as decimal text. Only records of tasks with an expiry have it.
const EXPIRES_AT: &str = "punctual-expires-at";
/// The header with the number of the attempt, as decimal text. Only records of tracked tasks have
/// it and the following ones.
pub(super) const ATTEMPT: &str = "punctual-attempt";
/// The number of the last attempt that there can be.
pub(super) const ATTEMPTS_MAX: &str = "punctual-attempts-max";
/// The consumer's time to run, in milliseconds.
pub(super) const TTR_MS: &str = "punctual-ttr-ms";
/// The topic of a task whose record is in its dead topic.
const TOPIC: &str = "punctual-topic";
/// The reason why the task is dead.
pub(super) const DEAD_REASON: &str = "punctual-dead-reason";
/// The place of its last attempt in the topic of the task: `partition:offset`.
const RECEIPT: &str = "punctual-receipt";

/// The duration of one wait for reports. rdkafka spins through the last millisecond of each wait.
/// Its own `ThreadedProducer`, which waits for 100 ms, thus takes 0.7 % of a core when it is idle,
/// and a node has four producers. The end of a producer may take this long as well, so the wait is
/// not much longer.
const POLL: Duration = Duration::from_secs(1);
const POLLING_THREAD: &str = "kafka-reports";

/// An idempotent producer. Each record that [`Self::send`] took gets exactly one
/// [`super::DeliveryReport`], also when the producer is purged or dropped. By itself, librdkafka
/// gives up a record only after [`KafkaSettings::give_up_after`]: see there.
///
/// Dropping a producer blocks for up to a second: see [`Self::close`].
#[must_use]
pub struct Producer {
    inner: Arc<BaseProducer<Context>>,
    polling: Polling,
    metrics: KafkaMetrics,
    observed: Arc<ProducerSigns>,
}

impl Producer {
    /// Makes a producer and its threads. The producer connects in the background.
    ///
    /// # Errors
    /// When the settings are wrong, or files named there (certificates) cannot be used.
    pub fn new(
        settings: &KafkaSettings,
        mode: Mode,
        contact: KafkaContact,
        metrics: KafkaMetrics,
        hooks: Hooks,
    ) -> Result<Self, ClientError> {
        let (observed, log_throttles, interval) = (
            Arc::new(ProducerSigns::default()),
            Mutex::new(LogThrottles::default()),
            settings.statistics_interval(),
        );
        let context = Context {
            hooks,
            mode,
            contact,
            metrics: metrics.clone(),
            log_throttles,
            observed: Arc::clone(&observed),
            interval,
        };
        let inner: BaseProducer<Context> = settings
            .producer_config(mode)
            .create_with_context(context)
            .map_err(|source| ClientError::Create { what: "Kafka producer", source })?;
        let inner = Arc::new(inner);
        let polling = Polling::start(Arc::clone(&inner))
            .map_err(|source| ClientError::Thread { name: POLLING_THREAD, source })?;
        Ok(Self { inner, polling, metrics, observed })
    }

    /// Hands over `task`'s record for `topic`, with `now` as its time. Never blocks.
    /// `correlation_id` comes back with the report.
    ///
    /// Copies key, payload and headers. The method itself allocates nothing for a task without a
    /// span. librdkafka allocates once for the record and once for each header.
    ///
    /// # Errors
    /// When the record was not taken: no report will come for it.
    pub fn send(
        &self,
        correlation_id: usize,
        topic: &str,
        task: &BatchTask<'_>,
        now: Timestamp,
    ) -> Result<(), SendError> {
        let publications = self.inner.client().context().hooks.publications.as_ref();
        let traceparent =
            publications.and_then(|spans| begin_span(spans, correlation_id, topic, task));
        let record = BaseRecord {
            topic,
            partition: None,
            payload: task.payload,
            key: task.key,
            // This machine's clock may be hours off, and a broker refuses records from the future.
            timestamp: Some(now.as_millis()),
            headers: Some(headers_of(task, traceparent.as_deref())),
            delivery_opaque: correlation_id,
        };
        match self.inner.send(record) {
            Ok(()) => {
                self.metrics.sent.inc();
                Ok(())
            }
            Err((error, _record)) => {
                if let Some(publications) = publications {
                    publications.forget(correlation_id);
                }
                Err(self.refused(error.rdkafka_error_code()))
            }
        }
    }

    #[cold]
    fn refused(&self, code: Option<RDKafkaErrorCode>) -> SendError {
        // An error without a code means that the topic's name contains a NUL.
        let refused = SendError::of_send(code.unwrap_or(RDKafkaErrorCode::InvalidTopic));
        if refused == SendError::Full {
            self.metrics.queue_full.inc();
        }
        refused
    }

    /// Fetches the metadata of `topics` ahead of the first records. Returns the number of existing
    /// topics. Topics without an answer within `deadline` are skipped: the first records fetch the
    /// metadata then.
    pub async fn preload(&self, topics: Vec<TopicName>, deadline: Duration) -> usize {
        let inner = Arc::clone(&self.inner);
        let started_at = clock::monotonic();
        let load = move || {
            let mut loaded_count = 0;
            for topic in topics {
                let left = deadline.saturating_sub(clock::monotonic().since(started_at));
                if left < Duration::from_millis(1) {
                    break;
                }
                match inner.client().fetch_metadata(Some(topic.as_str()), left) {
                    Ok(metadata)
                        if metadata.topics().iter().all(|topic| topic.error().is_none()) =>
                    {
                        loaded_count += 1
                    }
                    Ok(_) => {
                        tracing::debug!(%topic, "the topic does not exist, so it is not preloaded")
                    }
                    Err(error) => tracing::debug!(%topic, %error, "cannot preload the topic"),
                }
            }
            loaded_count
        };
        tokio::task::spawn_blocking(load).await.unwrap_or(0)
    }

    /// Returns true when a broker answers a question of this very client within `deadline`.
    pub async fn is_answered(&self, deadline: Duration) -> bool {
        let inner = Arc::clone(&self.inner);
        let ask = move || inner.client().fetch_metadata(Some(PROBE_TOPIC), deadline).is_ok();
        tokio::task::spawn_blocking(ask).await.unwrap_or(false)
    }

    /// Gives up all records without a report. Never blocks. The reports come soon: `NotSent`, or
    /// `Unknown` for records that may be in the topic.
    pub fn purge(&self) {
        self.inner.purge(PurgeConfig::default().queue().inflight().non_blocking());
    }

    /// Gives up the records that wait to be sent, or to be sent again after a failed request. Never
    /// blocks. Records in a request are left to be acknowledged.
    pub fn purge_queue(&self) {
        self.inner.purge(PurgeConfig::default().queue().non_blocking());
    }

    /// Returns true once this producer cannot send records to some partition any more, even if that
    /// partition is healthy. The producer must then be replaced.
    pub fn is_stuck(&self) -> bool {
        self.observed.is_stuck.load(Ordering::Relaxed)
    }

    /// Returns for how long brokers delay requests because this client is over a quota.
    pub fn throttle(&self) -> Option<Duration> {
        self.signs(|signs| signs.throttle(clock::monotonic()))
    }

    /// Returns true while a broker has not answered some requests for seconds, but may still do so.
    pub fn is_stalled(&self) -> bool {
        self.signs(Signs::is_stalled)
    }

    /// Returns true when there is certainly no connection to any broker, and none is being made.
    pub fn has_no_way(&self) -> bool {
        self.signs(Signs::has_no_way)
    }

    fn signs<T>(&self, ask: impl FnOnce(&Signs) -> T) -> T {
        ask(&self.observed.signs.lock())
    }

    /// Returns true once no reports are taken in any more, because their thread has panicked. The
    /// outcomes of sent records are then never known.
    pub fn is_deaf(&self) -> bool {
        self.polling.is_over()
    }

    /// Returns the reason why this producer is finished: it cannot send any more, and must be
    /// replaced.
    pub fn fatal(&self) -> Option<String> {
        self.inner
            .client()
            .fatal_error()
            .map(|(code, reason)| format!("{}: {reason}", Reason::new(code)))
    }

    /// Returns the number of records without a report, plus reports that are being handed over. It
    /// may still count a record whose report has just come.
    pub fn in_flight(&self) -> usize {
        usize::try_from(self.inner.in_flight_count()).unwrap_or(0)
    }

    /// Purges and ends the producer, away from the async threads. Afterwards all reports have been
    /// handed over.
    pub async fn close(self) {
        let closed = tokio::task::spawn_blocking(move || drop(self)).await;
        if closed.is_err() {
            tracing::warn!("a Kafka producer did not close cleanly");
        }
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

/// The thread that takes in the reports.
struct Polling {
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Polling {
    fn start(producer: Arc<BaseProducer<Context>>) -> std::io::Result<Self> {
        let is_done = Arc::new(AtomicBool::new(false));
        let is_to_end = Arc::clone(&is_done);
        let poll = move || {
            while !is_to_end.load(Ordering::Relaxed) {
                producer.poll(POLL);
            }
        };
        let thread = std::thread::Builder::new().name(POLLING_THREAD.to_owned()).spawn(poll)?;
        Ok(Self { is_done, thread: Some(thread) })
    }

    /// Before it is dropped, the thread ends only by a panic.
    fn is_over(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread for the delivery reports of a Kafka producer has panicked");
        }
    }
}

/// Adds the headers of a tracked task: all that the consumer needs for an answer.
fn with_tracking(mut sent: OwnedHeaders, task: &BatchTask<'_>) -> OwnedHeaders {
    let Some(row) = task.tracked() else { return sent };
    let mut buffer = [0; 20];
    let mut number = |sent: OwnedHeaders, key, number: i64| {
        sent.insert(Header { key, value: Some(decimal(number, &mut buffer)) })
    };
    sent = number(sent, ATTEMPT, row.attempt.into());
    if row.is_verdict {
        sent = sent
            .insert(Header { key: TOPIC, value: Some(task.topic_name.as_str()) })
            .insert(Header { key: DEAD_REASON, value: Some(&row.dead_reason()) });
        return match row.sent.and_then(|last| last.record) {
            Some(place) => sent.insert(Header { key: RECEIPT, value: Some(&place.to_string()) }),
            None => sent,
        };
    }
    sent = number(sent, ATTEMPTS_MAX, row.attempts_max().into());
    let ttr = row.tracking.ttr.as_duration().as_millis();
    number(sent, TTR_MS, i64::try_from(ttr).unwrap_or(i64::MAX))
}

/// Begins the span of a record whose task was submitted with one. Returns its `traceparent`.
fn begin_span(
    publications: &Publications,
    correlation_id: usize,
    topic: &str,
    task: &BatchTask<'_>,
) -> Option<String> {
    let (_expiry, rest) = expiry::split(task.headers);
    let (_requested_at, own) = spread::split(rest);
    let value_of = |name: &str| {
        let (_name, value) = headers::decode(own).find(|(key, _value)| *key == name)?;
        std::str::from_utf8(value?).ok()
    };
    let submitted = value_of(SUBMIT_TRACEPARENT)?;
    let id = task.first_id.to_string();
    publications.begin(correlation_id, (submitted, value_of(TRACESTATE)), (topic, &id))
}

/// Returns the task's own headers in their order, then those of Punctual. `traceparent` takes the
/// place of the value that the submit has stored.
fn headers_of(task: &BatchTask<'_>, traceparent: Option<&str>) -> OwnedHeaders {
    let (expiry, rest) = expiry::split(task.headers);
    let (_requested_at, own) = spread::split(rest);
    let mut sent = OwnedHeaders::new_with_capacity(2 + headers::decode(own).count());
    for (key, value) in headers::decode(own) {
        let value = match traceparent {
            Some(traceparent) if key == TRACEPARENT => Some(traceparent.as_bytes()),
            _ => value,
        };
        sent = sent.insert(Header { key, value });
    }
    let mut id = [0; 36];
    let id = task.first_id.uuid().hyphenated().encode_lower(&mut id);
    let mut due_at = [0; 20];
    let due_at = decimal(task.promised_at().as_millis(), &mut due_at);
    sent = sent
        .insert(Header { key: TASK_ID, value: Some(id.as_bytes()) })
        .insert(Header { key: DUE_AT, value: Some(due_at) });
    if let Some(expiry) = expiry {
        let mut expires_at = [0; 20];
        let expires_at = decimal(expiry.at(task.promised_at()).as_millis(), &mut expires_at);
        sent = sent.insert(Header { key: EXPIRES_AT, value: Some(expires_at) });
    }
    if task.tracking.is_some() { with_tracking(sent, task) } else { sent }
}

/// Writes `number` as decimal text into `buffer`, which has room for every i64.
fn decimal(number: i64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut rest = buffer.as_mut_slice();
    let written = write!(rest, "{number}");
    debug_assert!(written.is_ok(), "an i64 has at most 20 characters");
    let length = 20 - rest.len();
    &buffer[..length]
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;

    use super::*;
    use crate::domain::{Expiry, ExpiryTime, Shard, TaskId};

    #[test]
    fn ours_follow_the_tasks_own_headers_and_tell_the_first_id() {
        let own = headers::Headers::new([
            ("trace", Some(b"\x00\xff".as_slice())),
            ("empty", Some(b"")),
            ("null", None),
            ("trace", None),
        ])
        .unwrap();
        let first_id = TaskId::new(Timestamp::from_millis(1_700_000_000_123), Shard::new(7), 42);
        let id = TaskId::new(Timestamp::from_millis(1_800_000_000_000), Shard::new(7), 43);
        let task = BatchTask {
            id,
            first_id,
            moved_to: None,
            attempt: 2,
            topic: 0,
            topic_name: &TopicName::stored("t"),
            key: None,
            payload: None,
            headers: own.as_bytes(),
            name: None,
            tracking: None,
        };
        let sent = headers_of(&task, None);
        let sent: Vec<(&str, Option<&[u8]>)> =
            sent.iter().map(|header| (header.key, header.value)).collect();
        let text = first_id.to_string();
        assert_eq!(
            sent,
            [
                ("trace", Some(b"\x00\xff".as_slice())),
                ("empty", Some(b"")),
                ("null", None),
                ("trace", None),
                ("punctual-task-id", Some(text.as_bytes())),
                ("punctual-due-at", Some(b"1700000000123")),
            ]
        );
    }

    #[test]
    fn the_expiry_of_a_task_is_a_header_of_its_record() {
        let own = headers::Headers::new([("trace", None)]).unwrap();
        let hour = ExpiryTime::After(Duration::from_hours(1));
        let requested = spread::in_front_of(Timestamp::EPOCH, &own);
        let stored = Expiry::new(hour).in_front_of(&requested);
        let id = TaskId::new(Timestamp::from_millis(1_700_000_000_000), Shard::new(7), 42);
        let task = BatchTask {
            id,
            first_id: id,
            moved_to: Some(Timestamp::from_millis(1_800_000_000_000)),
            attempt: 1,
            topic: 0,
            topic_name: &TopicName::stored("t"),
            key: None,
            payload: None,
            headers: stored.as_bytes(),
            name: None,
            tracking: None,
        };
        let sent = headers_of(&task, None);
        let sent: Vec<(&str, Option<&[u8]>)> =
            sent.iter().map(|header| (header.key, header.value)).collect();
        assert_eq!((sent.len(), sent[0]), (4, ("trace", None)));
        let last = ("punctual-expires-at", Some(b"1800003600000".as_slice()));
        assert_eq!(sent[3], last, "an hour after the time that the task was moved to");
    }

    #[test]
    fn every_number_fits() {
        for number in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
