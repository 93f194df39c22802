-- The submitter of a task, the time of the submit, and the caller who ended it.

-- Principals as the other tables refer to them: two bytes instead of a name. A node interns a name
-- at its first use, in a transaction of its own, and nobody deletes or renames one.
create table principal (
  id smallint generated always as identity primary key,
  name text collate "C" not null unique
);

-- A partition whose retirement was cut off gets no column of its parent. It may hold rows, and then
-- it must be attached again.
do $$
declare
  cut_off record;
  columns constant jsonb := '{
    "task": "add column submitted_by smallint, add column submitted_at bigint",
    "execlog_batch": "add column submitted_by smallint[], add column submitted_ats bigint[]",
    "execlog_cancelled": "add column submitted_by smallint, add column submitted_at bigint, add column cancelled_by smallint",
    "execlog_redriven": "add column redriven_by smallint"
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

-- `submitted_at` is in ms since the epoch. Both columns are null for an anonymous caller, and for
-- tasks from before this version. A null costs nothing: rows have nulls anyway (`name`,
-- `first_id`), and the bits of 11 columns fill two bytes as those of 9 did. The only exception is a
-- follow-up with a name, key, payload and headers, which had no null before: 8 bytes. A known
-- submitter costs 8 to 16 bytes a row, by the alignment.
alter table task add column submitted_by smallint, add column submitted_at bigint;
alter table task_far add column submitted_by smallint, add column submitted_at bigint;
alter table dead_letter add column submitted_by smallint, add column submitted_at bigint;

-- One element per task, or a single element that holds for all tasks. Null: all are anonymous.
-- `array[least(i, cardinality(array))]` is the element of task i.
alter table execlog_batch add column submitted_by smallint[], add column submitted_ats bigint[];
-- No plan depends on them, as for the other arrays.
alter table execlog_batch
  alter column submitted_by set statistics 0, alter column submitted_ats set statistics 0;

alter table execlog_cancelled
  add column submitted_by smallint, add column submitted_at bigint, add column cancelled_by smallint;
alter table execlog_redriven add column redriven_by smallint;

-- Dead letters that were dropped. One partition per day of the drop.
create table execlog_dropped (
  id uuid not null,                 -- the first id
  row_id uuid not null,
  topic text not null,
  name text,
  attempts smallint not null,
  reason text not null,             -- the reason of the death
  dead_at timestamptz not null,
  submitted_by smallint,
  submitted_at bigint,
  dropped_by smallint,
  dropped_at timestamptz not null default clock_timestamp()
) partition by range (dropped_at);
create index execlog_dropped_id on execlog_dropped (id);

-- The same lines as before, and three more columns at the end. A dead letter that was dropped has
-- the line of the drop instead of that of its death, so that each task still ends with one final
-- line: published, cancelled, dead or dropped. `ended_by` is the caller who cancelled, dropped or
-- redrove it.
create or replace view execlog as
select
  coalesce(b.first_ids[i], b.ids[i]) as id,
  coalesce(b.topic_names[coalesce(b.topic_indexes[i], 1)], p.topics[i]) as topic,
  punctual_time(coalesce(b.first_ids[i], b.ids[i])) as due_at,
  case when b.settled_at is null then 'claimed'
    when b.outcomes[i] = 3 and exists (
      select from execlog_redriven r where r.id = coalesce(b.first_ids[i], b.ids[i]) and r.row_id = b.ids[i]
    ) then 'redriven'
    else (array['published', 'deferred', 'dead'])[b.outcomes[i]] end as state,
  b.claimed_at,
  case when b.outcomes[i] = 1 then to_timestamp(b.published_ats[i] / 1000.0) end as published_at,
  nullif(b.partitions[i], -1) as partition,
  case when b.partitions[i] <> -1 then b.offsets[i] end as "offset",
  case when b.outcomes[i] = 1
    then b.published_ats[i] - (extract(epoch from punctual_time(coalesce(b.first_ids[i], b.ids[i]))) * 1000)::bigint end as lateness_ms,
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
where b.outcomes[i] is distinct from 3 or not exists (
  select from execlog_dropped d where d.id = coalesce(b.first_ids[i], b.ids[i]) and d.row_id = b.ids[i]
)
union all
select id, topic, punctual_time(id), 'cancelled', cancelled_at, null, null, null, null, null, replaced_by,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = cancelled_by)
from execlog_cancelled
union all
select id, topic, punctual_time(id), 'dropped', dropped_at, null, null, null, null, null, null,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = dropped_by)
from execlog_dropped;
