//! Settles batches that hold tracked tasks, in one transaction of several statements.
//!
//! Consumers answer about a task while the batch is settled. So the settle first enters each task
//! into `task_follow`, and finds the note of a consumer there: an insert on a locked row waits for
//! the commit, and a read afterwards sees the row. `domain::task::feedback` then decides about each
//! task. The locks are taken in the order of docs/decisions/0025: the batches, `task_follow` by
//! first id, rows of tasks, names.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use az::SaturatingAs as _;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};
use uuid::Uuid;

use super::batches::bind_batches;
use super::next_rows::{self, NextRow};
use super::settlement::{Ended, Move, SettleRow, SettleTerms, Settled, Settlement, Tracked};
use crate::domain::task::feedback::{AttemptRow, Delivery, Follow, Note, Proposal, noted_row};
use crate::domain::{
    AttemptEvent, BatchId, IdRange, Outcome, Receipt, RecordPlace, Sent, TaskId, TrackedRow,
};
use crate::postgres::connection::error::check_count;

impl Tracked {
    fn row(&self) -> AttemptRow {
        AttemptRow { attempt: self.tracking.attempt, is_verdict: self.tracking.is_verdict }
    }

    fn proposal(&self) -> Proposal {
        Proposal::new(self.row(), self.delivery, self.tracking.attempts_max())
    }

    fn record(&self) -> Option<RecordPlace> {
        self.receipt.map(RecordPlace::of)
    }

    /// Returns the column of the row after this attempt.
    fn tracking_of(&self, next: AttemptRow, sent: Sent) -> TrackedRow {
        TrackedRow {
            attempt: if next.is_verdict { self.tracking.attempt } else { next.attempt },
            is_verdict: next.is_verdict,
            sent: Some(sent),
            reason: None,
            ..self.tracking.clone()
        }
    }

    /// Returns the column of the next row when the consumer has not answered.
    fn silent(&self, next: AttemptRow) -> TrackedRow {
        match self.appended_at {
            Some(appended_at) => {
                let finish_by = appended_at.plus(self.tracking.tracking.ttr.as_duration());
                self.tracking_of(next, Sent { appended_at, finish_by, record: self.record() })
            }
            // The same attempt again.
            None => self.tracking.clone(),
        }
    }

    /// Returns the next row when the consumer has failed or extended this attempt in flight.
    fn noted(
        &self,
        row: AttemptRow,
        followed: &Followed,
        next_id: TaskId,
        terms: SettleTerms,
    ) -> (TaskId, TrackedRow) {
        let appended_at = self.appended_at.unwrap_or(terms.now);
        let finish_by = match followed.follow.note {
            Some(Note::Extended) => {
                let attempt = self.tracking.attempt;
                let wait = self.tracking.wait_after_extension(attempt, terms.window);
                next_id.due_at().minus(wait)
            }
            _ => appended_at.plus(self.tracking.tracking.ttr.as_duration()),
        };
        let sent = Sent { appended_at, finish_by, record: self.record() };
        let mut tracking = self.tracking_of(row, sent);
        if row.is_verdict {
            tracking.reason = followed.reason.as_deref().map(Into::into);
        }
        (next_id.due_at_least(terms.now), tracking)
    }

    /// Returns true when this settle shows that the consumer of the attempt before stayed silent.
    fn shows_silence(&self, before: Follow, proposal: Proposal) -> bool {
        let is_over = match self.tracking.is_verdict {
            true => self.delivery == Delivery::Dead,
            false => before.attempt > 0 && proposal.follow.attempt > before.attempt,
        };
        is_over && before.note.is_none()
    }
}

/// The submitters of a batch, as its row has them.
#[derive(Debug, Default)]
struct Submitters {
    by: Option<Vec<Option<i16>>>,
    at: Option<Vec<Option<i64>>>,
}

impl SettleRow {
    /// Returns the next row with the same record.
    fn next_row(
        &self,
        id: TaskId,
        submitted: Submitted,
        (tracking, is_far): (Option<Vec<u8>>, bool),
    ) -> NextRow<'_> {
        NextRow {
            id,
            first_id: self.first_id,
            topic: &self.topic,
            record: [self.key.as_deref(), self.payload.as_deref(), self.headers.as_deref()],
            name: self.name.as_deref(),
            tries: self.attempt,
            submitted,
            tracking,
            moved_to: self.moved_to,
            is_far,
        }
    }
}

