-- Expiry: the time from which a task is not published any more. Spread: tasks that need not be
-- exact are due later than requested, each by a part of its own.

alter table topic_policy
  add column expire_after_ms bigint,
  add column spread_ms bigint;

-- The expiry of a task stands in front of its headers, as a header of Punctual's own with a value
-- of 9 bytes: see domain/task/expiry.rs. Behind it stands the requested time of a task that is due
-- later by the spread of its topic: see domain/task/spread.rs. Both together have 62 bytes. Null:
-- the task has neither.
create function punctual_terms(headers bytea) returns bytea
  language sql immutable parallel safe
  return case
    when substring(headers from 1 for 17) = '\x000f70756e637475616c2d657870697279'::bytea
      or substring(headers from 1 for 20) = '\x001270756e637475616c2d726571756573746564'::bytea
      then substring(headers from 1 for 62)
  end;

-- The headers of a task that does not expire any more. Null without any.
create function punctual_without_expiry(headers bytea) returns bytea
  language sql immutable parallel safe
  return case
    when substring(headers from 1 for 17) = '\x000f70756e637475616c2d657870697279'::bytea
      then nullif(substring(headers from 31), ''::bytea)
    else headers
  end;

-- The lines as before, and one kind more. `expired` is final. In the row of its batch, the array
-- published_ats has the time of the expiry.
create or replace view execlog as
select
  coalesce(b.first_ids[i], b.ids[i]) as id,
  coalesce(b.topic_names[coalesce(b.topic_indexes[i], 1)], p.topics[i]) as topic,
  punctual_due_at(coalesce(b.first_ids[i], b.ids[i]), b.moved_tos[i]) as due_at,
  case when b.settled_at is null then 'claimed'
    when b.outcomes[i] = 3 and exists (
      select from execlog_redriven r where r.id = coalesce(b.first_ids[i], b.ids[i]) and r.row_id = b.ids[i]
    ) then 'redriven'
    else (array['published', 'deferred', 'dead', 'attempted', 'expired'])[b.outcomes[i]] end as state,
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
  and (b.trackings is null or coalesce(b.outcomes[i], 0) not in (3, 5) or not exists (
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
