-- The outbox in a database of a user: version 3. `punctual outbox install` runs it.
--
-- A row is a request to Punctual. It exists if and only if the user's transaction has committed. A
-- node takes the rows in the order of `seq`, and deletes them when their tasks are stored.

create schema punctual;

create table punctual.installation (
  is_only boolean primary key default true check (is_only),
  id uuid not null default gen_random_uuid(),
  version integer not null,
  installed_at timestamptz not null default clock_timestamp()
);

insert into punctual.installation (version) values (3);

-- Each session takes one number at a time, so numbers are in the order of the inserts.
create sequence punctual.outbox_seq as bigint cache 1;

-- Rows go to four tables in turn, ten seconds each. A table whose turn is over is emptied by the
-- drain, and then truncated: dead rows that an old snapshot keeps do not slow the drain down.
create function punctual.slot() returns smallint language sql volatile parallel safe as $$
  select (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())::bigint / 10 % 4)::smallint
$$;

create table punctual.outbox (
  seq bigint not null default nextval('punctual.outbox_seq'),
  slot smallint not null default punctual.slot(),
  id uuid not null default gen_random_uuid(),
  op text not null default 'submit' check (op in ('submit', 'replace', 'cancel', 'finish')),
  called_at timestamptz not null default clock_timestamp(),   -- a delay counts from here
  topic text not null,
  name text,
  task_id uuid,              -- the task of a finish that is not named
  attempt integer,
  due_at timestamptz check (due_at >= '1970-01-01 00:00:00+00' and due_at < '10000-01-01 00:00:00+00'),
  delay interval check (
    delay >= interval '0' and delay < interval '1000000 days'
    and date_part('year', delay) = 0 and date_part('month', delay) = 0
  ),
  payload json,
  payload_text text,
  payload_bytes bytea,
  tombstone boolean not null default false,
  key text,
  key_bytes bytea,
  headers jsonb,
  ttr interval check (
    ttr > interval '0' and ttr < interval '1000000 days'
    and date_part('year', ttr) = 0 and date_part('month', ttr) = 0
  ),
  retry jsonb,
  bytes integer not null generated always as (
    coalesce(octet_length(payload::text), 0) + coalesce(octet_length(payload_text), 0)
    + coalesce(octet_length(payload_bytes), 0) + coalesce(octet_length(key), 0)
    + coalesce(octet_length(key_bytes), 0) + coalesce(octet_length(headers::text), 0)
    + coalesce(octet_length(retry::text), 0) + octet_length(topic)
    + coalesce(octet_length(name), 0)
  ) stored check (bytes <= 16777216),
  -- Without a key, a publication of deletes (`for all tables`, as Debezium makes it) would refuse
  -- each delete. The reads in the order of `seq` use it, too.
  primary key (seq, slot)
) partition by list (slot);

create table punctual.outbox_0 partition of punctual.outbox for values in (0);
create table punctual.outbox_1 partition of punctual.outbox for values in (1);
create table punctual.outbox_2 partition of punctual.outbox for values in (2);
create table punctual.outbox_3 partition of punctual.outbox for values in (3);

-- Rows that Punctual has refused for good, as they were inserted.
create table punctual.outbox_rejected (
  like punctual.outbox,
  rejected_at timestamptz not null default clock_timestamp(),
  status smallint not null,   -- the status that REST would have answered
  reason text not null,
  primary key (seq)
);

create index on punctual.outbox_rejected (rejected_at);

-- The functions below check at once what can be checked without Kafka. An error is SQLSTATE 22023,
-- with a hint. The nodes check everything again.

create function punctual.refuse(message text, hint text) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using errcode = '22023', message = refuse.message, hint = refuse.hint;
end $$;

create function punctual.check_target(topic text, name text) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if topic is null or topic !~ '^[a-zA-Z0-9._-]{1,249}$' or topic in ('.', '..') then
    perform punctual.refuse(
      format('%L is not the name of a Kafka topic', topic),
      'A topic has 1 to 249 of a-z A-Z 0-9 . _ and -.');
  end if;
  if name is not null and octet_length(convert_to(name, 'UTF8')) not between 1 and 255 then
    perform punctual.refuse(
      'the name of a task has 1 to 255 bytes', 'A name is text, such as order-17.');
  end if;
end $$;

