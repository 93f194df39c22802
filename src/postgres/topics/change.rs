//! Changes of topics: their policies, pause and resume.
//!
//! A change is one transaction that locks the row of the topic. Claims read the row without a lock,
//! so a claim that began before the pause committed may still take tasks.

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};

use super::Topics;
use super::read::{COLUMNS, topic_of};
use crate::domain::topic::policy::{StoredTopic, TopicChange, TopicChanged};
use crate::domain::{PrincipalId, TopicName};
use crate::postgres::PostgresError;

const ENTER: &str = "-- enter a topic
insert into topic_policy (topic, revision) values ($1, 0) on conflict (topic) do nothing";

fn lock_text() -> String {
    format!("-- lock a topic\nselect {COLUMNS} from topic_policy where topic = $1 for update")
}

/// A pause begins and ends once: a repeated one keeps the times.
fn change_text() -> String {
    format!(
        "-- change a topic
update topic_policy
set revision = revision + 1, tracking = $2, delay_max_ms = $3, is_paused = $4,
  expire_after_ms = $7, spread_ms = $8, pending_max = $9, submitted_by_header = $10,
  paused_at = case when $4 and not is_paused then clock_timestamp() else paused_at end,
  resumed_at = case when is_paused and not $4 then clock_timestamp() else resumed_at end,
  pause_reason = case when $4 and not is_paused then $5 when $4 then pause_reason end,
  paused_by = case when $4 and not is_paused then $6::smallint when $4 then paused_by end
where topic = $1
returning {COLUMNS}"
    )
}

impl Topics {
    /// Changes the policy of a topic, or pauses or resumes it.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the change may or may not have taken effect. After any
    /// other error it has not.
    pub async fn change(
        &self,
        topic: &TopicName,
        change: &TopicChange,
    ) -> Result<TopicChanged, PostgresError> {
        let statement = async |open: &mut PgConnection| carry_out(open, topic, change).await;
        self.pool.run("change a topic", statement).await
    }
}

async fn carry_out(
    open: &mut PgConnection,
    topic: &TopicName,
    change: &TopicChange,
) -> Result<TopicChanged, sqlx::Error> {
    let mut transaction = open.begin().await?;
    // A row that was there is locked by the next statement.
    sqlx::query(ENTER).bind(topic.as_str()).execute(&mut *transaction).await?;
    let locked = sqlx::query(AssertSqlSafe(lock_text())).bind(topic.as_str());
    let before = topic_of(&locked.fetch_one(&mut *transaction).await?)?;
    if !change.condition.allows(before.current()) {
        transaction.rollback().await?;
        return Ok(TopicChanged::Unmet(before.current()));
    }
    let policy = change.policy.as_ref().unwrap_or(&before.policy);
    let is_paused = change.is_paused.unwrap_or(before.pause.is_some());
    if *policy == before.policy && is_paused == before.pause.is_some() {
        transaction.rollback().await?;
        return Ok(TopicChanged::Unchanged(before));
    }
    let tracking = policy.tracking.as_ref().map(|tracking| tracking.first_row().encode());
    let millis = |span: Duration| span.as_millis().saturating_as::<i64>();
    let [delay_max, expire_after, spread] =
        [policy.delay_max, policy.expire_after, policy.spread].map(|span| span.map(millis));
    let changed = sqlx::query(AssertSqlSafe(change_text()))
        .bind(topic.as_str())
        .bind(tracking)
        .bind(delay_max)
        .bind(is_paused)
        .bind(change.reason.as_deref())
        .bind(change.by.map(PrincipalId::as_smallint))
        .bind(expire_after)
        .bind(spread)
        .bind(policy.pending_max.map(|count| count.saturating_as::<i64>()))
        .bind(policy.has_submitter_header)
        // The row is locked, so it is there.
        .fetch_one(&mut *transaction)
        .await?;
    let stored: StoredTopic = topic_of(&changed)?;
    transaction.commit().await?;
    Ok(TopicChanged::Changed(stored))
}
