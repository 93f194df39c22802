-- A rejection is stored in the transaction that moves the offset behind its record. The record is
-- written to the rejected topic afterwards, and then the row is deleted.
alter table intake_rejected
    add column is_waiting boolean not null default false,   -- not written yet
    -- The timestamp of the record in ms since the epoch. Another record at the offset is of another
    -- log. Null: the row is of a program before this column.
    add column record_at bigint;

create index intake_rejected_waiting on intake_rejected (topic, partition) where is_waiting;
