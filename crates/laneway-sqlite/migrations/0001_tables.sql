-- The tables of a store. A task's state is the table it lives in: task, later, leased or ended.
--
-- What differs from PostgreSQL, and why: one writer at a time means that nothing has to be skipped, marked or
-- looked at twice. Enqueue issues turns itself, and the line of turns always shows exactly what may start.
-- Times are whole microseconds since 1970. Queues and lanes are numbers in the hot rows, so that their indexes
-- stay narrow.

-- Numbers that must never be given out twice, also after their rows are gone.
create table sequence (
    name text primary key,
    last integer not null check (last >= 0)
) strict, without rowid;

insert into sequence (name, last) values ('task', 0), ('lease', 0);

create table queue (
    id integer primary key,
    name text not null unique,
    paused integer not null default 0 check (paused in (0, 1))
) strict;

-- A lane of limit n owns up to n turns; `issued` counts those that exist.
create table lane (
    id integer primary key autoincrement,    -- history refers to lanes that are long gone
    queue integer not null,
    key text not null,
    lim integer not null default 1 check (lim > 0),
    own integer not null default 0 check (own in (0, 1)),          -- 1: an operator set the limit
    issued integer not null default 0 check (issued >= 0),
    interval_us integer not null default 0 check (interval_us >= 0),
    next_start integer,                      -- set by a start in a lane with an interval
    halts integer not null default 0 check (halts in (0, 1)),      -- 1: a failure halts it
    halted integer not null default 0 check (halted in (0, 1)),
    used_at integer not null default 0,      -- when a turn of it was last made or given up
    unique (queue, key)
) strict;

-- Turns that are not with a task. Those with a priority are in the line and may be taken; the others stand
-- behind the first free turn of their lane, or their lane is halted or resting.
create table turn (
    seq integer primary key,                 -- place in the line; negative when put to the front
    queue integer not null,
    lane integer not null,
    task_id integer,                         -- the turn came back with this task, which is next
    priority integer                         -- of the task that the turn would take
) strict;

create index turn_line on turn (queue, priority, seq) where priority is not null;
create index turn_lane on turn (lane, task_id, seq);

-- Lanes that have a turn and a task, and rest until their interval is over.
create table parked (
    lane integer primary key,
    until integer not null
) strict;

create index parked_until on parked (until);

create table task (
    id integer primary key,
    queue integer not null,
    lane integer not null,                   -- 0: none
    priority integer not null,
    attempt integer not null,                -- attempts charged
    max_attempts integer not null,
    crashes integer not null,
    parent integer,
    depth integer not null,
    enqueued_at integer not null,
    started_at integer,                      -- of the last attempt
    kind text not null,
    options text,
    payload text not null,
    error text                               -- of the last attempt
) strict;

create index task_next on task (queue, lane, priority, id);

create table later (
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
    due_at integer not null,
    holds_turn integer not null check (holds_turn in (0, 1))
) strict;

create index later_due on later (due_at, id);

-- One row per claim. `tasks` lists all that were claimed, `open` counts those that are not settled yet: what is
-- listed and no longer leased was settled.
create table lease (
    id integer primary key,
    session blob not null,
    token blob not null,
    advance_number integer not null,
    open integer not null check (open > 0),
    tasks blob not null                      -- ids, 8 bytes each, little endian
) strict;

create index lease_session on lease (session);

create table leased (
    id integer primary key,
    lease integer not null,
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
    error text
) strict;

-- Leased tasks that shall be stopped.
create table cancel_request (
    task_id integer primary key
) strict;

create table ended (
    id integer primary key,
    queue integer not null,
    lane integer not null,
    state integer not null check (state in (1, 2, 3)),             -- completed, failed, cancelled
    ended_at integer not null,
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
    payload text,                            -- null for plain successes
    error text,
    result text
) strict;

create index ended_time on ended (ended_at, id);
create index ended_otherwise on ended (ended_at, id) where state <> 1;

create table worker (
    session blob primary key,
    name text not null,
    queues text not null,                    -- a JSON array of names
    kinds text,                              -- the same; null: all
    slots integer not null,
    free integer not null,
    memory_percent integer not null,
    draining integer not null check (draining in (0, 1)),
    started_at integer not null,
    seen_at integer not null
) strict, without rowid;
