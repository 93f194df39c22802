//! Reads a topic for one consumer group, and gives its tasks to the calls that wait.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::calls::{Key, PopMetrics, Readers, WAITERS_MAX, Waiter};
use crate::clock::{self, ClusterClock};
use crate::domain::task::headers;
use crate::domain::task::intake_record::IntakeHeaders;
use crate::domain::{Headers, Monotonic, Record, TaskId, Timestamp, TopicName};
use crate::error_chain::chain;
use crate::kafka::{
    Assignment, AttemptHeaders, EndsClient, GroupMember, GroupRecord, GroupRefusal, KafkaSettings,
};
use crate::node::messages::answers::Popped;
use crate::postgres::PostgresError;
use crate::postgres::tasks::look_up::{CurrentAttempt, LookUp};
use crate::shutdown::TaskFailure;
use crate::telemetry::CountGuard;

/// How long a reader stays in its group when nobody asks. Meanwhile the records of its partitions
/// go to nobody else, and each change of the members costs the group seconds.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Records that are read ahead of the calls, and the bytes after which no further one is read.
const READY_MAX: usize = 200;
const READY_BYTES_MAX: usize = 8 << 20;
/// Bytes of an answer after which it gets no further task.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Deadline of the look-ups of some records.
const LOOK_UPS_DEADLINE: Duration = Duration::from_secs(3);
/// The clocks of producers, brokers and this machine may differ by so much.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(10);
/// Records up to this age that Postgres does not know are not settled yet: receipts are kept for an
/// hour at least.
const UNSETTLED_MAX: Duration = Duration::from_secs(30 * 60);
/// The headers that the members of a popped task tell begin so.
const OWN_PREFIX: &str = "punctual-";

/// The parts of a reader that all readers share.
#[derive(Debug)]
pub(super) struct ReaderParts {
    pub kafka: KafkaSettings,
    pub ends_client: EndsClient,
    pub readers: Readers,
    pub look_up: Arc<LookUp>,
    pub clock: Arc<ClusterClock>,
    pub metrics: PopMetrics,
    pub draining: CancellationToken,
}

/// A record that was read.
#[derive(Debug)]
struct ReadRecord {
    partition: i32,
    offset: i64,
    assignment: Assignment,
    /// `None` for a record that no call gets.
    task: Option<Popped>,
}

/// Reads a topic for one consumer group.
#[derive(Debug)]
pub(super) struct GroupReader {
    key: Key,
    member: GroupMember,
    parts: ReaderParts,
    waiters: VecDeque<Waiter>,
    /// Records that no call has got yet, in the order in which they were read.
    ready: VecDeque<ReadRecord>,
    ready_bytes: usize,
    idle_since: Monotonic,
}

/// Joins a consumer group, and serves its calls. If the group cannot be joined, the calls that wait
/// get the reason.
pub(super) async fn read_for(
    key: Key,
    parts: ReaderParts,
    mut calls: mpsc::Receiver<Waiter>,
) -> Result<(), TaskFailure> {
    let (kafka, (topic, group)) = (parts.kafka.clone(), key.clone());
    // Making a client reads files and starts threads.
    let joining = tokio::task::spawn_blocking(move || GroupMember::join(&kafka, &topic, &group));
    match joining.await? {
        Ok(member) => GroupReader::new(key, member, parts).run(calls).await,
        Err(error) => {
            calls.close();
            while let Some(waiter) = calls.recv().await {
                waiter.refuse(chain(&error));
            }
            Ok(())
        }
    }
}

