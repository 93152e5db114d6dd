-- Handlers in the database: a function or procedure (task bigint, payload json or jsonb) that runs the tasks of one kind.
--
-- It is called in the transaction in which its task is settled and what it has spawned is stored: all of that happens once, or not
-- at all. What it spawns is kept in `spawned` until then. `laneway.task` names the task that is running; while nothing runs it
-- is empty, and there is nobody to spawn for.

-- Binds a kind to a handler, in place of the one that it had.
--   select laneway.register_handler('derive.batch', 'app.derive_batch(bigint, jsonb)');
create or replace function register_handler(kind text, handler text) returns void
language plpgsql
set search_path from current
as $$
declare
    v_proc record;
begin
    perform check_name('kind', register_handler.kind);
    select p.oid, p.prokind, p.pronargs, p.proargtypes, i.identity into v_proc
    from pg_proc p
    cross join lateral pg_identify_object('pg_proc'::regclass, p.oid, 0) i
    where p.oid = to_regprocedure(register_handler.handler);
    if v_proc.oid is null then
        perform refuse('invalid_handler', format('handler `%s` does not exist; name it with its schema and arguments, as in app.derive_batch(bigint, jsonb)',
            register_handler.handler));
    elsif v_proc.prokind not in ('f', 'p') or v_proc.pronargs <> 2 or v_proc.proargtypes[0] <> 'bigint'::regtype
        or v_proc.proargtypes[1] not in ('json'::regtype, 'jsonb'::regtype) then
        perform refuse('invalid_handler', format('handler `%s` does not fit; it is a function or procedure (task bigint, payload jsonb)', v_proc.identity));
    end if;
    insert into handler (kind, signature, is_procedure, registered_at)
    values (register_handler.kind, v_proc.identity, v_proc.prokind = 'p', clock())
    on conflict on constraint handler_pkey do update
    set signature = excluded.signature,
        is_procedure = excluded.is_procedure,
        registered_at = excluded.registered_at;
end $$;

-- False when the kind had none.
create or replace function unregister_handler(kind text) returns boolean
language plpgsql
set search_path from current
as $$
begin
    delete from handler h where h.kind = unregister_handler.kind;
    return found;
end $$;

create or replace function handler_kinds() returns text[]
language sql
set search_path from current
as $$ select array(select h.kind from handler h order by h.kind) $$;

-- Calls a handler with the search path of whoever runs it, not with ours. What a function returns as JSON is the result.
create or replace function call_handler(p_handler handler, p_task bigint, p_payload json, p_search_path text) returns json
language plpgsql
set search_path from current
as $$
declare
    v_oid    oid := to_regprocedure(p_handler.signature);
    v_name   text;
    v_result json;
    v_is_json boolean;
    v_type   text;
begin
    if v_oid is null then
        raise exception using errcode = 'undefined_function', message = format('handler `%s` does not exist any more; register another for `%s`', p_handler.signature, p_handler.kind);
    end if;
    select format('%I.%I', n.nspname, p.proname), p.prorettype in ('json'::regtype, 'jsonb'::regtype), p.proargtypes[1]::regtype::text into v_name, v_is_json, v_type
    from pg_proc p
    join pg_namespace n on n.oid = p.pronamespace
    where p.oid = v_oid;
    perform set_config('search_path', p_search_path, true);   -- until this function returns
    if p_handler.is_procedure then
        execute format('call %s($1, $2::%s)', v_name, v_type) using p_task, p_payload;
    elsif v_is_json then
        execute format('select %s($1, $2::%s)::json', v_name, v_type) into v_result using p_task, p_payload;
    else
        execute format('select %s($1, $2::%s)', v_name, v_type) using p_task, p_payload;
    end if;
    return v_result;
end $$;

-- Runs one claimed attempt: calls its handler and settles it as completed. Fails, and so undoes what the handler did, when the attempt
-- is not the caller's any more.
create or replace function run_handler(
    p_session uuid, p_lease bigint, p_token uuid, p_task bigint, p_search_path text default current_setting('search_path')
) returns text
language plpgsql
set search_path from current
as $$
declare
    v_task    record;
    v_handler handler;
    v_result  json;
    v_verdict text;
