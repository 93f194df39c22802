//! The callbacks of topics. The values of their headers are encrypted like records.

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::Topics;
use crate::domain::topic::callback::{Callback, StoredCallback};
use crate::domain::{TopicName, Unopened};
use crate::postgres::PostgresError;
use crate::postgres::tasks::sealed::refused;
use crate::sealing::{Columns, KeySet, OpenedRecord, RecordOwner};

/// Maximum number of callbacks of a cluster. Each has a Kafka client on each node.
pub const CALLBACKS_MAX: usize = 64;

const COLUMNS: &str = "topic, revision, url, header_names, header_values, header_mark, timeout_ms,
  concurrency, max_per_second, is_paused, pause_reason";

/// The lock lets one new callback at a time be compared with the limit.
const LOCK: &str = "-- lock the callbacks\nlock table topic_callback in share row exclusive mode";

const COUNT_OTHERS: &str = "-- count the other callbacks
select count(*) from topic_callback where topic <> $1";

fn put_text() -> String {
    format!(
        "-- put a callback
insert into topic_callback (topic, url, header_names, header_values, header_mark, timeout_ms,
  concurrency, max_per_second, is_paused)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (topic) do update set revision = excluded.revision, url = excluded.url,
  header_names = excluded.header_names, header_values = excluded.header_values,
  header_mark = excluded.header_mark, timeout_ms = excluded.timeout_ms,
  concurrency = excluded.concurrency, max_per_second = excluded.max_per_second,
  is_paused = excluded.is_paused, pause_reason = null
returning {COLUMNS}"
    )
}

const PAUSE: &str = "-- pause a callback
update topic_callback set revision = nextval('topic_callback_revision'), is_paused = true,
  pause_reason = $3
where topic = $1 and revision = $2 and not is_paused";

fn delete_text() -> String {
    format!("-- delete a callback\ndelete from topic_callback where topic = $1 returning {COLUMNS}")
}

impl Topics {
    /// Stores the callback of a topic in the place of the former one. Returns `None` when the
    /// cluster has [`CALLBACKS_MAX`] others.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the change may or may not have taken effect. After any
    /// other error it has not.
    pub async fn put_callback(
        &self,
        topic: &TopicName,
        callback: &Callback,
    ) -> Result<Option<StoredCallback>, PostgresError> {
        let keys = &self.keys.current();
        let statement = async |open: &mut PgConnection| put(open, topic, callback, keys).await;
        self.pool.run("put a callback", statement).await
    }

    /// Returns the callback of a topic.
    pub async fn callback(
        &self,
        topic: &TopicName,
    ) -> Result<Option<StoredCallback>, PostgresError> {
        let text =
            format!("-- look up a callback\nselect {COLUMNS} from topic_callback where topic = $1");
        let statement = || {
            async |open: &mut PgConnection| {
                let query = sqlx::query(AssertSqlSafe(text.clone())).bind(topic.as_str());
                let row = query.fetch_optional(open).await?;
                row.map(|row| callback_of(&row, &self.keys.current())).transpose()
            }
        };
        self.pool.read("look up a callback", statement).await
    }

    /// Returns all callbacks.
    pub async fn callbacks(&self) -> Result<Vec<StoredCallback>, PostgresError> {
        let text = format!("-- all callbacks\nselect {COLUMNS} from topic_callback order by topic");
        let statement = || {
            async |open: &mut PgConnection| {
                let rows = sqlx::query(AssertSqlSafe(text.clone())).fetch_all(open).await?;
                let keys = self.keys.current();
                rows.iter().map(|row| callback_of(row, &keys)).collect()
            }
        };
        self.pool.read("read all callbacks", statement).await
    }

    /// Pauses a callback, unless it was changed since this revision. Returns true if it did.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the pause may or may not have taken effect. After any
    /// other error it has not.
    pub async fn pause_callback(
        &self,
        topic: &TopicName,
        revision: u64,
        reason: &str,
    ) -> Result<bool, PostgresError> {
        let statement = async |open: &mut PgConnection| {
            let query = sqlx::query(PAUSE).bind(topic.as_str());
            let query = query.bind(revision.saturating_as::<i64>()).bind(reason);
            Ok(query.execute(open).await?.rows_affected() == 1)
        };
        self.pool.run("pause a callback", statement).await
    }

    /// Deletes the callback of a topic. Returns it, unless there was none.
    ///
    /// # Errors
    /// As [`Topics::pause_callback`].
    pub async fn delete_callback(
        &self,
        topic: &TopicName,
    ) -> Result<Option<StoredCallback>, PostgresError> {
        let statement = async |open: &mut PgConnection| {
            let query = sqlx::query(AssertSqlSafe(delete_text())).bind(topic.as_str());
            let row = query.fetch_optional(open).await?;
            row.map(|row| callback_of(&row, &self.keys.current())).transpose()
        };
        self.pool.run("delete a callback", statement).await
    }
}

