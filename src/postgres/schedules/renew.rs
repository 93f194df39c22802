//! New rules of time zones.
//!
//! A row has the version of the rules of its instants. A program with newer rules computes the
//! instants anew, and withdraws the unclaimed runs. A program with older rules leaves the row
//! alone, and notes the older version when making runs. So a newer program looks at the schedule
//! again.

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::change::{Terms, change, lock};
use super::make::RunMaker;
use super::read::{AHEAD, NOW, TAKEN, without_payload};
use super::row::listed_schedule_of;
use super::withdraw::RunsOf;
use crate::clock;
use crate::domain::Timestamp;
use crate::domain::schedule::StoredSchedule;
use crate::domain::schedule::change::Instants;
use crate::domain::schedule::zone;
use crate::postgres::PostgresError;
use crate::postgres::connection::error::is_rows_differ;
use crate::sealing::KeySet;

/// The most schedules of one look.
const LIMIT: i64 = 100;
/// A look begins no change after this time, so that the makers of runs do not wait for long.
const SPAN_MAX: Duration = Duration::from_secs(1);

fn older_text() -> String {
    let columns = without_payload();
    format!(
        "-- schedules with older rules of their zone
select {columns}, {AHEAD}, {TAKEN}, {NOW} from schedule
where cron is not null and tzdata < $1 and shard = any($2) and id <> all($3)
order by tzdata limit {LIMIT}"
    )
}

const NOTE: &str = "-- note the rules of zones
update schedule s set tzdata = $1
from unnest($2::bigint[], $3::bigint[], $4::bigint[]) as n (id, revision, next_run_at)
where s.id = n.id and s.revision = n.revision and s.next_run_at is not distinct from n.next_run_at";

/// The result of a look at schedules with older rules.
#[derive(Debug)]
pub struct Renewed {
    /// The schedules that run at other instants now.
    pub changed: Vec<StoredSchedule>,
    /// The schedules that this version cannot read, or whose change failed.
    pub failed: Vec<i64>,
    /// The first failure of a change.
    pub error: Option<PostgresError>,
    /// There may be more schedules with older rules.
    pub has_more: bool,
}

impl RunMaker {
    /// Computes the instants of schedules of these shards anew, if the rules of a schedule are
    /// older than the program's. Skips schedules that failed in earlier looks.
    ///
    /// # Errors
    /// Some of the schedules may have been renewed. The next look finds the others.
    pub async fn renew(
        &mut self,
        shards: &[i16],
        skipped: &[i64],
    ) -> Result<Renewed, PostgresError> {
        let what = "renew the rules of zones";
        let keys = &self.keys.current();
        let statement = async |open: &mut PgConnection| renew(open, shards, skipped, keys).await;
        let (renewed, error) = self.connection.run(what, statement).await?;
        let error = error.map(|error| PostgresError::new(what, error.into()));
        Ok(Renewed { error, ..renewed })
    }
}

async fn renew(
    open: &mut PgConnection,
    shards: &[i16],
    skipped: &[i64],
    keys: &KeySet,
) -> Result<(Renewed, Option<sqlx::Error>), sqlx::Error> {
    let began_at = clock::monotonic();
    let query = sqlx::query(AssertSqlSafe(older_text())).bind(zone::rules_version());
    let rows = query.bind(shards).bind(skipped).fetch_all(&mut *open).await?;
    let (mut same, mut others) = (Vec::new(), Vec::new());
    let mut failed = Vec::new();
    for row in &rows {
        // A schedule that this version cannot read is reported when its runs are made.
        let Ok(stored) = listed_schedule_of(row, keys) else {
            failed.push(row.try_get("id")?);
            continue;
        };
        let now = Timestamp::from_micros(row.try_get("now")?);
        if stored.follows_own_rules(now) { same.push(stored) } else { others.push(stored) }
    }
    let ids: Vec<i64> = same.iter().map(|one| one.id.0).collect();
    let revisions: Vec<i64> = same.iter().map(|one| one.revision.saturating_as()).collect();
    let next: Vec<Option<i64>> =
        same.iter().map(|one| one.next_run_at.map(Timestamp::as_millis)).collect();
    let noted = sqlx::query(NOTE).bind(zone::rules_version()).bind(&ids).bind(&revisions);
    // A schedule that has moved on meanwhile is looked at again.
    let noted = noted.bind(next).execute(&mut *open).await?.rows_affected();
    let mut changed = Vec::new();
    let (mut first_failure, mut is_cut) = (None, false);
    for stored in &others {
        is_cut = clock::monotonic().since(began_at) >= SPAN_MAX;
        if is_cut {
            break;
        }
        match renew_one(open, stored, keys).await {
            Ok(renewed) => changed.extend(renewed),
            // Another transaction holds its rows, or this node cannot read it: the others go on.
            Err(failure @ (sqlx::Error::Database(_) | sqlx::Error::Decode(_)))
                if !is_rows_differ(&failure) =>
            {
                failed.push(stored.id.0);
                first_failure.get_or_insert(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    // A page without progress must not be read again at once.
    let is_progress = noted > 0 || !changed.is_empty() || !failed.is_empty();
    let has_more = (is_cut || rows.len().saturating_as::<i64>() == LIMIT) && is_progress;
    Ok((Renewed { changed, failed, error: None, has_more }, first_failure))
}

/// Withdraws the runs of a schedule, and has them made anew.
async fn renew_one(
    open: &mut PgConnection,
    found: &StoredSchedule,
    keys: &KeySet,
) -> Result<Option<StoredSchedule>, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let schedule = &found.schedule;
    let locked = lock(&mut transaction, &schedule.record.topic, &schedule.name, keys).await?;
    let current = locked.filter(|locked| locked.stored.tzdata.as_str() < zone::rules_version());
    let Some(locked) = current else {
        transaction.rollback().await?;
        return Ok(None);
    };
    let schedule = locked.stored.schedule.clone();
    let new = locked.with(&schedule);
    let terms = Terms { by: None, instants: Instants::Renewed, runs_of: RunsOf::FirstRows };
    let renewed = change(&mut transaction, &locked, new, terms, keys).await?;
    transaction.commit().await?;
    Ok(renewed)
}
