-- The number of instants right before a run that got no run. A change that withdraws the run counts
-- them again. Null: none, or a node of an older version has made the run.
alter table schedule_run add column missed bigint;
