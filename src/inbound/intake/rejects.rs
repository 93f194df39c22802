//! Writes rejected records to the rejected topic. Their rejections are stored before, in the
//! transaction that has moved the offset behind them, and deleted afterwards.

use az::SaturatingAs as _;

use super::metrics::OneIntake;
use super::partition::Partition;
use crate::domain::TopicName;
use crate::domain::task::intake_record::Rejection;
use crate::failpoint::{Failpoint, reach};
use crate::inbound::carrier::Stop;
use crate::kafka::{KafkaSettings, LookUpError, Reject, RejectOutcome, RejectProducer, TopicCache};
use crate::postgres::inbound::InboundStore;

/// Writes the rejected records of one intake topic.
#[derive(Debug)]
pub(super) struct RejectedTopic {
    pub(super) kafka: KafkaSettings,
    pub(super) topics: TopicCache,
    pub(super) intake: TopicName,
    pub(super) topic: TopicName,
    /// A rejected record is dropped when there is no rejected topic.
    pub(super) skips: bool,
    pub(super) metrics: OneIntake,
    /// Made for the first rejected record, and again after a failure, or when the properties of
    /// Kafka have changed.
    pub(super) producer: Option<(u64, RejectProducer)>,
}

impl RejectedTopic {
    /// Returns true when records can be rejected, and false when they are dropped.
    ///
    /// # Errors
    /// When refused records must wait.
    pub(super) async fn is_there(&self) -> Result<bool, Stop> {
        let is_there = match self.topics.look_up(&self.topic).await {
            Ok(_facts) => true,
            Err(LookUpError::Unknown) => false,
            Err(LookUpError::Busy) => return Err(Stop::later("too many look-ups of topics")),
            Err(LookUpError::Denied { reason } | LookUpError::Unavailable { reason }) => {
                return Err(Stop::later(format!("cannot look up {}: {reason}", self.topic)));
            }
        };
        self.metrics.rejected_topic_missing.set(i64::from(!is_there && !self.skips));
        if !is_there && !self.skips {
            let topic = &self.topic;
            let reason = format!("a record is refused, and Kafka has no topic {topic} for it");
            return Err(Stop::later(reason));
        }
        Ok(is_there)
    }

    /// Logs and counts refused records that are dropped because there is no rejected topic.
    pub(super) fn dropped<'a>(
        &self,
        partition: i32,
        mut dropped: impl Iterator<Item = (u16, &'a str)>,
    ) {
        if let Some((status, reason)) = dropped.next() {
            let count = 1 + dropped.count();
            let intake = &self.intake;
            tracing::warn!(
                %intake, partition, count, status, reason,
                "records of an intake topic were dropped: there is no rejected topic"
            );
            self.metrics.rejected.inc_by(count.saturating_as::<u64>());
        }
    }

    /// Logs and counts rejections whose place in the log was left before they were written.
    pub(super) fn left(&self, count: u64) {
        if count > 0 {
            let intake = &self.intake;
            tracing::error!(
                %intake, count,
                "rejected records are kept in intake_rejected: their log was cut, or made anew"
            );
            self.metrics.rejected.inc_by(count);
        }
    }

    /// Writes the rejected records that wait for it, and deletes their rejections.
    ///
    /// # Errors
    /// When a record is not written. It waits, and the partition with it.
    pub(super) async fn write(
        &mut self,
        store: &mut InboundStore,
        partition: &mut Partition,
    ) -> Result<(), Stop> {
        self.delete_written(store, partition).await?;
        let gone = partition.waiting_without_record();
        self.keep_gone(store, partition, gone).await?;
        if partition.waiting().next().is_none() {
            return Ok(());
        }
        if !self.is_there().await? {
            let all = partition.waiting().map(|(record, _)| record.offset).collect();
            let dropped = self.delete(store, partition, all).await?;
            let number = partition.precondition.partition;
            let reasons = dropped.iter().map(|one| (one.status, one.reason.as_str()));
            self.dropped(number, reasons);
            return Ok(());
        }
        let (mut written, mut refused, mut away) = (Vec::new(), Vec::new(), None);
        let outcomes = self.send(partition).await?;
        for ((record, _), outcome) in partition.waiting().zip(outcomes) {
            match outcome {
                RejectOutcome::Acknowledged => written.push(record.offset),
                RejectOutcome::Refused { reason } => refused.push((record.offset, reason)),
                RejectOutcome::Away { reason } => away = Some(reason),
            }
        }
        partition.written.extend(written);
        reach(Failpoint::IntakeRejected);
        self.delete_written(store, partition).await?;
        for (offset, reason) in refused {
            self.keep(store, partition, (offset, &reason)).await?;
        }
        match away {
            None => Ok(()),
            Some(reason) => {
                // Some failures of a producer are for good, such as a missing right when it began.
                self.close().await;
                Err(Stop::later(format!("cannot write to {}: {reason}", self.topic)))
            }
        }
    }

