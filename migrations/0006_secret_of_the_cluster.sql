-- All nodes seal cursors with a key that is derived from this secret. gen_random_uuid() takes its
-- bytes from the strong generator of the server: two of them have 244 random bits.
alter table cluster add column secret bytea not null
    default sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'));
