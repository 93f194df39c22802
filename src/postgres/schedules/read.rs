//! Look-ups and lists of schedules.

use az::SaturatingAs as _;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};

use super::Schedules;
use super::row::{SPECIFICATION, listed_schedule_of, schedule_of};
use crate::domain::schedule::StoredSchedule;
use crate::domain::{ScheduleName, TopicName};
use crate::postgres::PostgresError;

/// The clock of Postgres, in microseconds since the epoch.
pub(super) const NOW: &str = "(extract(epoch from clock_timestamp()) * 1000000)::bigint as now";

/// The instants whose runs are made and due after now. The time is read once, because a comparison
/// with a volatile function cannot use the index.
pub(super) const AHEAD: &str = "(select array_agg(r.instant order by r.instant)
    from schedule_run r where r.schedule_id = schedule.id and not r.is_backfill
      and r.instant > (select (extract(epoch from clock_timestamp()) * 1000)::bigint)
        - schedule.spread_ms
      and punctual_time(r.first_id) > clock_timestamp()) as ahead";

fn look_up_text() -> String {
    format!("-- look up a schedule\nselect *, {AHEAD} from schedule where topic = $1 and name = $2")
}

/// The columns of a schedule without payload, and with the beginning of the headers, which says
/// whether the key is encrypted. The records of a page may have 1 GB.
pub(super) fn without_payload() -> String {
    format!(
        "id, topic, name, key, null::bytea as payload, punctual_terms(headers) as headers, tracking,
  revision, next_run_at, runs_made, skipped, runs_known_from, {SPECIFICATION}"
    )
}

fn list_text() -> String {
    let columns = without_payload();
    format!(
        "-- list schedules
select {columns}, {AHEAD} from schedule where topic = $1 and ($2::text is null or name > $2)
order by name limit $3"
    )
}

const COUNTS: &str = "-- count schedules
select count(*) as total, count(*) filter (where is_paused) as paused,
  count(*) filter (where look_at < (extract(epoch from statement_timestamp()) * 1000)::bigint
    - 10000) as late
from schedule";

/// The numbers of schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScheduleCounts {
    pub total: i64,
    pub paused: i64,
    /// Schedules whose runs should have been made 10 s ago.
    pub late: i64,
}

impl Schedules {
    /// Returns a schedule.
    pub async fn find(
        &self,
        topic: &TopicName,
        name: &ScheduleName,
    ) -> Result<Option<StoredSchedule>, PostgresError> {
        let keys = &self.keys.current();
        let statement = || {
            async |open: &mut PgConnection| {
                let query = sqlx::query(AssertSqlSafe(look_up_text())).bind(topic.as_str());
                let row = query.bind(name.as_str()).fetch_optional(open).await?;
                row.as_ref().map(|row| schedule_of(row, keys)).transpose()
            }
        };
        self.pool.read("look up a schedule", statement).await
    }

    /// Lists the schedules of a topic in the order of their names, at most `limit`, after a name.
    /// They have neither headers nor payload. Those that a newer version of the program has
    /// written, and this one cannot read, are left out.
    pub async fn list(
        &self,
        topic: &TopicName,
        after: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<Vec<StoredSchedule>, PostgresError> {
        let mut listed = Vec::new();
        let mut after = after.map(|name| name.as_str().to_owned());
        loop {
            let wanted = limit - listed.len();
            let (readable, last) = self.page(topic, after.as_deref(), wanted).await?;
            listed.extend(readable);
            if last.is_none() || listed.len() >= limit {
                return Ok(listed);
            }
            after = last;
        }
    }

    /// Reads up to `limit` rows. Returns the schedules, and the name of the last row if there may
    /// be more.
    async fn page(
        &self,
        topic: &TopicName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<StoredSchedule>, Option<String>), PostgresError> {
        let keys = &self.keys.current();
        let statement = || {
            async |open: &mut PgConnection| {
                let query = sqlx::query(AssertSqlSafe(list_text()))
                    .bind(topic.as_str())
                    .bind(after)
                    .bind(limit.saturating_as::<i64>());
                let rows = query.fetch_all(open).await?;
                let last = rows.last().filter(|_last| rows.len() >= limit);
                let last = last.map(|row| row.try_get("name")).transpose()?;
                let mut readable = Vec::with_capacity(rows.len());
                for row in &rows {
                    match listed_schedule_of(row, keys) {
                        Ok(schedule) => readable.push(schedule),
                        // The loop of the runs logs it.
                        Err(sqlx::Error::Decode(error)) => {
                            tracing::debug!(%topic, %error, "cannot read a schedule");
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok((readable, last))
            }
        };
        self.pool.read("list schedules", statement).await
    }
}

/// Counts the schedules of the cluster.
pub(super) async fn counts(open: &mut PgConnection) -> Result<ScheduleCounts, sqlx::Error> {
    let row = sqlx::query(COUNTS).fetch_one(open).await?;
    Ok(ScheduleCounts {
        total: row.try_get("total")?,
        paused: row.try_get("paused")?,
        late: row.try_get("late")?,
    })
}
