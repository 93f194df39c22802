//! Stores the requests from other sources than REST, in Punctual's database: rows of outboxes, and
//! records of intake topics.
//!
//! Each transaction begins with a [`StorePrecondition`], which fails when its items are stored
//! already. So an item read again, for whatever reason, is not stored again. `entries` keeps the
//! stored rows of outboxes, `offsets` the places in intake topics.

pub mod entries;
pub mod offsets;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{Connection as _, Transaction};
use thiserror::Error;
use uuid::Uuid;

use crate::domain::task::intake_record::Rejection;
use crate::domain::{
    NewTask, NodeId, Precondition, PrincipalId, TaskId, TaskName, Timestamp, TopicName,
};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::tasks::answers::{self, AnswerCall, AnswerTerms, Answered};
use crate::postgres::tasks::names::{NameEntry, NameTerms};
use crate::postgres::tasks::replace::withdraw::{Withdrawal, withdraw};
use crate::postgres::tasks::replace::{NameChange, Replacement};
use crate::postgres::tasks::submit::{self, Group};
use crate::postgres::tasks::submit_named::{self, NamedGroup};
use crate::postgres::unsettled::SharedUnsettledFloor;
use crate::postgres::{Connection, PostgresError, PostgresSettings};
use crate::sealing::PayloadKeys;

/// A lock must not delay the items for long: the turn is repeated. Plans as for replacements.
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "inbound store",
    deadline: Duration::from_secs(10),
    settings: &[("plan_cache_mode", "force_custom_plan")],
};

/// The condition under which a transaction may store items. It lets each item be stored once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StorePrecondition {
    /// Rows of an outbox: the epoch is the last one, and no row has an entry in `outbox_seen`.
    Rows(Epoch),
    /// Records of a partition: the table has this offset. The transaction moves it behind the last
    /// of its records, and stores the rejections of the refused records that it passes.
    Records(OffsetPrecondition),
}

/// An epoch of an outbox: the right to store its rows, until another node takes the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    pub outbox: Uuid,
    pub number: i64,
}

/// The place in a partition of an intake topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffsetPrecondition {
    pub topic: TopicName,
    pub partition: i32,
    pub position: Position,
    /// The highest timestamp of the records that were read.
    pub read_at: Timestamp,
    /// The rejections of records that were read, by their offsets. The transaction that moves the
    /// offset behind such a record stores its rejection.
    pub rejections: BTreeMap<i64, Rejection>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    pub generation: i64,
    /// The offset of the next record.
    pub next: i64,
    /// The highest timestamp of the records before `next`.
    pub newest_at: Option<Timestamp>,
}

/// The identity of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemKey {
    /// The id of a row. Nil for a record.
    pub id: Uuid,
    /// The number of a row, or the offset of a record.
    pub seq: i64,
}

/// The reason why nothing was stored, unless Postgres did not answer.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// A read before the store got no answer, so nothing was asked to be stored.
    #[error(transparent)]
    Unread(PostgresError),
    /// The [`StorePrecondition`] is not met any more.
    #[error("another node is at work")]
    Overtaken,
}

/// The submits that one transaction stores.
#[derive(Debug)]
pub struct Submits<'a> {
    pub items: &'a [ItemKey],
    pub plain: Group<'a>,
    pub named: Option<NamedGroup<'a>>,
}

/// The result of a cancel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InboundCancel {
    Cancelled,
    /// No task has the name.
    NotFound,
    /// No change: the task is claimed, perhaps sent, or final. A look-up tells.
    Gone(NameEntry),
}

/// The result of answers of consumers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboundAnswers {
    /// Every answer has changed its task, and all items are noted. Otherwise nothing was changed.
    pub are_stored: bool,
    pub answers: HashMap<TaskId, Answered>,
}

/// Stores items over a connection of its own.
#[derive(Debug)]
pub struct InboundStore {
    connection: Connection,
    node: NodeId,
    retention: Duration,
    keys: PayloadKeys,
    unsettled: SharedUnsettledFloor,
}

/// A share lock lets no other epoch begin before this transaction has ended.
const HOLD: &str = "-- hold the epoch of an outbox\n\
                    select epoch from outbox_turn where outbox = $1 and epoch = $2 for share";

const NOTE: &str = "-- note rows of an outbox
insert into outbox_seen (outbox, row_id, seq)
select $1, r.id, r.seq from unnest($2::uuid[], $3::bigint[]) as r (id, seq)
on conflict (outbox, row_id) do nothing";

/// Another transaction that moves the offset waits for this one, and then finds another offset.
const MOVE: &str = "-- move the offset of an intake topic
update intake_offset set next = $5, newest_at = greatest(newest_at, $6)
where topic = $1 and partition = $2 and generation = $3 and next = $4";

/// The operator may have set the offset back, behind which there is a row.
const REJECT: &str = "-- reject records of an intake topic
insert into intake_rejected (topic, partition, generation, record_offset, record_at, status, reason,
  is_waiting)
select $1, $2, $3, r.record_offset, r.record_at, r.status, r.reason, true
from unnest($4::bigint[], $5::bigint[], $6::smallint[], $7::text[])
  as r (record_offset, record_at, status, reason)
