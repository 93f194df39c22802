-- What is known of a task from its first id alone must last for as long as its receipt does, and what its name says, for as long as the name.

-- Tasks that ended as a later row than their first: as which. The batch of the first attempt, which leads there, may be long gone by then. One partition per
-- day of the end; of a task that was put back and ended again, the newest line counts.
create table execlog_ended (
  id uuid not null,                 -- the first id
  row_id uuid not null,
  ended_at timestamptz not null default clock_timestamp()
) partition by range (ended_at);
create index execlog_ended_id on execlog_ended (id);

-- What the task of the name has come to: 3 dead (as in execlog_batch), 4 cancelled; null: it is not final, or published.
alter table task_name add column outcome smallint;
