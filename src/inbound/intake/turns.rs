//! Carries out the records of a partition: checks them, rejects the wrong ones, and stores the
//! tasks of the others, run by run.

use std::collections::VecDeque;

use super::metrics::OneIntake;
use super::partition::Partition;
use super::runs::{Checked, Run, cut, key_of};
use crate::access::{Action, Caller};
use crate::api::access::turns::AuditedTurn;
use crate::api::inbound::{InboundRequest, Reader, Refused, record};
use crate::domain::task::intake_record::IntakeRecord;
use crate::domain::task::outbox_row::RejectedRow;
use crate::domain::{Record, TopicName};
use crate::failpoint::{Failpoint, reach};
use crate::inbound::carrier::{Carried, Carrier, Item, Stop};
use crate::kafka::{KafkaSettings, LookUpError, Reject, RejectOutcome, RejectProducer, TopicCache};
use crate::postgres::inbound::StorePrecondition;

/// The outcome of the checks: records in their order, the refused ones among them, and the reason
/// why later ones wait.
struct Checks {
    records: Vec<Checked>,
    rejected: Vec<RejectedRow>,
    /// The missing rights, for the audit trail.
    denied: Vec<(i64, (Action, TopicName))>,
    stop: Option<Stop>,
}

/// Carries out records of one intake topic.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) carrier: Carrier,
    pub(super) kafka: KafkaSettings,
    pub(super) topics: TopicCache,
    pub(super) intake: TopicName,
    pub(super) rejected_topic: TopicName,
    /// A rejected record is dropped when there is no rejected topic.
    pub(super) skips: bool,
    pub(super) metrics: OneIntake,
    /// Made for the first rejected record, and again when the properties of Kafka have changed.
    pub(super) producer: Option<(u64, RejectProducer)>,
}

impl Turns {
    /// Carries out the records that were read, or after a refused one the first of them.
    ///
    /// # Errors
    /// When a record waits. The records before it are carried out.
    pub(super) async fn carry_out(&mut self, partition: &mut Partition) -> Result<(), Stop> {
        loop {
            let mut checks = self.check(partition).await?;
            let policy = self.carrier.policy.current();
            let mut turn = self.carrier.begin_turn(&self.carrier.caller(&policy)?)?;
            self.reject(partition, &mut checks, &mut turn).await;
            let refused = self.store(partition, checks.records, turn).await;
            partition.drop_done();
            match (refused?, checks.stop) {
                // The records from this one on are checked again, and this one is rejected.
                (Some(refused), _) => {
                    partition.refuse(refused);
                }
                (None, Some(stop)) => return Err(stop),
                (None, None) => {
                    partition.turn_is_done();
                    return Ok(());
                }
            }
        }
    }

    async fn check(&self, partition: &mut Partition) -> Result<Checks, Stop> {
        let policy = self.carrier.policy.current();
        let caller = self.carrier.caller(&policy)?;
        let arrived_at = self.carrier.service.arrival();
        let reader = Reader { policy: &policy, caller: &caller, arrived_at };
        let read = |(record, refused): (&IntakeRecord, Option<&RejectedRow>)| match refused {
            Some(RejectedRow { status, reason, .. }) => {
                let (status, reason) = (*status, reason.clone());
                Err(Refused::ForGood { status, reason, denied: None })
            }
            None => record::read(record, reader),
        };
        let requests: Vec<(i64, Result<InboundRequest, Refused>)> =
            partition.to_check().map(|checked| (checked.0.offset, read(checked))).collect();
        let charged = self.charge(partition, &caller, &requests);
        let (records, rejected, denied) = (Vec::new(), Vec::new(), Vec::new());
        let mut checks = Checks { records, rejected, denied, stop: charged.err() };
        for (offset, request) in requests {
            if offset >= partition.charged_to {
                break;
            }
            let change = match request {
                Ok(request) => self.carrier.change_of(request, (&caller, arrived_at)).await,
                Err(refused) => Err(refused),
            };
            match change {
                Ok(change) => {
                    checks.records.push(Checked::Store(Item { key: key_of(offset), change }));
                }
                Err(Refused::ForGood { status, reason, denied }) => {
                    checks.denied.extend(denied.map(|denied| (offset, denied)));
                    checks.records.push(Checked::Rejected(offset));
                    checks.rejected.push(RejectedRow { seq: offset, status, reason });
                }
                Err(Refused::ForNow { reason }) => {
                    checks.stop = Some(Stop::later(reason));
                    break;
                }
            }
        }
        Ok(checks)
    }

