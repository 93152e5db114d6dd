-- What operators do: pauses, actions on many tasks, and the record of both.

-- A pause stops claims through `queue.paused`, `lane.paused`, or, for kinds, by itself. This is who and until when.
create table pause (
    what text not null check (what in ('queue', 'kind', 'lane')),
    queue text not null,                     -- empty for kinds, which are paused in all queues
    name text not null,                      -- empty for queues
    paused_at integer not null,
    expires_at integer,
    who text not null,
    reason text,
    primary key (what, queue, name)
) strict, without rowid;

create index pause_expiry on pause (expires_at) where expires_at is not null;

alter table lane add column paused integer not null default 0 check (paused in (0, 1));

alter table worker add column drain_ordered integer not null default 0 check (drain_ordered in (0, 1));
alter table worker add column stop_ordered integer not null default 0 check (stop_ordered in (0, 1));

-- Append-only: who did what, in the transaction that did it.
create table audit (
    id integer primary key autoincrement,
    at integer not null,
    who text not null,
    reason text,
    action text not null,
    subject text not null,
    tasks blob not null,                     -- ids, 8 bytes each, little endian
    before text,
    after text
) strict;

-- Actions on all tasks that a filter means, carried out step by step.
create table bulk (
    id integer primary key autoincrement,
    started_at integer not null,
    state text not null check (state in ('running', 'finished', 'aborted')),
    who text not null,
    reason text,
    action text not null,                    -- as JSON, with its number
    filter text not null,
    dry_run integer not null check (dry_run in (0, 1)),
    pace integer check (pace > 0),           -- tasks a second at most
    steps integer not null default 0,
    matched integer not null default 0,
    done integer not null default 0,
    place integer not null default 0,        -- which of the lists is looked at
    at_micros integer,                       -- behind which row
    at_id integer
) strict;

create index bulk_running on bulk (id) where state = 'running';

-- The limit of lanes that are given none.
alter table queue add lane_limit integer not null default 1 check (lane_limit >= 1);

-- A task that is retried needs its lane, which may be long gone by then.
alter table ended add column lane_key text;