/// The number of the submitter of a task, and the time of the submit.
type Submitted = (Option<i16>, Option<i64>);

impl Submitters {
    fn of_task(&self, row: &SettleRow) -> Submitted {
        fn element<T: Copy>(all: Option<&Vec<Option<T>>>, position: i32) -> Option<T> {
            let all = all?;
            let index = usize::try_from(position).ok()?.min(all.len()).checked_sub(1)?;
            all.get(index).copied().flatten()
        }
        (element(self.by.as_ref(), row.position), element(self.at.as_ref(), row.position))
    }
}

/// A row of `task_follow` that was there before the settle.
struct Followed {
    follow: Follow,
    next_id: Option<TaskId>,
    reason: Option<String>,
}

/// The changes of one transaction.
#[derive(Default)]
struct Changes<'a> {
    rows: Vec<NextRow<'a>>,
    dead: Vec<DeadRow<'a>>,
    /// Rows of `task_follow` to change: first id, current row, and the rest.
    followed: Vec<(Uuid, Uuid, Follow)>,
    /// Rows of `task_follow` to delete.
    gone: Vec<Uuid>,
    ended: Vec<Ended>,
    moves: Vec<Move>,
    timed_out: u64,
    exhausted: u64,
}

struct DeadRow<'a> {
    row_id: Uuid,
    reason: &'a str,
    attempts: i16,
    row: &'a SettleRow,
    submitted: Submitted,
    tracking: Option<Vec<u8>>,
}

/// As the plain settle, and also the next rows.
const SETTLE: &str = "-- settle tracked
update execlog_batch b
set settled_at = clock_timestamp(),
  width_class = s.width_class, id_from = s.id_from, id_to = s.id_to,
  topic_names = ($7::text[])[s.topic_low:s.topic_high],
  topic_indexes = case when s.has_indexes then ($8::smallint[])[s.low:s.high] end,
  outcomes = ($9::smallint[])[s.low:s.high],
  partitions = ($10::integer[])[s.low:s.high],
  offsets = ($11::bigint[])[s.low:s.high],
  published_ats = ($12::bigint[])[s.low:s.high],
  next_ids = ($17::uuid[])[s.low:s.high]
from unnest($2::uuid[], $3::smallint[], $4::uuid[], $5::uuid[], $6::boolean[], $13::integer[],
  $14::integer[], $15::integer[], $16::integer[])
  as s(batch, width_class, id_from, id_to, has_indexes, low, high, topic_low, topic_high)
where b.batch = any($2) and b.batch = s.batch and b.owner = $1 and b.settled_at is null
returning b.batch, b.submitted_by, b.submitted_ats";

/// Enters tasks without a row. A task whose consumer was quicker has one already.
const ENTER: &str = "-- settle: follow
insert into task_follow (first_id, row_id, maybe_sent, attempt, attempts_max, is_again, note,
  is_verdict)
select * from unnest($1::uuid[], $2::uuid[], $3::boolean[], $4::smallint[], $5::smallint[],
  $6::boolean[], $7::smallint[], $8::boolean[]) as f (first_id, row_id, maybe_sent, attempt,
  attempts_max, is_again, note, is_verdict)
order by first_id
on conflict (first_id) do nothing
returning first_id";

const READ: &str = "-- settle: read notes
select first_id, attempt, is_again, note, next_id, is_verdict, reason from task_follow
where first_id = any($1) and attempt is not null
order by first_id
for update";

const CHANGE: &str = "-- settle: change follow
update task_follow f
set row_id = c.row_id, maybe_sent = f.maybe_sent or c.attempt > 0, attempt = c.attempt,
  is_again = c.is_again, note = c.note, is_verdict = c.is_verdict, next_id = null,
  reason = case when c.note is not null then f.reason end
from unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::boolean[], $5::smallint[], $6::boolean[])
  as c (first_id, row_id, attempt, is_again, note, is_verdict)
where f.first_id = c.first_id";

const FOLLOW_UNTRACKED: &str = "-- settle: follow untracked
insert into task_follow (first_id, row_id, maybe_sent)
select * from unnest($1::uuid[], $2::uuid[], $3::boolean[]) as f (first_id, row_id, maybe_sent)
order by first_id
on conflict (first_id) do update set row_id = excluded.row_id,
  maybe_sent = task_follow.maybe_sent or excluded.maybe_sent";

