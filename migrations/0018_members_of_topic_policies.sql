-- More members of the policies of topics.

alter table topic_policy
  add column pending_max bigint,   -- the most pending tasks; null: no limit
  -- True: records carry the name of their submitter as a header.
  add column submitted_by_header boolean not null default false;
