-- What operators do: pauses, actions on many tasks, and the record of both.

-- A pause stops claims through `queue.paused_at`, a row in `halt` (lanes), or, for kinds, by itself. This is who and until when.
create table pause (
    what       text collate "C" not null check (what in ('queue', 'kind', 'lane')),
    queue      text collate "C" not null,          -- empty for kinds, which are paused in all queues
    name       text collate "C" not null,          -- empty for queues
    paused_at  timestamptz not null,
    expires_at timestamptz,
    who        text not null,
    reason     text,
    primary key (what, queue, name)
);
create index pause_expiry_idx on pause (expires_at) where expires_at is not null;

-- Append-only: who did what, in the transaction that did it.
create table audit (
    id      bigint generated always as identity primary key,
    at      timestamptz not null,
    who     text not null,
    reason  text,
    action  text not null,
    subject text not null,
    tasks   bigint[] not null,
    before  jsonb,
    after   jsonb
);

-- Actions on all tasks that a filter means, carried out step by step.
create table bulk (
    id         bigint generated always as identity primary key,
    started_at timestamptz not null,
    state      text not null check (state in ('running', 'finished', 'aborted')),
    who        text not null,
    reason     text,
    action     text not null,
    delay_ms   bigint,
    priority   smallint,
    filter     text not null,
    dry_run    boolean not null,
    pace       int check (pace > 0),               -- tasks a second at most
    steps      bigint not null default 0,
    matched    bigint not null default 0,
    done       bigint not null default 0,
    place      int not null default 0,             -- which of the lists is looked at
    at_micros  bigint,                             -- behind which row
    at_id      bigint
);
create index bulk_running_idx on bulk (id) where state = 'running';

-- The limit of lanes that are given none; null: 1.
alter table queue add lane_limit int check (lane_limit >= 1);

-- A task that is retried needs its lane, which may be long gone by then.
alter table ended add column lane_key text collate "C";
