-- Unique keys: taking them at enqueue, giving them up when a task starts or ends.
--
-- The key of a task is in its `extra`, so a task without one costs nothing: no other row is read to know that.

-- Takes the keys of new tasks (parallel arrays; a key of null: none), and answers per task with what it is now:
--   made: the key is taken, the task is to be stored;     existing: ids has the task that holds the key;
--   replaced, merged: that task has got the payload;      rejected, different: nothing was taken for any of them.
--
-- 1 insert, waiting for whoever is just taking or giving up the same key; 2 look in a new statement who holds it. A key
-- that is given up in between, or whose time is over, is tried again. All keys of a call are taken in one order, so that
-- two calls wait for one another in one direction only.
create or replace function take_keys(
    p_ids bigint[], p_queues text[], p_kinds text[], p_payloads text[], p_keys text[], p_scopes text[], p_windows_ms bigint[],
    p_conflicts text[], p_hashes bigint[], p_bytes_max int, out ids bigint[], out effects text[]
)
language plpgsql
set plan_cache_mode = force_generic_plan   -- as in advance.sql: one plan, whatever the table was like when it was made
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_open  bigint[];          -- places that are not decided; null: all
    v_again bigint[];
    v_held  record;
begin
    ids := p_ids;
    effects := array_fill('made'::text, array[cardinality(p_ids)]);
    for v_try in 1 .. 100 loop
        insert into unique_key (queue, kind, key, task_id, scope, expires_at, hash)
        select case when u.conflict = 'same' then '' else u.queue end, case when u.conflict = 'same' then '' else u.kind end, u.key, u.id, u.scope,
            clock() + u.window_ms * interval '1 millisecond', u.hash
        from unnest(p_ids, p_queues, p_kinds, p_keys, p_scopes, p_windows_ms, p_conflicts, p_hashes)
            with ordinality u(id, queue, kind, key, scope, window_ms, conflict, hash, place)
        where u.key is not null
          and (v_open is null or u.place = any (v_open))
        order by 1, 2, 3, u.place
        on conflict (queue, kind, key) do nothing;

        v_again := '{}';
        for v_held in
            select u.place, u.queue, u.kind, u.key, u.conflict, u.hash, k.task_id, k.hash as held_hash, k.expires_at <= clock() as is_over
            from unnest(p_ids, p_queues, p_kinds, p_keys, p_conflicts, p_hashes) with ordinality u(id, queue, kind, key, conflict, hash, place)
            left join lateral (
                select k.task_id, k.hash, k.expires_at
                from unique_key k
                where k.queue = case when u.conflict = 'same' then '' else u.queue end
                  and k.kind = case when u.conflict = 'same' then '' else u.kind end
                  and k.key = u.key
                order by k.task_id = u.id desc   -- an old snapshot may show a row beside ours that is gone
                limit 1
            ) k on true
            where u.key is not null
              and (v_open is null or u.place = any (v_open))
              and k.task_id is distinct from u.id
        loop
            if v_held.task_id is null then
                v_again := v_again || v_held.place;
            elsif v_held.is_over then
                delete from unique_key k
                where k.queue = case when v_held.conflict = 'same' then '' else v_held.queue end
                  and k.kind = case when v_held.conflict = 'same' then '' else v_held.kind end
                  and k.key = v_held.key
                  and k.expires_at <= clock();
                v_again := v_again || v_held.place;
            else
                ids[v_held.place] := v_held.task_id;
                effects[v_held.place] := case
                    when v_held.conflict = 'reject' then 'rejected'
                    when v_held.conflict = 'same' and v_held.hash <> v_held.held_hash then 'different'
                    when v_held.conflict in ('replace', 'merge') and v_held.task_id <> all (p_ids) then v_held.conflict
                    else 'existing'
                end;
            end if;
        end loop;
        exit when v_again = '{}';
        v_open := v_again;
    end loop;
    if v_again <> '{}' then
        raise exception using errcode = 'lock_not_available', message = format('the key `%s` changes hands all the time', p_keys[v_again[1]]);
    end if;

    if effects && array['rejected', 'different'] then
        perform drop_keys(p_ids, p_queues, p_kinds, p_keys, p_conflicts);
    elsif effects && array['replace', 'merge'] then
        for v_place in 1 .. cardinality(effects) loop
            if effects[v_place] in ('replace', 'merge') then
                effects[v_place] := change_payload(ids[v_place], p_payloads[v_place], effects[v_place] = 'merge', p_bytes_max);
            end if;
        end loop;
    end if;