const FORGET: &str = "-- settle: forget\ndelete from task_follow where first_id = any($1)";

const BURY: &str = "-- settle: dead letters
insert into dead_letter (id, row_id, topic, key, payload, headers, name, attempts, reason,
  submitted_by, submitted_at, tracking, moved_to)
select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[],
  $7::text[], $8::smallint[], $9::text[], $10::smallint[], $11::bigint[], $12::bytea[],
  $13::bigint[])";

const END: &str = "-- settle: ends
insert into execlog_ended (id, row_id) select * from unnest($1::uuid[], $2::uuid[])";

const RECORD: &str = "-- settle: attempts
insert into execlog_attempt (id, row_id, next_id, attempt, event, partition, \"offset\",
  published_at)
select a.id, a.row_id, a.next_id, a.attempt, $8, a.partition, a.position, a.published_at
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::smallint[], $5::integer[], $6::bigint[],
  $7::bigint[]) as a (id, row_id, next_id, attempt, partition, position, published_at)";

/// 5 is `names::FINISHED`: a task that was finished in flight stays finished.
const NAME: &str = "-- settle: names
update task_name n
set row_id = coalesce(m.next, n.row_id),
  outcome = case when n.outcome = 5 then 5 else m.outcome end,
  expires_at = greatest(n.expires_at, coalesce(punctual_time(m.next), clock_timestamp())
    + make_interval(secs => $6))
from unnest($1::text[], $2::text[], $3::uuid[], $4::uuid[], $5::smallint[])
  as m (topic, name, first_id, next, outcome)
where n.topic = m.topic and n.name = m.name and n.id = m.first_id";

/// Settles batches that hold tracked tasks.
pub(super) async fn settle(
    open: &mut PgConnection,
    node: Uuid,
    settlements: &[&Settlement],
    terms: SettleTerms,
    name_retention: Duration,
) -> Result<Settled, sqlx::Error> {
    let mut transaction = open.begin().await?;
    let settled = settle_batches(&mut transaction, node, settlements).await?;
    let ours: Vec<(&Settlement, &Submitters)> = settlements
        .iter()
        .filter_map(|settlement| Some((*settlement, settled.get(&settlement.batch)?)))
        .collect();
    let mut tracked: Vec<(&Tracked, &Submitters)> = ours
        .iter()
        .flat_map(|(settlement, by)| settlement.tracked.iter().map(move |task| (task, *by)))
        .collect();
    tracked.sort_unstable_by_key(|(task, _by)| task.first);
    let followed = enter(&mut transaction, &tracked).await?;
    let mut changes = Changes::default();
    for (task, by) in &tracked {
        let submitted = by.of_task(&task.contents);
        changes.add(task, submitted, followed.get(&task.first.uuid()), terms);
    }
    for (settlement, by) in &ours {
        changes.add_untracked(settlement, by);
    }
    changes.write_follows(&mut transaction, &ours).await?;
    changes.write_rows(&mut transaction).await?;
    record(&mut transaction, &tracked).await?;
    changes.write_names(&mut transaction, name_retention).await?;
    transaction.commit().await?;
    let near = changes.rows.iter().filter(|row| !row.is_far && row.tracking.is_some());
    Ok(Settled {
        rows: IdRange::spanning(near.map(|row| row.id)),
        timed_out: changes.timed_out,
        exhausted: changes.exhausted,
        batches: settled.into_keys().collect(),
    })
}

async fn settle_batches(
    open: &mut PgConnection,
    node: Uuid,
    settlements: &[&Settlement],
) -> Result<HashMap<BatchId, Submitters>, sqlx::Error> {
    let next_ids: Vec<Option<Uuid>> = settlements
        .iter()
        .flat_map(|settlement| match &settlement.next_ids {
            Some(next_ids) => next_ids.clone(),
            None => vec![None; settlement.task_count()],
        })
        .collect();
    let query = bind_batches(sqlx::query(SETTLE), node, settlements).bind(next_ids);
    let rows = query.fetch_all(open).await?;
    let settled_of = |row: &PgRow| {
        let submitters =
            Submitters { by: row.try_get("submitted_by")?, at: row.try_get("submitted_ats")? };
        Ok((BatchId::from_uuid(row.try_get("batch")?), submitters))
    };
    rows.iter().map(settled_of).collect()
}

