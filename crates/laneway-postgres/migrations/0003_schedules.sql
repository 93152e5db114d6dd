-- Schedules: tasks that are enqueued again and again.
--
-- A schedule has one next fire while it is enabled, and none while it is paused. Whoever fires it moves it on in the
-- transaction that enqueues, and fire times only ascend: so each counts once, whoever else tries. When it fires next is
-- computed outside, between two statements, so every change names the row that it was computed from: its revision, which
-- is drawn anew with every change, and its next fire.

create sequence schedule_revision_seq;

create table schedule (
    name         text collate "C" primary key,
    revision     bigint      not null,
    cron         text,
    zone         text,
    every_us     bigint      check (every_us > 0),
    anchor_at    timestamptz not null,             -- intervals are counted from here
    missed       text        not null check (missed in ('skip', 'once', 'all')),
    missed_cap   int         check (missed_cap between 1 and 1000),
    skip_open    boolean     not null,             -- no fire while the last task is open
    paused_at    timestamptz,
    next_fire_at timestamptz,
    last_fire_at timestamptz,                      -- the last fire that was dealt with, also if it was skipped
    last_task    bigint,
    task         json        not null,             -- what is enqueued; `json` keeps the text of the payload
    check ((cron is null) = (zone is null) and (cron is null) <> (every_us is null)),
    check ((missed = 'all') = (missed_cap is not null)),
    check ((paused_at is null) = (next_fire_at is not null)),
    check (next_fire_at > last_fire_at)
) with (fillfactor = 50);
create index schedule_next_idx on schedule (next_fire_at);

-- A schedule as it is read, with the database's time.
create type schedule_row as (
    name         text,
    revision     bigint,
    cron         text,
    zone         text,
    every_us     bigint,
    anchor_at    timestamptz,
    missed       text,
    missed_cap   int,
    skip_open    boolean,
    paused_at    timestamptz,
    next_fire_at timestamptz,
    last_fire_at timestamptz,
    last_task    bigint,
    task         json,
    now          timestamptz
);
