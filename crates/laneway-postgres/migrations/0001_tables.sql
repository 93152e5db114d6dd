-- The tables of the first release.
--
-- A task's state is the table it lives in: task → lease → ended, with later and waiting beside them. Hot
-- tables are inserted into and deleted from, never updated, so they have no room for new row versions
-- (fillfactor 100), are vacuumed by count instead of share, and are never analysed: plans are pinned, and
-- statistics of a table that is empty one second and full the next would only flip them.

create sequence task_id_seq cache 1;  -- a larger cache would hand out old ids after newer ones have committed

create table task (
    id           bigint      not null,
    lane         bigint      not null default 0,   -- lane_id(queue, key); 0 for none. Never null: `is null` is no equality for the planner
    queue_id     bigint      not null,             -- queue_id(queue): claims find tasks by it, half as fast again as by a name
    enqueued_at  timestamptz not null,
    ready_at     timestamptz,                      -- when it became runnable, if that was later
    parent_id    bigint,
    size         int         not null,             -- bytes of payload; from 1000 on it is in body
    priority     smallint    not null default 0,
    attempt      smallint    not null default 0,   -- attempts that were charged
    max_attempts smallint    not null default 25,
    crashes      smallint    not null default 0,
    depth        smallint    not null default 0,
    queue        text collate "C" not null,
    kind         text collate "C" not null,
    payload      json,
    extra        json,                             -- what few tasks set: timeout, retry policy, tags, trace
    check (priority between -1000 and 1000),
    check (max_attempts between 1 and 1000)
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off
);
create unique index task_next_idx on task (queue_id, lane, priority, id);
create unique index task_id_idx on task (id);

-- Payloads of 1000 bytes and more, written once and not moved with their task.
create table body (
    task_id bigint primary key,
    payload json not null
);

create table later (
    like task including defaults,
    due_at     timestamptz not null,
    holds_turn boolean     not null default false, -- back-off in an ordered lane keeps the lane's turn
    lane_key   text collate "C"                    -- the lane may be gone when the task is due
) with (autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);
alter table later drop column queue_id;            -- only claims look for it
create unique index later_id_idx on later (id);
create index later_due_idx on later (due_at, id);
create index later_lane_idx on later (lane) where lane <> 0;

-- One row per claim. Parallel arrays, sorted by task id; a column in which all values are the default is null.
-- Arrays of the type of `task` would be shorter to write and would forbid every change of that table.
create table lease (
    id           bigint      generated always as identity primary key,
    session      uuid        not null,
    token        uuid        not null,
    number       bigint      not null,             -- the advance that made it
    claimed_at   timestamptz not null,
    tasks        int         not null,             -- how many
    queue        text collate "C" not null,
    task_ids     bigint[]    not null,
    kinds        text[] collate "C" not null,
    enqueued_ats timestamptz[] not null,
    lanes        bigint[],
    priorities   smallint[],
    attempts     smallint[],
    max_attempts smallint[],
    crashes      smallint[],
    depths       smallint[],
    parent_ids   bigint[],
    ready_ats    timestamptz[],
    sizes        int[],                            -- null when every payload is in `payloads`
    until        bigint,                           -- the highest id that was drawn before the heads of its lanes were looked for
    payloads     json[],
    extras       json[]
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, vacuum_truncate = off,
    autovacuum_analyze_threshold = 2000000000,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000, toast.vacuum_truncate = off
);
create index lease_session_idx on lease (session);  -- for renew and sweep, never read by an advance

-- Tasks of a lease that have been settled while others of it are still running.
create table settled (
    lease_id bigint   not null,
    task_ids bigint[] not null
) with (autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);
create index settled_lease_idx on settled (lease_id);

-- Errors of attempts that were followed by another one.
create table failure (
    task_id bigint      not null,
    attempt smallint    not null,
    at      timestamptz not null,
    error   text        not null
);
create index failure_task_idx on failure (task_id, attempt);

-- History, by day. `ended` has a row for everything that an operator may want to look at or run again;
-- `ended_plain` has one row per settle for plain successes: completed at the first attempt, without a result.
create table ended (
    id           bigint      not null,
    lane         bigint      not null,
    enqueued_at  timestamptz not null,
    started_at   timestamptz,
    ended_at     timestamptz not null,
    parent_id    bigint,
    priority     smallint    not null,
    attempt      smallint    not null,
    max_attempts smallint    not null,
    crashes      smallint    not null,
    depth        smallint    not null,
    state        text collate "C" not null check (state in ('completed', 'failed', 'cancelled')),
    queue        text collate "C" not null,
    kind         text collate "C" not null,
    payload      json,
    extra        json,
    result       json,
    error        text,
    ready_at     timestamptz,                      -- when it became runnable last, if that was after it was enqueued
    tx           xid8        not null default pg_current_xact_id()   -- for the fold (fold.sql)
) partition by range (ended_at);
create index ended_tx_idx on ended (tx);
create index ended_id_idx on ended (id);
create index ended_at_idx on ended (ended_at, id);
create index ended_failed_idx on ended (queue, kind, ended_at) where state = 'failed';
create index ended_otherwise_idx on ended (ended_at, id) where state <> 'completed';

