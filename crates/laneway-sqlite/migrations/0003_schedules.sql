-- Schedules: tasks that are enqueued again and again. A schedule has one next fire while it is enabled, and none while
-- it is paused.
--
-- What differs from PostgreSQL, and why: no revision. One writer at a time reads a schedule, computes its fires and
-- writes it in one step, so nothing can come in between.

create table schedule (
    name text primary key,
    cron text,
    zone text,
    every_us integer check (every_us > 0),
    anchor_at integer not null,              -- intervals are counted from here
    missed text not null check (missed in ('skip', 'once', 'all')),
    missed_cap integer check (missed_cap between 1 and 1000),
    skip_open integer not null check (skip_open in (0, 1)),        -- 1: no fire while the last task is open
    paused_at integer,
    next_fire_at integer,
    last_fire_at integer,                    -- the last fire that was dealt with, also if it was skipped
    last_task integer,
    task text not null,                      -- what is enqueued, as JSON
    check ((cron is null) = (zone is null) and (cron is null) <> (every_us is null)),
    check ((missed = 'all') = (missed_cap is not null)),
    check ((paused_at is null) = (next_fire_at is not null)),
    check (next_fire_at > last_fire_at)
) strict;

create index schedule_next on schedule (next_fire_at);
