-- The view `execlog` has the batch, by which its table is partitioned: a range of batches reads
-- only its days. And it unpacks each stored array once, not for each task: 71 ms for 40,000 lines
-- in batches of 1,000, in place of 1,223 (2 cores, 2026-11-29).

-- The lowest id of a batch that is claimed at a time.
create function punctual_batch_at(at timestamptz) returns uuid
  language sql stable strict parallel safe
  return (lpad(to_hex(greatest(extract(epoch from at) * 1000, 0)::bigint), 12, '0')
    || repeat('0', 20))::uuid;

-- The lines as before.
create or replace view execlog as
select
  coalesce(u.first_id, u.id) as id,
  coalesce(b.topic_names[coalesce(u.topic_index, 1)], u.topic) as topic,
  punctual_due_at(coalesce(u.first_id, u.id), u.moved_to) as due_at,
  case when b.settled_at is null then 'claimed'
    when u.outcome = 3 and exists (
      select from execlog_redriven r where r.id = coalesce(u.first_id, u.id) and r.row_id = u.id
    ) then 'redriven'
    else (array['published', 'deferred', 'dead', 'attempted', 'expired'])[u.outcome] end as state,
  b.claimed_at,
  case when u.outcome in (1, 4) then to_timestamp(u.published_at / 1000.0) end as published_at,
  nullif(u.partition, -1) as partition,
  case when u.partition <> -1 then u."offset" end as "offset",
  case when u.outcome in (1, 4)
    then u.published_at - (extract(epoch from
      case u.outcome when 1 then punctual_due_at(coalesce(u.first_id, u.id), u.moved_to)
        else punctual_time(u.id) end) * 1000)::bigint
    end as lateness_ms,
  b.owner as node,
  null::uuid as replaced_by,
  (select s.name from principal s
    where s.id = case when one.by then b.submitted_by[1] else u.submitted_by end) as submitted_by,
  to_timestamp(case when one.at then b.submitted_ats[1] else u.submitted_at end / 1000.0)
    as submitted_at,
  case when u.outcome = 3 then (
    select e.name
    from execlog_redriven r join principal e on e.id = r.redriven_by
    where r.id = coalesce(u.first_id, u.id) and r.row_id = u.id
    limit 1
  ) end as ended_by,
  b.batch
from execlog_batch b
left join execlog_payload p on p.batch = b.batch and b.settled_at is null
-- An array of one element is for all tasks of the batch.
cross join lateral (
  select cardinality(b.submitted_by) = 1 as by, cardinality(b.submitted_ats) = 1 as at offset 0
) one
cross join lateral unnest(b.ids, b.first_ids, p.topics, b.topic_indexes, b.outcomes,
  b.published_ats, b.partitions, b.offsets, b.moved_tos, b.submitted_by, b.submitted_ats) as u (
    id, first_id, topic, topic_index, outcome, published_at, partition, "offset", moved_to,
    submitted_by, submitted_at)
where (u.outcome is distinct from 3 or not exists (
    select from execlog_dropped d where d.id = coalesce(u.first_id, u.id) and d.row_id = u.id
  ))
  -- A task that was finished in flight has its final line already, whatever came of its record.
  and (b.trackings is null or coalesce(u.outcome, 0) not in (3, 5) or not exists (
    select from execlog_finished f where f.id = coalesce(u.first_id, u.id)
  ))
union all
select id, topic, punctual_due_at(id, moved_to), 'cancelled', cancelled_at,
  null, null, null, null, null, replaced_by,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = cancelled_by), punctual_batch_at(cancelled_at)
from execlog_cancelled
union all
select id, topic, punctual_due_at(id, moved_to), 'dropped', dropped_at,
  null, null, null, null, null, null,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = dropped_by), punctual_batch_at(dropped_at)
from execlog_dropped
union all
select id, topic, punctual_due_at(id, moved_to), 'finished', finished_at,
  null, null, null, null, null, null,
  (select s.name from principal s where s.id = submitted_by), to_timestamp(submitted_at / 1000.0),
  (select e.name from principal e where e.id = finished_by), punctual_batch_at(finished_at)
from execlog_finished;
