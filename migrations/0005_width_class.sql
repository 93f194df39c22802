-- The class of a batch's width gets the name that the code and the docs use.
alter table execlog_batch rename column span to width_class;
alter index execlog_batch_span rename to execlog_batch_width_class;