/// Enters the tasks into `task_follow`. Returns the rows of those that were there already, locked
/// and unchanged.
async fn enter(
    open: &mut PgConnection,
    tracked: &[(&Tracked, &Submitters)],
) -> Result<HashMap<Uuid, Followed>, sqlx::Error> {
    let tasks = || tracked.iter().map(|(task, _by)| *task);
    let proposals: Vec<Follow> = tasks().map(|task| task.proposal().follow).collect();
    let firsts: Vec<Uuid> = tasks().map(|task| task.first.uuid()).collect();
    let rows = tasks().map(|task| task.next.unwrap_or(task.id).uuid()).collect::<Vec<_>>();
    let limits = tasks().map(|task| smallint(task.tracking.attempts_max())).collect::<Vec<_>>();
    let follows = || proposals.iter();
    let entered: Vec<Uuid> = sqlx::query_scalar(ENTER)
        .bind(&firsts)
        .bind(rows)
        .bind(follows().map(|follow| follow.attempt > 0).collect::<Vec<_>>())
        .bind(follows().map(|follow| smallint(follow.attempt)).collect::<Vec<_>>())
        .bind(limits)
        .bind(follows().map(|follow| follow.is_again).collect::<Vec<_>>())
        .bind(follows().map(|follow| follow.note.map(Note::code)).collect::<Vec<_>>())
        .bind(follows().map(|follow| follow.is_verdict).collect::<Vec<_>>())
        .fetch_all(&mut *open)
        .await?;
    let met = firsts.len().saturating_sub(entered.len());
    if met == 0 {
        return Ok(HashMap::new());
    }
    let entered: HashSet<Uuid> = entered.into_iter().collect();
    let rest: Vec<Uuid> = firsts.into_iter().filter(|first| !entered.contains(first)).collect();
    let rows = sqlx::query(READ).bind(rest).fetch_all(open).await?;
    let followed: HashMap<Uuid, Followed> =
        rows.iter().map(followed_of).collect::<Result<_, sqlx::Error>>()?;
    check_count(followed.len().saturating_as::<u64>(), met).map(|()| followed)
}

fn smallint(number: u16) -> i16 {
    number.saturating_as()
}

/// Reads the columns of `task_follow` that [`Follow`] has.
pub(in crate::postgres::tasks) fn follow_of(row: &PgRow) -> Result<Follow, sqlx::Error> {
    let note: Option<i16> = row.try_get("note")?;
    Ok(Follow {
        attempt: row.try_get::<i16, _>("attempt")?.saturating_as(),
        is_again: row.try_get::<Option<bool>, _>("is_again")?.unwrap_or(false),
        note: note.and_then(Note::of_code),
        has_next: row.try_get::<Option<Uuid>, _>("next_id")?.is_some(),
        is_verdict: row.try_get::<Option<bool>, _>("is_verdict")?.unwrap_or(false),
    })
}

fn followed_of(row: &PgRow) -> Result<(Uuid, Followed), sqlx::Error> {
    let followed = Followed {
        follow: follow_of(row)?,
        next_id: row.try_get::<Option<Uuid>, _>("next_id")?.map(TaskId::from_uuid),
        reason: row.try_get("reason")?,
    };
    Ok((row.try_get("first_id")?, followed))
}

