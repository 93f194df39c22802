//! Stores what rows of an outbox ask for, in Punctual's database.
//!
//! Each transaction holds the epoch of its node, and writes the rows that it stores into
//! `outbox_seen`. So a row that is read again, for whatever reason, is not stored again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{Connection as _, Row, Transaction};
use thiserror::Error;
use uuid::Uuid;

use crate::domain::{
    NewTask, NodeId, Precondition, PrincipalId, TaskId, TaskName, Timestamp, TopicName,
};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::tasks::names::NameEntry;
use crate::postgres::tasks::replace::withdraw::{Withdrawal, withdraw};
use crate::postgres::tasks::replace::{NameChange, Replacement};
use crate::postgres::tasks::submit::{self, Group};
use crate::postgres::tasks::submit_named::{self, NamedGroup};
use crate::postgres::{Connection, PostgresError, PostgresSettings};

/// A lock must not delay the rows for long: the turn is repeated. Plans as for replacements.
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "outbox store",
    deadline: Duration::from_secs(10),
    settings: &[("plan_cache_mode", "force_custom_plan")],
};

/// The most entries of rows that are perhaps gone, in one look.
const LEFTOVERS_MAX: i64 = 10_000;

/// An epoch of an outbox: the right to store its rows, until another node takes the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    pub outbox: Uuid,
    pub number: i64,
}

/// The identity of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowKey {
    pub id: Uuid,
    pub seq: i64,
}

/// The reason why nothing was stored, unless Postgres did not answer.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// Another node has taken the next epoch.
    #[error("another node drains the outbox")]
    Overtaken,
}

/// The submits that one transaction stores.
#[derive(Debug)]
pub struct Submits<'a> {
    pub rows: &'a [RowKey],
    pub plain: Group<'a>,
    pub named: Option<NamedGroup<'a>>,
}

/// The result of a cancel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutboxCancel {
    Cancelled,
    /// No task has the name.
    NotFound,
    /// No change: the task is claimed, perhaps sent, or final. A look-up tells.
    Gone(NameEntry),
}

/// Stores rows over a connection of its own.
#[derive(Debug)]
pub struct OutboxStore {
    connection: Connection,
    node: NodeId,
    retention: Duration,
}

const BEGIN_EPOCH: &str = "-- begin an epoch of an outbox
insert into outbox_turn as t (outbox, name, epoch) values ($1, $2, 1)
on conflict (outbox) do update set name = excluded.name, epoch = t.epoch + 1
returning epoch";

/// A share lock lets no other epoch begin before this transaction has ended.
const HOLD: &str = "-- hold the epoch of an outbox\n\
                    select epoch from outbox_turn where outbox = $1 and epoch = $2 for share";

const NOTE: &str = "-- note rows of an outbox
insert into outbox_seen (outbox, row_id, seq)
select $1, r.id, r.seq from unnest($2::uuid[], $3::bigint[]) as r (id, seq)
on conflict (outbox, row_id) do nothing";

const SEEN: &str = "-- stored rows of an outbox
select row_id, seq from outbox_seen where outbox = $1 and row_id = any($2)";

const LEFTOVERS: &str = "-- rows of an outbox that are perhaps gone
select row_id, seq from outbox_seen where outbox = $1 limit $2";

const FORGET: &str =
    "-- forget rows of an outbox\ndelete from outbox_seen where outbox = $1 and row_id = any($2)";

impl OutboxStore {
    /// An entry of a name expires `retention` after the due time of its task.
    pub fn new(settings: &PostgresSettings, node: NodeId, retention: Duration) -> Self {
        Self { connection: Connection::new(settings, PURPOSE), node, retention }
    }

    /// Begins the next epoch. Whoever had the one before stores nothing more.
    pub async fn begin_epoch(&mut self, outbox: Uuid, name: &str) -> Result<Epoch, PostgresError> {
        let begin = async |open: &mut PgConnection| {
            sqlx::query_scalar(BEGIN_EPOCH).bind(outbox).bind(name).fetch_one(open).await
        };
        let number = self.connection.run("begin to drain the outbox", begin).await?;
        Ok(Epoch { outbox, number })
    }

    /// Returns the numbers of those rows that are stored, by their ids.
    pub async fn seen(
        &mut self,
        epoch: Epoch,
        ids: &[Uuid],
    ) -> Result<HashMap<Uuid, i64>, PostgresError> {
        let read = async |open: &mut PgConnection| {
            let rows = sqlx::query(SEEN).bind(epoch.outbox).bind(ids).fetch_all(open).await?;
            rows.iter().map(|row| Ok((row.try_get("row_id")?, row.try_get("seq")?))).collect()
        };
        self.connection.run("look for stored rows of the outbox", read).await
    }

    /// Returns rows that are stored and perhaps gone from the outbox. A node that died has left
    /// them.
    pub async fn leftovers(&mut self, epoch: Epoch) -> Result<Vec<RowKey>, PostgresError> {
        let read = async |open: &mut PgConnection| {
            let query = sqlx::query(LEFTOVERS).bind(epoch.outbox).bind(LEFTOVERS_MAX);
            let rows = query.fetch_all(open).await?;
            let key = |row: &sqlx::postgres::PgRow| {
                Ok(RowKey { id: row.try_get("row_id")?, seq: row.try_get("seq")? })
            };
            rows.iter().map(key).collect()
        };
        self.connection.run("look for old rows of the outbox", read).await
    }