    /// Deletes the rejections whose records are written. They stay known until Postgres has deleted
    /// them, so that no record is written again because of a lock.
    pub(super) async fn delete_written(
        &self,
        store: &mut InboundStore,
        partition: &mut Partition,
    ) -> Result<(), Stop> {
        let written = partition.written.iter().copied().collect();
        let deleted = self.delete(store, partition, written).await?;
        partition.written.clear();
        self.wrote(partition.precondition.partition, &deleted);
        Ok(())
    }

    fn wrote(&self, partition: i32, written: &[Rejection]) {
        if let Some(Rejection { status, reason, .. }) = written.first() {
            let (intake, count) = (&self.intake, written.len());
            tracing::warn!(
                %intake, partition, count, status, reason,
                "records of an intake topic were rejected"
            );
            self.metrics.rejected.inc_by(count.saturating_as::<u64>());
        }
    }

    async fn send(&mut self, partition: &Partition) -> Result<Vec<RejectOutcome>, Stop> {
        let number = partition.precondition.partition;
        let rejects: Vec<Reject<'_>> = partition
            .waiting()
            .map(|(record, rejection)| Reject {
                record,
                partition: number,
                reason: &rejection.reason,
            })
            .collect();
        Ok(self.producer().await?.send(&rejects).await)
    }

    /// Deletes rejections. Returns them, or nothing when another node has deleted them all.
    async fn delete(
        &self,
        store: &mut InboundStore,
        partition: &mut Partition,
        offsets: Vec<i64>,
    ) -> Result<Vec<Rejection>, Stop> {
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        let deleted = store.rejections_are_written(&partition.precondition, &offsets).await?;
        let rejections = offsets.iter().filter_map(|offset| partition.waiting.remove(offset));
        let rejections: Vec<Rejection> = rejections.collect();
        Ok(if deleted == 0 { Vec::new() } else { rejections })
    }

    /// Keeps the rejections of records that the log does not have any more.
    pub(super) async fn keep_gone(
        &self,
        store: &mut InboundStore,
        partition: &mut Partition,
        offsets: Vec<i64>,
    ) -> Result<(), Stop> {
        for offset in offsets {
            self.keep(store, partition, (offset, "the log does not have it any more")).await?;
        }
        Ok(())
    }

    /// Keeps, in `intake_rejected`, a record that the rejected topic will never have.
    async fn keep(
        &self,
        store: &mut InboundStore,
        partition: &mut Partition,
        (offset, why): (i64, &str),
    ) -> Result<(), Stop> {
        let record = partition.rejected(offset);
        if store.keep_rejected(&partition.precondition, (offset, record)).await? {
            let (intake, number) = (&self.intake, partition.precondition.partition);
            tracing::warn!(
                %intake, partition = number, offset, why,
                "a rejected record is kept in intake_rejected"
            );
            self.metrics.rejected.inc();
        }
        partition.waiting.remove(&offset);
        Ok(())
    }

    /// Ends the producer, if there is one.
    pub(super) async fn close(&mut self) {
        if let Some((_version, producer)) = self.producer.take() {
            producer.close().await;
        }
    }

    async fn producer(&mut self) -> Result<&RejectProducer, Stop> {
        let version = self.kafka.properties.version();
        if self.producer.as_ref().is_none_or(|(made_for, _)| *made_for != version) {
            self.close().await;
            let (intake, topic) = (self.intake.clone(), self.topic.clone());
            let made = RejectProducer::new(&self.kafka, intake, topic);
            let made = made.map_err(|error| Stop::later(error.to_string()))?;
            self.producer = Some((version, made));
        }
        let producer = self.producer.as_ref().map(|(_, producer)| producer);
        producer.ok_or_else(|| Stop::later("there is no producer for rejected records"))
    }
}
