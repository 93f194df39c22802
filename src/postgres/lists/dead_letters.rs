//! Lists, redrives and drops dead letters.
//!
//! A dead letter is redriven or dropped by deleting the row, so one of two callers finds no row. A
//! redriven task continues under the first id with the next attempt, as after a deferral. The task
//! gets a row that is due now, an entry in `task_follow` that forbids a cancel (an earlier attempt
//! may be in the topic), the name if still the task's own, or free, and a line in
//! `execlog_redriven`, so that the line of the death is no longer final. A dropped dead letter gets
//! a line in `execlog_dropped`, in the place of the line of the death. Everything depends on the
//! deleted row. See docs/decisions/0011.

mod sealing;

use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use self::sealing::seal_for;
use crate::domain::{
    Cursor, IdRange, Page, PrincipalId, Selection, TaskId, TaskState, TaskView, TopicName,
};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::connection::pool::Pool;
use crate::postgres::tasks::look_up::{lines_of_many, view_of_listed, view_of_row};
use crate::postgres::tasks::principals::dropped_of;
use crate::postgres::{PostgresError, PostgresSettings};
use crate::sealing::{KeySet, PayloadKeys};

const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "dead letters",
    deadline: Duration::from_secs(5),
    // There may be few dead letters or many. Statements must use the index whatever the statistics
    // say.
    settings: &[
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
    ],
};
/// Maximum number of dead letters, and of bytes, that one transaction redrives or drops. The last
/// one may exceed the bytes.
const ROWS_MAX: u64 = 1000;
const BYTES_MAX: i64 = 8 << 20;
/// Maximum number of lines about attempts that a list shows of a task: the latest. A look-up shows
/// more.
const LINES_MAX: i64 = 10;

const LIST: &str = "-- list dead letters
select id, topic, name, attempts as attempt, case when octet_length(key) <= 1057 then key end
  as key,
  null::bytea as payload, punctual_terms(headers) as headers, reason, (extract(epoch
    from dead_at) * 1000000)::bigint as died_at,
  (select p.name from principal p where p.id = submitted_by) as submitted_by, submitted_at,
  tracking, moved_to
from dead_letter
where id >= $1 and id < $2
order by id
limit $3";

const LIST_OF_TOPIC: &str = "-- list dead letters of a topic
select id, topic, name, attempts as attempt, case when octet_length(key) <= 1057 then key end
  as key,
  null::bytea as payload, punctual_terms(headers) as headers, reason, (extract(epoch
    from dead_at) * 1000000)::bigint as died_at,
  (select p.name from principal p where p.id = submitted_by) as submitted_by, submitted_at,
  tracking, moved_to
from dead_letter
where topic = $4 and id >= $1 and id < $2
order by id
limit $3";

/// Writes the lines of dropped dead letters. They depend on the deleted rows.
macro_rules! drop_lines {
    ($by:literal) => {
        concat!(
            "line as (
  insert into execlog_dropped (id, row_id, topic, name, attempts, reason, dead_at, submitted_by,
    submitted_at, moved_to, dropped_by)
  select id, row_id, topic, name, attempts, reason, dead_at, submitted_by, submitted_at, moved_to,
    ",
            $by,
            "::smallint from gone
  returning id, dropped_by, dropped_at
)
"
        )
    };
}

const DROP: &str = concat!(
    "-- drop a dead letter
with gone as (
  delete from dead_letter where id = $1 returning *
), ",
    drop_lines!("$2"),
    "select g.id, g.topic, g.name, g.attempts as attempt, g.key, g.payload, g.headers, g.reason,
  (extract(epoch from g.dead_at) * 1000000)::bigint as died_at,
  (select p.name from principal p where p.id = g.submitted_by) as submitted_by, g.submitted_at,
  g.moved_to,
  (select p.name from principal p where p.id = l.dropped_by) as dropped_by, (extract(epoch
    from l.dropped_at) * 1000000)::bigint as dropped_at
from gone g cross join line l"
);

const IDS: &str = "-- dead letters: ids
select id from dead_letter where topic = $1 and id >= $2 and id < $3 order by id limit $4";