create function punctual.check_task(
  payloads integer, tombstone boolean, has_key boolean, delay interval, due_at timestamptz,
  headers jsonb, ttr interval, retry jsonb
) returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if num_nonnulls(delay, due_at) <> 1 then
    perform punctual.refuse(
      'one of delay and due_at is required, and not both',
      'For example delay => interval ''30 minutes''.');
  end if;
  if delay < interval '0' or delay >= interval '1000000 days'
      or date_part('year', delay) <> 0 or date_part('month', delay) <> 0 then
    perform punctual.refuse(
      format('%s is not a delay', delay),
      'A delay is not negative, and has no months or years, which differ in length: use days.');
  end if;
  if not (due_at >= '1970-01-01 00:00:00+00' and due_at < '10000-01-01 00:00:00+00') then
    perform punctual.refuse(
      format('%s is not a due time', due_at), 'A due time is from the years 1970 to 9999.');
  end if;
  if payloads + tombstone::integer <> 1 then
    perform punctual.refuse(
      'one of payload, payload_text, payload_bytes and tombstone is required, and no second one',
      'For a record without a value, give tombstone => true and a key.');
  end if;
  if tombstone and not has_key then
    perform punctual.refuse('a tombstone needs a key', 'Give key or key_bytes.');
  end if;
  if headers is not null and jsonb_typeof(headers) <> 'object' then
    perform punctual.refuse(
      'headers are not a JSON object', 'For example headers => ''{"source": "shop"}''.');
  end if;
  if ttr <= interval '0' or ttr >= interval '1000000 days'
      or date_part('year', ttr) <> 0 or date_part('month', ttr) <> 0 then
    perform punctual.refuse(
      format('%s is not a time to run', ttr),
      'A time to run is positive, and has no months or years.');
  end if;
  if retry is not null and (ttr is null or jsonb_typeof(retry) <> 'object') then
    perform punctual.refuse(
      'retry is a JSON object and needs ttr',
      'Only a task with a time to run is answered by its consumer, and tried again.');
  end if;
end $$;

create function punctual.submit(
  topic text, payload jsonb default null, delay interval default null,
  due_at timestamptz default null, key text default null, name text default null,
  headers jsonb default null, payload_text text default null, payload_bytes bytea default null,
  key_bytes bytea default null, tombstone boolean default false, ttr interval default null,
  retry jsonb default null
) returns uuid language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  id constant uuid := gen_random_uuid();
begin
  perform punctual.check_target(topic, name);
  if num_nonnulls(key, key_bytes) > 1 then
    perform punctual.refuse('key and key_bytes are both given', 'Leave one of them out.');
  end if;
  perform punctual.check_task(
    num_nonnulls(payload, payload_text, payload_bytes), coalesce(tombstone, false),
    num_nonnulls(key, key_bytes) = 1, delay, due_at, headers, ttr, retry);
  insert into punctual.outbox (id, op, topic, name, due_at, delay, payload, payload_text,
    payload_bytes, tombstone, key, key_bytes, headers, ttr, retry)
  values (id, 'submit', topic, name, due_at, delay, payload, payload_text, payload_bytes,
    coalesce(tombstone, false), key, key_bytes, headers, ttr, retry);
  return id;
end $$;

create function punctual.replace(
  topic text, name text, payload jsonb default null, delay interval default null,
  due_at timestamptz default null, key text default null, headers jsonb default null,
  payload_text text default null, payload_bytes bytea default null,
  key_bytes bytea default null, tombstone boolean default false, ttr interval default null,
  retry jsonb default null
) returns uuid language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  id constant uuid := gen_random_uuid();
begin
  perform punctual.check_target(topic, coalesce(name, ''));
  if num_nonnulls(key, key_bytes) > 1 then
    perform punctual.refuse('key and key_bytes are both given', 'Leave one of them out.');
  end if;
  perform punctual.check_task(
    num_nonnulls(payload, payload_text, payload_bytes), coalesce(tombstone, false),
    num_nonnulls(key, key_bytes) = 1, delay, due_at, headers, ttr, retry);
  insert into punctual.outbox (id, op, topic, name, due_at, delay, payload, payload_text,
    payload_bytes, tombstone, key, key_bytes, headers, ttr, retry)
  values (id, 'replace', topic, name, due_at, delay, payload, payload_text, payload_bytes,
    coalesce(tombstone, false), key, key_bytes, headers, ttr, retry);
  return id;
end $$;

create function punctual.cancel(topic text, name text) returns uuid
  language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  id constant uuid := gen_random_uuid();
begin
  perform punctual.check_target(topic, coalesce(name, ''));
  insert into punctual.outbox (id, op, topic, name) values (id, 'cancel', topic, name);
  return id;
end $$;

create function punctual.finish(
  topic text, name text default null, id uuid default null, attempt integer default null
) returns uuid language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  row_id constant uuid := gen_random_uuid();
begin
  perform punctual.check_target(topic, name);
  if num_nonnulls(name, id) <> 1 then
    perform punctual.refuse(
      'one of name and id is required, and not both',
      'The header punctual-task-id of the record has the id.');
  end if;
  if attempt not between 1 and 65535 then
    perform punctual.refuse(
      format('%s is not the number of an attempt', attempt),
      'The header punctual-attempt of the record has it.');
  end if;
  insert into punctual.outbox (id, op, topic, name, task_id, attempt)
  values (row_id, 'finish', topic, finish.name, finish.id, finish.attempt);
  return row_id;
end $$;
