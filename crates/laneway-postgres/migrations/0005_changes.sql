-- The change feed: which task entered which state.
--
-- Written only while somebody watches, one row per queue, state and statement. Readers go by (tx, seq), up to the oldest
-- transaction that is still under way: below it nothing can appear any more (changes.sql).

create table watcher (
    id      uuid        primary key,
    keep_ms bigint      not null,
    until   timestamptz not null       -- watched until then, unless the watcher reads before
);

create sequence change_seq;

create table change (
    tx       xid8        not null default pg_current_xact_id(),
    seq      bigint      not null default nextval('change_seq'),
    at       timestamptz not null,
    state    text collate "C" not null,
    queue    text collate "C" not null,
    task_ids bigint[]    not null,
    kinds    text[] collate "C" not null,
    deleted  boolean     not null default false,  -- from that state, by an operator
    primary key (tx, seq)
) with (autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);

-- Up to which transaction changes were removed: whoever had not read so far has a gap.
create table change_trimmed (
    is_only boolean primary key default true check (is_only),
    tx      xid8 not null
);
insert into change_trimmed (tx) values ('0');