begin
    select t.kind, t.parent_id, coalesce(t.priority, 0) as priority, l.queue, t.extra->'trace' as trace, coalesce((t.extra->>'resume')::boolean, false) as resume,
        coalesce(t.payload, (select b.payload from body b where b.task_id = p_task)) as payload
    into v_task
    from lease l
    cross join lateral unnest(l.task_ids, l.kinds, l.parent_ids, l.priorities, l.payloads, l.extras) t(id, kind, parent_id, priority, payload, extra)
    where l.id = p_lease
      and l.token = p_token
      and l.session = p_session
      and t.id = p_task;
    if not found then
        raise exception using errcode = 'object_not_in_prerequisite_state', message = format('task %s is not leased by this worker any more', p_task);
    end if;
    select h.* into v_handler from handler h where h.kind = v_task.kind;
    if not found then
        raise exception using errcode = 'undefined_function', message = format('kind `%s` has no handler in the database', v_task.kind);
    end if;
    perform set_config('laneway.task', p_task::text, true);
    perform set_config('laneway.spawner', jsonb_build_object('parent', v_task.parent_id, 'queue', v_task.queue, 'priority', v_task.priority, 'trace', v_task.trace)::text, true);
    perform set_config('laneway.family_policy', '', true);
    if v_task.resume then
        -- Its children are asked again, not the handler.
        v_verdict := settle_spawning(p_session, p_lease, p_token, p_task, 'completed', 0, null, null,
            row(array['wait_all again'], array[0], array[0], null, null, 8, null, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')::spawn);
    else
        v_result := call_handler(v_handler, p_task, v_task.payload, p_search_path);
        v_verdict := settle(p_session, p_lease, p_token, p_task, 'completed', result => v_result);
    end if;
    perform set_config('laneway.task', '', true);
    if v_verdict in ('stale', 'already') then
        raise exception using errcode = 'object_not_in_prerequisite_state', message = format('task %s is not leased by this worker any more', p_task);
    end if;
    return v_verdict;
end $$;

-- What the running handler has spawned in this transaction, as settle takes it; null when that is nothing.
create or replace function take_spawned(p_task bigint) returns spawn
language plpgsql as $$
declare
    v_spawn spawn;
begin
    if not exists (select from spawned s where s.task_id = p_task) then
        return null;
    end if;
    with taken as (
        delete from spawned s
        where s.task_id = p_task
          and s.tx = pg_current_xact_id()
        returning s.*
    )
    select array[coalesce(nullif(current_setting('laneway.family_policy', true), ''), 'wait_all')],
        array[count(*) filter (where t.relation = 'child')]::int[], array[count(*) filter (where t.relation = 'sibling')]::int[], null, null, 8, null,
        array_agg(1 order by t.rank, t.seq), array_agg(t.relation order by t.rank, t.seq), array_agg(t.kind order by t.rank, t.seq),
        array_agg(t.payload order by t.rank, t.seq), array_agg(t.queue order by t.rank, t.seq), array_agg(t.priority order by t.rank, t.seq),
        array_agg(t.max_attempts order by t.rank, t.seq), array_agg(t.lane order by t.rank, t.seq), array_agg(t.lane_limit order by t.rank, t.seq),
        array_agg(t.delay_ms order by t.rank, t.seq), array_agg(t.due_at order by t.rank, t.seq), array_agg(t.extra order by t.rank, t.seq),
        array_agg(case when t.extra::jsonb ? 'unique' then hashtextextended(t.kind || t.payload, 0) end order by t.rank, t.seq)
    into v_spawn
    from (select t.*, case t.relation when 'child' then 1 when 'sibling' then 2 else 3 end as rank from taken t) t
    having count(*) > 0;
    return v_spawn;
end $$;

-- Notes a task that the running handler spawns; the options are checked by the caller.
create or replace function note_spawned(
    p_relation text, p_kind text, p_payload json, p_queue text, p_lane text, p_lane_limit int, p_priority int, p_delay interval, p_due_at timestamptz,
    p_max_attempts int, p_timeout interval, p_retry jsonb, p_tags text[], p_trace jsonb, p_unique jsonb
) returns void
language plpgsql as $$
declare
    v_spawner jsonb := current_setting('laneway.spawner', true)::jsonb;
    v_trace   jsonb := coalesce(p_trace, nullif(v_spawner->'trace', 'null'));
begin
    p_queue := coalesce(p_queue, v_spawner->>'queue');
    p_priority := coalesce(p_priority, (v_spawner->>'priority')::int);
    perform check_input(p_kind, p_payload::text, p_queue, p_lane, p_lane_limit, p_priority, p_delay, p_due_at, p_max_attempts, p_timeout, p_retry, p_tags, v_trace);
    insert into spawned (task_id, relation, priority, max_attempts, lane_limit, delay_ms, due_at, kind, payload, queue, lane, extra)
    values (running_task(), p_relation, p_priority, p_max_attempts, p_lane_limit, (extract(epoch from p_delay) * 1000)::bigint, p_due_at, p_kind, p_payload::text,
        p_queue, p_lane, nullif(task_extra(p_timeout, p_retry, p_tags, v_trace, p_unique), '{}')::text);
end $$;

-- The task whose handler is running in this transaction.
create or replace function running_task() returns bigint
language plpgsql as $$
declare
    v_task text := current_setting('laneway.task', true);
begin
    if coalesce(v_task, '') = '' then
        raise exception using
            errcode = 'object_not_in_prerequisite_state',
            message = 'no handler is running in this transaction',
            hint = 'Spawn and follow_up belong into handlers that a worker or process_tasks calls; use enqueue elsewhere.';
    end if;
    return v_task::bigint;
end $$;

-- Spawns a child of the running task, or with the parent of that task a sibling. It is stored when the handler has returned.
--   perform laneway.spawn(kind => 'derive.batch', payload => '{"batch": 1}', parent_id => p_task);
create or replace function spawn(
    kind         text,
    payload      json        default '{}',
    parent_id    bigint      default null,        -- null: the running task
    queue        text        default null,        -- null: that of the running task
    lane         text        default null,
    lane_limit   int         default null,
    priority     int         default null,        -- null: that of the running task
    delay        interval    default null,
    due_at       timestamptz default null,
    max_attempts int         default 25,
    timeout      interval    default null,
    retry        jsonb       default null,
    tags         text[]      default null,
    trace        jsonb       default null         -- null: that of the running task
) returns void
language plpgsql
set search_path from current
as $$
declare
    v_task   bigint := running_task();
    v_parent bigint := (current_setting('laneway.spawner', true)::jsonb->>'parent')::bigint;
begin
    if coalesce(spawn.parent_id, v_task) not in (v_task, coalesce(v_parent, v_task)) then
        perform refuse('no_parent', format('parent_id is %s; the running task is %s%s', spawn.parent_id, v_task, ', its parent ' || v_parent));
    end if;
    perform note_spawned(case when spawn.parent_id = v_parent then 'sibling' else 'child' end, spawn.kind, spawn.payload, spawn.queue, spawn.lane, spawn.lane_limit,
        spawn.priority, spawn.delay, spawn.due_at, spawn.max_attempts, spawn.timeout, spawn.retry, spawn.tags, spawn.trace, null);
end $$;

-- A top-level task that starts when the running one, with its family, has ended.
create or replace function follow_up(
    kind            text,
    payload         json        default '{}',
    queue           text        default null,        -- null: that of the running task
    lane            text        default null,
    lane_limit      int         default null,
    priority        int         default null,        -- null: that of the running task
    delay           interval    default null,        -- counts from then
    due_at          timestamptz default null,
    max_attempts    int         default 25,
    timeout         interval    default null,
    retry           jsonb       default null,
    tags            text[]      default null,
    trace           jsonb       default null,
    unique_key      text        default null,        -- not stored when another task of this kind and queue holds it
    unique_while    text        default 'open',
    unique_for      interval    default null,
    keep_on_failure boolean     default false        -- starts also when the running task has failed
) returns void
language plpgsql
set search_path from current
as $$
declare
    v_window bigint := (extract(epoch from follow_up.unique_for) * 1000)::bigint;
begin
    perform running_task();
    perform check_unique(follow_up.unique_key, follow_up.unique_while, v_window, 'existing', null);
    perform note_spawned(case when follow_up.keep_on_failure then 'keep' else 'drop' end, follow_up.kind, follow_up.payload, follow_up.queue, follow_up.lane,
        follow_up.lane_limit, follow_up.priority, follow_up.delay, follow_up.due_at, follow_up.max_attempts, follow_up.timeout, follow_up.retry, follow_up.tags,
        follow_up.trace, unique_options(follow_up.unique_key, follow_up.unique_while, v_window, 'existing'));
end $$;

-- What failures among the children of the running task mean: wait_all, fail_fast or ignore.
create or replace function family_policy(policy text) returns void
language plpgsql
set search_path from current
as $$
begin
    perform running_task();
    if family_policy.policy is null or family_policy.policy not in ('wait_all', 'fail_fast', 'ignore') then
        perform refuse('invalid_name', format('policy `%s` is unknown; one of: wait_all, fail_fast, ignore', family_policy.policy));
    end if;
    perform set_config('laneway.family_policy', family_policy.policy, true);
end $$;

-- The latest children of a task, counted: total, open, completed, failed, cancelled, and the first errors. Null when it never had any.
create or replace function family(task_id bigint) returns jsonb
language sql
set search_path from current
as $$
    select coalesce(v.family::jsonb, v.extra::jsonb->'family') from get_task(family.task_id) v
$$;

-- Whether a child of the same parent has failed or was cancelled.
create or replace function has_failed_siblings(task_id bigint) returns boolean
language sql
set search_path from current
as $$
    select coalesce((f.family->>'failed')::int + (f.family->>'cancelled')::int > 0, false)
    from (select family((select v.parent_id from get_task(has_failed_siblings.task_id) v)) as family) f
$$;

-- Whether a task has children that have not ended, or has just spawned some.
create or replace function has_pending_children(task_id bigint) returns boolean
language sql
set search_path from current
as $$
    select exists (select from open_children(has_pending_children.task_id))
        or exists (select from spawned s where s.task_id = has_pending_children.task_id and s.relation = 'child' and s.tx = pg_current_xact_id_if_assigned())
$$;

-- The delay after failed attempt number p_attempt, as the library computes it.
create or replace function retry_delay_ms(p_retry json, p_attempt int) returns bigint
language sql volatile as $$
    select case
        when p_retry->'list' is not null then (
            select (p_retry #>> array['list', 'delays_ms', (least(p_attempt, json_array_length(p_retry #> '{list,delays_ms}')) - 1)::text])::bigint
        )
        else round(least(e.first_ms * 2 ^ least(p_attempt - 1, 40), e.cap_ms) * (1 + e.jitter / 100 * (2 * random() - 1)))::bigint
    end
    from (
        select coalesce((p_retry #>> '{exponential,first_ms}')::float8, 1000) as first_ms, coalesce((p_retry #>> '{exponential,cap_ms}')::float8, 3600000) as cap_ms,
            coalesce((p_retry #>> '{exponential,jitter_percent}')::float8, 20) as jitter
    ) e
$$;

-- One round of a worker, in the caller's transaction: runs what is claimable now and has a handler in the database. What that makes
-- claimable is for the next round.
--   call laneway.process_tasks(queue => 'analytics');
create or replace procedure process_tasks(queue text default 'default', max int default 100, search_path text default current_setting('search_path'))
language plpgsql
set search_path from current
as $$
declare
    v_session uuid := gen_random_uuid();
    v_kinds   text[] := handler_kinds();
    v_row     record;
begin
    perform check_name('queue', process_tasks.queue);
    perform check_range('max', process_tasks.max, 1, 10000);
    perform register(v_session, 'process_tasks', array[process_tasks.queue], v_kinds, process_tasks.max, 0, 0::smallint, true);
    for v_row in
        select a.lease_id, a.token, a.task_ids[1] as task, coalesce(a.attempts[1], 0) + 1 as attempt, a.extras[1]->'retry' as retry
        from advance(v_session, 1, false, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', array[process_tasks.queue], array[process_tasks.max],
            array[array_to_string(v_kinds, e'\x1f')], array[array_to_string(v_kinds, e'\x1f')], null) a
        where a.lease_id is not null
          and v_kinds <> '{}'
        order by coalesce(a.priorities[1], 0), a.task_ids[1]
    loop
        perform run_or_retry(v_session, v_row.lease_id, v_row.token, v_row.task, v_row.attempt, v_row.retry, process_tasks.search_path);
    end loop;
    perform fold_families();
    perform deregister(v_session);
end $$;

-- Runs an attempt; an error undoes what it did, and it runs again as its policy says.
create or replace function run_or_retry(
    p_session uuid, p_lease bigint, p_token uuid, p_task bigint, p_attempt int, p_retry json, p_search_path text
) returns text
language plpgsql as $$
declare
    v_error text;
begin
    return run_handler(p_session, p_lease, p_token, p_task, p_search_path);
exception when others then
    get stacked diagnostics v_error = message_text;
    perform set_config('laneway.task', '', true);
    return settle(p_session, p_lease, p_token, p_task, 'retry', delay => retry_delay_ms(p_retry, p_attempt) * interval '1 millisecond', error => v_error);
end $$;
