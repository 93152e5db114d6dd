-- What operators do to tasks, one by one. Each function locks its task where it is, and skips it when somebody else holds it.
-- Results: done, requested; or why not: not_found, ended_ and the state, open, running, waiting, same, key_ and the holder, plain,
-- no_failed_children, busy.
-- `was` and `is` go into the audit.

-- Lets a task that has failed or was cancelled start anew, under its id and with all its attempts: over, or (p_children) only with the children
-- because of which it has failed. p_patient: if its parent is held, tries for a moment.
create or replace function retry_task(p_task bigint, p_children boolean, p_patient boolean, out result text, out was jsonb, out "is" jsonb)
language plpgsql as $$
declare
    v_row    ended;
    v_holder bigint;
begin
    select e.* into v_row from ended e where e.id = p_task for update skip locked;
    if not found then
        result := why_not(p_task, 'open');
        return;
    elsif v_row.state = 'completed' then
        result := 'ended_completed';
        return;
    elsif p_children and not has_failed_family(v_row) then
        result := 'no_failed_children';
        return;
    end if;
    v_holder := take_key_of(v_row);
    if v_holder <> p_task then
        result := 'key_' || v_holder;
        return;
    elsif not rejoin_family(v_row, p_patient) then
        result := 'busy';
        return;
    end if;
    if p_children then
        perform resume(v_row);
    else
        perform start_over(v_row);
    end if;
    perform hint(array[v_row.queue]);
    result := 'done';
    was := to_jsonb(v_row.state);
    "is" := '"pending"';
end $$;

-- Makes a task of history, which the caller has locked, pending again.
create or replace function restart_task(p_row ended) returns void
language plpgsql as $$
declare
    v_size int := octet_length(p_row.payload::text);
begin
    delete from ended e where e.id = p_row.id;
    if p_row.error is not null then
        insert into failure (task_id, attempt, at, error) values (p_row.id, p_row.attempt, p_row.ended_at, p_row.error);
    end if;
    if v_size >= 1000 then
        insert into body (task_id, payload) values (p_row.id, p_row.payload);
    end if;
    insert into task (id, lane, enqueued_at, ready_at, parent_id, size, priority, max_attempts, depth, queue, kind, payload, extra, queue_id)
    values (p_row.id, p_row.lane, p_row.enqueued_at, clock(), p_row.parent_id, v_size, p_row.priority, p_row.max_attempts, p_row.depth, p_row.queue,
        p_row.kind, case when v_size < 1000 then p_row.payload end, p_row.extra, queue_id(p_row.queue));
    if p_row.lane <> 0 then
        perform free_turns_of(p_row.lane, p_row.id);
        insert into mark (lane, n, priority, slowest, queue, key)
        values (p_row.lane, 1, p_row.priority, p_row.priority, p_row.queue, coalesce(lane_key_of(p_row.queue, p_row.lane), p_row.lane_key));
    end if;
    if is_watched() then
        perform announce_written(array[p_row.id]);
    end if;
end $$;

-- Frees turns that are bound to a task which leaves, or has left, and whose id will come back. One that a claim holds may stay bound; it is
-- free while its task is gone. By their places: several turns of a task may have one number.
create or replace function free_turns_of(p_lane bigint, p_task bigint) returns void
language plpgsql as $$
declare
    v_turns tid[] := array(
        select t.ctid from turn t where t.lanes[1] = p_lane and cardinality(t.lanes) = 1 and t.task_id = p_task for update skip locked
    );
    v_parked tid[] := array(select p.ctid from parked p where p.lane = p_lane and p.task_id = p_task for update skip locked);
begin
    with bound as (
        delete from turn
        where ctid = any (v_turns)
        returning *
    )
    insert into turn (queue, priority, seq, lanes)
    select queue, priority, seq, lanes
    from bound;
    with bound as (
        delete from parked
        where ctid = any (v_parked)
        returning *
    )
    insert into parked (due_at, queue, priority, lane)
    select due_at, queue, priority, lane
    from bound;
end $$;

-- Takes the key of a task of history that starts anew, if it had one that lasts while it is open. Returns the holder.
create or replace function take_key_of(p_row ended) returns bigint
language plpgsql as $$
begin
    if p_row.extra->'unique'->>'scope' = 'while_open' then
        return take_key_again(p_row.queue, p_row.kind, p_row.extra->'unique'->>'key', p_row.id);
    end if;
    return p_row.id;
