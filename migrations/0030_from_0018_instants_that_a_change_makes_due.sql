-- Instants that are not missed although they have passed: from the first to before the second, in
-- milliseconds since the epoch. A change has withdrawn their runs, or a smaller spread has made
-- them due earlier. Both are 0 when there are none.
alter table schedule
  add column not_missed_from bigint not null default 0,
  add column not_missed_to bigint not null default 0;
