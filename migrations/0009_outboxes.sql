-- Outboxes: nodes take submits and cancels out of databases of applications. See
-- docs/decisions/0028.

-- A node that begins to drain an outbox takes the next epoch. Whoever stores a row holds its epoch
-- in the same transaction, so a node that was overtaken stores nothing more.
create table outbox_turn (
  outbox uuid primary key,   -- the id of the installation
  name text not null,        -- as the nodes call it
  epoch bigint not null
);

-- The rows that are stored, and perhaps not yet deleted from the outbox. An entry is written in the
-- transaction that stores the row, and removed once the row is seen gone.
create table outbox_seen (
  outbox uuid not null,
  row_id uuid not null,
  seq bigint not null,
  primary key (outbox, row_id)
);
