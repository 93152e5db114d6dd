-- How far running attempts are, as they tell. Few tasks tell, and at most once a second: a small table that is updated in place.
-- A row counts only while its lease holds the task, so nobody has to remove it when the attempt ends; maintenance does.
create table progress (
    task_id  bigint           primary key,
    lease_id bigint           not null,
    at       timestamptz      not null,
    fraction double precision not null check (fraction between 0 and 1),
    note     text
) with (fillfactor = 50);