    /// Stores all of these submits, or none. Returns the ids of the named tasks whose names were
    /// new, and the time of Postgres's clock.
    pub async fn submit(
        &mut self,
        epoch: Epoch,
        submits: &Submits<'_>,
    ) -> Result<(HashSet<TaskId>, Timestamp), StoreError> {
        let what = format!("store {} rows of the outbox", submits.rows.len());
        let (node, retention) = (self.node.uuid(), self.retention.as_secs_f64());
        let store = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, epoch, submits.rows).await? else {
                return Ok(None);
            };
            let now = submit::statement(&mut transaction, node, &submits.plain).await?;
            let won = match &submits.named {
                Some(named) => {
                    let row =
                        submit_named::statement(&mut transaction, named, node, retention).await?;
                    submit_named::read(&row)?.0
                }
                None => HashSet::new(),
            };
            transaction.commit().await?;
            Ok(Some((won, Timestamp::from_micros(now))))
        };
        self.connection.run(&what, store).await?.ok_or(StoreError::Overtaken)
    }

    /// Puts `task` in the place of the task of its name. `over` is the row of a task of this name
    /// that is known to be final. Only a replacement that took effect is noted.
    pub async fn replace(
        &mut self,
        epoch: Epoch,
        row: RowKey,
        (task, is_far, over): (&NewTask, bool, Option<TaskId>),
    ) -> Result<Replacement, StoreError> {
        let (condition, retention) = (Precondition::default(), self.retention);
        let change = NameChange { task, is_far, retention, condition: &condition };
        let store = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, epoch, &[row]).await? else { return Ok(None) };
            let done = change.run(&mut transaction, over).await?;
            if matches!(done, Replacement::Created | Replacement::Replaced) {
                transaction.commit().await?;
            } else {
                transaction.rollback().await?;
            }
            Ok(Some(done))
        };
        let what = "replace a task for a row of the outbox";
        self.connection.run(what, store).await?.ok_or(StoreError::Overtaken)
    }

    /// Cancels the task of a name. `by` is the principal of the outbox. A cancel that has its
    /// verdict is noted.
    pub async fn cancel(
        &mut self,
        epoch: Epoch,
        row: RowKey,
        (topic, name, by): (&TopicName, &TaskName, Option<PrincipalId>),
    ) -> Result<OutboxCancel, StoreError> {
        let store = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, epoch, &[row]).await? else { return Ok(None) };
            let condition = Precondition::default();
            let done = match withdraw(&mut transaction, (topic, name), &condition, by).await? {
                Withdrawal::Cancelled(_task) => OutboxCancel::Cancelled,
                Withdrawal::NotFound => OutboxCancel::NotFound,
                Withdrawal::Gone(entry) | Withdrawal::Unmet(entry) => OutboxCancel::Gone(entry),
            };
            match done {
                OutboxCancel::Gone(_) => transaction.rollback().await?,
                OutboxCancel::Cancelled | OutboxCancel::NotFound => transaction.commit().await?,
            }
            Ok(Some(done))
        };
        let what = "cancel a task for a row of the outbox";
        self.connection.run(what, store).await?.ok_or(StoreError::Overtaken)
    }

    /// Notes a row that has its verdict and changes nothing.
    pub async fn note(&mut self, epoch: Epoch, row: RowKey) -> Result<(), StoreError> {
        let store = async |open: &mut PgConnection| {
            let Some(transaction) = begin(open, epoch, &[row]).await? else { return Ok(None) };
            transaction.commit().await?;
            Ok(Some(()))
        };
        let what = "note a row of the outbox";
        self.connection.run(what, store).await?.ok_or(StoreError::Overtaken)
    }

    /// Forgets rows that are gone from the outbox.
    pub async fn forget(&mut self, epoch: Epoch, ids: &[Uuid]) -> Result<(), StoreError> {
        let forget = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, epoch, &[]).await? else { return Ok(None) };
            sqlx::query(FORGET).bind(epoch.outbox).bind(ids).execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(Some(()))
        };
        let what = "forget rows of the outbox";
        self.connection.run(what, forget).await?.ok_or(StoreError::Overtaken)
    }
}

/// Begins a transaction that holds the epoch, and notes the rows that it will store. Returns `None`
/// when another node has the next epoch, or has stored one of the rows.
async fn begin<'c>(
    open: &'c mut PgConnection,
    epoch: Epoch,
    rows: &[RowKey],
) -> Result<Option<Transaction<'c, Postgres>>, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let held: Option<i64> = sqlx::query_scalar(HOLD)
        .bind(epoch.outbox)
        .bind(epoch.number)
        .fetch_optional(&mut *transaction)
        .await?;
    if held.is_none() {
        transaction.rollback().await?;
        return Ok(None);
    }
    if rows.is_empty() {
        return Ok(Some(transaction));
    }
    let (ids, seqs): (Vec<Uuid>, Vec<i64>) = rows.iter().map(|row| (row.id, row.seq)).unzip();
    let noted = sqlx::query(NOTE).bind(epoch.outbox).bind(ids).bind(seqs);
    let noted = noted.execute(&mut *transaction).await?.rows_affected();
    if noted != u64::try_from(rows.len()).unwrap_or(u64::MAX) {
        transaction.rollback().await?;
        return Ok(None);
    }
    Ok(Some(transaction))
}
