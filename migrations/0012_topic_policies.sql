-- Policies of topics, and topics that operators have paused. See docs/decisions/0029.

-- One row per topic that has, or had, a policy or a pause.
create table topic_policy (
  topic text primary key,
  -- Counts the changes.
  revision bigint not null default 1,
  -- The `ttr` and `retry` of tasks that name no `ttr`, as in the column `tracking` of a task.
  tracking bytea,
  delay_max_ms bigint,
  is_paused boolean not null default false,
  paused_at timestamptz,            -- of the last pause, also after it
  resumed_at timestamptz,           -- the end of the last pause that has ended
  pause_reason text,
  paused_by smallint
);
-- Each claim reads this index, which is mostly empty.
create index topic_policy_paused on topic_policy (topic) where is_paused;

-- The due time in an id, in milliseconds since the epoch, and the same id with another due time.
create function punctual_millis(id uuid) returns bigint
  language sql immutable strict parallel safe
  return ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint;
create function punctual_due_again(id uuid, millis bigint) returns uuid
  language sql immutable strict parallel safe
  return (lpad(to_hex(millis), 12, '0') || substr(replace(id::text, '-', ''), 13))::uuid;

-- Fails when one of the topics is paused: their tasks must not be claimed by their insert. The
-- error code makes the node insert them without a claim.
create function punctual_refuse_paused(topics text[]) returns void
  language plpgsql stable as $$
begin
  if exists (select from topic_policy p where p.is_paused and p.topic = any(topics)) then
    raise exception 'a topic is paused' using errcode = 'lock_not_available';
  end if;
end $$;
