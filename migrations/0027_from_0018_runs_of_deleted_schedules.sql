-- The unclaimed runs of a schedule are found by their tasks: a schedule of seconds has some 800,000
-- runs.
create index schedule_run_task on schedule_run (schedule_id, first_id);

-- Deleted schedules with runs left. The owner of the first shard deletes the runs, piece by piece.
create table schedule_deleted (
  id bigint primary key
);
