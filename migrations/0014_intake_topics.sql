-- Intake topics: nodes take submits and cancels out of topics of Kafka. See docs/decisions/0030.

-- The next record of each partition. It moves in the transaction that stores the tasks of the
-- records before it.
create table intake_offset (
  topic text not null,
  partition integer not null,
  generation bigint not null default 1,   -- one more whenever the offset was set to another place
  next bigint not null,
  newest_at bigint,   -- the highest timestamp of a record before `next`, in ms since the epoch
  primary key (topic, partition)
) with (fillfactor = 50);

-- Refused records that their rejected topic refused, too.
create table intake_rejected (
  topic text not null,
  partition integer not null,
  generation bigint not null,
  record_offset bigint not null,
  rejected_at timestamptz not null default clock_timestamp(),
  status smallint not null,   -- that REST would have answered
  reason text not null,
  key bytea,
  payload bytea,
  headers bytea,   -- in the encoding of task.headers
  primary key (topic, partition, generation, record_offset)
);