impl GroupReader {
    fn new(key: Key, member: GroupMember, parts: ReaderParts) -> Self {
        Self {
            key,
            member,
            parts,
            waiters: VecDeque::new(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            idle_since: clock::monotonic(),
        }
    }

    /// Serves calls until none has come for a while, Kafka refuses to give records, the login to
    /// Kafka has changed, the member stalls, or the node drains. Calls that wait then get the
    /// refusal or no task, and the next one makes another reader: Kafka tells each member of a
    /// refusal once.
    async fn run(mut self, mut calls: mpsc::Receiver<Waiter>) -> Result<(), TaskFailure> {
        let _counted = CountGuard::new(&self.parts.metrics.groups, 1);
        let draining = self.parts.draining.clone();
        let mut stalled = pin!(self.member.stalled(&self.parts.ends_client));
        loop {
            self.give();
            if self.member.is_outdated(&self.parts.kafka) {
                break;
            }
            let now = clock::monotonic();
            let wake = self.next_end();
            if now >= wake
                && self.waiters.is_empty()
                && self.parts.readers.forget(&self.key, &calls)
            {
                break;
            }
            tokio::select! {
                call = calls.recv(), if self.waiters.len() < WAITERS_MAX => match call {
                    Some(waiter) => self.waiters.push_back(waiter),
                    None => break,
                },
                read = self.member.next(), if self.has_room() => {
                    if let Err(refusal) = self.take(read).await {
                        self.refuse(&refusal);
                        break;
                    }
                }
                stall = &mut stalled => {
                    let (topic, group) = &self.key;
                    tracing::warn!(%topic, %group, %stall, "leaving a consumer group to join anew");
                    break;
                }
                () = clock::sleep(wake.since(now)) => {}
                () = draining.cancelled() => break,
            }
        }
        // Nobody waits until the member has left its group.
        drop((calls, self.waiters));
        self.member.leave().await;
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.ready.len() < READY_MAX && self.ready_bytes < READY_BYTES_MAX
    }

    /// Returns when the first call ends, or without calls, the reader.
    fn next_end(&self) -> Monotonic {
        let first = self.waiters.iter().map(|waiter| waiter.until).min();
        first.unwrap_or_else(|| self.idle_since.plus(IDLE_MAX))
    }

    /// Keeps a record, and those that are ready behind it.
    async fn take(&mut self, first: Result<GroupRecord, GroupRefusal>) -> Result<(), GroupRefusal> {
        let first = first?;
        let mut bytes = self.ready_bytes.saturating_add(first.record.bytes());
        let mut records = vec![first];
        while self.ready.len() + records.len() < READY_MAX
            && bytes < READY_BYTES_MAX
            && let Some(record) = self.member.ready()
        {
            let record = record?;
            bytes = bytes.saturating_add(record.record.bytes());
            records.push(record);
        }
        let looked_up = self.look_up(&records).await;
        for (record, found) in records.into_iter().zip(looked_up) {
            let read = read_of(&self.key.0, record, found);
            if read.task.is_none() {
                self.parts.metrics.skipped.inc();
            }
            self.ready_bytes = self.ready_bytes.saturating_add(bytes_of(&read));
            self.ready.push_back(read);
        }
        Ok(())
    }

    /// Looks up the tasks of records that the group may have had before, or whose time to run may
    /// be half over. Without an answer they are given: a consumer gets each task at least once.
    async fn look_up(&self, records: &[GroupRecord]) -> Vec<Found> {
        let mut found: Vec<Found> = records.iter().map(|_record| Found::NotAsked).collect();
        let now = self.parts.clock.now_or_wall();
        let doubtful = records.iter().filter_map(|record| doubtful_task(record, now));
        let doubtful: Vec<TaskId> = doubtful.collect();
        if doubtful.is_empty() {
            return found;
        }
        let looking = async {
            let current = self.parts.look_up.current_attempts(&doubtful).await?;
            let mut late: Vec<(usize, TaskId)> = Vec::new();
            for (index, record) in records.iter().enumerate() {
                let Some(attempt) = record.attempt else { continue };
                let current = current.get(&attempt.id);
                if current.is_some_and(|current| current.is_over(attempt.number)) {
                    found[index] = Found::Over;
                } else if is_old(record, attempt, now) {
                    match current {
                        Some(CurrentAttempt::Attempt { number, next, .. })
                            if *number == attempt.number =>
                        {
                            late.push((index, *next));
                        }
                        _ => found[index] = unsettled(record, attempt, now),
                    }
                }
            }
            if late.is_empty() {
                return Ok(());
            }
            let rows: Vec<TaskId> = late.iter().map(|(_, row)| *row).collect();
            let times = self.parts.look_up.times_to_run(&rows).await?;
            for (index, row) in late {
                if let Some(finish_by) = times.get(&row) {
                    found[index] = Found::FinishBy(*finish_by);
                }
            }
            Ok::<(), PostgresError>(())
        };
        match tokio::time::timeout(LOOK_UPS_DEADLINE, looking).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = chain(&error), "look up tasks for pops"),
            Err(_elapsed) => {
                tracing::debug!(topic = %self.key.0, "the look-ups for pops took too long");
            }
        }
        found
    }

    /// Gives tasks to the calls that wait, and ends those whose time is over.
    fn give(&mut self) {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        while let Some(waiter) = self.waiters.pop_front() {
            let given = self.next_tasks(waiter.count_max);
            if given.is_empty() {
                self.waiters.push_front(waiter);
                break;
            }
            self.idle_since = clock::monotonic();
            self.answer(waiter, given);
        }
        let now = clock::monotonic();
        if !self.waiters.is_empty() {
            self.idle_since = now;
        }
        let (ended, waiting) =
            self.waiters.drain(..).partition::<Vec<_>, _>(|waiter| waiter.until <= now);
        self.waiters = waiting.into();
        ended.into_iter().for_each(|waiter| self.answer(waiter, Vec::new()));
    }

    /// Takes tasks from the front, with the records in between that no call gets: these are passed
    /// with the tasks before them, and not before. Those in front of all tasks are passed at once.
    fn next_tasks(&mut self, count_max: usize) -> Vec<ReadRecord> {
        let (mut given, mut count, mut bytes) = (Vec::new(), 0_usize, 0_usize);
        let now = self.parts.clock.now_or_wall();
        while count < count_max
            && bytes < ANSWER_BYTES_MAX
            && let Some(mut read) = self.ready.pop_front()
        {
            self.ready_bytes = self.ready_bytes.saturating_sub(bytes_of(&read));
            if !self.member.has(read.partition, read.assignment) {
                // Its next reader gives it.
                continue;
            }
            read.task = read.task.filter(|task| task.finish_by > now);
            if read.task.is_some() {
                count += 1;
                bytes = bytes.saturating_add(bytes_of(&read));
            } else if given.is_empty() {
                self.member.pass(read.partition, read.offset);
                continue;
            }
            given.push(read);
        }
        given
    }

    /// Answers a call. Tasks whose caller is gone stay ready.
    fn answer(&mut self, waiter: Waiter, given: Vec<ReadRecord>) {
        let tasks: Vec<Popped> = given.iter().filter_map(|read| read.task.clone()).collect();
        let count = tasks.len().saturating_as::<u64>();
        if waiter.reply.send(Ok(tasks)).is_ok() {
            self.parts.metrics.popped.inc_by(count);
            given.iter().for_each(|read| self.member.pass(read.partition, read.offset));
            return;
        }
        for read in given.into_iter().rev() {
            self.ready_bytes = self.ready_bytes.saturating_add(bytes_of(&read));
            self.ready.push_front(read);
        }
    }

    fn refuse(&mut self, refusal: &GroupRefusal) {
        tracing::debug!(topic = %self.key.0, group = %self.key.1, %refusal, "pops are refused");
        for waiter in self.waiters.drain(..) {
            waiter.refuse(refusal.to_string());
        }
    }
}

