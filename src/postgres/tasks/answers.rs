//! Takes the answers of consumers: finish, fail, extend.
//!
//! `domain::task::feedback` decides a call under the lock of the task's row of `task_follow`. A
//! consumer is often quicker than the settle of its record. Then there is no such row yet. The call
//! *marks* the task: it inserts a row with a note, which the settle obeys. Transactions:
//!
//! ```text
//! 1  lock the rows of `task_follow` ──▶ take or look for pending rows ──▶ write the effects
//! 2  without a row: mark the tasks ──▶ are the tasks in unsettled batches?
//!      ├─ yes ──▶ write the effects
//!      ├─ no  ──▶ delete the rows again; a look-up decides
//!      └─ the settle was quicker, there is a row now ──▶ 1 again
//! ```
//!
//! docs/decisions/0025 has the order of locks. A call that changes nothing locks no name.

mod calls;
mod effects;
mod statements;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Row as _, query};
use uuid::Uuid;

use self::calls::FoundRow;
use self::effects::{Effects, Times};
use super::names::NameTerms;
use super::settle::follow_of;
use crate::domain::task::feedback::{Effect, FIRST_IN_FLIGHT, Follow, Place, Verdict};
use crate::domain::{TaskId, TopicName, TrackedRow};
use crate::failpoint::{Failpoint, reach};
use crate::postgres::connection::ConnectionPurpose;
use crate::postgres::unsettled::SharedUnsettledFloor;
use crate::postgres::{Connection, PostgresError, PostgresSettings};

pub use self::calls::{AnswerCall, AnswerTerms, Answered};

/// Plans as for cancels. The commit waits for the disk: `finished` must outlive a crash.
const PURPOSE: ConnectionPurpose = ConnectionPurpose {
    name: "answers",
    deadline: Duration::from_secs(5),
    settings: super::cancel::PURPOSE.settings,
};
/// Begins transaction 2 with generic plans. Statements that read leaves of `task` need a new plan
/// each time, but those of transaction 2 read none. A new plan over the days of `execlog_batch`
/// would take 0.6 ms; the statement takes 0.1 ms (2 cores, 2026-11-26).
const BEGIN_MARKED: &str = "begin; set local plan_cache_mode = force_generic_plan";
/// Maximum number of calls in a group.
pub const GROUP_MAX: usize = 1_000;

/// Takes answers over its own connection.
#[derive(Debug)]
pub struct AnswerStore {
    connection: Connection,
    name_retention: Duration,
    unsettled: SharedUnsettledFloor,
}

/// A row of `task_follow` that is locked.
struct Locked {
    row: TaskId,
    follow: Follow,
    attempts_max: u16,
}

impl AnswerStore {
    pub fn new(settings: &PostgresSettings, name_retention: Duration) -> Self {
        let unsettled = settings.unsettled_floor().clone();
        Self { connection: Connection::new(settings, PURPOSE), name_retention, unsettled }
    }

    pub async fn keep_open(&mut self) -> Result<(), PostgresError> {
        self.connection.keep_open().await
    }

    /// Takes the calls of a group, about different tasks, without an answer in `answers`, and adds
    /// the new answers. A call gets none when no attempt of its task is with a consumer or on its
    /// way, as far as two statements can tell: a look-up decides.
    ///
    /// # Errors
    /// Calls with an answer have taken effect all the same. After [`PostgresError::Unanswered`]
    /// some of the others may have taken effect. After any other error none of them has.
    pub async fn take(
        &mut self,
        calls: &[AnswerCall],
        terms: AnswerTerms,
        answers: &mut HashMap<TaskId, Answered>,
    ) -> Result<(), PostgresError> {
        let (retention, unsettled) = (self.name_retention, self.unsettled.get());
        let times = Times { terms, names: NameTerms { retention, unsettled } };
        let unanswered = |answers: &HashMap<TaskId, Answered>| -> Vec<&AnswerCall> {
            calls.iter().filter(|call| !answers.contains_key(&call.first)).collect()
        };
        let wanted = unanswered(answers);
        answers.extend(self.follow(&wanted, times).await?);
        reach(Failpoint::AnswersFollowed);
        let rest = unanswered(answers);
        if rest.is_empty() {
            return Ok(());
        }
        let (marked, outrun) = self
            .connection
            .run("mark the answers of quick consumers", async |open| {
                marked(open, &rest, times).await
            })
            .await?;
        answers.extend(marked);
        if !outrun.is_empty() {
            answers.extend(self.follow(&outrun, times).await?);
        }
        Ok(())
    }

