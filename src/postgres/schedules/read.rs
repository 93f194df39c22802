//! Look-ups and lists of schedules.

use std::collections::HashSet;

use az::SaturatingAs as _;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::Schedules;
use super::row::{SPECIFICATION, all_columns, listed_schedule_of, schedule_of};
use crate::domain::schedule::StoredSchedule;
use crate::domain::schedule::change::CLAIMED_AHEAD_MAX;
use crate::domain::{ScheduleName, Timestamp, TopicName};
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

/// The first 1,000 instants from the next run on that have runs. A plan may take a later one for
/// free, but the statement that makes runs stores no second run of an instant.
pub(super) const TAKEN: &str = "array(select r.instant from schedule_run r
    where r.schedule_id = schedule.id and r.instant >= schedule.next_run_at
    order by r.instant limit 1000) as taken";

/// The runs of some instants that cannot be claimed yet.
const UNCLAIMABLE: &str = "-- runs of a schedule that are due later
select instant, first_id from schedule_run
where schedule_id = $1 and instant = any($2)
  and punctual_time(first_id) > clock_timestamp() + make_interval(secs => $3)";

/// A run that was moved, or deferred, has a row in `task_follow`. The ids decide which leaves are
/// read: a join would read all of them.
const WAITING: &str = "-- runs of a schedule that wait
select id from task where shard = $1 and id = any($2)
union all select id from task_far where id = any($2)
union all select first_id from task_follow where first_id = any($2)";

/// Leaves out the runs ahead that have ended: a caller has cancelled them, or has moved them to an
/// earlier time. `shard` is that of the runs.
pub(super) async fn without_ended(
    open: &mut PgConnection,
    mut stored: StoredSchedule,
    shard: i16,
) -> Result<StoredSchedule, sqlx::Error> {
    let ahead: Vec<i64> = stored.ahead.iter().map(|at| at.as_millis()).collect();
    if ahead.is_empty() {
        return Ok(stored);
    }
    let query = sqlx::query_as::<_, (i64, Uuid)>(UNCLAIMABLE).bind(stored.id.0).bind(ahead);
    let query = query.bind(CLAIMED_AHEAD_MAX.as_secs_f64());
    let unclaimable: Vec<(i64, Uuid)> = query.fetch_all(&mut *open).await?;
    if unclaimable.is_empty() {
        return Ok(stored);
    }
    let ids: Vec<Uuid> = unclaimable.iter().map(|(_at, id)| *id).collect();
    let query = sqlx::query_scalar::<_, Uuid>(WAITING).bind(shard).bind(ids);
    let waiting: HashSet<Uuid> = query.fetch_all(open).await?.into_iter().collect();
    let ended = unclaimable.iter().filter(|(_at, id)| !waiting.contains(id));
    let ended: HashSet<Timestamp> = ended.map(|(at, _id)| Timestamp::from_millis(*at)).collect();
    stored.ahead.retain(|at| !ended.contains(at));
    Ok(stored)
}

fn look_up_text() -> String {
    let columns = all_columns();
    format!(
        "-- look up a schedule
select {columns}, {AHEAD}, {TAKEN}, {NOW} from schedule where topic = $1 and name = $2"
    )
}

/// The columns of a schedule without payload, and with the beginning of the headers, which says
/// whether the key is encrypted. The key is missing if it is long, as in lists of tasks. The
/// records of a page may have 1 GB.
pub(super) fn without_payload() -> String {
    format!(
        "id, topic, name, case when octet_length(key) <= 1057 then key end as key,
  null::bytea as payload, punctual_terms(headers) as headers, tracking, revision, next_run_at,
  runs_made, skipped, not_missed_from, not_missed_to, runs_known_from, {SPECIFICATION}"
    )
}

fn list_text() -> String {
    let columns = without_payload();
    format!(
        "-- list schedules
select {columns}, {AHEAD}, {TAKEN}, {NOW} from schedule
where topic = $1 and ($2::text is null or name > $2)
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
                let row = query.bind(name.as_str()).fetch_optional(&mut *open).await?;
                let Some(row) = row else { return Ok(None) };
                let stored = schedule_of(&row, keys)?;
                without_ended(open, stored, row.try_get("shard")?).await.map(Some)
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
