-- Enqueue: stores tasks and, for those in lanes, marks. Takes no lock that a worker can wait for.
--
-- enqueue_many is what our clients call: parallel arrays, checked before they are sent.
--   p_dues: not before this time; p_delays_ms: not before that long from now; both null: at once.
--   p_lanes: keys, null for none; p_lane_limits: null leaves the lane's limit as it is.
-- Returns the ids in the order of the arrays.
create or replace function enqueue_many(
    p_kinds        text[],
    p_payloads     text[],
    p_queues       text[],
    p_priorities   smallint[],
    p_max_attempts smallint[],
    p_lanes        text[],
    p_lane_limits  int[],
    p_delays_ms    bigint[],
    p_dues         timestamptz[],
    p_extras       text[],
    p_ids          bigint[] default null,         -- ids that were drawn before; null: draw them
    out ids        bigint[]
)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan
as $$
begin
    -- Statement 1 writes.
    ids := store_tasks(p_kinds, p_payloads, p_queues, p_priorities, p_max_attempts, p_lanes, p_lane_limits, p_delays_ms, p_dues, p_extras, p_ids);
    -- Statement 2 looks who sleeps: never in the statement that wrote.
    perform hint_enqueued(p_queues, p_delays_ms, p_dues);
end $$;

-- Writes new tasks, whoever they come from; the caller hints. Those that a settle has spawned have parents and depths, and,
-- as follow-ups of a task that has not ended, p_afters and p_keeps (see family.sql).
create or replace function store_tasks(
    p_kinds text[], p_payloads text[], p_queues text[], p_priorities smallint[], p_max_attempts smallint[], p_lanes text[], p_lane_limits int[],
    p_delays_ms bigint[], p_dues timestamptz[], p_extras text[], p_ids bigint[], p_parents bigint[] default null, p_depths smallint[] default null,
    p_afters bigint[] default null, p_keeps boolean[] default null
) returns bigint[]
language plpgsql as $$
declare
    v_now   timestamptz := clock();
    v_ids   bigint[];
    v_lanes record;
begin
    if exists (select from queue q where q.serial is not null and q.name = any (p_queues)) then
        select * into v_lanes from serial_lanes(p_queues, p_lanes, p_lane_limits, p_parents);
        p_lanes := v_lanes.lanes;
        p_lane_limits := v_lanes.limits;
    end if;
    -- Small tasks without lane that may start at once, the ordinary case, need one insert only.
    if array_remove(p_lanes, null) = '{}' and array_remove(p_delays_ms, null) = '{}' and array_remove(p_dues, null) = '{}'
        and p_afters is null and (select max(octet_length(payload)) from unnest(p_payloads) payload) < 1000
    then
        v_ids := coalesce(p_ids, array(select nextval('task_id_seq') from generate_series(1, cardinality(p_kinds))));
        insert into task (id, enqueued_at, parent_id, size, priority, max_attempts, depth, queue, kind, payload, extra, queue_id)
        select u.id, v_now, u.parent_id, octet_length(u.payload), u.priority, u.max_attempts, coalesce(u.depth, 0), u.queue, u.kind, u.payload::json, u.extra::json,
            queue_id(u.queue)
        from unnest(v_ids, p_kinds, p_payloads, p_queues, p_priorities, p_max_attempts, p_extras, p_parents, p_depths)
            u(id, kind, payload, queue, priority, max_attempts, extra, parent_id, depth);
    else
        v_ids := store_mixed(p_kinds, p_payloads, p_queues, p_priorities, p_max_attempts, p_lanes, p_lane_limits, p_delays_ms, p_dues, p_extras, p_ids,
            p_parents, p_depths, p_afters, p_keeps, v_now);
    end if;
    perform count_enqueued(p_queues, v_now);
    if is_watched() then
        perform announce_written(v_ids);
    end if;
    return v_ids;
end $$;

-- Lanes of children are a space of their own: no task that holds a turn while it waits can wait for a task that waits for this turn.
create or replace function child_lane(p_lane text) returns text
language sql immutable as $$
    select case when p_lane = e'\x03' then p_lane else e'\x01' || p_lane end