create table ended_plain (
    ended_at     timestamptz not null,
    started_at   timestamptz not null,
    lowest_id    bigint      not null,             -- ids of one row lie within 16384 of each other, so that a
    tasks        int         not null,             -- look-up by id reads a short range of this index
    queue        text collate "C" not null,
    task_ids     bigint[]    not null,
    kinds        text[] collate "C" not null,
    enqueued_ats timestamptz[] not null,
    lanes        bigint[],
    priorities   smallint[],
    max_attempts smallint[],
    started_ats  timestamptz[],                    -- when they differ from started_at
    ready_ats    timestamptz[],
    tx           xid8        not null default pg_current_xact_id()
) partition by range (ended_at);
create index ended_plain_id_idx on ended_plain (lowest_id);
create index ended_plain_at_idx on ended_plain (ended_at);
create index ended_plain_tx_idx on ended_plain (tx);

-- Rows whose day has not been prepared land here.
create table ended_other_days partition of ended default;
create table ended_plain_other_days partition of ended_plain default;

-- Lanes. `issued` counts the turns of a lane: those in `turn` and `parked`, and those with tasks in lease,
-- later and waiting. It changes only when turns are issued or retired, not with every task.
create table lane (
    id            bigint  primary key,
    lim           int     not null check (lim >= 1),
    issued        int     not null default 0 check (issued >= 0),
    slowest       smallint not null default -1000, -- the least urgent priority that was ever marked
    own           boolean not null default false,  -- an operator set the limit; enqueues leave it alone
    halts         boolean not null default false,  -- a failure halts it
    may_be_halted boolean not null default false,  -- worth a look into `halt`: it halts, or was halted when it did
    interval_ms   bigint  not null default 0,
    next_start_at timestamptz,
    used_at       timestamptz not null,
    queue         text collate "C" not null,
    key           text collate "C" not null
) with (fillfactor = 40, autovacuum_analyze_threshold = 2000000000);   -- room for versions that an old snapshot keeps, or each gets an index entry
create index lane_key_idx on lane (queue, key);  -- for lists; what is updated is in no index

create sequence turn_seq increment 32 cache 1;  -- steps, so that a row of several turns can be divided in its place

-- The line: turns that may be taken. Turns that join it together share a row, because a row per turn costs as much as a
-- task. A turn that came back with a task is bound to it, so nothing overtakes it, and has a row of its own.
create table turn (
    queue    text collate "C" not null,
    priority smallint not null,
    seq      bigint   not null default nextval('turn_seq'),
    lanes    bigint[] not null check (cardinality(lanes) between 1 and 16),
    task_id  bigint   check (task_id is null or cardinality(lanes) = 1),
    afters   bigint[],                             -- the task that each lane ran last, and the highest id that was drawn when its
    until    bigint,                               -- head was looked for: see pick.sql. Null: not known
    check (cardinality(afters) = cardinality(lanes))   -- the claim reads both as one list
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off
);
create index turn_next_idx on turn (queue, priority, seq);  -- not unique: a task may come back twice while its old turn, used by another task, is still in line
create index turn_lane_idx on turn ((lanes[1])) where cardinality(lanes) = 1;
create index turn_shared_idx on turn (queue) where cardinality(lanes) > 1;

-- Queues in which some lane has had tasks of several priorities. There single turns move within the line, so each has a row.
create table mixed_queue (
    queue text collate "C" primary key
);

-- Turns of lanes with an interval, until they may be taken again.
create table parked (
    due_at   timestamptz not null,
    queue    text collate "C" not null,
    priority smallint not null,
    lane     bigint   not null,
    task_id  bigint
);
create index parked_due_idx on parked (due_at);
create index parked_lane_idx on parked (lane);

