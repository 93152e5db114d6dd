-- Families: parents that wait for the children they have spawned, and follow-ups that wait for the end of a task.
--
-- A child's end touches no row of its parent: it appends a tally, and whoever advances next adds the tallies of a parent
-- up under the parent's lock (family.sql). Children are found by the ranges of ids that their parents' settles have drawn;
-- nothing is written or indexed per child.

-- Parents with open children. One row per family, updated when tallies are added up.
create table waiting (
    like task including defaults,
    started_at timestamptz not null,               -- of the attempt that spawned, which `attempt` counts
    holds_turn boolean  not null,                  -- top-level tasks keep their lane's turn
    lane_key   text collate "C",
    policy     text     not null check (policy in ('wait_all', 'fail_fast', 'ignore')),
    continues  boolean  not null,                  -- runs again when its children have ended well
    stopping   text     check (stopping in ('cancelled', 'failed')),   -- why its children are being cancelled
    recheck    boolean  not null default false,    -- the last cancel could not reach all of them
    total      int      not null,
    open       int      not null,
    completed  int      not null,
    failed     int      not null default 0,
    cancelled  int      not null default 0,
    errors     jsonb    not null default '[]',     -- [[task, error], …], the first three
    result     json
) with (fillfactor = 50, autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);
alter table waiting drop column queue_id;          -- only claims look for it
create unique index waiting_id_idx on waiting (id);
create index waiting_lane_idx on waiting (lane) where lane <> 0;
create index waiting_stopping_idx on waiting (id) where stopping is not null;

-- What has happened to the children of one parent in one settle: siblings spawned minus ends, and how these were.
create table tally (
    seq       bigint generated always as identity,
    parent_id bigint not null,
    delta     int    not null,
    completed int    not null default 0,
    failed    int    not null default 0,
    cancelled int    not null default 0,
    errors    jsonb
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off
);
create index tally_parent_idx on tally (parent_id);

-- Between which ids the children of a task are, or its follow-ups: those that one settle has stored. Others may lie between them. Of a task
-- that waits all those that it counts.
create table brood (
    parent_id  bigint  not null,
    first_id   bigint  not null,
    last_id    bigint  not null,
    follow_ups boolean not null default false
) with (autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);
create index brood_parent_idx on brood (parent_id);

-- A follow-up of a task that has not ended is in `later`, due at no time.
alter table later
    add after_id       bigint,                     -- the task that must end first
    add keeps          boolean,                    -- runs also when that one has failed
    add after_delay_ms bigint,                     -- its own delay, counted from there
    add after_due      timestamptz;
create index later_after_idx on later (after_id) where after_id is not null;

-- How many children may run at once in a serial queue, whose other tasks run one by one; null: not serial.
alter table queue add serial int check (serial between 1 and 1000000);
create index queue_serial_idx on queue (name) where serial is not null;

-- Leases with children among their tasks.
create index lease_children_idx on lease (id) where parent_ids is not null;

alter table ended_plain
    add parent_ids bigint[],
    add depths     smallint[];

-- What a SQL handler has spawned, until the settle in its transaction takes it.
create table spawned (
    seq          bigint generated always as identity,
    tx           xid8     not null default pg_current_xact_id(),
    task_id      bigint   not null,                -- who spawns
    relation     text     not null check (relation in ('child', 'sibling', 'drop', 'keep')),
    priority     smallint not null,
    max_attempts smallint not null,
    lane_limit   int,
    delay_ms     bigint,
    due_at       timestamptz,
    kind         text     not null,
    payload      text     not null,
    queue        text     not null,
    lane         text,
    extra        text
);
create index spawned_task_idx on spawned (task_id);

-- Kinds that are run by a function or procedure in this database.
create table handler (
    kind          text collate "C" primary key,
    signature     text        not null,
    is_procedure  boolean     not null,
    registered_at timestamptz not null
);

alter type ending
    add attribute policy    text,                  -- of a family: this attempt has spawned one, or waited for one
    add attribute continues boolean,
    add attribute again     boolean,               -- waits for children that had ended badly and run again
    add attribute children  int,
    add attribute siblings  int,
    add attribute has_turn  boolean,               -- false: it is in a lane, but holds no turn; null: it holds one
    add attribute lane_key  text;                  -- where the lane may be gone

-- The tasks that a call of advance or settle spawns, as parallel arrays.
create type spawn as (
    families     text[],       -- per settle: policy, and `then`, `again`, separated by spaces; null: spawns nothing
    children     int[],        -- per settle: how many
    siblings     int[],
    firsts       bigint[],     -- per settle: the first and the last id of its children, if the caller has just stored them itself; null: it has not
    lasts        bigint[],
    depth_max    int,
    wait_ms      int,          -- how long to wait for a key of a follow-up; null: as the session says
    places       int[],        -- per task: which settle
    relations    text[],       -- child, sibling, or follow-ups that a failure drops or keeps: drop, keep
    kinds        text[],
    payloads     text[],
    queues       text[],
    priorities   smallint[],
    max_attempts smallint[],
    lanes        text[],
    lane_limits  int[],
    delays_ms    bigint[],
    dues         timestamptz[],
    extras       text[],
    hashes       bigint[]      -- of tasks with keys
);

alter type task_view add attribute family json;
