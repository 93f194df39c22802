//! The rows of outboxes that are stored, and perhaps not yet deleted; and the epochs of outboxes.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::{Epoch, InboundStore, ItemKey, StoreError, StorePrecondition, begin};
use crate::postgres::PostgresError;

/// The most entries of rows that are perhaps gone, in one look.
const LEFTOVERS_MAX: i64 = 10_000;

const BEGIN_EPOCH: &str = "-- begin an epoch of an outbox
insert into outbox_turn as t (outbox, name, epoch) values ($1, $2, 1)
on conflict (outbox) do update set name = excluded.name, epoch = t.epoch + 1
returning epoch";

/// Has at least one line, unless no epoch has begun.
const SEEN: &str = "-- stored rows of an outbox
select t.epoch = $3 as is_current, s.row_id, s.seq
from outbox_turn t left join outbox_seen s on s.outbox = t.outbox and s.row_id = any($2)
where t.outbox = $1";

const LEFTOVERS: &str = "-- rows of an outbox that are perhaps gone
select row_id, seq from outbox_seen where outbox = $1 limit $2";

const FORGET: &str =
    "-- forget rows of an outbox\ndelete from outbox_seen where outbox = $1 and row_id = any($2)";

impl InboundStore {
    /// Begins the next epoch. Whoever had the one before stores nothing more.
    pub async fn begin_epoch(&mut self, outbox: Uuid, name: &str) -> Result<Epoch, PostgresError> {
        let begin = async |open: &mut PgConnection| {
            sqlx::query_scalar(BEGIN_EPOCH).bind(outbox).bind(name).fetch_one(open).await
        };
        let number = self.connection.run("begin to drain the outbox", begin).await?;
        Ok(Epoch { outbox, number })
    }

    /// Returns the numbers of those rows that are stored, by their ids. The caller must have read
    /// the rows before: a node with a later epoch may have read them, too, and may store those that
    /// this one refuses.
    ///
    /// # Errors
    /// [`StoreError::Overtaken`] when a later epoch has begun.
    pub async fn seen(
        &mut self,
        epoch: Epoch,
        ids: &[Uuid],
    ) -> Result<HashMap<Uuid, i64>, StoreError> {
        let read = async |open: &mut PgConnection| {
            let query = sqlx::query(SEEN).bind(epoch.outbox).bind(ids).bind(epoch.number);
            let (mut is_current, mut seen) = (false, HashMap::new());
            for row in query.fetch_all(open).await? {
                is_current = row.try_get("is_current")?;
                if let Some(id) = row.try_get::<Option<Uuid>, _>("row_id")? {
                    seen.insert(id, row.try_get("seq")?);
                }
            }
            Ok(is_current.then_some(seen))
        };
        let what = "look for stored rows of the outbox";
        self.connection.run(what, read).await?.ok_or(StoreError::Overtaken)
    }

    /// Returns rows that are stored and perhaps gone from the outbox. A node that died has left
    /// them.
    pub async fn leftovers(&mut self, epoch: Epoch) -> Result<Vec<ItemKey>, PostgresError> {
        let read = async |open: &mut PgConnection| {
            let query = sqlx::query(LEFTOVERS).bind(epoch.outbox).bind(LEFTOVERS_MAX);
            let rows = query.fetch_all(open).await?;
            let key =
                |row: &PgRow| Ok(ItemKey { id: row.try_get("row_id")?, seq: row.try_get("seq")? });
            rows.iter().map(key).collect()
        };
        self.connection.run("look for old rows of the outbox", read).await
    }

    /// Forgets rows that are gone from the outbox.
    pub async fn forget(&mut self, epoch: Epoch, ids: &[Uuid]) -> Result<(), StoreError> {
        let precondition = StorePrecondition::Rows(epoch);
        let forget = async |open: &mut PgConnection| {
            let Some(mut transaction) = begin(open, &precondition, &[]).await? else {
                return Ok(None);
            };
            sqlx::query(FORGET).bind(epoch.outbox).bind(ids).execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(Some(()))
        };
        let what = "forget rows of the outbox";
        self.connection.run(what, forget).await?.ok_or(StoreError::Overtaken)
    }
}
