//! The statements about dead letters.
//!
//! A statement for all due times reads an index in the order of the ids. A statement for a range of
//! due times chooses the ids first ([`super::due_range`]): rows of a union cannot be locked.

/// Chooses the first ids ($4) of a topic ($1), or of all topics, by due time: tasks that were not
/// moved by their ids ($2, $3), the others by `moved_to` ($5, $6) behind a position ($7). With
/// `offset 0`, the planner uses the index on `moved_to`, and does not read the whole topic in the
/// order of the ids.
macro_rules! ids_by_due {
    () => {
        "due as materialized (
  select id from (
    (select id from dead_letter
      where ($1::text is null or topic = $1) and id >= $2 and id < $3 and moved_to is null
      order by id limit $4)
    union all
    (select id from (select id from dead_letter
        where ($1::text is null or topic = $1) and moved_to >= $5 and moved_to < $6 and id >= $7
        offset 0) m
      order by id limit $4)
  ) d
  order by id limit $4
)"
    };
}

/// Lists dead letters. The plan is made for the parameters, so the test of a missing topic costs
/// nothing.
macro_rules! listed {
    ($with:expr, $condition:expr) => {
        concat!(
            "-- list dead letters
",
            $with,
            "select id, topic, name, attempts as attempt, case when octet_length(key) <= 1057 then key end
  as key,
  null::bytea as payload, punctual_terms(headers) as headers, reason, (extract(epoch
    from dead_at) * 1000000)::bigint as died_at,
  (select p.name from principal p where p.id = submitted_by) as submitted_by, submitted_at,
  tracking, moved_to
from dead_letter
where ",
            $condition
        )
    };
}

/// Lists dead letters: the first text for all due times, the second for a range of them.
pub(super) const LIST: [&str; 2] = [
    listed!(
        "",
        "($1::text is null or topic = $1) and id >= $2 and id < $3
order by id limit $4"
    ),
    listed!(
        concat!("with ", ids_by_due!(), "\n"),
        "id = any(array(select id from due)) order by id"
    ),
];

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

/// Drops a dead letter ($1), if it is still of the topic ($3) for which the caller has the right.
pub(super) const DROP: &str = concat!(
    "-- drop a dead letter
with gone as (
  delete from dead_letter where id = $1 and ($3::text is null or topic = $3) returning *
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

/// Returns ids of dead letters: the first text for all due times, the second for a range of them.
pub(super) const IDS: [&str; 2] = [
    "-- dead letters: ids
select id from dead_letter where topic = $1 and id >= $2 and id < $3 order by id limit $4",
    concat!(
        "-- dead letters: ids by due time\nwith ",
        ids_by_due!(),
        " select id from due order by id"
    ),
];

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

/// Locks the next dead letters: the first text for all due times, the second for a range of them.
/// Returns their ids, and as `last` the highest id that was looked at. Up to `last`, only rows that
/// other transactions have locked are left.
pub(super) const CHOOSE: [&str; 2] = [
    concat!(
        "-- choose dead letters\nwith ",
        chosen_few!(),
        "
select coalesce(ids, '{}'::uuid[]) as ids,
  (select i.id from unnest(ids) i (id) order by i.id desc limit 1) as last
from chosen"
    ),
    concat!(
        "-- choose dead letters by due time\nwith ",
        ids_by_due!(),
        ", head as materialized (
  select id, coalesce(octet_length(key), 0) + coalesce(octet_length(payload), 0) +
    coalesce(octet_length(headers), 0) as bytes
  from dead_letter
  where id = any(array(select id from due))
  order by id
  for update skip locked
), weighed as materialized (
  select id, sum(bytes) over (order by id rows unbounded preceding) - bytes as bytes_before
  from head
)
select array(select id from weighed where bytes_before < $8) as ids,
  (select id from due
    where id < coalesce(
      (select w.id from weighed w where w.bytes_before >= $8 order by w.id limit 1),
      'ffffffff-ffff-ffff-ffff-ffffffffffff')
    order by id desc limit 1) as last"
    ),
];

pub(super) const DROP_MANY: &str = concat!(
    "-- drop dead letters\nwith ",
    next_few!(),
    ", ",
    drop_lines!("$6"),
    "select id, id as next_id from line"
);

/// Drops dead letters that the same transaction has chosen.
pub(super) const DROP_THESE: &str = concat!(
    "-- drop these dead letters
with gone as (
  delete from dead_letter where id = any($1) returning *
), ",
    drop_lines!("$2"),
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

/// Redrives a dead letter ($1), if it is still of the topic ($5) for which the caller has the
/// right.
pub(super) const REDRIVE: &str = concat!(
    redrive!(
        "a dead letter",
        "$2",
        "$3",
        "$4",
        "gone as (
  delete from dead_letter where id = $1 and ($5::text is null or topic = $5) returning *
)"
    ),
    "(select id, to_topic as topic, to_name as name, attempt, key, payload,
  punctual_without_expiry(headers) as headers,
  null::text as reason, null::bigint as died_at, next_id, tracking, moved_to,
  punctual_attempts_before(tracking) as attempts_before,
  (select p.name from principal p where p.id = put.submitted_by) as submitted_by, submitted_at
from put)"
);

/// Redrives dead letters that the same transaction has chosen, and perhaps sealed for another
/// topic.
pub(super) const REDRIVE_THESE: &str = concat!(
    redrive!(
        "these dead letters",
        "$2",
        "$3",
        "$4",
        "gone as (delete from dead_letter where id = any($1) returning *)"
    ),
    "(select id, next_id from put)"
);

pub(super) const REDRIVE_MANY: &str = concat!(
    redrive!("dead letters", "$6", "$7", "$8", next_few!()),
    "(select id, next_id from put)"
);

/// Each topic is one step along the index.
pub(super) const TOPICS: &str = "-- topics of dead letters
with recursive t (topic) as (
  (select topic from dead_letter where $1::text is null or topic > $1 order by topic limit 1)
  union all
  select (select d.topic from dead_letter d where d.topic > t.topic order by d.topic limit 1)
  from t where t.topic is not null
)
select topic from t where topic is not null limit $2";
