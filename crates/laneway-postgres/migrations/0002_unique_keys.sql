-- Keys of which only one task at a time may hold each.
--
-- One row per held key, under one unique index: who comes second is told so by the index, and never by a look before
-- an insert. Rows are inserted and deleted, never updated. Workers delete those that last while a task is pending or
-- open; enqueues and maintenance delete those whose time is over. So nobody ever waits for a worker or makes one wait.
create table unique_key (
    queue      text collate "C" not null,      -- empty, like kind, for idempotency keys: they are the whole store's
    kind       text collate "C" not null,
    key        text collate "C" not null,
    task_id    bigint not null,
    scope      text collate "C" not null check (scope in ('while_pending', 'while_open', 'within')),
    expires_at timestamptz check ((expires_at is not null) = (scope = 'within')),
    hash       bigint not null                 -- of everything that the caller gave
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off
);
create unique index unique_key_idx on unique_key (queue, kind, key);
create index unique_key_expiry_idx on unique_key (expires_at) where expires_at is not null;
