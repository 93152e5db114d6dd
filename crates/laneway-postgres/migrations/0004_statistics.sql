-- Counts, statistics and retention.
--
-- Nothing here is written per task. History rows carry the id of the transaction that wrote them (0001), and maintenance
-- folds those whose transactions are all over: `folded.tx` is how far it has come. What enqueues and claims have done is told
-- by one small row per call in `stat_delta`, which the fold consumes.

-- Ended tasks by day. The sum is exact together with the rows of history from `folded.tx` on and with `ended_removed`.
create table ended_count (
    day   date   not null,
    queue text collate "C" not null,
    state text collate "C" not null,
    kind  text collate "C" not null,
    n     bigint not null,
    primary key (queue, state, kind, day)
);

-- Ended tasks that a command or retention has removed, until the fold has passed both transactions: the one that removed
-- them and the one that had recorded them. See fold.sql for why both.
create table ended_removed (
    tx    xid8   not null default pg_current_xact_id(),
    of_tx xid8   not null,
    day   date   not null,
    queue text collate "C" not null,
    state text collate "C" not null,
    kind  text collate "C" not null,
    n     bigint not null
);

create table folded (
    is_only boolean primary key default true check (is_only),
    tx      xid8 not null
);
insert into folded (tx) values ('0');

create table stat_delta (
    tx        xid8        not null default pg_current_xact_id(),
    at        timestamptz not null,
    enqueued  int         not null default 0,
    started   int         not null default 0,
    completed int         not null default 0,      -- of queues that keep no history of successes
    queue     text collate "C" not null
) with (autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);

-- Histograms count times by powers of two in milliseconds: below 1, below 2, below 4 … (see stat_bounds).
create table stat_minute (
    minute    timestamptz not null,
    enqueued  bigint      not null default 0,
    started   bigint      not null default 0,
    completed bigint      not null default 0,
    failed    bigint      not null default 0,
    cancelled bigint      not null default 0,
    queue     text collate "C" not null,
    waits     bigint[]    not null default '{}',
    runs      bigint[]    not null default '{}',
    primary key (queue, minute)
);
create index stat_minute_idx on stat_minute (minute);

-- Days that history is kept; null is the default (history_days), 0 writes none.
alter table queue
    add keep_completed_days int check (keep_completed_days >= 0),
    add keep_failed_days    int check (keep_failed_days > 0),
    add keep_cancelled_days int check (keep_cancelled_days > 0),
    add statistics          boolean not null default true;