    /// Transaction 1, over the connection.
    async fn follow(
        &mut self,
        calls: &[&AnswerCall],
        times: Times,
    ) -> Result<Vec<(TaskId, Answered)>, PostgresError> {
        self.connection
            .run("take the answers of consumers", async |open| followed(open, calls, times).await)
            .await
    }
}

/// Takes calls about different tasks inside a transaction of the caller. The caller must roll the
/// transaction back unless every call has an answer with a view. A call gets no answer for the
/// reason at [`AnswerStore::take`], or when its rows must be locked in another transaction than the
/// rows of the other calls. The settings for the order of locks last until the transaction ends.
pub(in crate::postgres) async fn take_within(
    open: &mut PgConnection,
    calls: &[&AnswerCall],
    (terms, names): (AnswerTerms, NameTerms),
) -> Result<HashMap<TaskId, Answered>, sqlx::Error> {
    let times = Times { terms, names };
    let (names, values): (Vec<&str>, Vec<&str>) = PURPOSE.settings.iter().copied().unzip();
    query(statements::SETTINGS).bind(names).bind(values).execute(&mut *open).await?;
    let followed = take_followed(open, calls, times).await?;
    if !followed.is_empty() {
        return Ok(followed.into_iter().collect());
    }
    let (marked, outrun) = take_marked(open, calls, times).await?;
    // Two locks at once, a mark and a row, could end in a deadlock with a settle.
    if outrun.len() < calls.len() {
        return Ok(marked.into_iter().collect());
    }
    Ok(take_followed(open, &outrun, times).await?.into_iter().collect())
}

/// Transaction 1: takes the calls about tasks that have a row of `task_follow`.
async fn followed(
    open: &mut PgConnection,
    calls: &[&AnswerCall],
    times: Times,
) -> Result<Vec<(TaskId, Answered)>, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let answers = take_followed(&mut transaction, calls, times).await?;
    if answers.is_empty() {
        transaction.rollback().await?;
        return Ok(answers);
    }
    transaction.commit().await?;
    reach(Failpoint::AnswersCommitted);
    Ok(answers)
}

async fn take_followed(
    open: &mut PgConnection,
    calls: &[&AnswerCall],
    times: Times,
) -> Result<Vec<(TaskId, Answered)>, sqlx::Error> {
    let firsts: Vec<Uuid> = calls.iter().map(|call| call.first.uuid()).collect();
    let rows = query(statements::LOCK).bind(firsts).fetch_all(&mut *open).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let locked: HashMap<TaskId, Locked> =
        rows.iter().map(locked_of).collect::<Result<_, sqlx::Error>>()?;
    let met: Vec<(&AnswerCall, &Locked)> =
        calls.iter().filter_map(|call| Some((*call, locked.get(&call.first)?))).collect();
    // Only the effect on a pending row is asked for here, and it does not depend on the limit.
    let (wanted, looked_for): (Vec<_>, Vec<_>) = met.iter().copied().partition(|(call, locked)| {
        locked.follow.hear(call.call, Place::Pending, locked.attempts_max).1.takes_the_row()
    });
    let taken = take_rows(&mut *open, &wanted).await?;
    let seen = look_for(&mut *open, &rows_of(&looked_for)).await?;
    let claimed: Vec<TaskId> = rows_of(&wanted)
        .into_iter()
        .filter(|row| !taken.contains_key(row))
        .chain(rows_of(&looked_for).into_iter().filter(|row| !seen.contains(row)))
        .collect();
    let in_flight = in_flight(&mut *open, &claimed, times).await?;
    let mut effects = Effects::new(times);
    for (call, locked) in met {
        let is_pending = taken.contains_key(&locked.row) || seen.contains(&locked.row);
        let place = if is_pending { Place::Pending } else { Place::Claimed };
        let (verdict, effect) = locked.follow.hear(call.call, place, locked.attempts_max);
        let found = taken.get(&locked.row).or_else(|| in_flight.get(&locked.row));
        match (effect, found.filter(|found| call.is_for(&found.topic))) {
            (Effect::Nothing, _) => effects.nothing(call, verdict),
            (effect, Some(found)) => effects.add(call, found, locked.follow, (verdict, effect)),
            // The batch is hidden for a moment, because its partition is being detached. Or the
            // task is of another topic than the call, as a look-up will tell.
            (_, None) => effects.nothing(call, Verdict::Busy),
        }
    }
    effects.write(open).await?;
    Ok(effects.into_answers())
}

