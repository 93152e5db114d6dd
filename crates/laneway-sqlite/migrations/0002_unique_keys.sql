-- Keys of which only one task at a time may hold each: one row per held key, under one unique index.
--
-- What differs from PostgreSQL: there is one writer, so nobody waits for a key, and queues are numbers; 0 with an empty
-- kind is the space of idempotency keys.
create table unique_key (
    queue integer not null,
    kind text not null,
    key text not null,
    task_id integer not null,
    scope text not null check (scope in ('while_pending', 'while_open', 'within')),
    expires_at integer check ((expires_at is not null) = (scope = 'within')),
    hash integer not null,                   -- of everything that the caller gave
    primary key (queue, kind, key)
) strict, without rowid;

create index unique_key_expiry on unique_key (expires_at) where expires_at is not null;