/// Chooses the next dead letters of a topic ($1) in a range ($2, $3), within limits ($4, $5).
/// Locked rows are skipped.
macro_rules! chosen_few {
    () => {
        "head as materialized (
  select id, coalesce(octet_length(key), 0) + coalesce(octet_length(payload), 0) +
    coalesce(octet_length(headers), 0) as bytes
  from dead_letter
  where topic = $1 and id >= $2 and id < $3
  order by id
  limit $4
  for update skip locked
), chosen as materialized (
  select array_agg(id) as ids
  from (select id, sum(bytes) over (order by id rows unbounded preceding) - bytes as bytes_before
    from head) h
  where bytes_before < $5
)"
    };
}

/// As above, and deletes them.
macro_rules! next_few {
    () => {
        concat!(
            chosen_few!(),
            ", gone as (
  delete from dead_letter where id = any((select ids from chosen)::uuid[]) returning *
)"
        )
    };
}

const CHOOSE: &str = concat!(
    "-- choose dead letters\nwith ",
    chosen_few!(),
    " select coalesce(ids, '{}'::uuid[]) from chosen"
);

const DROP_MANY: &str = concat!(
    "-- drop dead letters\nwith ",
    next_few!(),
    ", ",
    drop_lines!("$6"),
    "select id, id as next_id from line"
);

/// Redrives the deleted rows. A redriven task has no expiry any more: the caller wants the task
/// published. The new id is the first id with another time, so the task stays on its shard. The
/// time is a millisecond behind Postgres's clock, so the id differs from all former rows of the
/// task.
///
/// A task keeps its name, unless another task has it by now; of several with one name, the latest
/// gets it. A task redriven to another topic has no name there, and the name in the former topic is
/// free: names belong to topics, and so do the rights to look up names.
macro_rules! redrive {
    ($what:literal, $retention:literal, $by:literal, $to:literal, $gone:expr) => {
        concat!(
            "-- redrive ",
            $what,
            "
with clock as materialized (
  select
    lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint + 1), 12, '0') as now
), ",
            $gone,
            ", put as materialized (
  select g.*, (c.now || right(replace(g.id::text, '-', ''), 20))::uuid as next_id,
    (least(g.attempts, 32766) + 1)::smallint as attempt, coalesce(",
            $to,
            "::text, g.topic) as to_topic,
    case when g.topic = coalesce(",
            $to,
            "::text, g.topic) and g.id = coalesce(n.id,
      first_value(g.id) over (partition by g.topic, g.name order by g.id desc))
      then g.name end as to_name
  from gone g
  cross join clock c
  left join task_name n on n.topic = g.topic and n.name = g.name
), near as (
  insert into task (shard, id, topic, key, payload, headers, name, first_id, attempt, submitted_by,
    submitted_at, tracking, moved_to)
  select (('x' || substr(replace(id::text, '-', ''), 14, 3))::bit(12)::integer)::smallint, next_id,
    to_topic, key, payload, punctual_without_expiry(headers), to_name, id, attempt,
    submitted_by, submitted_at, tracking, moved_to
  from put
), follow as (
  insert into task_follow (first_id, row_id, maybe_sent, attempt, attempts_max, is_again, note,
    is_verdict)
  select id, next_id, true, punctual_attempts_before(tracking), punctual_attempts_max(tracking),
    case when tracking is not null then false end,
    case when punctual_attempts_before(tracking) > 0 then 2::smallint end,
    case when tracking is not null then false end
  from put
), line as (
  insert into execlog_redriven (id, row_id, next_id, redriven_by) select id, row_id, next_id, ",
            $by,
            "::smallint from put
), freed as (
  delete from task_name n using put p
  where p.to_name is null and n.topic = p.topic and n.name = p.name and n.id = p.id
), named as (
  insert into task_name as n (topic, name, id, row_id, expires_at)
  select topic, to_name, id, next_id, punctual_time(next_id) + make_interval(secs => ",
            $retention,
            ")
  from put
  where to_name is not null
  order by topic, to_name
  on conflict (topic, name) do update
    set row_id = excluded.row_id, outcome = null,
      expires_at = greatest(n.expires_at, excluded.expires_at)
  where n.id = excluded.id
)
"
        )
    };
}

const REDRIVE: &str = concat!(
    redrive!(
        "a dead letter",
        "$2",
        "$3",
        "$4",
        "gone as (delete from dead_letter where id = $1 returning *)"
    ),
    "(select id, to_topic as topic, to_name as name, attempt, key, payload,
  punctual_without_expiry(headers) as headers,
  null::text as reason, null::bigint as died_at, next_id, tracking, moved_to,
  punctual_attempts_before(tracking) as attempts_before,
  (select p.name from principal p where p.id = put.submitted_by) as submitted_by, submitted_at
from put)"
);