    /// Charges records to the limits of their principal and topics: all records, or else those
    /// before the first one without room.
    ///
    /// # Errors
    /// The reason why the records from `charged_to` on wait.
    fn charge(
        &self,
        partition: &mut Partition,
        caller: &Caller,
        requests: &[(i64, Result<InboundRequest, Refused>)],
    ) -> Result<(), Stop> {
        let charged_to = partition.charged_to;
        let uncharged: Vec<(i64, Option<&Record>)> = requests
            .iter()
            .filter(|(offset, _)| *offset >= charged_to)
            .map(|(offset, request)| {
                (*offset, request.as_ref().ok().and_then(InboundRequest::record))
            })
            .collect();
        let Some((last, _)) = uncharged.last() else { return Ok(()) };
        let all = uncharged.iter().filter_map(|(_, record)| *record);
        if self.carrier.charge(caller, all).is_ok() {
            partition.charged_to = last.saturating_add(1);
            return Ok(());
        }
        for (offset, record) in uncharged {
            self.carrier.charge(caller, record.into_iter())?;
            partition.charged_to = offset.saturating_add(1);
        }
        Ok(())
    }

    /// Writes refused records to the rejected topic. The first that is not written waits, and all
    /// records after it.
    async fn reject(&mut self, partition: &Partition, checks: &mut Checks, turn: &mut AuditedTurn) {
        if checks.rejected.is_empty() {
            return;
        }
        if let Err((offset, stop)) = self.try_reject(partition, &checks.rejected).await {
            let is_before = |record: &Checked| match record {
                Checked::Store(item) => item.key.seq < offset,
                Checked::Rejected(rejected) => *rejected < offset,
            };
            checks.records.retain(is_before);
            checks.rejected.retain(|rejected| rejected.seq < offset);
            checks.denied.retain(|(denied, _)| *denied < offset);
            checks.stop = Some(stop);
        }
        for (_offset, (action, topic)) in &checks.denied {
            turn.denied(*action, topic);
        }
        let count = checks.rejected.len();
        if let Some(RejectedRow { status, reason, .. }) = checks.rejected.first() {
            let (intake, partition) = (&self.intake, partition.precondition.partition);
            tracing::warn!(
                %intake, partition, count, status, reason,
                "records of an intake topic were rejected"
            );
            reach(Failpoint::IntakeRejected);
        }
        self.metrics.rejected.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// # Errors
    /// The offset of the first record that waits, and the reason.
    async fn try_reject(
        &mut self,
        partition: &Partition,
        rejected: &[RejectedRow],
    ) -> Result<(), (i64, Stop)> {
        let first = rejected.first().map_or(0, |rejected| rejected.seq);
        let is_there = self.has_rejected_topic().await.map_err(|stop| (first, stop))?;
        self.metrics.rejected_topic_missing.set(i64::from(!is_there && !self.skips));
        match (is_there, self.skips) {
            (true, _) => {}
            (false, true) => return Ok(()),
            (false, false) => {
                let topic = &self.rejected_topic;
                let reason = format!("a record is refused, and Kafka has no topic {topic} for it");
                return Err((first, Stop::later(reason)));
            }
        }
        let number = partition.precondition.partition;
        let rejects: Vec<(&IntakeRecord, &RejectedRow)> = rejected
            .iter()
            .filter_map(|rejected| Some((find(&partition.records, rejected.seq)?, rejected)))
            .collect();
        let producer = self.producer().map_err(|stop| (first, stop))?;
        let sent: Vec<Reject<'_>> = rejects
            .iter()
            .map(|(record, rejected)| Reject {
                record,
                partition: number,
                reason: &rejected.reason,
            })
            .collect();
        let outcomes = producer.send(&sent).await;
        for ((record, rejected), outcome) in rejects.into_iter().zip(outcomes) {
            let wait = |reason: String| (rejected.seq, Stop::later(reason));
            match outcome {
                RejectOutcome::Acknowledged => {}
                RejectOutcome::Refused { reason } => {
                    let topic = &self.rejected_topic;
                    tracing::warn!(%topic, reason, "a rejected record is kept in intake_rejected");
                    let kept =
                        self.carrier.store.keep_rejected(&partition.precondition, record, rejected);
                    kept.await.map_err(|error| (rejected.seq, Stop::from(error)))?;
                }
                RejectOutcome::Away { reason } => {
                    let topic = &self.rejected_topic;
                    return Err(wait(format!("cannot write to {topic}: {reason}")));
                }
            }
        }
        Ok(())
    }

    async fn has_rejected_topic(&self) -> Result<bool, Stop> {
        match self.topics.look_up(&self.rejected_topic).await {
            Ok(_facts) => Ok(true),
            Err(LookUpError::Unknown) => Ok(false),
            Err(LookUpError::Busy) => Err(Stop::later("too many look-ups of topics")),
            Err(LookUpError::Denied { reason } | LookUpError::Unavailable { reason }) => {
                Err(Stop::later(format!("cannot look up {}: {reason}", self.rejected_topic)))
            }
        }
    }

    fn producer(&mut self) -> Result<&RejectProducer, Stop> {
        let version = self.kafka.properties.version();
        if self.producer.as_ref().is_none_or(|(made_for, _)| *made_for != version) {
            let (intake, topic) = (self.intake.clone(), self.rejected_topic.clone());
            let made = RejectProducer::new(&self.kafka, intake, topic);
            let made = made.map_err(|error| Stop::later(error.to_string()))?;
            self.producer = Some((version, made));
        }
        let producer = self.producer.as_ref().map(|(_, producer)| producer);
        producer.ok_or_else(|| Stop::later("there is no producer for rejected records"))
    }

    /// Stores records. Returns the first one that Postgres refuses for a value: those before it are
    /// stored.
    async fn store(
        &mut self,
        partition: &mut Partition,
        records: Vec<Checked>,
        turn: AuditedTurn,
    ) -> Result<Option<RejectedRow>, Stop> {
        let newest = partition.records.iter().map(|record| record.at).max();
        partition.precondition.read_at = newest.unwrap_or(partition.precondition.read_at);
        let mut precondition = StorePrecondition::Records(partition.precondition.clone());
        let mut carried = Carried::new(turn);
        let mut outcome = Ok(());
        for run in cut(records) {
            outcome = match run {
                Run::Submits(items) => {
                    self.carrier.submit(&mut precondition, items, &mut carried).await
                }
                Run::Answers(answers) => {
                    self.carrier.answer(&mut precondition, answers, &mut carried).await
                }
                Run::One(item) => {
                    self.carrier.store_one(&mut precondition, item, &mut carried).await
                }
                Run::Rejected(key) => self.carrier.note(&mut precondition, key).await,
            };
            if outcome.is_err() || !carried.rejected.is_empty() {
                break;
            }
            reach(Failpoint::IntakeStored);
        }
        partition.take_back(precondition);
        self.metrics.stored.inc_by(u64::try_from(carried.stored).unwrap_or(u64::MAX));
        carried.turn.end().await;
        outcome.map(|()| carried.rejected.pop())
    }
}

fn find(records: &VecDeque<IntakeRecord>, offset: i64) -> Option<&IntakeRecord> {
    let index = records.binary_search_by_key(&offset, |record| record.offset).ok()?;
    records.get(index)
}
