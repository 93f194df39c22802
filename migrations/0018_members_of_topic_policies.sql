-- More members of the policies of topics.

alter table topic_policy
  add column pending_max bigint;   -- the most pending tasks; null: no limit
