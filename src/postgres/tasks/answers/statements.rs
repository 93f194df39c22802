//! The statements of answers.

/// Sets settings until the end of the transaction.
pub(super) const SETTINGS: &str = "-- answers: settings
select set_config(s.name, s.value, true) from unnest($1::text[], $2::text[]) as s (name, value)";

/// Rows of untracked tasks have no attempt.
pub(super) const LOCK: &str = "-- answers: lock
select first_id, row_id, attempt, attempts_max, is_again, note, next_id, is_verdict
from task_follow
where first_id = any($1) and attempt is not null
order by first_id
for update";

/// Marks tasks: inserts rows with a note. Until the effects are written the note is that of a
/// finish, but no other transaction sees it before.
pub(super) const MARK: &str = "-- answers: mark
insert into task_follow (first_id, row_id, maybe_sent, attempt, is_again, note, is_verdict)
select id, id, false, 0, false, 1, false from unnest($1::uuid[]) as m (id)
order by id
on conflict (first_id) do nothing
returning first_id";

pub(super) const UNMARK: &str =
    "-- answers: unmark\ndelete from task_follow where first_id = any($1)";

/// `$2` has the topic of the call for each row of `$1`, or null for any topic. `$2` itself is null
/// when no call names a topic. `$3` of [`TAKE_NEAR`] has the same elements, and is never null.
pub(super) const TAKE_FAR: &str = "-- answers: take far
delete from task_far
where id = any($1) and ($2::text[] is null or topic = coalesce($2[array_position($1, id)], topic))
returning id, coalesce(first_id, id) as first_id, topic, key, payload, headers, name, submitted_by,
  submitted_at, tracking, moved_to";

pub(super) const TAKE_NEAR: &str = "-- answers: take
delete from task t
using unnest($1::smallint[], $2::uuid[], $3::text[]) as w (shard, id, topic)
where t.shard = w.shard and t.id = w.id and t.id = any($2)
  and (w.topic is null or t.topic = w.topic)
returning t.id, coalesce(t.first_id, t.id) as first_id, t.topic, t.key, t.payload, t.headers,
  t.name, t.submitted_by, t.submitted_at, t.tracking, t.moved_to";

pub(super) const SEE_FAR: &str = "-- answers: look far\nselect id from task_far where id = any($1)";

pub(super) const SEE_NEAR: &str = "-- answers: look
select t.id
from unnest($1::smallint[], $2::uuid[]) as w (shard, id)
join task t on t.shard = w.shard and t.id = w.id and t.id = any($2)";

/// Finds tracked tasks in unsettled batches. The records stay there. `unnest` unpacks each stored
/// array once, and a subscript for each element: 1 ms in place of 16 for one call, and 112 ms in
/// place of 500 for 1,000 calls, in 25 batches of 1,000 tasks (2 cores, 2026-11-29).
pub(super) const IN_FLIGHT: &str = "-- answers: in flight
select u.id, coalesce(u.first_id, u.id) as first_id, u.topic,
  null::bytea as key, null::bytea as payload, null::bytea as headers, u.name,
  b.submitted_by[least(u.place::integer, cardinality(b.submitted_by))] as submitted_by,
  b.submitted_ats[least(u.place::integer, cardinality(b.submitted_ats))] as submitted_at,
  u.tracking, u.moved_to
from execlog_batch b
join execlog_payload p on p.batch = b.batch
cross join lateral unnest(b.ids, b.first_ids, p.topics, b.names, b.trackings, b.moved_tos)
  with ordinality as u (id, first_id, topic, name, tracking, moved_to, place)
where b.settled_at is null and b.batch >= $2 and b.ids && $1 and u.id = any($1)
  and u.tracking is not null";

pub(super) const FINISH: &str = "-- answers: final lines
insert into execlog_finished (id, row_id, topic, name, attempt, in_flight, submitted_by,
  submitted_at, finished_by, tracking, moved_to)
select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::smallint[], $6::boolean[],
  $7::smallint[], $8::bigint[], $9::smallint[], $10::bytea[], $11::bigint[])";

pub(super) const FORGET: &str =
    "-- answers: forget\ndelete from task_follow where first_id = any($1)";

pub(super) const CHANGE: &str = "-- answers: change follow
update task_follow f
set row_id = c.row_id, is_again = c.is_again, note = c.note, next_id = c.next_id,
  is_verdict = c.is_verdict, attempts_max = c.attempts_max, reason = c.reason
from unnest($1::uuid[], $2::uuid[], $3::boolean[], $4::smallint[], $5::uuid[], $6::boolean[],
  $7::smallint[], $8::text[])
  as c (first_id, row_id, is_again, note, next_id, is_verdict, attempts_max, reason)
where f.first_id = c.first_id";

pub(super) const RECORD: &str = "-- answers: record
insert into execlog_attempt (id, row_id, next_id, attempt, event, reason)
select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::smallint[], $5::smallint[],
  $6::text[])";

/// `$4` is the next row, or null for a finished task: then `$5` is its outcome.
pub(super) const NAME: &str = "-- answers: names
update task_name n
set row_id = coalesce(m.next, n.row_id), outcome = m.outcome,
  expires_at = greatest(n.expires_at, coalesce(punctual_time(m.next), clock_timestamp())
    + make_interval(secs => $6))
from unnest($1::text[], $2::text[], $3::uuid[], $4::uuid[], $5::smallint[])
  as m (topic, name, first_id, next, outcome)
where n.topic = m.topic and n.name = m.name and n.id = m.first_id";
