-- Encryption of payloads at rest. See docs/decisions/0034.

-- The payload keys of the cluster. `check_value` is derived from a key: it tells whether two nodes
-- mean the same key by an id, and nothing about the key. `first_used_at` is null until a node may
-- encrypt with the key.
create table payload_key (
  id bigint primary key check (id between 1 and 4294967295),
  check_value bytea not null,
  first_used_at timestamptz
);

-- A node of an older version would publish encrypted records as they are. So it gets no heartbeat
-- any more when a key is in use, and a node without a heartbeat claims and publishes nothing.
create function punctual_refuse_older_node() returns trigger
  language plpgsql as $$
begin
  if (tg_op = 'INSERT' or new.counter is distinct from old.counter)
    and exists (select from payload_key where first_used_at is not null)
  then
    raise exception 'records are encrypted, and a node of this version cannot decrypt them'
      using hint = 'start a newer version of punctual';
  end if;
  return new;
end $$;
-- The heartbeats of newer nodes do not call the function.
create trigger heartbeat_level before insert or update on heartbeat
  for each row when (new.level < 5 and not new.dead and not new.has_left)
  execute function punctual_refuse_older_node();

-- The mark of a sealed record stands in front of its headers, behind the terms of the task: see
-- domain/task/seal_mark.rs. No table gets a column, so nodes of the version before keep marks when
-- they move rows.

-- The terms of a task, as before, and the mark of a sealed record, together 88 bytes at most. Null:
-- the task has none of them.
create or replace function punctual_terms(headers bytea) returns bytea
  language sql immutable parallel safe
  return case
    when substring(headers from 1 for 17) in ('\x000f70756e637475616c2d657870697279'::bytea,
        '\x000f70756e637475616c2d7365616c6564'::bytea)
      or substring(headers from 1 for 20) = '\x001270756e637475616c2d726571756573746564'::bytea
      then substring(headers from 1 for 88)
  end;

-- The id of the payload key of a record, null for a plain record. The terms in front of the mark
-- have 30 bytes (an expiry) and 32 bytes (a requested time).
create function punctual_sealed_by(headers bytea) returns bigint
  language sql immutable parallel safe
  return (
    select ('x' || encode(substring(headers from s.at + 23 for 4), 'hex'))::bit(32)::bigint
    from (
      select e.length
        + case when substring(headers from e.length + 1 for 20)
          = '\x001270756e637475616c2d726571756573746564'::bytea then 32 else 0 end as at
      from (
        select case when substring(headers from 1 for 17)
          = '\x000f70756e637475616c2d657870697279'::bytea then 30 else 0 end as length
      ) e
    ) s
    where substring(headers from s.at + 1 for 17) = '\x000f70756e637475616c2d7365616c6564'::bytea
  );
