-- Dead letters of moved tasks are found by their due times: all others by the times of their ids.
-- Few tasks are moved, so the index is small. It has the id, so that no row is read to order them.
create index dead_letter_moved on dead_letter (topic, moved_to, id) where moved_to is not null;