/// Dead letters of which the sealed ones were sealed for another topic in the same transaction.
const REDRIVE_THESE: &str = concat!(
    redrive!(
        "these dead letters",
        "$2",
        "$3",
        "$4",
        "gone as (delete from dead_letter where id = any($1) returning *)"
    ),
    "(select id, next_id from put)"
);

const REDRIVE_MANY: &str = concat!(
    redrive!("dead letters", "$6", "$7", "$8", next_few!()),
    "(select id, next_id from put)"
);

/// Each topic is one step along the index.
const TOPICS: &str = "-- topics of dead letters
with recursive t (topic) as (
  (select topic from dead_letter where $1::text is null or topic > $1 order by topic limit 1)
  union all
  select (select d.topic from dead_letter d where d.topic > t.topic order by d.topic limit 1)
  from t where t.topic is not null
)
select topic from t where topic is not null limit $2";
/// Maximum number of topics that a list of topics takes from here.
const TOPICS_MAX: i64 = 10_000;

/// Works on dead letters, over a few connections of its own.
#[derive(Debug)]
pub struct DeadLetters {
    pool: Pool,
    name_retention: Duration,
    keys: PayloadKeys,
}

/// A redriven task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redriven {
    pub row: TaskId,
    pub view: TaskView,
}

/// The change to make to many dead letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadLetterChange {
    Redrive,
    Drop,
}

/// The result of one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The new rows of redriven tasks, or the ids of dropped ones.
    pub rows: Vec<TaskId>,
    /// The highest id that was changed or passed. Up to this id, only locked rows are left, and
    /// records that cannot be opened. `None` when nothing was left to change.
    pub last: Option<Uuid>,
}

impl DeadLetters {
    /// A redriven task keeps its name for at least `name_retention`.
    pub fn new(
        settings: &PostgresSettings,
        name_retention: Duration,
        connections_max: usize,
    ) -> Self {
        let keys = settings.payload_keys().clone();
        Self { pool: Pool::new(settings, PURPOSE, connections_max), name_retention, keys }
    }

