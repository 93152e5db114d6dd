-- How far running attempts are, as they tell. A row counts only while its lease holds the task; maintenance removes it.
create table progress (
    task_id integer primary key,
    lease integer not null,
    at integer not null,
    fraction real not null check (fraction between 0 and 1),
    note text
) strict;