end $$;

-- Takes the key of a task that starts anew. Returns the holder: the task itself, or another one.
create or replace function take_key_again(p_queue text, p_kind text, p_key text, p_task bigint) returns bigint
language plpgsql as $$
declare
    v_holder bigint;
begin
    loop
        delete from unique_key k where k.queue = p_queue and k.kind = p_kind and k.key = p_key and k.expires_at <= clock();
        insert into unique_key (queue, kind, key, task_id, scope, hash)
        values (p_queue, p_kind, p_key, p_task, 'while_open', 0)   -- hashes are compared for idempotency keys only
        on conflict (queue, kind, key) do nothing;
        select k.task_id into v_holder from unique_key k where k.queue = p_queue and k.kind = p_kind and k.key = p_key;
        if found then
            return v_holder;
        end if;
    end loop;
end $$;

-- Removes a task that does not run, and what is kept of it.
create or replace function delete_task(p_task bigint, out result text, out was jsonb, out "is" jsonb)
language plpgsql as $$
declare
    v_task  task;
    v_later later;
    v_state text;
    v_queue text;
    v_kind  text;
begin
    perform from task t where t.id = p_task for update skip locked;
    if found then
        delete from task t where t.id = p_task returning t.* into v_task;
        perform release_keys(array[p_task], array[v_task.queue], array[v_task.kind], array[v_task.extra], false);
        select 'pending', v_task.queue, v_task.kind into v_state, v_queue, v_kind;
    else
        perform from later l where l.id = p_task for update skip locked;
        if found then
            delete from later l where l.id = p_task returning l.* into v_later;
            perform release_keys(array[p_task], array[v_later.queue], array[v_later.kind], array[v_later.extra], false);
            select 'later', v_later.queue, v_later.kind into v_state, v_queue, v_kind;
        else
            select e.state, e.queue, e.kind into v_state, v_queue, v_kind from ended e where e.id = p_task for update skip locked;
            if not found then
                result := why_not(p_task, 'busy');
                result := case when result = 'ended_completed' then 'plain' when result like 'ended%' then 'busy' else result end;
                return;
            end if;
            delete from ended e where e.id = p_task;
        end if;
    end if;
    delete from body b where b.task_id = p_task;
    delete from failure f where f.task_id = p_task;
    if is_watched() then
        perform announce_deleted(v_state, v_queue, p_task, v_kind);
    end if;
    if coalesce(v_task.parent_id, v_later.parent_id) is not null then
        insert into tally (parent_id, delta, cancelled, errors)
        values (coalesce(v_task.parent_id, v_later.parent_id), -1, 1, jsonb_build_array(jsonb_build_array(p_task, 'deleted')));
    end if;
    perform release_after(array[p_task], array['cancelled']);
    delete from brood b where b.parent_id = p_task;
    if v_later.holds_turn then
        perform join_lines(array[v_later.queue], array[v_later.lane], array[v_later.priority]);
        perform hint(array[v_later.queue]);
    end if;
    was := to_jsonb(v_state);
    result := 'done';
end $$;

-- Puts a task that waits off. In an ordered lane one that is in back-off keeps its turn; one that waits for its turn lets others pass.
create or replace function snooze_task(p_task bigint, p_due timestamptz, out result text, out was jsonb, out "is" jsonb)
language plpgsql as $$
declare
    v_task  task;
    v_later later;
begin
    perform from task t where t.id = p_task for update skip locked;
    if found then
        delete from task t where t.id = p_task returning t.* into v_task;
        insert into later (id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra,
            due_at, lane_key)
        values (v_task.id, v_task.lane, v_task.enqueued_at, v_task.ready_at, v_task.parent_id, v_task.size, v_task.priority, v_task.attempt,
            v_task.max_attempts, v_task.crashes, v_task.depth, v_task.queue, v_task.kind, v_task.payload, v_task.extra,
            p_due, case when v_task.lane <> 0 then lane_key_of(v_task.queue, v_task.lane) end);
        if v_task.lane <> 0 then
            perform free_turns_of(v_task.lane, p_task);
        end if;
        was := '"pending"';
    else
        perform from later l where l.id = p_task for update skip locked;
        if not found then
            result := why_not(p_task, 'busy');
            return;
        end if;
        select l.* into v_later from later l where l.id = p_task;
        if v_later.after_id is not null then
            result := 'waiting';
            return;
        elsif v_later.due_at = p_due then
            result := 'same';
            return;
        end if;
        was := to_jsonb(v_later.due_at);
        v_later.due_at := p_due;
        delete from later l where l.id = p_task;
        insert into later select v_later.*;
    end if;
    if is_watched() then
        perform announce_written(array[p_task]);
    end if;
    perform hint(array[coalesce(v_task.queue, v_later.queue)]);
    result := 'done';
    "is" := to_jsonb(p_due);
