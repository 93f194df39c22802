-- Moved tasks: another due time under the same first id.

-- A partition whose retirement was cut off gets no column of its parent. It may hold rows, and then
-- it must be attached again.
do $$
declare
  cut_off record;
  columns constant jsonb := '{
    "task": "add column moved_to bigint",
    "execlog_batch": "add column moved_tos bigint[]",
    "execlog_cancelled": "add column moved_to bigint",
    "execlog_finished": "add column moved_to bigint",
    "execlog_dropped": "add column moved_to bigint"
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

-- The due time that a caller has moved the task to, in ms since the epoch. A retry keeps it, while
-- its row is due later. Null: the task was not moved, and is due at the time in its first id. Such
-- a row grows by nothing: the bits of 13 columns fill two bytes, as those of 12 do.
alter table task add column moved_to bigint;
alter table task_far add column moved_to bigint;
alter table dead_letter add column moved_to bigint;

-- Null: no task of the batch was moved.
alter table execlog_batch add column moved_tos bigint[];
alter table execlog_batch alter column moved_tos set statistics 0;

alter table execlog_cancelled add column moved_to bigint;
alter table execlog_finished add column moved_to bigint;
alter table execlog_dropped add column moved_to bigint;

-- The due time of a task: the one that it was moved to, else that of its first id.
create function punctual_due_at(first_id uuid, moved_to bigint) returns timestamptz
  language sql immutable parallel safe
  return coalesce(to_timestamp(moved_to / 1000.0), punctual_time(first_id));

-- The lines as before. `due_at` and `lateness_ms` are those of the time that a task was moved to.
create or replace view execlog as
select
  coalesce(b.first_ids[i], b.ids[i]) as id,
  coalesce(b.topic_names[coalesce(b.topic_indexes[i], 1)], p.topics[i]) as topic,
  punctual_due_at(coalesce(b.first_ids[i], b.ids[i]), b.moved_tos[i]) as due_at,
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
    then b.published_ats[i] - (extract(epoch from
      case b.outcomes[i] when 1 then punctual_due_at(coalesce(b.first_ids[i], b.ids[i]), b.moved_tos[i])
        else punctual_time(b.ids[i]) end) * 1000)::bigint
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
select id, topic, punctual_due_at(id, moved_to), 'cancelled', cancelled_at, null, null, null, null, null, replaced_by,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = cancelled_by)
from execlog_cancelled
union all
select id, topic, punctual_due_at(id, moved_to), 'dropped', dropped_at, null, null, null, null, null, null,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = dropped_by)
from execlog_dropped
union all
select id, topic, punctual_due_at(id, moved_to), 'finished', finished_at, null, null, null, null, null, null,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = finished_by)
from execlog_finished;
