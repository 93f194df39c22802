//! Reads policies and pauses.

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::Topics;
use crate::domain::task::tracking::TrackingError;
use crate::domain::topic::policy::{Pause, StoredTopic, TopicPolicy};
use crate::domain::{Timestamp, TopicName, TrackedRow};
use crate::postgres::PostgresError;
use crate::postgres::tasks::principals::principal_of;

/// Maximum number of topics with a policy or a pause that a node knows.
const TOPICS_MAX: i64 = 100_000;

/// The columns that [`topic_of`] reads.
pub(super) const COLUMNS: &str =
    "topic, revision, tracking, delay_max_ms, expire_after_ms, spread_ms, pending_max,
  submitted_by_header, is_paused,
  (extract(epoch from paused_at) * 1000000)::bigint as paused_at,
  (extract(epoch from resumed_at) * 1000000)::bigint as resumed_at, pause_reason,
  (select p.name from principal p where p.id = paused_by) as paused_by";

/// Tasks that may be published in spite of a pause: claimed before the pause. A batch counts as a
/// whole until settled.
const IN_FLIGHT: &str = "-- tasks of a topic in flight
select coalesce(sum(cardinality(array_positions(p.topics, $1))), 0)::bigint
from execlog_batch b join execlog_payload p on p.batch = b.batch
where b.settled_at is null and b.batch >= $2";

impl Topics {
    /// Returns a topic. One without a policy and a pause is plain.
    pub async fn find(&self, topic: &TopicName) -> Result<StoredTopic, PostgresError> {
        let text =
            format!("-- look up a policy\nselect {COLUMNS} from topic_policy where topic = $1");
        let statement = || {
            async |open: &mut PgConnection| {
                let query = sqlx::query(AssertSqlSafe(text.clone())).bind(topic.as_str());
                let row = query.fetch_optional(open).await?;
                row.map_or_else(|| Ok(StoredTopic::plain(topic.clone())), |row| topic_of(&row))
            }
        };
        self.pool.read("look up the policy of a topic", statement).await
    }

    /// Returns all topics that have, or had, a policy or a pause.
    pub async fn all(&self) -> Result<Vec<StoredTopic>, PostgresError> {
        let text = format!("-- all policies\nselect {COLUMNS} from topic_policy limit $1");
        let statement = || {
            async |open: &mut PgConnection| {
                let query = sqlx::query(AssertSqlSafe(text.clone())).bind(TOPICS_MAX);
                query.fetch_all(open).await?.iter().map(readable_of).collect()
            }
        };
        self.pool.read("read the policies of all topics", statement).await
    }

    /// Returns the number of tasks of a topic that are claimed and not settled.
    pub async fn in_flight(&self, topic: &TopicName) -> Result<u64, PostgresError> {
        let from = self.unsettled.get().uuid();
        let statement = || {
            async |open: &mut PgConnection| {
                sqlx::query_scalar(IN_FLIGHT).bind(topic.as_str()).bind(from).fetch_one(open).await
            }
        };
        let count: i64 = self.pool.read("count the tasks of a topic in flight", statement).await?;
        Ok(count.saturating_as::<u64>())
    }
}

/// Reads a topic, without a `ttr` and `retry` that a later version has written: one such policy must
/// not keep a node from the pauses and policies of all topics.
fn readable_of(row: &PgRow) -> Result<StoredTopic, sqlx::Error> {
    match tracking_of(row)? {
        Ok(tracking) => topic_with(row, tracking),
        Err(error) => {
            let topic: String = row.try_get("topic")?;
            tracing::warn!(topic, %error, "cannot read `ttr` and `retry` of a policy");
            topic_with(row, None)
        }
    }
}

pub(super) fn topic_of(row: &PgRow) -> Result<StoredTopic, sqlx::Error> {
    let tracking = tracking_of(row)?.map_err(|error| sqlx::Error::Decode(error.into()))?;
    topic_with(row, tracking)
}

fn tracking_of(row: &PgRow) -> Result<Result<Option<TrackedRow>, TrackingError>, sqlx::Error> {
    let tracking: Option<Vec<u8>> = row.try_get("tracking")?;
    Ok(tracking.map(|bytes| TrackedRow::decode(&bytes)).transpose())
}

fn topic_with(row: &PgRow, tracking: Option<TrackedRow>) -> Result<StoredTopic, sqlx::Error> {
    let time = |column: &str| -> Result<Option<Timestamp>, sqlx::Error> {
        Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp::from_micros))
    };
    let pending_max: Option<i64> = row.try_get("pending_max")?;
    let span = |column: &str| -> Result<Option<Duration>, sqlx::Error> {
        let millis: Option<i64> = row.try_get(column)?;
        Ok(millis.map(|millis| Duration::from_millis(millis.saturating_as())))
    };
    let policy = TopicPolicy {
        tracking: tracking.map(|row| Box::new(row.tracking)),
        delay_max: span("delay_max_ms")?,
        expire_after: span("expire_after_ms")?,
        spread: span("spread_ms")?,
        pending_max: pending_max.map(|count| count.saturating_as::<u64>()),
        has_submitter_header: row.try_get("submitted_by_header")?,
    };
    let pause = match row.try_get("is_paused")? {
        false => None,
        true => Some(Pause {
            since: time("paused_at")?.unwrap_or_default(),
            reason: row.try_get("pause_reason")?,
            by: principal_of(row, "paused_by")?,
        }),
    };
    Ok(StoredTopic {
        topic: TopicName::stored(row.try_get("topic")?),
        revision: row.try_get::<i64, _>("revision")?.saturating_as::<u64>(),
        policy,
        pause,
        resumed_at: time("resumed_at")?,
    })
}