end $$;

-- Gives a task that waits another priority. In a lane a mark moves a turn up, as for a new task; a turn that is bound to it goes with it.
create or replace function set_priority_of_task(p_task bigint, p_priority smallint, out result text, out was jsonb, out "is" jsonb)
language plpgsql as $$
declare
    v_task  task;
    v_later later;
    v_turns tid[];
begin
    select t.* into v_task from task t where t.id = p_task for update skip locked;
    if not found then
        select l.* into v_later from later l where l.id = p_task for update skip locked;
        if not found then
            result := why_not(p_task, 'busy');
            return;
        end if;
    end if;
    if coalesce(v_task.priority, v_later.priority) = p_priority then
        result := 'same';
        return;
    end if;
    if v_task.lane <> 0 then
        v_turns := array(select t.ctid from turn t where t.lanes[1] = v_task.lane and cardinality(t.lanes) = 1 and t.task_id = p_task for update skip locked);
        if cardinality(v_turns) < (select count(*) from turn t where t.lanes[1] = v_task.lane and cardinality(t.lanes) = 1 and t.task_id = p_task) then
            result := 'busy';     -- a claim has one in hand
            return;
        end if;
    end if;
    was := to_jsonb(coalesce(v_task.priority, v_later.priority));
    if v_later.id is not null then
        delete from later l where l.id = p_task;
        v_later.priority := p_priority;
        insert into later select v_later.*;
    else
        delete from task t where t.id = p_task;
        v_task.priority := p_priority;
        insert into task select v_task.*;
        if v_task.lane <> 0 then
            insert into mark (lane, n, priority, slowest, queue, key)
            values (v_task.lane, 1, p_priority, greatest(p_priority, (was::text)::smallint), v_task.queue, lane_key_of(v_task.queue, v_task.lane));
            with bound as (
                delete from turn
                where ctid = any (v_turns)
                returning *
            )
            insert into turn (queue, priority, seq, lanes, task_id)
            select queue, p_priority, seq, lanes, task_id
            from bound;
        end if;
    end if;
    perform hint(array[coalesce(v_task.queue, v_later.queue)]);
    result := 'done';
    "is" := to_jsonb(p_priority);
end $$;

-- Why a task was not found where it would have been of use. p_open: what to say when it has not ended and does not run.
create or replace function why_not(p_task bigint, p_open text) returns text
language plpgsql as $$
declare
    v_found record;
begin
    select f.place, f.state into v_found from find_task(p_task) f;
    return case
        when v_found.place is null then 'not_found'
        when v_found.place = 'ended' and p_open = 'open' and v_found.state <> 'completed' then 'busy'
        when v_found.place = 'ended' then 'ended_' || v_found.state
        when v_found.place = 'lease' and p_open <> 'open' then 'running'
        when v_found.place = 'waiting' and p_open <> 'open' then 'waiting'
        else p_open
    end;
end $$;

-- Does p_action to each of p_tasks, and records it. Results in the order of p_tasks.
create or replace function act(
    p_who text, p_reason text, p_action text, p_tasks bigint[], p_delay_ms bigint, p_priority smallint, p_now timestamptz default null, out results text[]
)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql
set enable_seqscan = off
set enable_bitmapscan = off
set lock_timeout = '2s'
as $$
declare
    v_due     timestamptz := coalesce(p_now, clock()) + p_delay_ms * interval '1 millisecond';
    v_patient boolean := true;
    v_item    record;
    v_did     record;
    v_tasks   bigint[] := '{}';
    v_was     jsonb[] := '{}';
    v_is      jsonb[] := '{}';
