-- The values of the headers of a callback, apart from their names, so that they can be encrypted. A
-- row from before has them in `headers`, beside the names, until it is changed or encrypted again.

alter table topic_callback
    -- A JSON array in the order of the names; encrypted if there is a mark. The values in `headers`
    -- are empty then.
    add column header_values bytea,
    -- As at the beginning of the headers of an encrypted record.
    add column header_mark bytea;
