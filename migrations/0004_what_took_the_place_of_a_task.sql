-- The task that a PUT by name put in the place of a cancelled one. Null: nobody replaced it; or a node of the release before did, which does not write this.
alter table execlog_cancelled add column replaced_by uuid;

-- The same lines as before, with one more column at the end.
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
  null::uuid as replaced_by
from execlog_batch b
left join execlog_payload p on p.batch = b.batch and b.settled_at is null
cross join lateral generate_series(1, b.task_count) i
union all
select id, topic, punctual_time(id), 'cancelled', cancelled_at, null, null, null, null, null, replaced_by
from execlog_cancelled;