impl<'a> Changes<'a> {
    /// Decides what becomes of a tracked task.
    fn add(
        &mut self,
        task: &'a Tracked,
        submitted: Submitted,
        followed: Option<&Followed>,
        terms: SettleTerms,
    ) {
        let proposal = task.proposal();
        let (follow, next) = match followed {
            // The final line exists already.
            Some(Followed { follow, .. }) if follow.note == Some(Note::Finished) => {
                return self.gone.push(task.first.uuid());
            }
            Some(followed @ Followed { follow, next_id: Some(next_id), .. }) => {
                let (row, after) = noted_row(task.row(), *follow, task.tracking.attempts_max());
                let goes_on = !matches!(task.delivery, Delivery::Dead | Delivery::Expired);
                (after, goes_on.then(|| task.noted(row, followed, *next_id, terms)))
            }
            Some(Followed { follow, .. }) => {
                self.timed_out += u64::from(task.shows_silence(*follow, proposal));
                let next = proposal.next.zip(task.next).map(|(row, id)| (id, task.silent(row)));
                (proposal.merged_with(*follow), next)
            }
            None => {
                let next = proposal.next.zip(task.next).map(|(row, id)| (id, task.silent(row)));
                (proposal.follow, next)
            }
        };
        let Some((id, tracking)) = next else {
            return match task.delivery {
                Delivery::Expired => self.expire(task),
                _ => self.bury(task, follow.attempt, submitted),
            };
        };
        if followed.is_some() {
            self.followed.push((task.first.uuid(), id.uuid(), follow));
        }
        let tracking = Some(tracking.encode());
        let is_far = id.due_at() >= terms.leaves_end;
        self.rows.push(task.contents.next_row(id, submitted, (tracking, is_far)));
        self.move_name(task, Some(id.uuid()), None);
    }

    /// Ends a task whose line in the batch says that it has expired.
    fn expire(&mut self, task: &Tracked) {
        self.end(task);
        self.move_name(task, None, Some(Outcome::EXPIRED_OF_NAME));
    }

    fn end(&mut self, task: &Tracked) {
        self.gone.push(task.first.uuid());
        if task.id != task.first {
            self.ended.push(Ended { first_id: task.first.uuid(), row_id: task.id.uuid() });
        }
    }

    fn bury(&mut self, task: &'a Tracked, attempt: u16, submitted: Submitted) {
        self.exhausted += u64::from(task.tracking.is_verdict);
        self.end(task);
        self.dead.push(DeadRow {
            row_id: task.id.uuid(),
            reason: task.reason.as_deref().unwrap_or("given up"),
            attempts: smallint(attempt),
            row: &task.contents,
            submitted,
            tracking: Some(task.tracking.redriven(attempt).encode()),
        });
        self.move_name(task, None, Some(Outcome::DEAD));
    }

    fn move_name(&mut self, task: &Tracked, next: Option<Uuid>, outcome: Option<i16>) {
        self.moves.extend(task.contents.name.clone().map(|name| Move {
            topic: task.contents.topic.clone(),
            name,
            first_id: task.first.uuid(),
            next,
            outcome,
        }));
    }

    /// Adds the untracked tasks of the same batches.
    fn add_untracked(&mut self, settlement: &'a Settlement, by: &Submitters) {
        self.rows.extend(settlement.follow_ups.iter().map(|follow_up| {
            let id = TaskId::from_uuid(follow_up.id);
            follow_up.row.next_row(id, by.of_task(&follow_up.row), (None, false))
        }));
        self.dead.extend(settlement.dead.iter().map(|dead| DeadRow {
            row_id: dead.row_id,
            reason: &dead.reason,
            attempts: dead.row.attempt,
            row: &dead.row,
            submitted: by.of_task(&dead.row),
            tracking: None,
        }));
        self.gone.extend(settlement.ended.iter().map(|ended| ended.first_id));
        self.ended.extend(settlement.ended.iter().cloned());
        self.moves.extend(settlement.moves.iter().cloned());
    }

    async fn write_follows(
        &self,
        open: &mut PgConnection,
        ours: &[(&Settlement, &Submitters)],
    ) -> Result<(), sqlx::Error> {
        if !self.followed.is_empty() {
            let each = || self.followed.iter();
            let changed = sqlx::query(CHANGE)
                .bind(each().map(|(first, _row, _follow)| *first).collect::<Vec<_>>())
                .bind(each().map(|(_first, row, _follow)| *row).collect::<Vec<_>>())
                .bind(each().map(|(.., follow)| smallint(follow.attempt)).collect::<Vec<_>>())
                .bind(each().map(|(.., follow)| follow.is_again).collect::<Vec<_>>())
                .bind(each().map(|(.., follow)| follow.note.map(Note::code)).collect::<Vec<_>>())
                .bind(each().map(|(.., follow)| follow.is_verdict).collect::<Vec<_>>())
                .execute(&mut *open)
                .await?;
            check_count(changed.rows_affected(), self.followed.len())?;
        }
        let untracked = || ours.iter().flat_map(|(settlement, _by)| settlement.follow_ups.iter());
        if untracked().next().is_some() {
            sqlx::query(FOLLOW_UNTRACKED)
                .bind(untracked().map(|one| one.row.first_id).collect::<Vec<_>>())
                .bind(untracked().map(|one| one.id).collect::<Vec<_>>())
                .bind(untracked().map(|one| one.maybe_sent).collect::<Vec<_>>())
                .execute(&mut *open)
                .await?;
        }
        if !self.gone.is_empty() {
            sqlx::query(FORGET).bind(&self.gone).execute(open).await?;
        }
        Ok(())
    }

