-- The callback of a topic: nodes send its tracked tasks to this URL.
create table topic_callback (
    topic text not null primary key,
    -- Counts the changes from 1, so a node pauses only what it has called.
    revision bigint not null,
    url text not null,
    -- Names and values of headers, one after the other.
    headers text[] not null,
    timeout_ms bigint not null,
    concurrency integer not null,
    max_per_second integer,
    is_paused boolean not null,
    pause_reason text
);