$$;

-- The same for tasks with lanes, due times and large payloads among them.
create or replace function store_mixed(
    p_kinds text[], p_payloads text[], p_queues text[], p_priorities smallint[], p_max_attempts smallint[], p_lanes text[], p_lane_limits int[],
    p_delays_ms bigint[], p_dues timestamptz[], p_extras text[], p_ids bigint[], p_parents bigint[], p_depths smallint[],
    p_afters bigint[], p_keeps boolean[], p_now timestamptz
) returns bigint[]
language plpgsql as $$
declare
    v_ids bigint[];
begin
    with new as materialized (
        select
            coalesce(u.id, nextval('task_id_seq')) as id,
            u.place,
            u.kind,
            u.payload::json as payload,
            octet_length(u.payload) as size,
            u.queue,
            u.priority,
            u.max_attempts,
            lane_id(u.queue, k.lane_key) as lane,
            k.lane_key,
            u.lane_limit,
            case
                when u.after_id is not null then 'infinity'
                when u.delay_ms > 0 then p_now + u.delay_ms * interval '1 millisecond'
                when u.due > p_now then u.due
            end as due_at,
            u.extra::json as extra,
            u.parent_id,
            coalesce(u.depth, 0) as depth,
            u.after_id,
            u.keeps,
            case when u.after_id is not null then u.delay_ms end as after_delay_ms,
            case when u.after_id is not null then u.due end as after_due
        from unnest(p_kinds, p_payloads, p_queues, p_priorities, p_max_attempts, p_lanes, p_lane_limits, p_delays_ms, p_dues, p_extras, p_ids,
                p_parents, p_depths, p_afters, p_keeps)
            with ordinality u(kind, payload, queue, priority, max_attempts, lane, lane_limit, delay_ms, due, extra, id, parent_id, depth, after_id, keeps, place)
        cross join lateral (select case when u.parent_id is null then u.lane else child_lane(u.lane) end as lane_key) k
    ),
    bodies as (
        insert into body (task_id, payload)
        select id, payload
        from new
        where size >= 1000
    ),
    runnable as (
        insert into task (id, lane, enqueued_at, parent_id, size, priority, max_attempts, depth, queue, kind, payload, extra, queue_id)
        select id, lane, p_now, parent_id, size, priority, max_attempts, depth, queue, kind, case when size < 1000 then payload end, extra, queue_id(queue)
        from new
        where due_at is null
    ),
    scheduled as (
        insert into later (id, lane, enqueued_at, parent_id, size, priority, max_attempts, depth, queue, kind, payload, extra, due_at, lane_key,
            after_id, keeps, after_delay_ms, after_due)
        select id, lane, p_now, parent_id, size, priority, max_attempts, depth, queue, kind, case when size < 1000 then payload end, extra, due_at, lane_key,
            after_id, keeps, after_delay_ms, after_due
        from new
        where due_at is not null
    ),
    marks as (
        insert into mark (lane, n, lim, priority, slowest, queue, key)
        select lane, count(*) filter (where due_at is null), (array_agg(lane_limit order by place desc) filter (where lane_limit is not null))[1],
            coalesce(min(priority) filter (where due_at is null), 0), coalesce(max(priority) filter (where due_at is null), 0), queue, min(lane_key)
        from new
        where lane <> 0
          and (due_at is null or lane_limit is not null)   -- a limit counts from now on, also that of a task for later
        group by queue, lane
        order by min(place)
    )
    select array_agg(id order by place) into v_ids from new;
    return v_ids;
end $$;

-- The lanes of tasks in serial queues, which are the queue's own: one of limit 1 for all top-level tasks, one for all children.
-- The tasks themselves may have none.
create or replace function serial_lanes(p_queues text[], p_lanes text[], p_limits int[], p_parents bigint[], out lanes text[], out limits int[])
language plpgsql as $$
declare
    v_refused record;
