-- The usual schema: one table, and an index for the frequent query. Vacuumed as often as necessary.
create table poll_task (
  id bigint generated always as identity primary key,
  topic text not null,
  key bytea,
  payload bytea,
  due_at timestamptz not null,
  status smallint not null default 0,
  published_at timestamptz
);
create index poll_task_due on poll_task (status, due_at);
alter table poll_task set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
