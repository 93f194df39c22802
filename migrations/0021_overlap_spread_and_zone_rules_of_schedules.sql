-- Schedules that skip runs, that are spread, and that note the rules of their time zone.

alter table schedule
  -- True: no run while one before is not finished.
  add column skips_overlap boolean not null default false,
  add column spread_ms bigint not null default 0,
  -- The version of the time zone rules that next_run_at comes from. Empty: unknown.
  add column tzdata text collate "C" not null default '';
create index schedule_tzdata on schedule (tzdata) where cron is not null;

-- Rows are kept for nine days after the instant now: a backfill reaches seven days back.
alter table schedule_run
  -- True: a caller asked for this run of the past. A change of the schedule leaves it alone.
  add column is_backfill boolean not null default false;
