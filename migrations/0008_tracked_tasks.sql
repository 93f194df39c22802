-- Tracked tasks: their consumers answer, and a task that is not finished in time is attempted
-- again. See docs/decisions/0025.

-- A partition whose retirement was cut off gets no column of its parent. It may hold rows, and then
-- it must be attached again.
do $$
declare
  cut_off record;
  columns constant jsonb := '{
    "task": "add column tracking bytea",
    "execlog_batch": "add column trackings bytea[]"
  }';
begin
  for cut_off in
    select inhparent::regclass as parent, inhrelid::regclass as partition
    from pg_inherits
    where inhdetachpending
      and inhparent in (select to_regclass(name) from jsonb_object_keys(columns) as name)
  loop
    execute format('alter table %s detach partition %s finalize', cut_off.parent, cut_off.partition);
  end loop;
  for cut_off in
    select c.oid::regclass as partition, p.relname as parent
    from jsonb_object_keys(columns) as name
    join pg_class p on p.oid = to_regclass(name)
    join pg_class c on c.relnamespace = p.relnamespace and c.relkind = 'r'
    where c.relname ~ ('^' || p.relname || '_\d{8}_\d{6}$')
      and not exists (select from pg_inherits where inhrelid = c.oid)
  loop
    execute format('alter table %s %s', cut_off.partition, columns ->> cut_off.parent);
  end loop;
end $$;

-- `tracking` holds the wishes of the submitter and the number of the attempt. The program encodes
-- it (`domain/task/tracking.rs`). Null for an untracked task, and such a row grows by nothing: the
-- bits of 12 columns fill two bytes, as those of 11 do.
alter table task add column tracking bytea;
alter table task_far add column tracking bytea;
alter table dead_letter add column tracking bytea;   -- of the row that a redrive inserts

-- Null: no task of the batch is tracked.
alter table execlog_batch add column trackings bytea[];
alter table execlog_batch alter column trackings set statistics 0;

-- Two numbers of `tracking`, for the statement that redrives.
create function punctual_attempts_before(tracking bytea) returns smallint
  language sql immutable strict parallel safe
  return (get_byte(tracking, 4) * 256 + get_byte(tracking, 5))::smallint;
create function punctual_attempts_max(tracking bytea) returns smallint
  language sql immutable strict parallel safe
  return (get_byte(tracking, 4) * 256 + get_byte(tracking, 5)
    + get_byte(tracking, 6) * 256 + get_byte(tracking, 7))::smallint;

-- All of them are null for an untracked task.
alter table task_follow
  add column attempt smallint,        -- the last that was published or perhaps sent; 0: none
  add column attempts_max smallint,   -- the number of the last attempt that there can be
  add column is_again boolean,        -- `row_id` is that same attempt once more
  add column note smallint,           -- 1 finished, 2 failed, 3 extended
  add column next_id uuid,            -- the row that the settle is to insert
  add column is_verdict boolean,      -- `row_id` is a verdict row, or that of `next_id` will be
  add column reason text;             -- of the failure that `note` is about

-- Tasks that their consumers have finished: their final lines. One partition per day.
create table execlog_finished (
  id uuid not null,                   -- the first id
  row_id uuid not null,
  topic text not null,
  name text,
  attempt smallint not null,
  in_flight boolean not null,         -- a record may have reached the topic afterwards
  submitted_by smallint,
  submitted_at bigint,
  finished_by smallint,
  tracking bytea not null,
  finished_at timestamptz not null default clock_timestamp()
) partition by range (finished_at);
create index execlog_finished_id on execlog_finished (id);

-- Published attempts of tracked tasks, and the answers of their consumers. One partition per day.
create table execlog_attempt (
  id uuid not null,                   -- the first id
  row_id uuid not null,               -- the row of the attempt, or the one that was replaced
  next_id uuid,                       -- the row that takes its place
  attempt smallint not null,
  event smallint not null,            -- 1 published, 2 finished, 3 failed, 4 extended
  reason text,
  partition integer,
  "offset" bigint,
  published_at bigint,                -- ms since the epoch
  at timestamptz not null default clock_timestamp()
) partition by range (at);
create index execlog_attempt_id on execlog_attempt (id);

-- The lines as before, and two kinds more. `attempted` is a published attempt of a tracked task,
-- and not final. `finished` is final.
create or replace view execlog as
select
  coalesce(b.first_ids[i], b.ids[i]) as id,
  coalesce(b.topic_names[coalesce(b.topic_indexes[i], 1)], p.topics[i]) as topic,
  punctual_time(coalesce(b.first_ids[i], b.ids[i])) as due_at,
  case when b.settled_at is null then 'claimed'
    when b.outcomes[i] = 3 and exists (
      select from execlog_redriven r where r.id = coalesce(b.first_ids[i], b.ids[i]) and r.row_id = b.ids[i]
    ) then 'redriven'
    else (array['published', 'deferred', 'dead', 'attempted'])[b.outcomes[i]] end as state,
  b.claimed_at,
  case when b.outcomes[i] in (1, 4) then to_timestamp(b.published_ats[i] / 1000.0) end as published_at,
  nullif(b.partitions[i], -1) as partition,
  case when b.partitions[i] <> -1 then b.offsets[i] end as "offset",
  case when b.outcomes[i] in (1, 4)
    then b.published_ats[i] - (extract(epoch from punctual_time(
      case b.outcomes[i] when 1 then coalesce(b.first_ids[i], b.ids[i]) else b.ids[i] end)) * 1000)::bigint
    end as lateness_ms,
  b.owner as node,
  null::uuid as replaced_by,
  (select s.name from principal s where s.id = b.submitted_by[least(i, cardinality(b.submitted_by))]) as submitted_by,
  to_timestamp(b.submitted_ats[least(i, cardinality(b.submitted_ats))] / 1000.0) as submitted_at,
  case when b.outcomes[i] = 3 then (
    select e.name
    from execlog_redriven r join principal e on e.id = r.redriven_by
    where r.id = coalesce(b.first_ids[i], b.ids[i]) and r.row_id = b.ids[i]
    limit 1
  ) end as ended_by
from execlog_batch b
left join execlog_payload p on p.batch = b.batch and b.settled_at is null
cross join lateral generate_series(1, b.task_count) i
where (b.outcomes[i] is distinct from 3 or not exists (
    select from execlog_dropped d where d.id = coalesce(b.first_ids[i], b.ids[i]) and d.row_id = b.ids[i]
  ))
  -- A task that was finished in flight has its final line already, whatever came of its record.
  and (b.trackings is null or b.outcomes[i] is distinct from 3 or not exists (
    select from execlog_finished f where f.id = coalesce(b.first_ids[i], b.ids[i])
  ))
union all
select id, topic, punctual_time(id), 'cancelled', cancelled_at, null, null, null, null, null, replaced_by,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = cancelled_by)
from execlog_cancelled
union all
select id, topic, punctual_time(id), 'dropped', dropped_at, null, null, null, null, null, null,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = dropped_by)
from execlog_dropped
union all
select id, topic, punctual_time(id), 'finished', finished_at, null, null, null, null, null, null,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = finished_by)
from execlog_finished;
