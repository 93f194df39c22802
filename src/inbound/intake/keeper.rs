//! Reads those partitions of an intake topic whose shards this node owns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use az::SaturatingAs as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::OneIntake;
use super::partition::Partition;
use super::rejects::RejectedTopic;
use super::turns::Turns;
use crate::clock;
use crate::domain::{Backoff, Monotonic, Throttle, TopicName};
use crate::error_chain::chain;
use crate::failpoint::{Failpoint, reach};
use crate::inbound::carrier::{Carrier, CarrierParts, Stop};
use crate::kafka::{
    FoundPartitions, IntakeError, IntakeReader, KafkaSettings, ReadFailure, TopicCache,
};
use crate::node::membership::Bulletin;
use crate::postgres::inbound::Position;
use crate::shutdown::TaskFailure;

/// The most records of a turn at a partition, and the bytes after which no further one is taken.
const RECORDS_MAX: usize = 1_000;
const BYTES_MAX: usize = 8 << 20;
/// The longest pause between two looks for records. A record that comes ends the pause.
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// The interval of looks for partitions, and for offsets that somebody else has changed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// A topic that was missing for so many looks is another topic when it is there again.
const MISSING_COUNTS: u32 = 2;
const MISSING_PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failure that concerns all partitions, first and longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The interval of log lines about an intake topic that cannot be read.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The parts of a keeper.
#[derive(Debug)]
pub struct IntakeKeeperParts {
    /// The topic. Its principal has the same name.
    pub topic: TopicName,
    pub rejected_topic: TopicName,
    /// A rejected record is dropped when there is no rejected topic.
    pub skips: bool,
    pub kafka: KafkaSettings,
    pub topics: TopicCache,
    pub carrier: CarrierParts,
    pub bulletin: watch::Receiver<Bulletin>,
    pub metrics: OneIntake,
    pub draining: CancellationToken,
}

/// Reads one intake topic.
#[derive(Debug)]
pub struct IntakeKeeper {
    turns: Turns,
    topic: TopicName,
    kafka: KafkaSettings,
    bulletin: watch::Receiver<Bulletin>,
    metrics: OneIntake,
    draining: CancellationToken,
    /// `None` before the first look, and when the next look needs a new one.
    reader: Option<IntakeReader>,
    partitions: BTreeMap<i32, Partition>,
    /// The partitions of the topic, as Kafka has told last.
    found: FoundPartitions,
    /// Since when Kafka has not answered, or some partition of this node has had no leader.
    unreadable_since: Option<Monotonic>,
    refreshed_at: Option<Monotonic>,
    /// The next look must come now: a position may have changed.
    is_stale: bool,
    /// Partitions must be assigned again, although no position has changed.
    is_unassigned: bool,
    missing_counts: u32,
    waits_since: Option<Monotonic>,
    failure_log: Throttle,
}

fn stop_of(error: &IntakeError) -> Stop {
    Stop::later(error.to_string())
}

impl IntakeKeeper {
    pub fn new(parts: IntakeKeeperParts) -> Self {
        let carrier = Carrier::new(parts.carrier, parts.topic.as_str().to_owned(), "intakeTopic");
        let rejected = RejectedTopic {
            kafka: parts.kafka.clone(),
            topics: parts.topics,
            intake: parts.topic.clone(),
            topic: parts.rejected_topic,
            skips: parts.skips,
            metrics: parts.metrics.clone(),
            producer: None,
        };
        let turns = Turns { carrier, rejected, metrics: parts.metrics.clone() };
        Self {
            turns,
            topic: parts.topic,
            kafka: parts.kafka,
            bulletin: parts.bulletin,
            metrics: parts.metrics,
            draining: parts.draining,
            reader: None,
            partitions: BTreeMap::new(),
            found: FoundPartitions::default(),
            unreadable_since: None,
            refreshed_at: None,
            is_stale: true,
            is_unassigned: true,
            missing_counts: 0,
            waits_since: None,
            failure_log: Throttle::new(LOG_EVERY),
        }
    }