on conflict (topic, partition, generation, record_offset) do update
set rejected_at = clock_timestamp(), record_at = excluded.record_at, status = excluded.status,
  reason = excluded.reason, is_waiting = true";

impl StorePrecondition {
    /// Returns true when items must be stored in their order, without a gap.
    pub const fn is_ordered(&self) -> bool {
        matches!(self, Self::Records(_))
    }

    /// Records that a transaction with this precondition has stored `items`.
    pub fn stored(&mut self, items: &[ItemKey]) {
        if let Self::Records(precondition) = self
            && let Some(next) = next_after(items)
        {
            precondition.position.next = next;
            precondition.position.newest_at =
                precondition.position.newest_at.max(Some(precondition.read_at));
        }
    }
}

fn next_after(items: &[ItemKey]) -> Option<i64> {
    items.iter().map(|item| item.seq.saturating_add(1)).max()
}

impl InboundStore {
    /// An entry of a name expires `retention` after the due time of its task.
    pub fn new(settings: &PostgresSettings, node: NodeId, retention: Duration) -> Self {
        let keys = settings.payload_keys().clone();
        let unsettled = settings.unsettled_floor().clone();
        let connection = Connection::new(settings, PURPOSE);
        Self { connection, node, retention, keys, unsettled }
    }

    fn terms(&self) -> NameTerms {
        NameTerms { retention: self.retention, unsettled: self.unsettled.get() }
    }

    /// Stores all of these submits, or none. Returns the ids of the named tasks whose names were
    /// new, and the time of Postgres's clock.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the submits may or may not have been stored. After any
    /// other error none of them was.
    pub async fn submit(
        &mut self,
        precondition: &StorePrecondition,
        submits: &Submits<'_>,
    ) -> Result<(HashSet<TaskId>, Timestamp), StoreError> {
        let what = format!("store {} inbound submits", submits.items.len());
        let (node, retention) = (self.node.uuid(), self.retention.as_secs_f64());
        let keys = self.keys.current();
        let store = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, precondition, submits.items).await? else {
                return Ok(None);
            };
            let now = submit::statement(&mut transaction, node, &submits.plain, &keys).await?;
            let won = match &submits.named {
                Some(named) => {
                    let terms = (node, retention);
                    let row =
                        submit_named::statement(&mut transaction, named, terms, &keys).await?;
                    submit_named::read(&row)?.0
                }
                None => HashSet::new(),
            };
            transaction.commit().await?;
            Ok(Some((won, Timestamp::from_micros(now))))
        };
        self.connection.run(&what, store).await?.ok_or(StoreError::Overtaken)
    }

    /// Puts `task` in the place of the task of the same name. `over` is the row of a task of this
    /// name known to be final. Only a replacement with an effect is noted.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the replacement may or may not have taken effect. After
    /// any other error it has not.
    pub async fn replace(
        &mut self,
        precondition: &StorePrecondition,
        item: ItemKey,
        (task, is_far, over): (&NewTask, bool, Option<TaskId>),
    ) -> Result<Replacement, StoreError> {
        let (condition, names) = (Precondition::default(), self.terms());
        let keys = &self.keys.current();
        let change = NameChange { task, is_far, names, condition: &condition, keys };
        let store = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, precondition, &[item]).await? else {
                return Ok(None);
            };
            let done = change.run(&mut transaction, over).await?;
            if matches!(done, Replacement::Created | Replacement::Replaced) {
                transaction.commit().await?;
            } else {
                transaction.rollback().await?;
            }
            Ok(Some(done))
        };
        let what = "replace a task for an inbound request";
        self.connection.run(what, store).await?.ok_or(StoreError::Overtaken)
    }

    /// Cancels the task of a name. `by` is the principal of the outbox or the intake topic. A
    /// cancel that has its verdict is noted.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the cancel may or may not have taken effect. After any
    /// other error it has not.
    pub async fn cancel(
        &mut self,
        precondition: &StorePrecondition,
        item: ItemKey,
        (topic, name, by): (&TopicName, &TaskName, Option<PrincipalId>),
    ) -> Result<InboundCancel, StoreError> {
        let by = (by, self.terms());
        let store = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, precondition, &[item]).await? else {
                return Ok(None);
            };
            let condition = Precondition::default();
            let done = match withdraw(&mut transaction, (topic, name), &condition, by).await? {
                Withdrawal::Cancelled(_task) => InboundCancel::Cancelled,
                Withdrawal::NotFound => InboundCancel::NotFound,
                Withdrawal::Gone(entry) | Withdrawal::Unmet(entry) => InboundCancel::Gone(entry),
            };
            match done {
                InboundCancel::Gone(_) => transaction.rollback().await?,
                InboundCancel::Cancelled | InboundCancel::NotFound => transaction.commit().await?,
            }
            Ok(Some(done))
        };
        let what = "cancel a task for an inbound request";
        self.connection.run(what, store).await?.ok_or(StoreError::Overtaken)
    }

    /// Takes answers of consumers about different tasks, all or none.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the answers may or may not have taken effect. After any
    /// other error none of them has.
    pub async fn answer(
        &mut self,
        precondition: &StorePrecondition,
        items: &[ItemKey],
        calls: &[&AnswerCall],
        terms: AnswerTerms,
    ) -> Result<InboundAnswers, StoreError> {
        let names = self.terms();
        let store = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, precondition, items).await? else {
                return Ok(None);
            };
            let answers = answers::take_within(&mut transaction, calls, (terms, names)).await?;
            let is_changed = |call: &&AnswerCall| {
                answers.get(&call.first).is_some_and(|answered| answered.view.is_some())
            };
            let are_stored = calls.iter().all(is_changed);
            if are_stored {
                transaction.commit().await?;
            } else {
                transaction.rollback().await?;
            }
            Ok(Some(InboundAnswers { are_stored, answers }))
        };
        let what = format!("take {} inbound answers of consumers", calls.len());
        self.connection.run(&what, store).await?.ok_or(StoreError::Overtaken)
    }

    /// Notes an item that has its verdict and changes nothing.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the item may or may not have been noted. After any other
    /// error it was not.
    pub async fn note(
        &mut self,
        precondition: &StorePrecondition,
        item: ItemKey,
    ) -> Result<(), StoreError> {
        let store = async |open: &mut PgConnection| {
            let Some(transaction) = begin(open, precondition, &[item]).await? else {
                return Ok(None);
            };
            transaction.commit().await?;
            Ok(Some(()))
        };
        let what = "note an inbound request";
        self.connection.run(what, store).await?.ok_or(StoreError::Overtaken)
    }
}