/// Transaction 2: takes the calls that came before the settle of their task, and returns the calls
/// that the settle has overtaken (their tasks have a row of `task_follow` now). Calls about tasks
/// that are not in flight are in neither list.
async fn marked<'a>(
    open: &mut PgConnection,
    calls: &[&'a AnswerCall],
    times: Times,
) -> Result<(Vec<(TaskId, Answered)>, Vec<&'a AnswerCall>), sqlx::Error> {
    let mut transaction = open.begin_with(BEGIN_MARKED).await?;
    let (answers, outrun) = take_marked(&mut transaction, calls, times).await?;
    if outrun.len() == calls.len() {
        transaction.rollback().await?;
        return Ok((answers, outrun));
    }
    transaction.commit().await?;
    reach(Failpoint::AnswersCommitted);
    Ok((answers, outrun))
}

async fn take_marked<'a>(
    open: &mut PgConnection,
    calls: &[&'a AnswerCall],
    times: Times,
) -> Result<(Vec<(TaskId, Answered)>, Vec<&'a AnswerCall>), sqlx::Error> {
    let firsts: Vec<Uuid> = calls.iter().map(|call| call.first.uuid()).collect();
    let marked: Vec<Uuid> =
        sqlx::query_scalar(statements::MARK).bind(firsts).fetch_all(&mut *open).await?;
    let marked: HashSet<TaskId> = marked.into_iter().map(TaskId::from_uuid).collect();
    let outrun: Vec<&AnswerCall> =
        calls.iter().copied().filter(|call| !marked.contains(&call.first)).collect();
    if marked.is_empty() {
        return Ok((Vec::new(), outrun));
    }
    // A separate statement sees batches that were committed while the insert waited for locks.
    let marked_rows: Vec<TaskId> = marked.iter().copied().collect();
    let in_flight = in_flight(&mut *open, &marked_rows, times).await?;
    let mut effects = Effects::new(times);
    let mut kept = HashSet::new();
    for call in calls {
        // The id of a later row finds the entry of its task, and is no id of a task.
        let is_meant = |found: &&FoundRow| found.first == call.first && call.is_for(&found.topic);
        let Some(found) = in_flight.get(&call.first).filter(is_meant) else { continue };
        let limit = found.tracking.attempts_max();
        let (verdict, effect) = FIRST_IN_FLIGHT.hear(call.call, Place::Claimed, limit);
        if effect == Effect::Nothing {
            effects.nothing(call, verdict);
        } else {
            kept.insert(call.first);
            effects.add(call, found, FIRST_IN_FLIGHT, (verdict, effect));
        }
    }
    let unfounded: Vec<Uuid> = marked.difference(&kept).map(|first| first.uuid()).collect();
    if !unfounded.is_empty() {
        query(statements::UNMARK).bind(unfounded).execute(&mut *open).await?;
    }
    effects.write(open).await?;
    Ok((effects.into_answers(), outrun))
}

fn rows_of(calls: &[(&AnswerCall, &Locked)]) -> Vec<TaskId> {
    calls.iter().map(|(_call, locked)| locked.row).collect()
}

