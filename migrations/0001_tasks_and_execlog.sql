-- The truth. What each table is for stands in ARCHITECTURE.md; why ids and partitions look like this, in docs/decisions.

-- The due time in the first 48 bits of an id.
create function punctual_time(id uuid) returns timestamptz
  language sql immutable strict parallel safe
  return to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0);

-- Settings that all nodes must agree on; one row. Shards and leaf width never change.
create table cluster (
  singleton boolean primary key default true check (singleton),
  shards integer not null,
  leaf_ms bigint not null,
  horizon_ms bigint not null,
  window_ms bigint not null,
  created_at timestamptz not null default clock_timestamp()
);

-- What is due up to the horizon. Leaves (partitions by due time) are made by the nodes; there is no default one, for that would forbid detaching
-- concurrently. `first_id` and `attempt` are null unless the row is a follow-up.
create table task (
  shard smallint not null,
  id uuid not null,
  topic text not null,
  key bytea,
  payload bytea,
  headers bytea,
  name text,
  first_id uuid,
  attempt smallint,
  primary key (shard, id)
) partition by range (id);

-- What is due beyond the last leaf. Its key is the id alone: the mover takes what is due next, whatever its shard. The mover empties one end of the key
-- without end, so the dead entries there are cleaned up sooner than by default.
create table task_far (
  shard smallint not null,
  id uuid primary key,
  topic text not null,
  key bytea,
  payload bytea,
  headers bytea,
  name text,
  first_id uuid,
  attempt smallint
) with (autovacuum_vacuum_scale_factor = 0.02);

-- One row per claim. The id begins with the time of the claim; one partition per day of it. Arrays are in the order of `ids`.
-- What is filled in by the settle is null before.
create table execlog_batch (
  batch uuid not null,
  owner uuid,                       -- null: freed by its owner, to be adopted
  claimed_at timestamptz not null,
  settled_at timestamptz,
  task_count integer not null,
  ids uuid[] not null,
  first_ids uuid[],                 -- null: all rows are first attempts
  attempts smallint[],
  names text[],                     -- null: no task has a name
  -- by the settle:
  span smallint,                    -- class of the width of id_from..id_to, see docs/decisions/0002
  id_from uuid,                     -- the least and the greatest of ids
  id_to uuid,
  topic_names text[],               -- the distinct topics
  topic_indexes smallint[],         -- 1-based, into topic_names; null: all are the first
  outcomes smallint[],              -- 1 published, 2 deferred, 3 dead
  partitions integer[],             -- -1: none
  offsets bigint[],
  published_ats bigint[],           -- ms since the epoch
  next_ids uuid[],                  -- null: no task was deferred
  primary key (batch)
) partition by range (batch);

create index execlog_batch_unsettled on execlog_batch (batch) where settled_at is null;
-- id_to is a key column, not an included one: only so is it held against an id before the row is fetched.
create index execlog_batch_span on execlog_batch (span, id_from, id_to) where span is not null;

-- What the batches carry; one partition per hour of the claim, dropped soon after all of it is settled.
create table execlog_payload (
  batch uuid not null,
  topics text[] not null,
  keys bytea[] not null,
  payloads bytea[] not null,
  headers bytea[] not null,
  primary key (batch)
) partition by range (batch);

-- Cancelled tasks, one line each; one partition per day of the cancel.
create table execlog_cancelled (
  id uuid not null,                 -- the first id
  row_id uuid not null,
  topic text not null,
  name text,
  attempt smallint not null,
  cancelled_at timestamptz not null default clock_timestamp()
) partition by range (cancelled_at);
create index execlog_cancelled_id on execlog_cancelled (id);

-- Dead letters that were put back: which row had died, and which one goes on. One partition per day of the redrive.
create table execlog_redriven (
  id uuid not null,                 -- the first id
  row_id uuid not null,
  next_id uuid not null,
  redriven_at timestamptz not null default clock_timestamp()
) partition by range (redriven_at);
create index execlog_redriven_id on execlog_redriven (id);

-- Tasks that were given up on.
create table dead_letter (
  id uuid primary key,              -- the first id
  row_id uuid not null,
  topic text not null,
  key bytea,
  payload bytea,
  headers bytea,
  name text,
  attempts smallint not null,
  reason text not null,
  dead_at timestamptz not null default clock_timestamp()
);
create index dead_letter_topic on dead_letter (topic, id);

-- Where the task of a first id is now, while it has a follow-up.
create table task_follow (
  first_id uuid primary key,
  row_id uuid not null,
  maybe_sent boolean not null
);

-- (topic, name) -> task, so that a submit can be repeated. Only named tasks have an entry.
create table task_name (
  topic text not null,
  name text not null,
  id uuid not null,                 -- the first id
  row_id uuid not null,
  expires_at timestamptz not null,
  primary key (topic, name)
);
create index task_name_expires_at on task_name (expires_at);

-- Signs of life. `counter` is what observers compare; the times are for people.
create table heartbeat (
  node uuid primary key,
  name text not null,
  address text not null,
  version text not null,
  counter bigint not null,
  started_at timestamptz not null,
  beat_at timestamptz not null,
  has_broker boolean not null,
  can_publish boolean not null,
  has_left boolean not null default false,
  dead boolean not null default false
);

-- A task that could not be claimed whatever was tried; its row stays in `task`, claims pass it by.
create table quarantine (
  id uuid primary key,
  shard smallint not null,
  reason text not null,
  quarantined_at timestamptz not null default clock_timestamp()
);

-- One line per claimed or cancelled task. Final are published, cancelled and dead; a deferred line is followed by the line of the next attempt, and so is
-- that of a dead letter that was put back: redriven.
create view execlog as
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
  b.owner as node
from execlog_batch b
left join execlog_payload p on p.batch = b.batch and b.settled_at is null
cross join lateral generate_series(1, b.task_count) i
union all
select id, topic, punctual_time(id), 'cancelled', cancelled_at, null, null, null, null, null
from execlog_cancelled;

-- How arrays and byte strings are compressed depends on the server: the program's `migrate` sees to it.
