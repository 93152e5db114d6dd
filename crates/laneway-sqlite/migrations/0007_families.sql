-- Families: parents that wait for their children, what is to follow a task, and serial queues.
--
-- What differs from PostgreSQL, and why: there is one writer, so the ends of children are added up in memory and counted into
-- their parents before the command is done (family.rs). There are no tallies.

-- A parent whose children are open.
create table waiting (
    id integer primary key,
    queue integer not null,
    lane integer not null,
    priority integer not null,
    attempt integer not null,
    max_attempts integer not null,
    crashes integer not null,
    parent integer,
    depth integer not null,
    enqueued_at integer not null,
    started_at integer,
    kind text not null,
    options text,
    payload text not null,
    error text,
    ready_at integer,
    result text,                             -- kept until its children have ended
    holds_turn integer not null check (holds_turn in (0, 1)),
    then_again integer not null check (then_again in (0, 1)),      -- 1: it runs again when they have ended well
    stopping integer not null default 0 check (stopping in (0, 1, 2)),  -- 1: failed fast, 2: cancelled
    family text not null                     -- the children, counted, as JSON
) strict;

-- The children of a task have ids in a few ranges, one per settle that spawned some; so no index names each child's parent.
-- In a range there may be other tasks.
create table brood (
    parent integer not null,
    first integer not null,
    last integer not null check (last >= first),
    follow_ups integer not null check (follow_ups in (0, 1)),      -- 1: not children, but tasks that run after it
    primary key (parent, first)
) strict, without rowid;

-- Tasks in `later` without a due time: they wait for the end of another one.
create table follow_up (
    id integer primary key,
    after integer not null,
    keep integer not null check (keep in (0, 1)),                  -- 1: they also run when that one fails
    delay_us integer,                        -- after that end
    due_at integer                           -- not before
) strict;

create index follow_up_after on follow_up (after, id);

-- How many children of a serial queue run at once; 0: the queue is not serial.
alter table queue add serial integer not null default 0 check (serial >= 0);