/// Deletes pending rows, first in `task_far`: the mover works in the same direction. One statement
/// for both tables would miss a row that is being moved.
async fn take_rows(
    open: &mut PgConnection,
    calls: &[(&AnswerCall, &Locked)],
) -> Result<HashMap<TaskId, FoundRow>, sqlx::Error> {
    let mut taken = HashMap::new();
    if calls.is_empty() {
        return Ok(taken);
    }
    let mut wanted: Vec<(TaskId, Option<&str>)> = calls
        .iter()
        .map(|(call, locked)| (locked.row, call.topic.as_ref().map(TopicName::as_str)))
        .collect();
    wanted.sort_unstable();
    let (far, topics): (Vec<Uuid>, Vec<Option<&str>>) =
        wanted.iter().map(|(row, topic)| (row.uuid(), *topic)).unzip();
    let topics = topics.iter().any(Option::is_some).then_some(topics);
    let found = query(statements::TAKE_FAR).bind(far).bind(topics).fetch_all(&mut *open).await?;
    for row in &found {
        let row = found_of(row)?;
        taken.insert(row.id, row);
    }
    wanted.retain(|(row, _topic)| !taken.contains_key(row));
    wanted.sort_unstable_by_key(|(row, _topic)| (row.shard().as_smallint(), *row));
    if wanted.is_empty() {
        return Ok(taken);
    }
    let near: Vec<TaskId> = wanted.iter().map(|(row, _topic)| *row).collect();
    let topics: Vec<Option<&str>> = wanted.iter().map(|(_row, topic)| *topic).collect();
    let (shards, ids) = by_shard(&near);
    let take = query(statements::TAKE_NEAR).bind(shards).bind(ids).bind(topics);
    for row in &take.fetch_all(open).await? {
        let row = found_of(row)?;
        taken.insert(row.id, row);
    }
    Ok(taken)
}

/// Looks for pending rows without locking them.
async fn look_for(
    open: &mut PgConnection,
    rows: &[TaskId],
) -> Result<HashSet<TaskId>, sqlx::Error> {
    if rows.is_empty() {
        return Ok(HashSet::new());
    }
    let (shards, ids) = by_shard(rows);
    let far: Vec<Uuid> =
        sqlx::query_scalar(statements::SEE_FAR).bind(&ids).fetch_all(&mut *open).await?;
    let near: Vec<Uuid> =
        sqlx::query_scalar(statements::SEE_NEAR).bind(shards).bind(ids).fetch_all(open).await?;
    Ok(far.into_iter().chain(near).map(TaskId::from_uuid).collect())
}

fn by_shard(rows: &[TaskId]) -> (Vec<i16>, Vec<Uuid>) {
    rows.iter().map(|row| (row.shard().as_smallint(), row.uuid())).unzip()
}

/// Finds tracked tasks in unsettled batches.
async fn in_flight(
    open: &mut PgConnection,
    rows: &[TaskId],
    times: Times,
) -> Result<HashMap<TaskId, FoundRow>, sqlx::Error> {
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = rows.iter().map(|row| row.uuid()).collect();
    let found = query(statements::IN_FLIGHT)
        .bind(ids)
        .bind(times.names.unsettled.of(rows.iter().copied()))
        .fetch_all(open)
        .await?;
    found.iter().map(|row| found_of(row).map(|found| (found.id, found))).collect()
}

fn locked_of(row: &PgRow) -> Result<(TaskId, Locked), sqlx::Error> {
    let attempts_max: Option<i16> = row.try_get("attempts_max")?;
    let locked = Locked {
        row: TaskId::from_uuid(row.try_get("row_id")?),
        follow: follow_of(row)?,
        attempts_max: attempts_max.and_then(|max| u16::try_from(max).ok()).unwrap_or(u16::MAX),
    };
    Ok((TaskId::from_uuid(row.try_get("first_id")?), locked))
}

fn found_of(row: &PgRow) -> Result<FoundRow, sqlx::Error> {
    let tracking: Vec<u8> = row.try_get("tracking")?;
    Ok(FoundRow {
        id: TaskId::from_uuid(row.try_get("id")?),
        first: TaskId::from_uuid(row.try_get("first_id")?),
        topic: row.try_get("topic")?,
        name: row.try_get("name")?,
        tracking: TrackedRow::decode(&tracking)
            .map_err(|error| sqlx::Error::Decode(error.into()))?,
        submitted: (row.try_get("submitted_by")?, row.try_get("submitted_at")?),
        moved_to: row.try_get("moved_to")?,
        record: [row.try_get("key")?, row.try_get("payload")?, row.try_get("headers")?],
    })
}