/// Begins a transaction with its precondition, and notes the items that it will store. Returns
/// `None` when another node has the next epoch, has moved the offset, or has stored one of the
/// items.
async fn begin<'c>(
    open: &'c mut PgConnection,
    precondition: &StorePrecondition,
    items: &[ItemKey],
) -> Result<Option<Transaction<'c, Postgres>>, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let is_held = match precondition {
        StorePrecondition::Rows(epoch) => {
            is_current(&mut transaction, *epoch).await?
                && note_rows(&mut transaction, *epoch, items).await?
        }
        StorePrecondition::Records(precondition) => {
            move_offset(&mut transaction, precondition, items).await?
        }
    };
    if is_held {
        return Ok(Some(transaction));
    }
    transaction.rollback().await?;
    Ok(None)
}

async fn is_current(open: &mut PgConnection, epoch: Epoch) -> Result<bool, sqlx::Error> {
    let held: Option<i64> =
        sqlx::query_scalar(HOLD).bind(epoch.outbox).bind(epoch.number).fetch_optional(open).await?;
    Ok(held.is_some())
}

async fn note_rows(
    open: &mut PgConnection,
    epoch: Epoch,
    rows: &[ItemKey],
) -> Result<bool, sqlx::Error> {
    if rows.is_empty() {
        return Ok(true);
    }
    let (ids, seqs): (Vec<Uuid>, Vec<i64>) = rows.iter().map(|row| (row.id, row.seq)).unzip();
    let noted = sqlx::query(NOTE).bind(epoch.outbox).bind(ids).bind(seqs).execute(open).await?;
    Ok(noted.rows_affected() == rows.len().saturating_as::<u64>())
}

async fn move_offset(
    open: &mut PgConnection,
    precondition: &OffsetPrecondition,
    records: &[ItemKey],
) -> Result<bool, sqlx::Error> {
    let position = precondition.position;
    let next = next_after(records).unwrap_or(position.next);
    let moved = sqlx::query(MOVE)
        .bind(precondition.topic.as_str())
        .bind(precondition.partition)
        .bind(position.generation)
        .bind(position.next)
        .bind(next)
        .bind(precondition.read_at.as_millis())
        .execute(&mut *open)
        .await?;
    if moved.rows_affected() != 1 {
        return Ok(false);
    }
    reject(open, precondition, next).await
}

/// Stores the rejections of the records from the offset to `next`.
async fn reject(
    open: &mut PgConnection,
    precondition: &OffsetPrecondition,
    next: i64,
) -> Result<bool, sqlx::Error> {
    let position = precondition.position;
    let passed = precondition.rejections.range(position.next..next);
    let (offsets, rejections): (Vec<i64>, Vec<&Rejection>) = passed.unzip();
    if offsets.is_empty() {
        return Ok(true);
    }
    let status = |rejection: &&Rejection| i16::try_from(rejection.status).unwrap_or(i16::MAX);
    let (times, statuses): (Vec<i64>, Vec<i16>) =
        rejections.iter().map(|one| (one.record_at.as_millis(), status(one))).unzip();
    let reasons: Vec<&str> = rejections.iter().map(|one| one.reason.as_str()).collect();
    let query = sqlx::query(REJECT)
        .bind(precondition.topic.as_str())
        .bind(precondition.partition)
        .bind(position.generation)
        .bind(&offsets)
        .bind(times)
        .bind(statuses)
        .bind(reasons);
    let stored = query.execute(open).await?.rows_affected();
    Ok(stored == offsets.len().saturating_as::<u64>())
}
