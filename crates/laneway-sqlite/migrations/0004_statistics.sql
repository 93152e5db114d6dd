-- Counts, statistics and retention.
--
-- What differs from PostgreSQL, and why: the one writer adds up what a transaction has done and writes the sums before it
-- commits (fold.rs), so counts are exact at any time and nothing has to be folded later.

-- Ended tasks by day since 1970.
create table ended_count (
    queue integer not null,
    state integer not null,
    kind text not null,
    day integer not null,
    n integer not null,
    primary key (queue, state, kind, day)
) strict, without rowid;

-- Whoever removes a task from history is counted.
create trigger ended_removed after delete on ended begin
    insert into ended_count (queue, state, kind, day, n)
    values (old.queue, old.state, old.kind, old.ended_at / 86400000000, -1)
    on conflict (queue, state, kind, day) do update set n = n - 1;
end;

-- Histograms are JSON arrays: times by powers of two in milliseconds, from below 1 on.
create table stat_minute (
    queue integer not null,
    minute integer not null,                 -- since 1970
    enqueued integer not null default 0,
    started integer not null default 0,
    completed integer not null default 0,
    failed integer not null default 0,
    cancelled integer not null default 0,
    waits text not null default '[]',
    runs text not null default '[]',
    primary key (queue, minute)
) strict, without rowid;

create index stat_minute_time on stat_minute (minute);

-- Errors of attempts that were followed by another one.
create table failure (
    task_id integer not null,
    attempt integer not null,
    at integer not null,
    error text not null,
    primary key (task_id, attempt)
) strict, without rowid;

-- Days that history is kept; null is the default, 0 writes none.
alter table queue add keep_completed_days integer check (keep_completed_days >= 0);
alter table queue add keep_failed_days integer check (keep_failed_days > 0);
alter table queue add keep_cancelled_days integer check (keep_cancelled_days > 0);
alter table queue add statistics integer not null default 1 check (statistics in (0, 1));

-- When a task became runnable, if that was after it was enqueued: what it waited before was its own wish.
alter table task add ready_at integer;
alter table leased add ready_at integer;