begin
    select u.queue, u.lane into v_refused
    from unnest(p_queues, p_lanes) u(queue, lane)
    where u.lane is not null
      and exists (select from queue q where q.name = u.queue and q.serial is not null)
    limit 1;
    if v_refused.lane is not null then
        perform refuse('serial_queue', format('lane `%s` is refused in the serial queue `%s`; leave it out', v_refused.lane, v_refused.queue));
    end if;
    select array_agg(case when q.serial is null then u.lane when u.parent_id is null then e'\x02' else e'\x03' end order by u.place),
        array_agg(case when q.serial is null then u.lim when u.parent_id is null then 1 else q.serial end order by u.place)
    into lanes, limits
    from unnest(p_queues, p_lanes, p_limits, p_parents) with ordinality u(queue, lane, lim, parent_id, place)
    left join lateral (select q.serial from queue q where q.name = u.queue offset 0) q on true;
end $$;

-- One small row per queue and call for the statistics; the fold adds it up.
create or replace function count_enqueued(p_queues text[], p_now timestamptz) returns void
language plpgsql as $$
begin
    insert into stat_delta (at, queue, enqueued)
    select p_now, u.queue, count(*)
    from unnest(p_queues) u(queue)
    where not exists (select from queue q where q.name = u.queue and not q.statistics)
    group by u.queue;
end $$;

-- Hints for tasks that were just written. A task for later hints only those who would oversleep it.
create or replace function hint_enqueued(p_queues text[], p_delays_ms bigint[], p_dues timestamptz[]) returns void
language plpgsql as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform hint(array(select distinct q from unnest(p_queues) q));   -- an old snapshot cannot tell who oversleeps
        return;
    elsif not exists (select from sleeper) then
        return;
    end if;
    perform hint(array(
        select distinct u.queue
        from unnest(p_queues, p_delays_ms, p_dues) u(queue, delay_ms, due)
        where coalesce(u.due, clock() + u.delay_ms * interval '1 millisecond', '-infinity')
            < coalesce((select max(s.idle_until) from sleeper s where s.queue = u.queue), 'infinity')
    ));
end $$;

-- Bulk enqueue, first: hands out ids: from the first one on, or, if others drew some at the same time, one by one.
create or replace function bulk_ids(p_tasks int, out first_id bigint, out ids bigint[])
language plpgsql
set search_path from current
as $$
begin
    -- A series in the list of columns is not stored before it is read, which would take a third of the time.
    ids := array(select nextval('task_id_seq') from (select generate_series(1, p_tasks)) s);
    first_id := ids[1];
    if ids[p_tasks] - first_id = p_tasks - 1 then
        ids := null;
    end if;
end $$;

-- Bulk enqueue, before COPY: the ids of queues, the ids, keys and limits of lanes, and the database's time. A lane of null stands for the tasks of a queue
-- without lane: in a serial queue they get one. p_parent: whose children they are, if they are some.
create or replace function bulk_begin(p_queues text[], p_lanes text[], p_parent bigint, out queue_ids bigint[], out lanes bigint[], out keys text[], out limits int[], out at timestamptz)
language plpgsql
set search_path from current
as $$
declare
    v_lanes record;
begin
    keys := p_lanes;
    limits := array_fill(null::int, array[cardinality(p_lanes)]);
    if exists (select from queue q where q.serial is not null and q.name = any (p_queues)) then
        select * into v_lanes from serial_lanes(p_queues, p_lanes, null, array_fill(p_parent, array[cardinality(p_lanes)]));
        keys := v_lanes.lanes;
        limits := v_lanes.limits;
    end if;
    if p_parent is not null then
        keys := array(select child_lane(u.key) from unnest(keys) with ordinality u(key, place) order by u.place);
    end if;
    queue_ids := array(select queue_id(u.queue) from unnest(p_queues) with ordinality u(queue, place) order by u.place);
    lanes := array(select lane_id(u.queue, u.key) from unnest(p_queues, keys) with ordinality u(queue, key, place) order by u.place);
    at := clock();
