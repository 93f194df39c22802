-- The level of features that a node knows (`postgres/cluster/heartbeat.rs`). Nodes of a version
-- before this column write none, and so know the least: during an upgrade, no node stores what an
-- older one would settle wrongly.
alter table heartbeat add column level smallint not null default 0;
