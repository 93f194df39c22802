//! The payload keys of a cluster: which key an id stands for, and whether it is in use.
//!
//! Each node registers the keys of its file before it uses them. So two nodes that mean different
//! keys by the same id find out, and none takes the other's records for damaged. A key is used from
//! the moment on when no node of an older version lives. From then on, Postgres refuses heartbeats
//! of such nodes (migration 0022).

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};

use super::heartbeat::LEVEL_WITH_SEALING;
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::error::rows_differ;
use crate::postgres::{Connection, PostgresError, PostgresSettings};
use crate::sealing::KeySet;

const PURPOSE: ConnectionPurpose =
    ConnectionPurpose { name: "payload keys", deadline: Duration::from_secs(5), settings: &[] };
/// Maximum number of older nodes that are named.
const NAMES_MAX: i64 = 10;

const REGISTER: &str = "-- register payload keys
insert into payload_key (id, check_value)
select id, check_value from unnest($1::bigint[], $2::bytea[]) as k (id, check_value)
on conflict (id) do nothing";

const READ: &str = "-- read payload keys
select id, check_value, first_used_at is not null as is_used from payload_key where id = any($1)";

/// No node of an older version appears between the look and the use.
const LOCK: &str = "-- keep heartbeats out
lock table heartbeat in share row exclusive mode";

const OLDER: &str = "-- look for nodes that cannot decrypt
select name from heartbeat where level < $1 and not dead and not has_left order by name limit $2";

const USE: &str = "-- use a payload key
update payload_key set first_used_at = clock_timestamp() where id = $1 and first_used_at is null";

const USED: &str = "-- used payload keys
select id from payload_key where first_used_at is not null order by id";

/// The result of a registration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Registered {
    /// The keys may be used.
    Usable,
    /// The current key must not seal records yet: these nodes could not open them.
    OlderNodes(Vec<String>),
    /// Another key has this id in the cluster.
    Differs(u32),
}

/// The connection for payload keys.
#[derive(Debug)]
pub struct KeyRegistry {
    connection: Connection,
}

impl KeyRegistry {
    pub fn new(settings: &PostgresSettings) -> Self {
        Self { connection: Connection::new(settings, PURPOSE) }
    }

    /// Registers the keys of a file, and notes that the current one is used.
    ///
    /// # Errors
    /// The keys may or may not be registered. To repeat the call is harmless.
    pub async fn register(&mut self, keys: &KeySet) -> Result<Registered, PostgresError> {
        let statement = async |open: &mut PgConnection| register(open, keys).await;
        let outcome = self.connection.run("register payload keys", statement).await;
        // Files change rarely.
        self.connection.close();
        outcome
    }

    /// Returns a key of a file that is another one on the nodes of the cluster.
    pub async fn differing(&mut self, keys: &KeySet) -> Result<Option<u32>, PostgresError> {
        let checks = checks_of(keys);
        let statement = async |open: &mut PgConnection| {
            let ids: Vec<i64> = checks.iter().map(|(id, _check)| *id).collect();
            let rows = sqlx::query(READ).bind(&ids).fetch_all(open).await?;
            differing_of(&rows, &checks)
        };
        let outcome = self.connection.run("compare payload keys", statement).await;
        self.connection.close();
        outcome
    }

    /// Returns the ids of the keys that records may have, in order.
    pub async fn used(&mut self) -> Result<Vec<u32>, PostgresError> {
        let statement =
            async |open: &mut PgConnection| sqlx::query_scalar(USED).fetch_all(open).await;
        let ids: Result<Vec<i64>, _> =
            self.connection.run("read the used payload keys", statement).await;
        self.connection.close();
        Ok(ids?.into_iter().map(|id| id.saturating_as::<u32>()).collect())
    }
}

/// Returns a key that the cluster knows with another check value.
fn differing_of(known: &[PgRow], checks: &[(i64, Vec<u8>)]) -> Result<Option<u32>, sqlx::Error> {
    for row in known {
        let (id, check) = (row.try_get("id")?, row.try_get("check_value")?);
        if !checks.contains(&(id, check)) {
            return Ok(Some(u32::try_from(id).unwrap_or(u32::MAX)));
        }
    }
    Ok(None)
}

fn checks_of(keys: &KeySet) -> Vec<(i64, Vec<u8>)> {
    keys.checks().map(|(id, check)| (i64::from(id), check.to_vec())).collect()
}

async fn register(open: &mut PgConnection, keys: &KeySet) -> Result<Registered, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let checks = checks_of(keys);
    let ids: Vec<i64> = checks.iter().map(|(id, _check)| *id).collect();
    sqlx::query(REGISTER)
        .bind(&ids)
        .bind(checks.iter().map(|(_id, check)| check.as_slice()).collect::<Vec<_>>())
        .execute(&mut *transaction)
        .await?;
    let rows = sqlx::query(READ).bind(&ids).fetch_all(&mut *transaction).await?;
    if let Some(id) = differing_of(&rows, &checks)? {
        transaction.rollback().await?;
        return Ok(Registered::Differs(id));
    }
    let mut is_used = keys.current().is_none();
    for row in &rows {
        let is_current = keys.current().map(i64::from) == Some(row.try_get("id")?);
        is_used |= is_current && row.try_get("is_used")?;
    }
    if !is_used {
        sqlx::query(LOCK).execute(&mut *transaction).await?;
        let older: Vec<String> = sqlx::query_scalar(OLDER)
            .bind(LEVEL_WITH_SEALING)
            .bind(NAMES_MAX)
            .fetch_all(&mut *transaction)
            .await?;
        if !older.is_empty() {
            transaction.commit().await?;
            return Ok(Registered::OlderNodes(older));
        }
        let current = keys.current().map(i64::from);
        let noted = sqlx::query(USE).bind(current).execute(&mut *transaction).await?;
        // Another node may have noted it since the look. Nobody deletes a row.
        if noted.rows_affected() > 1 {
            return Err(rows_differ(noted.rows_affected(), 1));
        }
    }
    transaction.commit().await?;
    Ok(Registered::Usable)
}