end $$;

-- Bulk enqueue of tasks with keys, before COPY: see take_keys. Waits at most p_wait_ms for each.
create or replace function bulk_keys(
    p_ids bigint[], p_queues text[], p_kinds text[], p_payloads text[], p_keys text[], p_scopes text[], p_windows_ms bigint[],
    p_conflicts text[], p_hashes bigint[], p_bytes_max int, p_wait_ms int, out ids bigint[], out effects text[]
)
language plpgsql
set search_path from current
as $$
begin
    perform set_config('lock_timeout', p_wait_ms::text, true);
    select k.ids, k.effects into ids, effects
    from take_keys(p_ids, p_queues, p_kinds, p_payloads, p_keys, p_scopes, p_windows_ms, p_conflicts, p_hashes, p_bytes_max) k;
end $$;

-- Bulk enqueue, after COPY: marks, then hints. The ids of its tasks: from the first to the last, or, if others were drawn between them, one by one.
create or replace function bulk_end(
    p_mark_queues text[], p_mark_keys text[], p_mark_counts int[], p_mark_limits int[], p_mark_priorities smallint[],
    p_mark_slowests smallint[], p_queues text[], p_counts int[], p_first_id bigint, p_last_id bigint, p_ids bigint[]
) returns void
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan
as $$
begin
    insert into mark (lane, n, lim, priority, slowest, queue, key)
    select lane_id(u.queue, u.key), u.n, u.lim, u.priority, u.slowest, u.queue, u.key
    from unnest(p_mark_queues, p_mark_keys, p_mark_counts, p_mark_limits, p_mark_priorities, p_mark_slowests)
        u(queue, key, n, lim, priority, slowest);
    insert into stat_delta (at, queue, enqueued)
    select clock(), u.queue, u.n
    from unnest(p_queues, p_counts) u(queue, n)
    where not exists (select from queue q where q.name = u.queue and not q.statistics);
    if is_watched() then
        perform announce_written(coalesce(p_ids, array(select generate_series(p_first_id, p_last_id))));
    end if;
    perform hint(p_queues);
end $$;

-- The options that few tasks set, as workers read them.
create or replace function task_extra(p_timeout interval, p_retry jsonb, p_tags text[], p_trace jsonb, p_unique jsonb) returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'timeout_ms', (extract(epoch from p_timeout) * 1000)::bigint,
        'retry', p_retry,
        'tags', to_jsonb(p_tags),
        'trace', p_trace,
        'unique', p_unique
    ))
$$;

create or replace function unique_options(p_key text, p_while text, p_window_ms bigint, p_on_conflict text) returns jsonb
language sql immutable as $$
    select case when p_key is not null then jsonb_build_object(
        'key', p_key,
        'scope', case when p_window_ms is null then to_jsonb('while_' || p_while) else jsonb_build_object('within_ms', p_window_ms) end,
        'on_conflict', p_on_conflict
    ) end
$$;

-- The public face: one task, from psql, a trigger or any driver, inside the caller's transaction.
--   select laneway.enqueue(kind => 'mail.receipt', payload => '{"order": 7}', lane => 'customer:7');
-- With a key, the id may be that of the task that holds it.
create or replace function enqueue(
    kind         text,
    payload      json        default '{}',
    queue        text        default 'default',
    lane         text        default null,
    lane_limit   int         default null,        -- null leaves it as it is; 1 for a new lane
    priority     int         default 0,           -- lower runs first
    delay        interval    default null,
    due_at       timestamptz default null,
    max_attempts int         default 25,
    timeout      interval    default null,
    retry        jsonb       default null,        -- {"exponential": {"first_ms": 1000, "cap_ms": 60000, "jitter_percent": 20}} or {"list": {"delays_ms": [100, 5000]}}
    tags         text[]      default null,
    trace        jsonb       default null,
    unique_key   text        default null,        -- only one task of this kind and queue at a time …
    unique_while text        default 'open',      -- … until it has ended (open) or started (pending) …
    unique_for   interval    default null,        -- … or for this long
    on_conflict  text        default 'existing',  -- existing, replace, merge, reject
    idempotency_key text     default null         -- makes it safe to repeat this call within 24 hours, or `unique_for`
) returns bigint
language plpgsql
set search_path from current
as $$
declare
    v_extra  jsonb;
    v_unique jsonb;
    v_window bigint := (extract(epoch from case when enqueue.idempotency_key is null then enqueue.unique_for else coalesce(enqueue.unique_for, interval '24 hours') end) * 1000)::bigint;
    v_answer record;