-- Enqueue's whole share in lanes: "there are n more tasks in this lane", or with n = 0 only its new limit. Taken up by
-- the next advance.
create table mark (
    id       bigint   generated always as identity,
    lane     bigint   not null,
    n        int      not null,
    lim      int,
    priority smallint not null,                    -- the most urgent of the n
    slowest  smallint not null default 0,          -- and the least
    queue    text collate "C" not null,
    key      text collate "C" not null
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off
);
create unique index mark_next_idx on mark (queue, priority, id);

-- Failures that halted a lane. Appended without a lock; an operator removes them.
create table halt (
    lane    bigint      not null,
    task_id bigint      not null,
    at      timestamptz not null
);
create index halt_lane_idx on halt (lane);

-- Running tasks that shall stop.
create table cancel_request (
    task_id bigint primary key,
    at      timestamptz not null
);

create table worker (
    session        uuid primary key,
    started_at     timestamptz not null,
    seen_at        timestamptz not null,
    slots          int      not null,
    free           int      not null,
    memory_percent smallint not null,
    draining       boolean  not null,
    drain_ordered  boolean  not null default false,
    stop_ordered   boolean  not null default false,
    name           text     not null,
    queues         text[]   not null,
    kinds          text[]                          -- null: all
) with (fillfactor = 50);

-- Workers that want to be hinted. A table of its own, so that enqueue reads next to nothing.
create table sleeper (
    session    uuid not null,
    queue      text collate "C" not null,
    idle_until timestamptz not null,
    primary key (session, queue)
);
create index sleeper_queue_idx on sleeper (queue);

create table queue (
    name      text collate "C" primary key,
    paused_at timestamptz
);

-- lz4 stores large payloads in a fraction of the time of the default; not every server is built with it.
do $$
declare
    v_column record;
begin
    if exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals)) then
        for v_column in
            select a.attrelid::regclass as owner, a.attname
            from pg_attribute a
            where a.attrelid in ('task'::regclass, 'body'::regclass, 'later'::regclass, 'lease'::regclass,
                                 'settled'::regclass, 'ended'::regclass, 'ended_plain'::regclass,
                                 'ended_other_days'::regclass, 'ended_plain_other_days'::regclass)
              and a.attnum > 0
              and a.attlen = -1
        loop
            execute format('alter table %s alter column %I set compression lz4', v_column.owner, v_column.attname);
        end loop;
    end if;
end $$;

-- One attempt that ends, whatever the reason. Passed between functions, never stored.
create type ending as (
    id           bigint,
    lane         bigint,
    enqueued_at  timestamptz,
    ready_at     timestamptz,
    parent_id    bigint,
    size         int,
    priority     smallint,
    attempt      smallint,     -- attempts charged before this one
    max_attempts smallint,
    crashes      smallint,
    depth        smallint,
    queue        text,
    kind         text,
    payload      json,
    extra        json,
    started_at   timestamptz,
    outcome      text,         -- what was reported: completed, retry, snooze, failed, cancelled, back, crash
    verdict      text,         -- what follows from it: completed, failed, cancelled, later, pending
    delay_ms     bigint,
    report       text,         -- error or reason
    result       json,
    lease_id     bigint
);

-- One row of an advance's answer: a lease, if there was something to claim, with the bounds of its queue; the last row (queue null) is about
-- the whole advance.
create type advance_row as (
    lease_id     bigint,
    token        uuid,
    queue        text,
    task_ids     bigint[],
    kinds        text[],
    enqueued_ats timestamptz[],
    lanes        bigint[],
    priorities   smallint[],
    attempts     smallint[],
    max_attempts smallint[],
    crashes      smallint[],
    depths       smallint[],
    parent_ids   bigint[],
    payloads     json[],
    extras       json[],
    lane_ids     bigint[],     -- keys of the lanes in `lanes`, and of others that were looked at
    lane_keys    text[],
    body_ids     bigint[],     -- payloads that are kept apart
    bodies       json[],
    claimed_at   timestamptz,
    ready_ats    timestamptz[],
    bounds       bigint[],     -- where the next claim of this queue may start to look
    verdicts     text[],       -- one per settle
    remaining    text,         -- nothing, blocked, more
    next_due_ms  bigint,
    session_lost boolean
);

-- A task wherever it is, as operators see it.
create type task_view as (
    id               bigint,
    kind             text,
    queue            text,
    lane             text,
    priority         smallint,
    state            text,
    attempt          int,
    max_attempts     smallint,
    crashes          smallint,
    parent_id        bigint,
    depth            smallint,
    enqueued_at      timestamptz,
    due_at           timestamptz,
    started_at       timestamptz,
    ended_at         timestamptz,
    session          uuid,
    payload          json,
    extra            json,
    result           json,
    error            text,
    cancel_requested boolean
);
