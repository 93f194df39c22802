-- Schedules that skip runs, that are spread, and that note the rules of their time zone.

alter table schedule
  -- True: no run while one before is not finished.
  add column skips_overlap boolean not null default false,
  add column spread_ms bigint not null default 0,
  -- The version of the time zone rules that next_run_at comes from. Empty: unknown.
  add column tzdata text collate "C" not null default '',
  -- Nodes of older versions keep the rows of runs for a day only, and may live for some hours more.
  add column runs_known_from bigint not null
    default (extract(epoch from now()) * 1000)::bigint - 43200000;
alter table schedule alter column runs_known_from set default 0;
create index schedule_tzdata on schedule (tzdata) where cron is not null;

-- Rows are kept for nine days after the instant now: a backfill reaches seven days back.
alter table schedule_run
  -- True: a caller asked for this run of the past. A change of the schedule leaves it alone.
  add column is_backfill boolean not null default false;