end $$;

-- Gives the keys back that this call has just taken.
create or replace function drop_keys(p_ids bigint[], p_queues text[], p_kinds text[], p_keys text[], p_conflicts text[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan   -- as in advance.sql: one plan, whatever the table was like when it was made
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    delete from unique_key
    where ctid = any (array(
        select k.ctid
        from unnest(p_ids, p_queues, p_kinds, p_keys, p_conflicts) u(id, queue, kind, key, conflict)
        cross join lateral (
            select k.ctid
            from unique_key k
            where k.queue = case when u.conflict = 'same' then '' else u.queue end
              and k.kind = case when u.conflict = 'same' then '' else u.kind end
              and k.key = u.key
              and k.task_id = u.id
            offset 0
        ) k
    ));
end $$;

-- Gives a task that waits another payload, in its place and under its id. Answers `existing` when it does not wait, or
-- when somebody holds it: a worker that is just taking it, an operator, another enqueue. Nobody is waited for.
create or replace function change_payload(p_task bigint, p_payload text, p_merge boolean, p_bytes_max int) returns text
language plpgsql
set plan_cache_mode = force_generic_plan   -- as in advance.sql: one plan, whatever the table was like when it was made
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_task    task;
    v_later   later;
    v_payload text;
begin
    perform from task t where t.id = p_task for update skip locked;
    if found then
        delete from task t where t.id = p_task returning t.* into v_task;
    else
        perform from later l where l.id = p_task for update skip locked;
        if not found then
            return 'existing';
        end if;
        delete from later l where l.id = p_task returning l.* into v_later;
    end if;
    v_payload := p_payload;
    if p_merge then
        v_payload := merged(coalesce(v_task.payload, v_later.payload, (select b.payload from body b where b.task_id = p_task)), p_payload::json);
        if octet_length(v_payload) > p_bytes_max then
            perform refuse('payload_too_large', format('payload has %s bytes once merged, the limit is %s; keep the data elsewhere and enqueue a reference',
                octet_length(v_payload), p_bytes_max));
        end if;
    end if;
    delete from body b where b.task_id = p_task;
    if octet_length(v_payload) >= 1000 then
        insert into body (task_id, payload) values (p_task, v_payload::json);
    end if;
    if v_task.id is not null then
        v_task.size := octet_length(v_payload);
        v_task.payload := case when v_task.size < 1000 then v_payload::json end;
        insert into task select v_task.*;
    else
        v_later.size := octet_length(v_payload);
        v_later.payload := case when v_later.size < 1000 then v_payload::json end;
        insert into later select v_later.*;
    end if;
    return case when p_merge then 'merged' else 'replaced' end;
end $$;

-- Two objects as one: the members of the second, in front of them those of the first that the second does not name. Anything
-- else: the second. Values keep their text.
create or replace function merged(p_old json, p_new json) returns text
language sql immutable as $$
    select case
        when json_typeof(p_old) = 'object' and json_typeof(p_new) = 'object' then (
            select '{' || coalesce(string_agg(to_json(m.key)::text || ':' || m.value::text, ',' order by m.which, m.place), '') || '}'
            from (
                select 1 as which, o.key, o.value, o.place
                from json_each(p_old) with ordinality o(key, value, place)
                where o.key not in (select n.key from json_each(p_new) n)
                union all
                select 2, n.key, n.value, n.place
                from json_each(p_new) with ordinality n(key, value, place)
            ) m
        )
        else p_new::text
    end
$$;

-- Gives up the keys of tasks that end (p_started false) or start (true). Keys that last for a time stay.
create or replace function release_keys(p_ids bigint[], p_queues text[], p_kinds text[], p_extras json[], p_started boolean) returns void
language plpgsql
set plan_cache_mode = force_generic_plan   -- as in advance.sql: one plan, whatever the table was like when it was made
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    delete from unique_key
    where ctid = any (array(              -- rows are never updated
        select k.ctid
        from unnest(p_ids, p_queues, p_kinds, p_extras) u(id, queue, kind, extra)
        cross join lateral (
            select k.ctid
            from unique_key k
            where k.queue = u.queue
              and k.kind = u.kind
              and k.key = u.extra->'unique'->>'key'
              and k.task_id = u.id
            offset 0
        ) k
        where u.extra->'unique'->>'scope' in ('while_pending', case when not p_started then 'while_open' end)
    ));
end $$;

-- Removes keys whose time is over.
create or replace function remove_expired_keys(p_max int) returns int
language plpgsql
set search_path from current
as $$
declare
    v_removed int;
begin
    delete from unique_key
    where ctid = any (array(
        select k.ctid
        from unique_key k
        where k.expires_at <= clock()
        order by k.expires_at
        limit p_max
        for update skip locked
    ));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;

-- Enqueue for calls in which at least one task has a key: the arrays of enqueue_many and those of the keys. p_wait_ms: how
-- long to wait for a transaction that is just taking or giving up one of them; null: as long as the session's lock_timeout says.
-- When an effect is `rejected` or `different`, nothing was stored.
create or replace function enqueue_keyed(
    p_kinds text[], p_payloads text[], p_queues text[], p_priorities smallint[], p_max_attempts smallint[], p_lanes text[], p_lane_limits int[],
    p_delays_ms bigint[], p_dues timestamptz[], p_extras text[],
    p_keys text[], p_scopes text[], p_windows_ms bigint[], p_conflicts text[], p_hashes bigint[], p_bytes_max int, p_wait_ms int,
    out ids bigint[], out effects text[]
)
language plpgsql
set search_path from current
as $$
declare
    v_new bigint[] := array(select nextval('task_id_seq') from generate_series(1, cardinality(p_kinds)));
begin
    if p_wait_ms is not null then
        perform set_config('lock_timeout', p_wait_ms::text, true);
    end if;
    select k.ids, k.effects into ids, effects
    from take_keys(v_new, p_queues, p_kinds, p_payloads, p_keys, p_scopes, p_windows_ms, p_conflicts, p_hashes, p_bytes_max) k;
    if effects && array['rejected', 'different'] then
        return;
    elsif 'made' = all (effects) then
        perform enqueue_many(p_kinds, p_payloads, p_queues, p_priorities, p_max_attempts, p_lanes, p_lane_limits, p_delays_ms, p_dues, p_extras, v_new);
        return;
    end if;
    perform enqueue_many(array_agg(u.kind order by u.place), array_agg(u.payload order by u.place), array_agg(u.queue order by u.place),
        array_agg(u.priority order by u.place), array_agg(u.attempts order by u.place), array_agg(u.lane order by u.place),
        array_agg(u.lim order by u.place), array_agg(u.delay order by u.place), array_agg(u.due order by u.place),
        array_agg(u.extra order by u.place), array_agg(u.id order by u.place))
    from unnest(p_kinds, p_payloads, p_queues, p_priorities, p_max_attempts, p_lanes, p_lane_limits, p_delays_ms, p_dues, p_extras, ids, effects)
        with ordinality u(kind, payload, queue, priority, attempts, lane, lim, delay, due, extra, id, effect, place)
    where u.effect = 'made'
    having count(*) > 0;
    -- A worker may have passed by what was locked while its payload was changed.
    perform hint(array(select distinct u.queue from unnest(p_queues, effects) u(queue, effect) where u.effect in ('replaced', 'merged')));
end $$;
