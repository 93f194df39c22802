-- The values of the headers of a callback, apart from their names, so that they can be encrypted.
-- Programs without this migration cannot read or set callbacks any more: they would send requests
-- without the values, or leave old ones beside a new URL.

alter table topic_callback
    add column header_names text[] not null default '{}',
    -- A JSON array in the order of the names, encrypted if there is a mark.
    add column header_values bytea not null default '[]',
    -- As at the beginning of the headers of an encrypted record.
    add column header_mark bytea;

update topic_callback set
    header_names = array(
        select h.text from unnest(headers) with ordinality as h (text, place)
        where h.place % 2 = 1 order by h.place),
    header_values = convert_to((
        select coalesce(json_agg(h.text order by h.place), '[]')::text
        from unnest(headers) with ordinality as h (text, place) where h.place % 2 = 0), 'UTF8');

alter table topic_callback
    alter column header_names drop default,
    alter column header_values drop default,
    drop column headers;