async fn put(
    open: &mut PgConnection,
    topic: &TopicName,
    callback: &Callback,
    keys: &KeySet,
) -> Result<Option<StoredCallback>, sqlx::Error> {
    let mut transaction = open.begin().await?;
    sqlx::query(LOCK).execute(&mut *transaction).await?;
    let others: i64 =
        sqlx::query_scalar(COUNT_OTHERS).bind(topic.as_str()).fetch_one(&mut *transaction).await?;
    if others >= CALLBACKS_MAX.saturating_as::<i64>() {
        transaction.rollback().await?;
        return Ok(None);
    }
    let headers = HeaderColumns::of(topic, callback, keys)?;
    let row = sqlx::query(AssertSqlSafe(put_text()))
        .bind(topic.as_str())
        .bind(&callback.url)
        .bind(headers.names)
        .bind(headers.values)
        .bind(headers.mark)
        .bind(callback.timeout.as_millis().saturating_as::<i64>())
        .bind(i32::from(callback.concurrency))
        .bind(callback.max_per_second.map(i32::from))
        .bind(callback.is_paused)
        .fetch_one(&mut *transaction)
        .await?;
    let stored = callback_of(&row, keys)?;
    transaction.commit().await?;
    Ok(Some(stored))
}

/// The headers of a callback as they are stored.
struct HeaderColumns<'a> {
    names: Vec<&'a str>,
    /// A JSON array in the order of the names, encrypted if there is a mark.
    values: Vec<u8>,
    mark: Option<Vec<u8>>,
}

impl<'a> HeaderColumns<'a> {
    fn of(topic: &TopicName, callback: &'a Callback, keys: &KeySet) -> Result<Self, sqlx::Error> {
        let (names, values): (Vec<&str>, Vec<&str>) =
            callback.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).unzip();
        let owner = RecordOwner::Callback(topic.as_str(), &callback.url);
        let json =
            serde_json::to_vec(&values).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let sealed = match values.as_slice() {
            [] => None,
            _ => keys.seal(owner, Columns::new(None, Some(&json), None)).map_err(refused)?,
        };
        let (values, mark) = match sealed {
            Some(record) => (record.payload.unwrap_or_default(), record.headers),
            None => (json, None),
        };
        Ok(Self { names, values, mark })
    }
}

/// The headers of a row, and why their values cannot be decrypted. The values are empty then.
struct StoredHeaders {
    headers: Vec<(String, String)>,
    unopened: Option<Unopened>,
}

impl StoredHeaders {
    fn of(row: &PgRow, keys: &KeySet) -> Result<Self, sqlx::Error> {
        let names: Vec<String> = row.try_get("header_names")?;
        let stored: Vec<u8> = row.try_get("header_values")?;
        let mark: Option<Vec<u8>> = row.try_get("header_mark")?;
        let owner = RecordOwner::Callback(row.try_get("topic")?, row.try_get("url")?);
        let values = match keys.open(owner, Columns::new(None, Some(&stored), mark.as_deref())) {
            OpenedRecord::Plain => values_of(&stored),
            OpenedRecord::Opened(opened) => values_of(&opened.payload.unwrap_or_default()),
            OpenedRecord::Unopened(why) => Err(why),
        };
        let values = values.and_then(|values| match values.len() == names.len() {
            true => Ok(values),
            false => Err(Unopened::Damaged),
        });
        let (values, unopened) = match values {
            Ok(values) => (values, None),
            Err(why) => (vec![String::new(); names.len()], Some(why)),
        };
        Ok(Self { headers: names.into_iter().zip(values).collect(), unopened })
    }
}

/// Reads decrypted values.
pub(in crate::postgres) fn values_of(json: &[u8]) -> Result<Vec<String>, Unopened> {
    serde_json::from_slice(json).map_err(|_not_ours| Unopened::Damaged)
}

fn callback_of(row: &PgRow, keys: &KeySet) -> Result<StoredCallback, sqlx::Error> {
    let StoredHeaders { headers, unopened } = StoredHeaders::of(row, keys)?;
    let max_per_second: Option<i32> = row.try_get("max_per_second")?;
    let timeout_ms: i64 = row.try_get("timeout_ms")?;
    Ok(StoredCallback {
        topic: TopicName::stored(row.try_get("topic")?),
        revision: row.try_get::<i64, _>("revision")?.saturating_as::<u64>(),
        callback: Callback {
            url: row.try_get("url")?,
            headers,
            timeout: Duration::from_millis(timeout_ms.saturating_as()),
            concurrency: row.try_get::<i32, _>("concurrency")?.saturating_as::<u16>(),
            max_per_second: max_per_second.map(|count| count.saturating_as::<u16>()),
            is_paused: row.try_get("is_paused")?,
        },
        unopened,
        pause_reason: row.try_get("pause_reason")?,
    })
}