begin
    perform check_input(enqueue.kind, enqueue.payload::text, enqueue.queue, enqueue.lane, enqueue.lane_limit, enqueue.priority,
        enqueue.delay, enqueue.due_at, enqueue.max_attempts, enqueue.timeout, enqueue.retry, enqueue.tags, enqueue.trace);
    perform check_unique(enqueue.unique_key, enqueue.unique_while, v_window, enqueue.on_conflict, enqueue.idempotency_key);
    v_unique := unique_options(coalesce(enqueue.unique_key, enqueue.idempotency_key), enqueue.unique_while, v_window,
        case when enqueue.idempotency_key is null then enqueue.on_conflict else 'same' end);
    v_extra := task_extra(enqueue.timeout, enqueue.retry, enqueue.tags, enqueue.trace, v_unique);
    if v_unique is null then
        return (enqueue_many(
            p_kinds => array[enqueue.kind],
            p_payloads => array[enqueue.payload::text],
            p_queues => array[enqueue.queue],
            p_priorities => array[enqueue.priority::smallint],
            p_max_attempts => array[enqueue.max_attempts::smallint],
            p_lanes => array[enqueue.lane],
            p_lane_limits => array[enqueue.lane_limit],
            p_delays_ms => array[(extract(epoch from enqueue.delay) * 1000)::bigint],
            p_dues => array[enqueue.due_at],
            p_extras => array[nullif(v_extra, '{}')::text]
        ))[1];
    end if;
    select k.ids[1] as id, k.effects[1] as effect into v_answer
    from enqueue_keyed(
        p_kinds => array[enqueue.kind],
        p_payloads => array[enqueue.payload::text],
        p_queues => array[enqueue.queue],
        p_priorities => array[enqueue.priority::smallint],
        p_max_attempts => array[enqueue.max_attempts::smallint],
        p_lanes => array[enqueue.lane],
        p_lane_limits => array[enqueue.lane_limit],
        p_delays_ms => array[(extract(epoch from enqueue.delay) * 1000)::bigint],
        p_dues => array[enqueue.due_at],
        p_extras => array[v_extra::text],
        p_keys => array[v_unique->>'key'],
        p_scopes => array[case when v_window is null then 'while_' || enqueue.unique_while else 'within' end],
        p_windows_ms => array[v_window],
        p_conflicts => array[v_unique->>'on_conflict'],
        p_hashes => array[hashtextextended(concat_ws(e'\x1f', enqueue.kind, enqueue.payload::text, enqueue.queue, enqueue.lane, enqueue.lane_limit,
            enqueue.priority, enqueue.delay, enqueue.due_at at time zone 'utc', enqueue.max_attempts, enqueue.timeout, enqueue.retry, enqueue.tags), 0)],
        p_bytes_max => 1048576,
        p_wait_ms => null
    ) k;
    if v_answer.effect = 'rejected' then
        raise exception using errcode = 'unique_violation', detail = 'code: unique_conflict',
            message = format('the key `%s` is held by task %s; wait until it has ended, or enqueue with another conflict rule', enqueue.unique_key, v_answer.id);
    elsif v_answer.effect = 'different' then
        raise exception using errcode = 'unique_violation', detail = 'code: idempotency_conflict',
            message = format('the idempotency key `%s` was used for task %s, which is a different one; use a new key for a new task',
                enqueue.idempotency_key, v_answer.id);
    end if;
    return v_answer.id;
end $$;
