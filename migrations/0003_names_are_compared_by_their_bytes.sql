-- A name is found by its bytes, whatever the collation of the database: one that comes with the operating system may sort otherwise after an update or on a
-- standby, and a name that is not found would be given twice. Submits sort names by their bytes as well, so that all take their locks in the same order.
alter table task_name alter column topic type text collate "C", alter column name type text collate "C";
alter table dead_letter alter column topic type text collate "C", alter column name type text collate "C";