/// The answer to a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// No look-up was needed, or none has answered, or nothing more is known: the headers count.
    NotAsked,
    Over,
    /// The end of the time to run, which the headers do not tell: the consumer has extended it, or
    /// the clock of the broker is behind that of the cluster.
    FinishBy(Timestamp),
}

/// Returns the end of the time to run of an attempt that is not settled yet, and is old as far as
/// its headers tell. The clock of the broker is behind that of the cluster then, and the time
/// begins at the settle.
fn unsettled(record: &GroupRecord, attempt: AttemptHeaders, now: Timestamp) -> Found {
    if record.record.at.plus(UNSETTLED_MAX) > now {
        Found::FinishBy(now.plus(attempt.ttr))
    } else {
        Found::NotAsked
    }
}

/// Returns the task of a record that the group may have had before it came to this member, or that
/// is old. A record from the future was appended before the clock was set back. `now` is by the
/// cluster's clock.
fn doubtful_task(record: &GroupRecord, now: Timestamp) -> Option<TaskId> {
    let attempt = record.attempt?;
    let age = clock::monotonic().since(record.assignment.since);
    let is_early = record.record.at.plus(age) <= now.plus(CLOCKS_DIFFER_MAX);
    let is_of_future = record.record.at > now.plus(CLOCKS_DIFFER_MAX);
    (is_early || is_of_future || is_old(record, attempt, now)).then_some(attempt.id)
}

/// Returns true when half of the time to run, or [`CLOCKS_DIFFER_MAX`] of it, is over as far as the
/// headers tell. The headers do not tell whether the consumer has extended the time, nor whether
/// the clock of the broker is behind that of the cluster.
fn is_old(record: &GroupRecord, attempt: AttemptHeaders, now: Timestamp) -> bool {
    record.record.at.plus((attempt.ttr / 2).min(CLOCKS_DIFFER_MAX)) <= now
}

fn read_of(topic: &TopicName, read: GroupRecord, found: Found) -> ReadRecord {
    let GroupRecord { partition, assignment, attempt, record } = read;
    let offset = record.offset;
    let finish_by = attempt.and_then(|attempt| match found {
        Found::NotAsked => Some(record.at.plus(attempt.ttr)),
        Found::Over => None,
        Found::FinishBy(finish_by) => Some(finish_by),
    });
    let task = attempt.zip(finish_by).map(|(attempt, finish_by)| Popped {
        id: attempt.id,
        attempt: attempt.number,
        attempts_max: attempt.number_max,
        due_at: attempt.due_at,
        finish_by,
        ttr: attempt.ttr,
        partition,
        offset,
        published_at: record.at,
        record: Record {
            topic: topic.clone(),
            headers: headers_of_submitter(record.headers.as_ref()),
            key: record.key,
            payload: record.payload,
        },
    });
    ReadRecord { partition, offset, assignment, task }
}

fn headers_of_submitter(all: Option<&IntakeHeaders>) -> Headers {
    let own = |name: &str| name.starts_with(OWN_PREFIX);
    let headers = all.into_iter().flatten().filter(|(name, _value)| !own(name));
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_deref()));
    Headers::stored(Some(headers::encode_any(headers)))
}

fn bytes_of(read: &ReadRecord) -> usize {
    read.task.as_ref().map_or(0, |task| task.record.bytes())
}