    /// Returns the next `limit` dead letters after `from`, in the order of their due times.
    pub async fn page(
        &self,
        selection: &Selection,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, PostgresError> {
        let range = selection.ids().behind(from);
        let keys = &self.keys.current();
        let statement = || {
            async |open: &mut PgConnection| {
                // One row more shows whether there is another page.
                let count = limit.saturating_as::<i64>().saturating_add(1);
                let topic = selection.topic.as_ref().map(TopicName::as_str);
                let query = sqlx::query(if topic.is_some() { LIST_OF_TOPIC } else { LIST })
                    .bind(range.from)
                    .bind(range.to)
                    .bind(count);
                let query = match topic {
                    Some(topic) => query.bind(topic),
                    None => query,
                };
                let rows = query.fetch_all(&mut *open).await?;
                let listed = |row: &PgRow| dead_of(row, view_of_listed, keys);
                let tasks = rows.iter().take(limit).map(listed).collect::<Result<Vec<_>, _>>()?;
                Ok((with_attempts(open, tasks).await?, rows.len() > limit))
            }
        };
        let (tasks, has_more) = self.pool.read("list dead letters", statement).await?;
        let next =
            tasks.last().filter(|_last| has_more).map(|last| Cursor { after: last.id.uuid() });
        Ok(Page { tasks, next })
    }

    /// Returns the topics behind `after` that have dead letters, in the order of their names.
    pub async fn topics(&self, after: Option<&TopicName>) -> Result<Vec<TopicName>, PostgresError> {
        let after = after.map(TopicName::as_str);
        let statement = || {
            async |open: &mut PgConnection| {
                let topics: Vec<String> =
                    sqlx::query_scalar(TOPICS).bind(after).bind(TOPICS_MAX).fetch_all(open).await?;
                Ok(topics.iter().map(|topic| TopicName::stored(topic)).collect())
            }
        };
        self.pool.read("list the topics of dead letters", statement).await
    }

    /// Drops a dead letter and returns it. `by` is the caller, also below.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the effect is unknown.
    pub async fn discard(
        &self,
        id: TaskId,
        by: Option<PrincipalId>,
    ) -> Result<Option<TaskView>, PostgresError> {
        let by = by.map(PrincipalId::as_smallint);
        let keys = &self.keys.current();
        let statement = async |open: &mut PgConnection| {
            let row = sqlx::query(DROP).bind(id.uuid()).bind(by).fetch_optional(open).await?;
            row.map(|row| {
                let mut view = dead_of(&row, view_of_row, keys)?;
                view.actors.dropped = dropped_of(&row)?;
                Ok(view)
            })
            .transpose()
        };
        self.pool.run("drop a dead letter", statement).await
    }

    /// Redrives a dead letter: its task is due now.
    ///
    /// # Errors
    /// After [`PostgresError::Unanswered`] the effect is unknown.
    pub async fn redrive(
        &self,
        id: TaskId,
        by: Option<PrincipalId>,
    ) -> Result<Option<Redriven>, PostgresError> {
        self.redrive_to(id, by, None).await
    }

    /// Redrives a dead letter to another topic, unless `to` is `None`. For errors see
    /// [`Self::redrive`].
    pub async fn redrive_to(
        &self,
        id: TaskId,
        by: Option<PrincipalId>,
        to: Option<&TopicName>,
    ) -> Result<Option<Redriven>, PostgresError> {
        let (retention, by) = (self.name_retention.as_secs_f64(), by.map(PrincipalId::as_smallint));
        let keys = &self.keys.current();
        let redrive = async |open: &mut PgConnection| {
            let query = sqlx::query(REDRIVE).bind(id.uuid()).bind(retention).bind(by);
            let row = query.bind(to.map(TopicName::as_str)).fetch_optional(open).await?;
            row.map(|row| {
                let first = TaskId::from_uuid(row.try_get("id")?);
                let next = TaskId::from_uuid(row.try_get("next_id")?);
                let mut view = view_of_row(&row, first, TaskState::Scheduled, keys)?;
                if let Some(tracked) = &mut view.tracked {
                    tracked.attempt = row.try_get::<i16, _>("attempts_before")?.saturating_as();
                    if tracked.attempt > 0 {
                        view.state = TaskState::Retrying;
                        tracked.next_at = Some(next.due_at());
                    }
                }
                Ok(Redriven { row: next, view })
            })
            .transpose()
        };
        let statement = async |open: &mut PgConnection| {
            let Some(to) = to else { return redrive(open).await };
            let mut transaction = open.begin().await?;
            let unsealable = seal_for(&mut transaction, &[id.uuid()], to, keys).await?;
            if let Some(one) = unsealable.into_iter().next() {
                transaction.rollback().await?;
                return Err(one.into());
            }
            let redriven = redrive(&mut transaction).await?;
            transaction.commit().await?;
            Ok(redriven)
        };
        self.pool.run("redrive a dead letter", statement).await
    }

    /// Redrives or drops dead letters of `topic` in the order of their due times, at most
    /// `count_max` and 1,000 of them, in one transaction.
    ///
    /// # Errors
    /// As [`Self::redrive`].
    pub async fn change_some(
        &self,
        (change, by): (DeadLetterChange, Option<PrincipalId>),
        topic: &TopicName,
        range: IdRange,
        count_max: u64,
    ) -> Result<Changed, PostgresError> {
        self.change_some_to((change, by), (topic, None), range, count_max).await
    }

    /// As [`Self::change_some`]. Redriven ones go to the second topic, if there is one.
    ///
    /// # Errors
    /// As [`Self::redrive`].
    pub async fn change_some_to(
        &self,
        (change, by): (DeadLetterChange, Option<PrincipalId>),
        (topic, to): (&TopicName, Option<&TopicName>),
        range: IdRange,
        count_max: u64,
    ) -> Result<Changed, PostgresError> {
        let (name, text) = match change {
            DeadLetterChange::Redrive => ("redrive dead letters", REDRIVE_MANY),
            DeadLetterChange::Drop => ("drop dead letters", DROP_MANY),
        };
        let retention = self.name_retention.as_secs_f64();
        let count_max = i64::try_from(count_max.min(ROWS_MAX)).unwrap_or(0);
        let keys = &self.keys.current();
        let statement = async |open: &mut PgConnection| {
            if let (DeadLetterChange::Redrive, Some(to)) = (change, to) {
                let by = by.map(PrincipalId::as_smallint);
                return redrive_some_to(
                    open,
                    (topic, to),
                    (range, count_max),
                    (retention, by),
                    keys,
                )
                .await;
            }
            let query = sqlx::query_as(text)
                .bind(topic.as_str())
                .bind(range.from)
                .bind(range.to)
                .bind(count_max)
                .bind(BYTES_MAX);
            let query = match change {
                DeadLetterChange::Redrive => query.bind(retention),
                DeadLetterChange::Drop => query,
            };
            let query = query.bind(by.map(PrincipalId::as_smallint));
            let query = match change {
                DeadLetterChange::Redrive => query.bind(to.map(TopicName::as_str)),
                DeadLetterChange::Drop => query,
            };
            query.fetch_all(open).await.map(changed_of)
        };
        self.pool.run(name, statement).await
    }

    /// Returns the first `count_max` dead letters of `topic` in `range`, in the order of their due
    /// times.
    pub async fn ids(
        &self,
        topic: &TopicName,
        range: IdRange,
        count_max: u64,
    ) -> Result<Vec<Uuid>, PostgresError> {
        let count_max = count_max.saturating_as::<i64>();
        let statement = || {
            async |open: &mut PgConnection| {
                sqlx::query_scalar(IDS)
                    .bind(topic.as_str())
                    .bind(range.from)
                    .bind(range.to)
                    .bind(count_max)
                    .fetch_all(open)
                    .await
            }
        };
        self.pool.read("look for dead letters", statement).await
    }
}

fn changed_of(changed: Vec<(Uuid, Uuid)>) -> Changed {
    let last = changed.iter().map(|(id, _row)| *id).max();
    Changed { rows: changed.into_iter().map(|(_id, row)| TaskId::from_uuid(row)).collect(), last }
}

/// Redrives the next dead letters of a topic to another one. Passes those whose records cannot be
/// opened, so that they do not hold up the others.
async fn redrive_some_to(
    open: &mut PgConnection,
    (topic, to): (&TopicName, &TopicName),
    (range, count_max): (IdRange, i64),
    (retention, by): (f64, Option<i16>),
    keys: &KeySet,
) -> Result<Changed, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let mut ids: Vec<Uuid> = sqlx::query_scalar(CHOOSE)
        .bind(topic.as_str())
        .bind(range.from)
        .bind(range.to)
        .bind(count_max)
        .bind(BYTES_MAX)
        .fetch_one(&mut *transaction)
        .await?;
    let last = ids.iter().copied().max();
    let unsealable = seal_for(&mut transaction, &ids, to, keys).await?;
    ids.retain(|id| unsealable.iter().all(|one| one.id != *id));
    let changed = sqlx::query_as(REDRIVE_THESE)
        .bind(&ids)
        .bind(retention)
        .bind(by)
        .bind(to.as_str())
        .fetch_all(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(Changed { last, ..changed_of(changed) })
}

/// Reads a dead letter with `read`, either with its whole record or as lists have it.
fn dead_of(
    row: &PgRow,
    read: fn(&PgRow, TaskId, TaskState, &KeySet) -> Result<TaskView, sqlx::Error>,
    keys: &KeySet,
) -> Result<TaskView, sqlx::Error> {
    let mut view = read(row, TaskId::from_uuid(row.try_get("id")?), TaskState::Dead, keys)?;
    if let Some(tracked) = view.tracked.as_mut() {
        tracked.is_dead_after(view.attempt.saturating_as());
    }
    Ok(view)
}

/// Adds the latest attempts of tracked tasks.
async fn with_attempts(
    open: &mut PgConnection,
    mut tasks: Vec<TaskView>,
) -> Result<Vec<TaskView>, sqlx::Error> {
    let tracked = tasks.iter().filter(|task| task.tracked.is_some());
    let tracked: Vec<Uuid> = tracked.map(|task| task.id.uuid()).collect();
    if tracked.is_empty() {
        return Ok(tasks);
    }
    let mut lines = lines_of_many(open, &tracked, LINES_MAX).await?;
    for task in &mut tasks {
        if let Some(tracked) = task.tracked.as_mut() {
            tracked.attempts = lines.remove(&task.id.uuid()).unwrap_or_default();
        }
    }
    Ok(tasks)
}