begin
    results := array_fill(null::text, array[cardinality(p_tasks)]);
    for v_item in
        select u.place, u.task
        from unnest(p_tasks) with ordinality u(task, place)
        order by u.task, u.place
    loop
        case p_action
        when 'cancel' then select * into v_did from cancel_task(v_item.task);
        when 'retry' then select * into v_did from retry_task(v_item.task, false, v_patient);
        when 'retry_children' then select * into v_did from retry_task(v_item.task, true, v_patient);
        when 'delete' then select * into v_did from delete_task(v_item.task);
        when 'snooze' then select * into v_did from snooze_task(v_item.task, v_due);
        else select * into v_did from set_priority_of_task(v_item.task, p_priority);
        end case;
        results[v_item.place] := v_did.result;
        v_patient := v_patient and v_did.result <> 'busy';    -- who holds a parent may wait for this transaction
        if v_did.result in ('done', 'requested') then
            v_tasks := v_tasks || v_item.task;
            v_was := v_was || coalesce(v_did.was, 'null');
            v_is := v_is || coalesce(v_did."is", 'null');
        end if;
    end loop;
    if v_tasks <> '{}' then
        perform record_audit(p_who, p_reason, p_action, case when cardinality(v_tasks) = 1 then 'task ' || v_tasks[1] else cardinality(v_tasks) || ' tasks' end,
            v_tasks, (select jsonb_object_agg(u.id, u.was) from unnest(v_tasks, v_was) u(id, was)),
            (select jsonb_object_agg(u.id, u."is") from unnest(v_tasks, v_is) u(id, "is")));
        perform hint(fold_families());
    end if;
end $$;

-- cancel() for an operator.
create or replace function cancel_task(p_task bigint, out result text, out was jsonb, out "is" jsonb)
language plpgsql as $$
declare
    v_found record;
begin
    select f.place into v_found from find_task(p_task) f;
    was := to_jsonb(case v_found.place when 'task' then 'pending' when 'lease' then 'leased' else v_found.place end);
    result := cancel(p_task);   -- folds at once, so that the answer is about this task
    "is" := to_jsonb(case result when 'cancelled' then 'cancelled' when 'requested' then 'cancel requested' end);
    result := case result when 'cancelled' then 'done' else result end;
end $$;

-- Changes a task that waits, and records it: its payload, its priority, or both; what is null stays. It keeps its id, and with
-- it its place in its lane, its turn and its keys.
create or replace function edit_task(p_who text, p_reason text, p_task bigint, p_payload json, p_priority smallint, out result text)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_old record;
    v_was jsonb := '{}';
    v_is  jsonb := '{}';
begin
    perform from task t where t.id = p_task for update skip locked;
    if not found then
        perform from later l where l.id = p_task for update skip locked;
        if not found then
            result := why_not(p_task, 'busy');
            return;
        end if;
    end if;
    select f.priority, f.queue, coalesce(f.payload, b.payload) as payload
    into v_old
    from (
        select t.id, t.priority, t.queue, t.payload from task t where t.id = p_task
        union all
        select l.id, l.priority, l.queue, l.payload from later l where l.id = p_task
    ) f
    left join body b on b.task_id = f.id;
    if p_priority <> v_old.priority then
        result := (select p.result from set_priority_of_task(p_task, p_priority) p);
        if result = 'busy' then
            return;
        end if;
        v_was := jsonb_build_object('priority', v_old.priority);
        v_is := jsonb_build_object('priority', p_priority);
    end if;
    if p_payload::text <> v_old.payload::text then
        perform set_payload_of_task(p_task, p_payload);
        v_was := v_was || jsonb_build_object('payload', v_old.payload);
        v_is := v_is || jsonb_build_object('payload', p_payload);
    end if;
    if v_is = '{}' then
        result := 'same';
        return;
    end if;
    perform record_audit(p_who, p_reason, 'edit', 'task ' || p_task, array[p_task], v_was, v_is);
    perform hint(array[v_old.queue]);
    result := 'done';
end $$;

-- Gives a task that the caller has locked another payload.
create or replace function set_payload_of_task(p_task bigint, p_payload json) returns void
language plpgsql as $$
declare
    v_size  int := octet_length(p_payload::text);
    v_small json := case when v_size < 1000 then p_payload end;
    v_task  task;
    v_later later;
begin
    delete from body b where b.task_id = p_task;
    if v_small is null then
        insert into body (task_id, payload) values (p_task, p_payload);
    end if;
    delete from task t where t.id = p_task returning t.* into v_task;
    if found then
        v_task.size := v_size;
        v_task.payload := v_small;
        insert into task select v_task.*;
    else
        delete from later l where l.id = p_task returning l.* into v_later;
        v_later.size := v_size;
        v_later.payload := v_small;
        insert into later select v_later.*;
    end if;
end $$;