    /// Reads until the node drains. A failure of a server is waited for.
    pub async fn run(mut self) -> Result<(), TaskFailure> {
        let mut pause = Duration::ZERO;
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let draining = self.draining.clone();
            tokio::select! {
                biased;
                () = draining.cancelled() => break,
                () = self.record_comes(), if !backoff.is_failing() => {}
                () = clock::sleep(pause) => {}
            }
            // The future is on the heap, because a round is large.
            match Box::pin(self.round()).await {
                Ok(has_more) => {
                    backoff.reset();
                    self.waits_since = None;
                    pause = if has_more { Duration::ZERO } else { IDLE_PAUSE };
                }
                Err(stop) => {
                    self.waits_since.get_or_insert(clock::monotonic());
                    self.is_stale = true;
                    self.log_stop(None, &stop);
                    pause = backoff.next_pause();
                }
            }
            self.show();
        }
        if let Some(reader) = self.reader.take() {
            reader.close().await;
        }
        self.turns.rejected.close().await;
        Ok(())
    }

    async fn record_comes(&self) {
        match &self.reader {
            Some(reader) => reader.wait().await,
            None => std::future::pending().await,
        }
    }

    /// Gives each partition a turn. Returns true when there may be more records.
    async fn round(&mut self) -> Result<bool, Stop> {
        // The statistics of a client that nobody serves pile up: without a partition, or while all
        // partitions wait.
        if let Some(reader) = &self.reader {
            reader.serve();
        }
        self.refresh().await?;
        let numbers: Vec<i32> = self.partitions.keys().copied().collect();
        let mut has_more = false;
        for number in numbers {
            if self.draining.is_cancelled() {
                break;
            }
            has_more |= self.turn(number).await?;
        }
        Ok(has_more)
    }

    async fn turn(&mut self, number: i32) -> Result<bool, Stop> {
        let (Some(partition), Some(reader)) =
            (self.partitions.get_mut(&number), self.reader.as_mut())
        else {
            return Ok(false);
        };
        if !partition.pause_at(clock::monotonic()).is_zero() {
            return Ok(false);
        }
        let mut failure = None;
        let mut has_more = false;
        if partition.records.is_empty() {
            let limits = (RECORDS_MAX, BYTES_MAX);
            failure = reader.take(number, &mut partition.records, limits).err();
            has_more = !partition.records.is_empty();
            if has_more {
                partition.reads_on();
            }
            partition.drop_done();
        }
        let is_gone = !partition.waiting_without_record().is_empty();
        let has_records = !partition.records.is_empty() || is_gone;
        if has_records {
            reach(Failpoint::IntakeRead);
            let next_before = partition.precondition.position.next;
            if let Err(stop) = Box::pin(self.turns.carry_out(partition)).await {
                if partition.precondition.position.next > next_before {
                    partition.succeeded();
                }
                partition.failed();
                // Kafka tells the failure of the read again after the next assignment.
                self.is_unassigned |= failure.is_some();
                self.is_stale |= matches!(stop, Stop::NewEpoch { .. });
                self.log_stop(Some(number), &stop);
                return Ok(false);
            }
            partition.succeeded();
        }
        self.is_unassigned |= partition.reads_done_records();
        match failure {
            None => {}
            Some(ReadFailure::OutOfRange) => self.leave_gap(number).await?,
            Some(ReadFailure::Refused { reason }) => {
                if let Some(partition) = self.partitions.get_mut(&number) {
                    partition.failed();
                }
                self.is_unassigned = true;
                self.log_stop(Some(number), &Stop::later(reason));
            }
        }
        Ok(has_more || has_records)
    }

    /// Looks for partitions and their offsets when it is time, or when something may have changed.
    async fn refresh(&mut self) -> Result<(), Stop> {
        let now = clock::monotonic();
        let is_time = self.refreshed_at.is_none_or(|at| now.since(at) >= REFRESH_INTERVAL);
        let is_moved = self.bulletin.has_changed().unwrap_or(false);
        let is_outdated = self.reader.as_ref().is_none_or(|reader| reader.is_outdated(&self.kafka));
        if !is_time && !is_moved && !is_outdated && !self.is_stale && !self.is_unassigned {
            return Ok(());
        }
        if is_outdated {
            let made = IntakeReader::new(&self.kafka, &self.topic);
            let made = made.map_err(|error| Stop::later(chain(&error)))?;
            if let Some(former) = self.reader.replace(made) {
                former.close().await;
            }
            self.is_unassigned = true;
        }
        let mut unanswered = None;
        let mine: BTreeSet<i32> = {
            if is_time {
                unanswered = self.find_partitions().await?;
            }
            let bulletin = self.bulletin.borrow_and_update();
            let shards = self.turns.carrier.shared.cluster.shards;
            let shard_of = |number: &i32| {
                shards.slot_of("intake", format!("{}/{number}", self.topic).as_bytes()).0
            };
            (0..self.found.count)
                .filter(|number| bulletin.mine.contains(&shard_of(number)))
                .collect()
        };
        if is_time {
            self.note_unreadable(&mine, unanswered);
        }
        self.is_stale = false;
        if let Err(stop) = self.take_positions(&mine).await {
            self.is_stale = true;
            return Err(stop);
        }
        self.missing_counts = 0;
        if is_time {
            // A question that takes long leaves time for the records until the next one.
            self.refreshed_at = Some(clock::monotonic());
        }
        Ok(())
    }

    /// Asks Kafka about the partitions. Returns the reason why it has not answered, if the records
    /// that were read can go on.
    async fn find_partitions(&mut self) -> Result<Option<Stop>, Stop> {
        let Some(reader) = &mut self.reader else { return Ok(None) };
        match reader.probe().await {
            Ok(Some(found)) => {
                self.found = found;
                Ok(None)
            }
            Ok(None) => {
                self.missing_counts = self.missing_counts.saturating_add(1);
                self.is_unassigned = true;
                clock::sleep(MISSING_PAUSE).await;
                Err(Stop::later("Kafka has no topic of this name"))
            }
            Err(error) if !self.partitions.is_empty() => Ok(Some(stop_of(&error))),
            Err(error) => Err(stop_of(&error)),
        }
    }

    /// Notes whether some partition of this node cannot be read.
    fn note_unreadable(&mut self, mine: &BTreeSet<i32>, unanswered: Option<Stop>) {
        let mut stop = unanswered.map(|stop| (None, stop));
        if stop.is_none()
            && let Some(number) = mine.difference(&self.found.with_leader).next()
        {
            stop = Some((Some(*number), Stop::later("the partition has no leader")));
        }
        match stop {
            None => self.unreadable_since = None,
            Some((partition, stop)) => {
                self.unreadable_since.get_or_insert(clock::monotonic());
                self.log(partition, &stop);
            }
        }
    }

    /// Reads the positions of the partitions `mine`, and has those partitions read.
    async fn take_positions(&mut self, mine: &BTreeSet<i32>) -> Result<(), Stop> {
        let numbers: Vec<i32> = mine.iter().copied().collect();
        let mut positions = self.positions(&numbers).await?;
        if self.missing_counts >= MISSING_COUNTS {
            for (number, position) in &positions {
                self.leave_former_topic(*number, *position).await?;
            }
            positions = self.positions(&numbers).await?;
        }
        let left = self.turns.carrier.store.leave_rejections(&self.topic, &numbers).await?;
        self.turns.rejected.left(left);
        let store = &mut self.turns.carrier.store;
        let mut waiting = store.waiting_rejections(&self.topic, &positions).await?;
        let before = self.partitions.len();
        self.partitions.retain(|number, _| positions.contains_key(number));
        let is_left = self.partitions.len() < before;
        let mut is_changed = is_left || self.partitions.len() < positions.len();
        if is_changed {
            // A partition that waited may be another node's now.
            self.metrics.rejected_topic_missing.set(0);
        }
        for (number, position) in positions {
            let waiting = waiting.remove(&number).unwrap_or_default();
            let partition = self.partitions.entry(number);
            let partition =
                partition.or_insert_with(|| Partition::new(&self.topic, number, position));
            if !partition.is_at(position, &waiting) {
                partition.set(position, waiting);
                self.metrics.rejected_topic_missing.set(0);
                is_changed = true;
            }
        }
        if !is_changed && !self.is_unassigned {
            return Ok(());
        }
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let from = self.partitions.iter_mut().map(|(number, partition)| {
            partition.reads_on();
            (*number, partition.read_from())
        });
        self.is_unassigned = true;
        reader.assign(&from.collect()).map_err(|error| stop_of(&error))?;
        self.is_unassigned = false;
        let partitions = self.partitions.len();
        tracing::info!(intake = %self.topic, partitions, "reading an intake topic");
        Ok(())
    }

    /// Returns the positions of partitions. A new partition begins with its first record, once it
    /// has a leader.
    async fn positions(&mut self, numbers: &[i32]) -> Result<BTreeMap<i32, Position>, Stop> {
        let positions = self.turns.carrier.store.positions(&self.topic, numbers).await?;
        let mut first = BTreeMap::new();
        let is_new = |number: &i32| {
            self.found.with_leader.contains(number) && !positions.contains_key(number)
        };
        let mut new: Vec<i32> = numbers.iter().copied().filter(is_new).collect();
        // A partition without an answer keeps the others waiting in this look only.
        let begin = rand::random_range(0..=new.len());
        new.rotate_left(begin);
        for number in new {
            let Some(reader) = &self.reader else { break };
            match reader.bounds(number).await {
                Ok(bounds) => {
                    first.insert(number, bounds.first);
                }
                Err(error) if positions.is_empty() => return Err(stop_of(&error)),
                // The next refresh asks again. Until then the other partitions are read.
                Err(error) => {
                    self.log_stop(Some(number), &stop_of(&error));
                    break;
                }
            }
        }
        if first.is_empty() {
            return Ok(positions);
        }
        let store = &mut self.turns.carrier.store;
        store.begin_partitions(&self.topic, &first).await?;
        Ok(store.positions(&self.topic, numbers).await?)
    }

    /// Goes on where the log has records, when it has no record at the offset any more.
    async fn leave_gap(&mut self, number: i32) -> Result<(), Stop> {
        self.is_unassigned = true;
        let (Some(partition), Some(reader)) = (self.partitions.get_mut(&number), &self.reader)
        else {
            return Ok(());
        };
        let position = partition.precondition.position;
        let bounds = reader.bounds(number).await.map_err(|error| stop_of(&error))?;
        self.turns.keep_deleted(partition, bounds.first).await?;
        if (bounds.first..=bounds.end).contains(&position.next) {
            return Ok(());
        }
        if position.next < bounds.first {
            let lost = bounds.first.saturating_sub(position.next);
            self.metrics.lost.inc_by(lost.unsigned_abs());
            let what = "records were deleted before they were read";
            return self.go_on_at(number, position, (bounds.first, what)).await;
        }
        // The log was cut, or it is another topic: its newer records were not read.
        let newer = match position.newest_at {
            Some(at) => reader.first_after(number, at).await.map_err(|error| stop_of(&error))?,
            None => Some(bounds.first),
        };
        let next = newer.unwrap_or(bounds.end).min(bounds.end);
        let what = "the log ends before the next record: it was cut, or the topic made anew";
        self.go_on_at(number, position, (next, what)).await
    }

    /// Goes back to the first record of a topic that was deleted and made anew. It is newer than
    /// all records that were stored.
    async fn leave_former_topic(&mut self, number: i32, position: Position) -> Result<(), Stop> {
        let (Some(reader), Some(at)) = (&self.reader, position.newest_at) else { return Ok(()) };
        // The end is asked for first: records that come meanwhile are newer, and found.
        let bounds = reader.bounds(number).await.map_err(|error| stop_of(&error))?;
        let newer = reader.first_after(number, at).await.map_err(|error| stop_of(&error))?;
        let next = newer.unwrap_or(bounds.end);
        if next >= position.next {
            return Ok(());
        }
        self.go_on_at(number, position, (next, "the topic was deleted and made anew")).await
    }

    async fn go_on_at(
        &mut self,
        number: i32,
        position: Position,
        (next, what): (i64, &str),
    ) -> Result<(), Stop> {
        let precondition = Partition::new(&self.topic, number, position).precondition;
        let is_set = self.turns.carrier.store.set_offset(&precondition, next).await?;
        (self.is_stale, self.is_unassigned) = (true, true);
        if is_set {
            self.metrics.resets.inc();
            let (intake, from, to) = (&self.topic, position.next, next);
            tracing::error!(%intake, partition = number, from, to, "{what}; going on elsewhere");
        }
        Ok(())
    }

    fn log_stop(&mut self, partition: Option<i32>, stop: &Stop) {
        self.metrics.failures.inc();
        self.log(partition, stop);
    }

    fn log(&mut self, partition: Option<i32>, stop: &Stop) {
        let (intake, reason) = (&self.topic, stop.reason());
        if self.failure_log.lets_through(clock::monotonic()) {
            tracing::warn!(%intake, partition, reason, "an intake topic waits; trying again");
        } else {
            tracing::debug!(%intake, partition, reason, "an intake topic waits; trying again");
        }
    }

    fn show(&self) {
        let now = clock::monotonic();
        let ends = self.reader.as_ref().map(IntakeReader::ends).unwrap_or_default();
        let lag_of = |(number, partition): (&i32, &Partition)| {
            let end = ends.get(number).copied().unwrap_or(0);
            end.saturating_sub(partition.precondition.position.next).max(0)
        };
        self.metrics.lag.set(self.partitions.iter().map(lag_of).fold(0, i64::saturating_add));
        self.metrics.partitions.set(self.partitions.len().saturating_as::<i64>());
        let own = [self.waits_since, self.unreadable_since].into_iter().flatten();
        let own = own.map(|since| now.since(since));
        let all = self.partitions.values().map(|partition| partition.waits_for(now)).chain(own);
        self.metrics.waits.set(all.max().unwrap_or_default().as_secs_f64());
    }
}
