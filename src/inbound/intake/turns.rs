//! Carries out the records of a partition: checks them, and stores the tasks of the good ones and
//! the rejections of the others, run by run.

use std::time::Duration;

use az::SaturatingAs as _;

use super::metrics::OneIntake;
use super::partition::Partition;
use super::rejects::RejectedTopic;
use super::runs::{Checked, Run, cut, key_of};
use crate::access::{Action, Caller};
use crate::api::access::turns::AuditedTurn;
use crate::api::inbound::{InboundRequest, Reader, Refused, record};
use crate::clock;
use crate::domain::task::intake_record::{IntakeRecord, Rejection};
use crate::domain::task::outbox_row::RejectedRow;
use crate::domain::{Record, Timestamp, TopicName};
use crate::failpoint::{Failpoint, reach};
use crate::inbound::carrier::{Carried, Carrier, Item, Stop};
use crate::postgres::inbound::{OffsetPrecondition, StorePrecondition};

type Denied = (Action, TopicName);

/// The status with which REST refuses a task whose topic Kafka does not let this node see.
const DENIED_STATUS: u16 = 503;
/// How far the clocks of producers may be ahead of that of the cluster.
const AHEAD_MAX: Duration = Duration::from_secs(3_600);

/// The outcome of the checks: records in their order, the refused ones among them, and the reason
/// why later ones wait.
struct Checks {
    records: Vec<Checked>,
    rejected: Vec<RejectedRow>,
    /// The missing rights, for the audit trail.
    denied: Vec<(i64, Denied)>,
    stop: Option<Stop>,
}

/// Carries out records of one intake topic.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) carrier: Carrier,
    pub(super) rejected: RejectedTopic,
    pub(super) metrics: OneIntake,
}

impl Turns {
    /// Carries out the records that were read, or after a refused one the first of them.
    ///
    /// # Errors
    /// When a record waits. The records before it are carried out.
    pub(super) async fn carry_out(&mut self, partition: &mut Partition) -> Result<(), Stop> {
        self.write_rejected(partition).await?;
        if partition.to_check().next().is_none() {
            return Ok(());
        }
        loop {
            let mut checks = self.check(partition).await?;
            let policy = self.carrier.policy.current();
            let turn = self.carrier.begin_turn(&self.carrier.caller(&policy)?)?;
            let dropped = self.take_rejections(partition, &mut checks).await;
            let refused = self.store(partition, checks.records, (turn, checks.denied)).await;
            self.note_dropped(partition, &dropped);
            partition.drop_done();
            let refused = refused?;
            let is_done = refused.is_none();
            if let Some(refused) = refused {
                // The records from this one on are checked again, and this one is rejected.
                partition.refuse(refused);
            }
            self.write_rejected(partition).await?;
            match checks.stop {
                _ if !is_done => {}
                Some(stop) => return Err(stop),
                None => {
                    partition.turn_is_done();
                    return Ok(());
                }
            }
        }
    }

    async fn write_rejected(&mut self, partition: &mut Partition) -> Result<(), Stop> {
        let written = self.rejected.write(&mut self.carrier.store, partition).await;
        partition.drop_done();
        written
    }

    /// Keeps the rejections of records that were deleted before they were written.
    pub(super) async fn keep_deleted(
        &mut self,
        partition: &mut Partition,
        first: i64,
    ) -> Result<(), Stop> {
        self.rejected.delete_written(&mut self.carrier.store, partition).await?;
        let deleted = partition.waiting.range(..first).map(|(offset, _)| *offset).collect();
        self.rejected.keep_gone(&mut self.carrier.store, partition, deleted).await
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
                Err(Refused::TopicDenied { reason })
                    if partition.note_denied(clock::monotonic()) =>
                {
                    let status = DENIED_STATUS;
                    checks.records.push(Checked::Rejected(offset));
                    checks.rejected.push(RejectedRow { seq: offset, status, reason });
                }
                Err(Refused::TopicDenied { reason } | Refused::ForNow { reason }) => {
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

    /// Gives the rejections of refused records to the transactions that move the offset. Returns
    /// those of records that are dropped instead. Without a place for them, the first refused
    /// record waits, and all records after it.
    async fn take_rejections(
        &self,
        partition: &mut Partition,
        checks: &mut Checks,
    ) -> Vec<RejectedRow> {
        partition.precondition.rejections.clear();
        let Some(first) = checks.rejected.first().map(|rejected| rejected.seq) else {
            return Vec::new();
        };
        match self.rejected.is_there().await {
            Ok(true) => {
                let rejections = checks.rejected.iter().filter_map(|rejected| {
                    let RejectedRow { seq, status, reason } = rejected;
                    let record = partition.record(*seq)?;
                    Some((*seq, Rejection::new(record, *status, reason)))
                });
                partition.precondition.rejections = rejections.collect();
                Vec::new()
            }
            Ok(false) => std::mem::take(&mut checks.rejected),
            Err(stop) => {
                checks.records.retain(|record| record.offset() < first);
                checks.denied.clear();
                checks.stop = Some(stop);
                Vec::new()
            }
        }
    }

    fn note_dropped(&self, partition: &Partition, dropped: &[RejectedRow]) {
        let OffsetPrecondition { position, partition, .. } = &partition.precondition;
        let passed = dropped.iter().filter(|dropped| dropped.seq < position.next);
        let passed = passed.map(|RejectedRow { status, reason, .. }| (*status, reason.as_str()));
        self.rejected.dropped(*partition, passed);
    }

    /// Stores records. Returns the first one that Postgres refuses for a value: those before it are
    /// stored.
    async fn store(
        &mut self,
        partition: &mut Partition,
        records: Vec<Checked>,
        (turn, denied): (AuditedTurn, Vec<(i64, Denied)>),
    ) -> Result<Option<RejectedRow>, Stop> {
        // A record with a time far ahead must not decide for good where a topic that is made anew
        // is read on.
        let latest = self.carrier.shared.clock.at_most().map(|now| now.plus(AHEAD_MAX));
        let bounded = |at: Timestamp| latest.map_or(at, |latest| at.min(latest));
        let newest = partition.records.iter().map(|record| bounded(record.at)).max();
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
        self.metrics.stored.inc_by(carried.stored.saturating_as::<u64>());
        let is_unknown = matches!(outcome, Err(Stop::NewEpoch { .. }));
        for (offset, (action, topic)) in denied {
            if is_unknown || offset < partition.precondition.position.next {
                carried.turn.denied(action, &topic);
            }
        }
        carried.turn.end().await;
        outcome.map(|()| carried.rejected.pop())
    }
}
