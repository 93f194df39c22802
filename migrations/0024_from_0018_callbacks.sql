-- The callback of a topic: nodes send its tracked tasks to this URL. No revision comes twice, also
-- when a callback is deleted and set again: a node pauses only what it has called.
create sequence topic_callback_revision;
create table topic_callback (
    topic text not null primary key,
    revision bigint not null default nextval('topic_callback_revision'),
    url text not null,
    -- Names and values of headers, one after the other.
    headers text[] not null,
    timeout_ms bigint not null,
    concurrency integer not null,
    max_per_second integer,
    is_paused boolean not null,
    pause_reason text
);
