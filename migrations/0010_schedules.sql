-- Recurring schedules, and the runs that are made for them.

-- One row per schedule. Times and spans are in milliseconds, times since the epoch.
create table schedule (
  id bigint generated always as identity primary key,
  topic text collate "C" not null,
  name text collate "C" not null,
  -- The shard of its runs.
  shard smallint not null,
  -- Counts the changes. A run is made only of the revision that was planned.
  revision bigint not null default 1,
  -- Either `cron` with its zone, or `every_ms`.
  cron text,
  has_seconds boolean not null,
  time_zone text,
  dst_gap text,                     -- skip, shift
  dst_overlap text,                 -- first, both
  every_ms bigint,
  phase_ms bigint,
  starts_at bigint,
  ends_at bigint,
  exclude text[] not null,
  runs_max bigint,
  missed_count_max integer not null,
  missed_within_ms bigint,
  is_paused boolean not null,
  note text,
  -- What each run publishes.
  key bytea,
  payload bytea,
  headers bytea,
  tracking bytea,
  submitted_by smallint,
  -- The first instant whose run is not made. Null: the schedule has ended.
  next_run_at bigint,
  -- When the owner of the shard makes the next runs. Null: ended or paused.
  look_at bigint,
  runs_made bigint not null default 0,
  -- Instants before next_run_at that got no run, since the last run.
  skipped bigint not null default 0,
  created_at timestamptz not null default clock_timestamp(),
  changed_at timestamptz not null default clock_timestamp(),
  unique (topic, name),
  check ((cron is null) <> (every_ms is null)),
  check ((cron is null) = (time_zone is null))
);
create index schedule_look_at on schedule (look_at) where look_at is not null;

-- The runs that were made: at most one for an instant of a schedule. Rows are kept for a day after
-- the instant. The row of a withdrawn run is deleted, so that the run can be made again.
create table schedule_run (
  schedule_id bigint not null,
  instant bigint not null,
  first_id uuid not null,           -- the task
  primary key (schedule_id, instant)
);