    async fn write_rows(&self, open: &mut PgConnection) -> Result<(), sqlx::Error> {
        next_rows::insert(open, &self.rows).await?;
        bury(open, &self.dead).await?;
        if !self.ended.is_empty() {
            sqlx::query(END)
                .bind(self.ended.iter().map(|ended| ended.first_id).collect::<Vec<_>>())
                .bind(self.ended.iter().map(|ended| ended.row_id).collect::<Vec<_>>())
                .execute(open)
                .await?;
        }
        Ok(())
    }

    /// An entry may stand for another task by now, so the count of changed entries says nothing.
    async fn write_names(
        &mut self,
        open: &mut PgConnection,
        name_retention: Duration,
    ) -> Result<(), sqlx::Error> {
        if self.moves.is_empty() {
            return Ok(());
        }
        self.moves.sort_unstable_by(|a, b| (&a.topic, &a.name).cmp(&(&b.topic, &b.name)));
        let moves = || self.moves.iter();
        sqlx::query(NAME)
            .bind(moves().map(|moved| moved.topic.as_str()).collect::<Vec<_>>())
            .bind(moves().map(|moved| moved.name.as_str()).collect::<Vec<_>>())
            .bind(moves().map(|moved| moved.first_id).collect::<Vec<_>>())
            .bind(moves().map(|moved| moved.next).collect::<Vec<_>>())
            .bind(moves().map(|moved| moved.outcome).collect::<Vec<_>>())
            .bind(name_retention.as_secs_f64())
            .execute(open)
            .await?;
        Ok(())
    }
}

async fn bury(open: &mut PgConnection, dead: &[DeadRow<'_>]) -> Result<(), sqlx::Error> {
    if dead.is_empty() {
        return Ok(());
    }
    let each = || dead.iter();
    let buried = sqlx::query(BURY)
        .bind(each().map(|dead| dead.row.first_id).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.row_id).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.row.topic.as_str()).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.row.key.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.row.payload.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.row.headers.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.row.name.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.attempts).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.reason).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.submitted.0).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.submitted.1).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.tracking.as_deref()).collect::<Vec<_>>())
        .bind(each().map(|dead| dead.row.moved_to).collect::<Vec<_>>())
        .execute(open)
        .await?;
    check_count(buried.rows_affected(), dead.len())
}

/// Writes the lines of published attempts.
async fn record(
    open: &mut PgConnection,
    tracked: &[(&Tracked, &Submitters)],
) -> Result<(), sqlx::Error> {
    let published: Vec<(&Tracked, Receipt)> = tracked
        .iter()
        .filter(|(task, _by)| !task.tracking.is_verdict)
        .filter_map(|(task, _by)| Some((*task, task.receipt?)))
        .collect();
    if published.is_empty() {
        return Ok(());
    }
    let each = || published.iter();
    sqlx::query(RECORD)
        .bind(each().map(|(task, _)| task.first.uuid()).collect::<Vec<_>>())
        .bind(each().map(|(task, _)| task.id.uuid()).collect::<Vec<_>>())
        .bind(each().map(|(task, _)| task.next.map(TaskId::uuid)).collect::<Vec<_>>())
        .bind(each().map(|(task, _)| smallint(task.tracking.attempt)).collect::<Vec<_>>())
        .bind(each().map(|(_, receipt)| receipt.partition).collect::<Vec<_>>())
        .bind(each().map(|(_, receipt)| receipt.offset).collect::<Vec<_>>())
        .bind(each().map(|(_, receipt)| receipt.published_at.as_millis()).collect::<Vec<_>>())
        .bind(AttemptEvent::Published.code())
        .execute(open)
        .await?;
    Ok(())
}
