-- Families: what a settle spawns, how the ends of children reach their parent, and how a cancel reaches the children.
--
-- A child's end appends a tally to its parent. Folding adds tallies up: 1 lock the parent, skipping those that others hold,
-- 2 delete and add up all its visible tallies in a new statement. Never a part of them: a settle that adds a sibling and ends
-- its spawner is one net tally, and one snapshot shows either both or neither. So when nothing is open, nothing is.
-- A parent's end is like any other, and may be a tally of its own parent: then there is another round.

-- Stores what attempts have spawned, and returns their ends with what follows from that: a task with children waits for them, and
-- what may not be spawned is a failure, of which nothing is stored.
create or replace function spawn_all(p_ends ending[], p_places bigint[], p_asked bigint[], p_spawn spawn) returns ending[]
language plpgsql as $$
declare
    v_families text[] := p_spawn.families;
    v_serial   text[] := array(select q.name from queue q where q.serial is not null);
    v_ends     ending[] := '{}';
    v_end      ending;
    v_place    int;
    v_n        int := 0;
    v_none     bigint[] := array_fill(0::bigint, array[cardinality(v_families)]);
    v_fates    "char"[] := array_fill('n'::"char", array[cardinality(v_families)]);   -- a: all its tasks are stored, k: follow-ups that a failure keeps, n: none
    v_owners   bigint[] := v_none;     -- per settle: the spawner,
    v_parents  bigint[] := v_none;     -- its parent,
    v_depths   bigint[] := v_none;     -- its depth,
    v_waits    bigint[] := v_none;     -- and the spawner again, if its follow-ups have to wait
begin
    foreach v_end in array p_ends loop
        v_n := v_n + 1;
        v_place := p_places[v_n];
        if v_families[v_place] is not null then
            v_end := judge_family(v_end, v_families[v_place], p_spawn.children[v_place], p_spawn.siblings[v_place], v_end.id = any (p_asked),
                refusal_of(v_end, v_place, p_spawn, v_serial), p_spawn.firsts[v_place], p_spawn.lasts[v_place], p_spawn.wait_ms);
            v_fates[v_place] := case when v_end.verdict in ('completed', 'waiting') then 'a' when v_end.verdict = 'failed' and v_end.policy is not null then 'k' else 'n' end;
            v_owners[v_place] := v_end.id;
            v_parents[v_place] := coalesce(v_end.parent_id, 0);
            v_depths[v_place] := v_end.depth;
            -- In a later step the follow-ups of earlier ones still wait, so that all of them start together.
            v_waits[v_place] := case when v_end.verdict = 'waiting' then v_end.id else 0 end;
            v_end.policy := case when v_end.verdict = 'waiting' then v_end.policy end;
        end if;
        v_ends := v_ends || v_end;
    end loop;
    if p_spawn.places <> '{}' then
        perform store_spawned(p_spawn, v_fates, v_owners, v_parents, v_depths, v_waits);
    end if;
    return v_ends;
end $$;

-- Why a settle may not spawn what it does; null when it may.
create or replace function refusal_of(p_end ending, p_place int, p_spawn spawn, p_serial text[]) returns text
language plpgsql as $$
declare
    v_children int := p_spawn.children[p_place];
begin
    if p_spawn.siblings[p_place] > 0 and p_end.parent_id is null then
        return 'no_parent: siblings need a parent, and this task has none; spawn children instead';
    elsif v_children > 0 and p_end.depth + 1 > p_spawn.depth_max then
        return format('family_too_deep: children would be at depth %s, the limit is %s; spawn siblings instead', p_end.depth + 1, p_spawn.depth_max);
    elsif v_children > 0 and p_end.parent_id is not null and p_end.queue = any (p_serial) then
        return format('serial_queue: children of a child are refused in the serial queue `%s`; spawn siblings instead', p_end.queue);
    elsif p_serial = '{}' then
        return null;
    end if;
    return (
        select format('serial_queue: lane `%s` is refused in the serial queue `%s`; leave it out', u.lane, u.queue)
        from unnest(p_spawn.places, p_spawn.lanes, p_spawn.queues) with ordinality u(place, lane, queue, n)
        where u.place = p_place
          and u.lane is not null
          and u.queue = any (p_serial)
        order by u.n
        limit 1
    );
end $$;

-- What becomes of an attempt that has spawned. Its policy is set unless it was refused. p_first, p_last, p_wait_ms: see `spawn`.
create or replace function judge_family(
    p_end ending, p_family text, p_children int, p_siblings int, p_cancel boolean, p_refusal text, p_first bigint, p_last bigint, p_wait_ms int
) returns ending
language plpgsql as $$
declare
    v_words text[] := string_to_array(p_family, ' ');
begin
    p_end.policy := v_words[1];
    p_end.continues := 'then' = any (v_words);
    p_end.again := 'again' = any (v_words);
    p_end.children := p_children;
    if p_end.verdict <> 'completed' then
        return p_end;
    end if;
    if p_refusal is not null then
        p_end.outcome := 'failed';
        p_end.verdict := 'failed';
        p_end.report := p_refusal;
        p_end.policy := null;
    elsif p_end.again or p_children > 0 then
        if p_cancel then
            p_end.verdict := 'cancelled';
            return p_end;
        elsif p_end.again then
            p_end.policy := coalesce(p_end.extra->'family'->>'policy', p_end.policy);
            p_end.extra := nullif(p_end.extra::jsonb - 'resume', '{}');
            p_end.children := reopen_children(p_end.id, p_wait_ms);
            if p_end.children = 0 then
                p_end.outcome := 'failed';
                p_end.verdict := 'failed';
                p_end.report := 'no failed children are left; retry the task itself';
                return p_end;
            end if;
        end if;
        if p_children > 0 then
            p_end.children := adopt_children(p_end.id, p_children, p_first, p_last);
        end if;
        p_end.verdict := 'waiting';
    end if;
    if p_end.verdict <> 'failed' then
        p_end.siblings := p_siblings;
    end if;
    return p_end;
end $$;

-- How many children a task waits for that has spawned p_children new ones: these, and former ones that are open.
create or replace function adopt_children(p_parent bigint, p_children int, p_first bigint, p_last bigint) returns int
language plpgsql as $$
declare
    v_former boolean := has_former_children(p_parent);
begin
    if p_first is not null then
        insert into brood (parent_id, first_id, last_id) values (p_parent, p_first, p_last);
    end if;
    if not v_former then
        return p_children;
    elsif p_first is null then
        return p_children + forget_children(p_parent);
    end if;
    return forget_children(p_parent);    -- the new ones are there, and may lie between siblings of former ones: all are counted in the same way
end $$;

-- Stores the tasks whose settles have fate a, or k and are to be kept. Lists p_fates to p_waits have one entry per settle.
create or replace function store_spawned(
    p_spawn spawn, p_fates "char"[], p_owners bigint[], p_parents bigint[], p_depths bigint[], p_waits bigint[]
) returns void
language plpgsql as $$
declare
    v_stored boolean[];
    v_ids    bigint[];
begin
    if exists (select from unnest(p_spawn.families, p_fates) u(family, fate) where u.family is not null and u.fate <> 'a') then
        v_stored := array(
            select p_fates[u.place] = 'a' or p_fates[u.place] = 'k' and u.relation = 'keep'
            from unnest(p_spawn.places, p_spawn.relations) u(place, relation)
        );
        if true <> all (v_stored) then
            return;
        end if;
        p_spawn := thin_out(p_spawn, v_stored);
    end if;
    v_ids := array(select nextval('task_id_seq') from generate_series(1, cardinality(p_spawn.places)));
    if array_remove(p_spawn.hashes, null) <> '{}' then
        v_stored := take_spawned_keys(p_spawn, v_ids);
        if true <> all (v_stored) then
            return;
        elsif false = any (v_stored) then
            p_spawn := thin_out(p_spawn, v_stored);
            v_ids := array(select u.id from unnest(v_ids, v_stored) u(id, stored) where u.stored);
        end if;
    end if;
    insert into brood (parent_id, first_id, last_id, follow_ups)
    select u.owner, min(u.id), max(u.id), u.follows
    from (
        select u.id, u.place, case u.relation when 'sibling' then p_parents[u.place] else p_owners[u.place] end as owner,
            u.relation in ('drop', 'keep') as follows
        from unnest(v_ids, p_spawn.places, p_spawn.relations) u(id, place, relation)
    ) u
    group by u.place, u.owner, u.follows;
    perform write_spawned(p_spawn, v_ids, p_owners, p_parents, p_depths, p_waits);
end $$;

create or replace function write_spawned(p_spawn spawn, p_ids bigint[], p_owners bigint[], p_parents bigint[], p_depths bigint[], p_waits bigint[]) returns void
language plpgsql as $$
declare
    v_follows boolean := p_spawn.relations && array['drop', 'keep'];
    v_afters  bigint[];
    v_keeps   boolean[];
begin
    if v_follows then
        p_spawn.extras := array(
            select case when u.relation in ('drop', 'keep') then (coalesce(u.extra, '{}')::jsonb || jsonb_build_object('after', p_owners[u.place]))::text else u.extra end
            from unnest(p_spawn.places, p_spawn.relations, p_spawn.extras) u(place, relation, extra)
        );
        if exists (select from unnest(p_waits) w where w <> 0) then
            v_afters := array(
                select case when u.relation in ('drop', 'keep') then nullif(p_waits[u.place], 0) end
                from unnest(p_spawn.places, p_spawn.relations) u(place, relation)
            );
            v_keeps := array(select u.relation = 'keep' from unnest(p_spawn.relations) u(relation));
        end if;
    end if;
    perform store_tasks(p_spawn.kinds, p_spawn.payloads, p_spawn.queues, p_spawn.priorities, p_spawn.max_attempts, p_spawn.lanes, p_spawn.lane_limits,
        p_spawn.delays_ms, p_spawn.dues, p_spawn.extras, p_ids,
        array(
            select case u.relation when 'child' then p_owners[u.place] when 'sibling' then p_parents[u.place] end
            from unnest(p_spawn.places, p_spawn.relations) u(place, relation)
        ),
        array(
            select case u.relation when 'child' then p_depths[u.place] + 1 when 'sibling' then p_depths[u.place] else 0 end::smallint
            from unnest(p_spawn.places, p_spawn.relations) u(place, relation)
        ),
        v_afters, v_keeps);
end $$;

-- How deep the children of a running attempt are; null if its lease is gone.
create or replace function depth_of_children(p_session uuid, p_lease bigint, p_task bigint) returns smallint
language sql
set search_path from current
as $$
    select coalesce(l.depths[array_position(l.task_ids, p_task)], 0::smallint) + 1::smallint
    from lease l
    where l.id = p_lease
      and l.session = p_session
      and p_task = any (l.task_ids)
$$;

-- Only the tasks of a list for which p_stored is true.
create or replace function thin_out(p_spawn spawn, p_stored boolean[]) returns spawn
language plpgsql as $$
begin
    select array_agg(u.place order by n), array_agg(u.relation order by n), array_agg(u.kind order by n), array_agg(u.payload order by n),
        array_agg(u.queue order by n), array_agg(u.priority order by n), array_agg(u.attempts order by n), array_agg(u.lane order by n),
        array_agg(u.lim order by n), array_agg(u.delay order by n), array_agg(u.due order by n), array_agg(u.extra order by n), array_agg(u.hash order by n)
    into p_spawn.places, p_spawn.relations, p_spawn.kinds, p_spawn.payloads, p_spawn.queues, p_spawn.priorities, p_spawn.max_attempts, p_spawn.lanes,
        p_spawn.lane_limits, p_spawn.delays_ms, p_spawn.dues, p_spawn.extras, p_spawn.hashes
    from unnest(p_spawn.places, p_spawn.relations, p_spawn.kinds, p_spawn.payloads, p_spawn.queues, p_spawn.priorities, p_spawn.max_attempts, p_spawn.lanes,
        p_spawn.lane_limits, p_spawn.delays_ms, p_spawn.dues, p_spawn.extras, p_spawn.hashes, p_stored)
        with ordinality u(place, relation, kind, payload, queue, priority, attempts, lane, lim, delay, due, extra, hash, stored, n)
    where u.stored;
    return p_spawn;
end $$;

-- Takes the keys of follow-ups, one by one in one order; who meets a holder is not stored, whatever its rule says.
create or replace function take_spawned_keys(p_spawn spawn, p_ids bigint[]) returns boolean[]
language plpgsql as $$
declare
    v_stored boolean[] := array_fill(true, array[cardinality(p_ids)]);
    v_item   record;
begin
    if p_spawn.wait_ms is not null then
        perform set_config('lock_timeout', p_spawn.wait_ms::text, true);
    end if;
    for v_item in
        select u.n, u.id, u.queue, u.kind, u.payload, u.hash, u.extra::jsonb->'unique' as key
        from unnest(p_ids, p_spawn.queues, p_spawn.kinds, p_spawn.payloads, p_spawn.extras, p_spawn.hashes)
            with ordinality u(id, queue, kind, payload, extra, hash, n)
        where u.hash is not null
        order by u.queue, u.kind, u.extra::jsonb->'unique'->>'key', u.n
    loop
        v_stored[v_item.n] := 'made' = (take_keys(array[v_item.id], array[v_item.queue], array[v_item.kind], array[v_item.payload], array[v_item.key->>'key'],
            array[coalesce(substring(v_item.key->>'scope' from '^while.*'), 'within')], array[(v_item.key->'scope'->>'within_ms')::bigint],
            array[case v_item.key->>'on_conflict' when 'same' then 'same' else 'existing' end], array[v_item.hash], 0)).effects[1];
    end loop;
    return v_stored;
end $$;

-- Lets the follow-ups of tasks that have ended go on, or ends them too. Only tasks that had a family can have some: those of others
-- were stored by the settle that ended them.
create or replace function release_follow_ups(p_ends ending[]) returns void
language plpgsql as $$
declare
    v_after record;
begin
    select array_agg(e.id) as ids, array_agg(e.verdict) as states into v_after
    from unnest(p_ends) e
    where e.verdict in ('completed', 'failed', 'cancelled')
      and e.extra is not null
      and e.extra->'family' is not null;
    if v_after.ids is not null then
        perform release_after(v_after.ids, v_after.states);
    end if;
end $$;

-- The same by id and state. What somebody holds is left to the next sweep. Returns the queues in which something may start now.
create or replace function release_after(p_tasks bigint[], p_states text[]) returns text[]
language plpgsql as $$
declare
    v_now    timestamptz := clock();
    v_locked bigint[] := array(select l.id from later l where l.after_id is not null and l.after_id = any (p_tasks) order by l.after_id for update skip locked);
    v_start  later[];
    v_ends   ending[];
begin
    if v_locked = '{}' then
        return '{}';
    end if;
    with gone as (
        delete from later l
        where l.id = any (v_locked)
        returning l as g
    ),
    judged as (
        select g.g, p_states[array_position(p_tasks, (g.g).after_id)] as state
        from gone g
    )
    select array_agg(j.g order by (j.g).id) filter (where j.state = 'completed' or j.state = 'failed' and (j.g).keeps),
        array_agg(cancelled_end(as_task(j.g), format('task %s %s', (j.g).after_id, case j.state when 'failed' then 'failed' else 'was cancelled' end), false, (j.g).lane_key))
            filter (where not (j.state = 'completed' or j.state = 'failed' and (j.g).keeps))
    into v_start, v_ends
    from judged j;
    if v_ends is not null then
        perform record_ends(v_ends);
    end if;

    with freed as materialized (
        select f.*,
            case
                when f.after_delay_ms > 0 then v_now + f.after_delay_ms * interval '1 millisecond'
                when f.after_due > v_now then f.after_due
            end as due
        from unnest(v_start) f
    ),
    runnable as (
        insert into task (id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra,
            queue_id)
        select id, lane, enqueued_at, v_now, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra, queue_id(queue)
        from freed
        where due is null
    ),
    scheduled as (
        insert into later (id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra, due_at,
            lane_key)
        select id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra, due, lane_key
        from freed
        where due is not null
    )
    insert into mark (lane, n, priority, slowest, queue, key)
    select lane, count(*), min(priority), max(priority), queue, min(lane_key)
    from freed
    where lane <> 0
      and due is null
    group by queue, lane;
    if is_watched() then
        perform announce_written(array(select f.id from unnest(v_start) f));
    end if;
    return array(select distinct f.queue from unnest(v_start) f);
end $$;

-- A task that was deleted where it waited, as the end of a cancelled one.
create or replace function cancelled_end(p_task task, p_report text, p_has_turn boolean, p_lane_key text) returns ending
language sql immutable as $$
    select row(p_task.id, p_task.lane, p_task.enqueued_at, p_task.ready_at, p_task.parent_id, p_task.size, p_task.priority, p_task.attempt, p_task.max_attempts,
        p_task.crashes, p_task.depth, p_task.queue, p_task.kind, p_task.payload, p_task.extra, null, 'cancelled', 'cancelled', null, p_report, null, null,
        null, null, null, null, null, p_has_turn, p_lane_key)::ending
$$;

create or replace function as_task(l later) returns task
language sql immutable as $$
    select row(l.id, l.lane, queue_id(l.queue), l.enqueued_at, l.ready_at, l.parent_id, l.size, l.priority, l.attempt, l.max_attempts, l.crashes, l.depth, l.queue, l.kind,
        l.payload, l.extra)::task
$$;

-- The children of a task that have not ended.
create or replace function open_children(p_parent bigint) returns table (id bigint, state text)
language sql stable as $$
    select t.id, 'pending'
    from brood b
    cross join lateral (select t.id from task t where t.id between b.first_id and b.last_id and t.parent_id = p_parent order by t.id offset 0) t   -- a join, or another index, may read all of it
    where b.parent_id = p_parent and not b.follow_ups
    union
    select l.id, 'later'
    from brood b
    cross join lateral (select l.id from later l where l.id between b.first_id and b.last_id and l.parent_id = p_parent order by l.id offset 0) l
    where b.parent_id = p_parent and not b.follow_ups
    union
    select w.id, 'waiting'
    from brood b
    cross join lateral (select w.id from waiting w where w.id between b.first_id and b.last_id and w.parent_id = p_parent order by w.id offset 0) w
    where b.parent_id = p_parent and not b.follow_ups
    union
    select t.id, 'leased' from lease l, unnest(l.task_ids, l.parent_ids) t(id, parent_id)
    where l.parent_ids is not null
      and p_parent = any (l.parent_ids)
      and t.parent_id = p_parent
      and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids) offset 0)
$$;

-- Whether a parent that waits has something to add up. Of others tallies are only dropped.
create or replace function is_tallied() returns boolean
language plpgsql as $$
begin
    return exists (select from tally t cross join lateral (select from waiting w where w.id = t.parent_id offset 0) w);
end $$;

-- Up to p_max tasks with tallies that wait, and up to as many of the others, by jumping from one to the next in the index.
create or replace function tallied_parents(p_max int, out waiting bigint[], out others bigint[])
language plpgsql as $$
declare
    v_next bigint := 0;
begin
    waiting := '{}';
    others := '{}';
    while cardinality(waiting) < p_max loop
        select t.parent_id into v_next from tally t where t.parent_id > v_next order by t.parent_id limit 1;
        exit when not found;
        if exists (select from waiting w where w.id = v_next) then
            waiting := waiting || v_next;
        elsif cardinality(others) < p_max then
            others := others || v_next;
        end if;
    end loop;
end $$;

-- Whether all tallies are successes of one family that has many children left: to add up each by itself would cost a tenth of the work.
-- Whoever finds too little to claim adds them up.
create or replace function tallies_can_wait() returns boolean
language plpgsql as $$
declare
    v_first bigint;
    v_last  bigint;
begin
    select t.parent_id into v_first from tally t order by t.parent_id limit 1;
    select t.parent_id into v_last from tally t order by t.parent_id desc limit 1;
    return v_first = v_last
        and exists (select from waiting w where w.id = v_first and w.open > 1000)
        and not exists (select from tally t where t.parent_id = v_first and (t.failed + t.cancelled > 0 or t.delta + t.completed > 0));
end $$;

-- Adds tallies up, of 100 parents per round, and ends the parents whose children have all ended. Further rounds follow while that
-- wrote tallies. Returns the queues in which something may have become claimable. p_drops: this transaction will be short, so that tallies
-- of parents that do not wait may be dropped.
create or replace function fold_families(p_drops boolean default false) returns text[]
language plpgsql as $$
declare
    v_found  record;
    v_locked bigint[];
    v_folded record;
    v_queues text[] := '{}';
begin
    for v_round in 1 .. 20 loop
        v_found := tallied_parents(100);
        if p_drops and v_found.others <> '{}' then
            perform drop_tallies(v_found.others);
        end if;
        exit when v_found.waiting = '{}';
        v_locked := array(select w.id from waiting w where w.id = any (v_found.waiting) order by w.id for update skip locked);
        exit when v_locked = '{}';
        v_folded := fold_parents(v_locked);
        v_queues := v_queues || v_folded.queues;
        exit when not v_folded.again;
    end loop;
    return v_queues;
end $$;

-- Drops what was told to parents that do not wait: they count their open children when they begin to. They must not begin while one that
-- tells so is dropped: they would see it run, and wait to be told. So they are kept from running; of those that run, tallies stay.
create or replace function drop_tallies(p_parents bigint[]) returns void
language plpgsql as $$
declare
    v_parent bigint;
begin
    foreach v_parent in array p_parents loop
        if hold_parent(v_parent) in ('resting', 'gone') then
            delete from tally
            where ctid = any (array(select t.ctid from tally t where t.parent_id = v_parent for update skip locked));   -- never updated
        end if;
    end loop;
end $$;

-- Keeps a parent from beginning or ceasing to wait until this transaction ends, and says where it is: waiting, resting (ended or not started),
-- or gone. Running ones are not kept, but do not begin just now: they will see what is committed here, or be told. Null: somebody
-- holds it.
create or replace function hold_parent(p_parent bigint) returns text
language plpgsql as $$
declare
    v_found record;
begin
    perform from waiting w where w.id = p_parent for share skip locked;
    if found then
        return 'waiting';
    elsif keep_resting(p_parent) then
        return 'resting';
    end if;
    select f.place, f.state, f.lease into v_found from find_task(p_parent) f;
    return case
        when v_found.place is null or v_found.state = 'completed' then 'gone'
        when v_found.place = 'lease' and is_settled_by_nobody(p_parent, v_found.lease) then 'running'
    end;
end $$;

-- Whether a task is in this lease and nobody settles it at this moment. Does not keep it.
create or replace function is_settled_by_nobody(p_task bigint, p_lease bigint) returns boolean
language plpgsql as $$
declare
    v_free boolean;
begin
    perform from lease l where l.id = p_lease for share skip locked;
    v_free := found and not exists (select from settled s where s.lease_id = p_lease and p_task = any (s.task_ids));
    raise sqlstate 'LWBCK';    -- and gives the lock back
exception when sqlstate 'LWBCK' then
    return v_free;
end $$;

-- Keeps a task that neither runs nor waits for children where it is until this transaction ends. False if it is not there, or held.
create or replace function keep_resting(p_task bigint) returns boolean
language plpgsql as $$
begin
    perform from ended e where e.id = p_task for share skip locked;
    if not found then
        perform from task t where t.id = p_task for share skip locked;
    end if;
    if not found then
        perform from later l where l.id = p_task for share skip locked;
    end if;
    return found;
end $$;

-- Makes a child that has ended, and is about to start anew, one of its parent's family again, also when that has another one by now. A parent
-- that runs may be about to wait: if it does not see the child yet, the tally tells it; if it does, it drops the tally. False: somebody
-- holds the parent, if p_patient for longer than it takes to add up its tallies.
create or replace function rejoin_family(p_child ended, p_patient boolean) returns boolean
language plpgsql as $$
declare
    v_place text;
    v_known boolean;       -- what became of it is in the parent's numbers
begin
    if p_child.parent_id is null then
        return true;
    end if;
    for v_try in 1 .. 10 loop
        v_place := hold_parent(p_child.parent_id);
        exit when v_place is not null or not p_patient;
        perform pg_sleep(0.005);
    end loop;
    if v_place is null then
        return false;
    end if;
    v_known := v_place in ('waiting', 'resting')
        and exists (select from brood b where b.parent_id = p_child.parent_id and not b.follow_ups and p_child.id between b.first_id and b.last_id);
    if not v_known and v_place <> 'gone' then
        insert into brood (parent_id, first_id, last_id) values (p_child.parent_id, p_child.id, p_child.id);
    end if;
    if v_place in ('waiting', 'running') then
        insert into tally (parent_id, delta, failed, cancelled)
        values (p_child.parent_id, 1, -(v_known and p_child.state = 'failed')::int, -(v_known and p_child.state = 'cancelled')::int);
    end if;
    return true;
end $$;

-- One round, for parents that the caller has locked. `again`: it wrote tallies.
create or replace function fold_parents(p_parents bigint[], out queues text[], out again boolean)
language plpgsql as $$
declare
    v_grown  bigint[] := add_tallies(p_parents);
    v_parent bigint;
begin
    again := false;
    update waiting w
    set stopping = 'failed',
        recheck = true
    where w.id = any (p_parents)
      and w.policy = 'fail_fast'
      and w.stopping is null
      and w.failed + w.cancelled > 0
      and w.open > 0;
    for v_parent in
        select w.id
        from waiting w
        where w.id = any (p_parents)
          and w.stopping is not null
          and w.open > 0
          and (w.recheck or w.id = any (v_grown))   -- a sibling may have come after the last cancel
    loop
        again := cancel_children(v_parent) or again;
    end loop;
    select e.queues, fold_parents.again or e.again into queues, again
    from end_parents(array(select w.id from waiting w where w.id = any (p_parents) and w.open = 0 order by w.id)) e;
end $$;

-- Adds all visible tallies of these parents to their rows. Returns those to which siblings were added.
create or replace function add_tallies(p_parents bigint[]) returns bigint[]
language plpgsql as $$
declare
    v_grown bigint[];
begin
    with gone as (
        delete from tally
        where parent_id = any (p_parents)
        returning *
    ),
    sums as materialized (
        select g.parent_id, sum(g.delta)::int as delta, sum(g.completed)::int as completed, sum(g.failed)::int as failed, sum(g.cancelled)::int as cancelled,
            bool_or(g.delta > 0 or g.delta + g.completed + g.failed + g.cancelled > 0) as has_grown,
            jsonb_agg(g.errors order by g.seq) filter (where g.errors is not null) as errors
        from gone g
        group by g.parent_id
    ),
    added as (
        update waiting w
        set open = w.open + s.delta,
            total = w.total + s.delta + s.completed + s.failed + s.cancelled,
            completed = w.completed + s.completed,
            failed = w.failed + s.failed,
            cancelled = w.cancelled + s.cancelled,
            errors = case when s.errors is null then w.errors else first_errors(w.errors, s.errors) end
        from sums s
        cross join lateral (select r.ctid as tid from waiting r where r.id = s.parent_id offset 0) r
        where w.ctid = r.tid               -- locked by us, so it stays where it is
    )
    select array_agg(s.parent_id) filter (where s.has_grown) into v_grown from sums s;
    return coalesce(v_grown, '{}');
end $$;

-- The first three of these errors and those of a list of tallies.
create or replace function first_errors(p_errors jsonb, p_more jsonb) returns jsonb
language sql immutable as $$
    select jsonb_agg(f.error order by f.tally, f.place)
    from (
        select e.error, 0 as tally, e.place from jsonb_array_elements(p_errors) with ordinality e(error, place)
        union all
        select e.error, m.tally, e.place
        from jsonb_array_elements(p_more) with ordinality m(errors, tally), jsonb_array_elements(m.errors) with ordinality e(error, place)
        order by 2, 3
        limit 3
    ) f
$$;

-- Ends parents without open children, as their policies say, or lets them run their next step. The caller has locked them.
create or replace function end_parents(p_parents bigint[], out queues text[], out again boolean)
language plpgsql as $$
declare
    v_now  timestamptz := clock();
    v_ends ending[];
    v_hand record;
begin
    queues := '{}';
    again := false;
    if p_parents = '{}' then
        return;
    end if;
    with gone as (
        delete from waiting w
        where w.id = any (p_parents)
        returning w.*, family_json(w) as family
    ),
    judged as (
        select g.*,
            case
                when g.stopping = 'cancelled' then 'cancelled'
                when g.policy <> 'ignore' and g.failed + g.cancelled > 0 then 'failed'
                when g.continues then 'pending'
                else 'completed'
            end as verdict,
            coalesce(g.extra::jsonb, '{}') || jsonb_build_object('family', g.family) as kept
        from gone g
    )
    select array_agg(row(
        j.id, j.lane, j.enqueued_at, case when j.verdict = 'pending' then v_now else j.ready_at end, j.parent_id, j.size, j.priority,
        case when j.verdict = 'pending' then 0 else j.attempt - 1 end, j.max_attempts, case when j.verdict = 'pending' then 0 else j.crashes end, j.depth, j.queue, j.kind,
        j.payload, case when j.verdict = 'pending' then j.kept || jsonb_build_object('step', coalesce((j.kept->>'step')::int, 0) + 1) else j.kept end::json, j.started_at,
        case when j.verdict = 'pending' then 'back' else j.verdict end, j.verdict, null,
        case when j.verdict = 'failed' then family_error(j.failed + j.cancelled, j.total, j.errors) end,
        j.result, null, j.policy, null, null, null, null, j.holds_turn, j.lane_key)::ending order by j.id),
        array_agg(distinct j.queue), bool_or(j.parent_id is not null)
    into v_ends, queues, again
    from judged j;
    v_hand := record_ends(v_ends);
    perform join_lines(v_hand.hand_queues, v_hand.hand_lanes, v_hand.hand_priorities);
end $$;

-- A family as the library reads it.
create or replace function family_json(w waiting) returns jsonb
language sql stable as $$
    select jsonb_build_object('parent', w.id, 'policy', w.policy, 'total', w.total, 'open', w.open, 'completed', w.completed, 'failed', w.failed,
        'cancelled', w.cancelled, 'errors', w.errors)
$$;

-- The same while it waits, with what its children have done since it was last added up.
create or replace function family_now(w waiting) returns jsonb
language sql stable as $$
    select family_json(w) || jsonb_build_object(
        'total', w.total + t.delta + t.completed + t.failed + t.cancelled, 'open', w.open + t.delta, 'completed', w.completed + t.completed,
        'failed', w.failed + t.failed, 'cancelled', w.cancelled + t.cancelled,
        'errors', case when t.errors is null then w.errors else first_errors(w.errors, t.errors) end)
    from (
        select coalesce(sum(t.delta), 0) as delta, coalesce(sum(t.completed), 0) as completed, coalesce(sum(t.failed), 0) as failed,
            coalesce(sum(t.cancelled), 0) as cancelled, jsonb_agg(t.errors order by t.seq) filter (where t.errors is not null) as errors
        from tally t
        where t.parent_id = w.id
    ) t
$$;

-- The error of a parent: 2 of 100 children failed: task 17: no such host; task 18: cancelled
create or replace function family_error(p_failed int, p_total int, p_errors jsonb) returns text
language sql immutable as $$
    select format('%s of %s children failed: %s', p_failed, p_total, concat_ws('; ',
        (select string_agg(format('task %s: %s', e.error->>0, e.error->>1), '; ' order by e.place) from jsonb_array_elements(p_errors) with ordinality e(error, place)),
        case when p_failed > jsonb_array_length(p_errors) then '…' end))
$$;

-- Cancels the open descendants of a parent that the caller has locked: those that wait for a worker end at once, running ones
-- get a request. What others hold is left for the next time, and noted. True when something has ended.
create or replace function cancel_children(p_parent bigint) returns boolean
language plpgsql as $$
declare
    v_ends   ending[] := take_children(p_parent);
    v_hand   record;
    v_leases bigint[];
    v_child  bigint;
    v_ended  boolean := v_ends is not null;
begin
    if v_ended then
        v_hand := record_ends(v_ends);
        perform join_lines(v_hand.hand_queues, v_hand.hand_lanes, v_hand.hand_priorities);
    end if;

    v_leases := array(select l.id from lease l where l.parent_ids is not null and p_parent = any (l.parent_ids) order by l.id for update skip locked);
    -- As in cancel.sql: a settle with an older snapshot, which cannot see the request, must fail.
    update lease l set number = l.number where l.id = any (v_leases);
    insert into cancel_request (task_id, at)
    select t.id, clock()
    from lease l
    cross join lateral unnest(l.task_ids, l.parent_ids) t(id, parent_id)
    where l.id = any (v_leases)
      and t.parent_id = p_parent
      and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids) offset 0)
    on conflict do nothing;
    perform hint_orders(l.session) from unnest(v_leases) u(id) cross join lateral (select l.session from lease l where l.id = u.id offset 0) l;

    for v_child in
        select w.id
        from (select distinct c.id from open_children(p_parent) c where c.state = 'waiting') c
        cross join lateral (select w.id from waiting w where w.id = c.id for update skip locked) w
    loop
        update waiting w set stopping = 'cancelled' where w.id = v_child and w.stopping is null;
        v_ended := cancel_children(v_child) or v_ended;
    end loop;

    update waiting w
    set recheck = exists (
        select from open_children(p_parent) c
        where case c.state
            when 'leased' then not exists (select from cancel_request r where r.task_id = c.id)
            when 'waiting' then exists (select from waiting n where n.id = c.id and n.stopping is null)
            else true
        end
    )
    where w.id = p_parent;
    return v_ended;
end $$;

-- Takes the children that wait for a worker, or for their time, from where they are. Null when there are none.
create or replace function take_children(p_parent bigint) returns ending[]
language plpgsql as $$
declare
    v_ids  bigint[];
    v_ends ending[];
    v_more ending[];
begin
    v_ids := array(
        select t.id
        from brood b
        cross join lateral (
            select t.id from task t where t.id between b.first_id and b.last_id and t.parent_id = p_parent order by t.id for update skip locked
        ) t
        where b.parent_id = p_parent and not b.follow_ups
    );
    with gone as (delete from task t where t.id = any (v_ids) returning cancelled_end(t, null, false, null) as ending)
    select array_agg(g.ending) into v_ends from gone g;
    v_ids := array(
        select l.id
        from brood b
        cross join lateral (
            select l.id from later l where l.id between b.first_id and b.last_id and l.parent_id = p_parent order by l.id for update skip locked
        ) l
        where b.parent_id = p_parent and not b.follow_ups
    );
    with gone as (delete from later l where l.id = any (v_ids) returning cancelled_end(as_task(l), null, l.holds_turn, l.lane_key) as ending)
    select array_agg(g.ending) into v_more from gone g;
    return v_ends || v_more;
end $$;

-- Makes the children of a parent that had failed or were cancelled pending again, and returns how many of them are open now. One
-- that had itself failed because of its children asks those again. Waits for who retries one of them just now: if that is undone, it has
-- still failed.
create or replace function reopen_children(p_parent bigint, p_wait_ms int) returns int
language plpgsql as $$
declare
    v_row  ended;
    v_left record;
begin
    perform refuse_old_snapshot();
    if p_wait_ms is not null then
        perform set_config('lock_timeout', p_wait_ms::text, true);
    end if;
    loop
        for v_row in select * from failed_children(p_parent) f order by f.id loop
            select e.* into v_row from ended e where e.id = v_row.id for update;
            if found and has_failed_family(v_row) then
                perform resume(v_row);
            elsif found then
                perform start_over(v_row);
            end if;
        end loop;
        -- One statement, so one snapshot: what a child that has ended in it had to tell is of no use any more.
        with told as (
            delete from tally where parent_id = p_parent
        )
        select (select count(*) from open_children(p_parent)) as open, exists (select from failed_children(p_parent)) as has_failed into v_left;
        exit when not v_left.has_failed;     -- one that ran may have failed meanwhile
    end loop;
    return v_left.open;
end $$;

create or replace function failed_children(p_parent bigint) returns setof ended
language sql stable as $$
    select e.*
    from brood b
    cross join lateral (
        select e.* from ended e where e.id between b.first_id and b.last_id and e.parent_id = p_parent and e.state in ('failed', 'cancelled') offset 0
    ) e
    where b.parent_id = p_parent and not b.follow_ups
$$;

-- Who counts children must see all that is committed: others rely on it.
create or replace function refuse_old_snapshot() returns void
language plpgsql as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using
            errcode = 'feature_not_supported',
            message = 'a task that has children from before needs a read committed transaction',
            hint = 'Settle or retry it in one.';
    end if;
end $$;

create or replace function has_former_children(p_parent bigint) returns boolean
language plpgsql as $$
begin
    return exists (select from brood b where b.parent_id = p_parent) or exists (select from tally t where t.parent_id = p_parent);
end $$;

-- When a task starts over, and before it waits for new children: forgets those that it had, except for some that were retried by themselves and
-- are open. It will wait for them too; returns how many. One statement, so one snapshot: what has ended in it needs not tell, and who is
-- just being retried tells.
create or replace function forget_children(p_parent bigint) returns int
language plpgsql as $$
declare
    v_open bigint[];
begin
    perform refuse_old_snapshot();
    with told as (
        delete from tally where parent_id = p_parent
    ),
    forgotten as (
        delete from brood where parent_id = p_parent and not follow_ups
    )
    select coalesce(array_agg(c.id), '{}') into v_open from open_children(p_parent) c;
    insert into brood (parent_id, first_id, last_id)
    select p_parent, min(o.id), max(o.id)
    from (select u.id, u.id - row_number() over (order by u.id) as stretch from unnest(v_open) u(id)) o
    group by o.stretch;
    return cardinality(v_open);
end $$;

-- Lets a task of history, which the caller has locked, start anew from its first step, without a family.
create or replace function start_over(p_row ended) returns void
language plpgsql as $$
begin
    if has_former_children(p_row.id) then
        perform forget_children(p_row.id);
    end if;
    if p_row.extra::jsonb ?| array['family', 'step', 'resume'] then
        p_row.extra := nullif(p_row.extra::jsonb - array['family', 'step', 'resume'], '{}')::json;
    end if;
    perform restart_task(p_row);
end $$;

-- The same with the children because of which it has failed: its next attempt, which calls no handler, makes them pending again.
create or replace function resume(p_row ended) returns void
language plpgsql as $$
begin
    p_row.extra := (p_row.extra::jsonb || '{"resume": true}')::json;
    perform restart_task(p_row);
end $$;

create or replace function has_failed_family(p_row ended) returns boolean
language sql immutable as $$
    select coalesce((p_row.extra->'family'->>'failed')::int + (p_row.extra->'family'->>'cancelled')::int, 0) > 0
$$;

-- What sweeps do for families: add up, drop what nobody waits for, cancel again what a cancel has missed, let follow-ups go that were held when their task ended.
create or replace function sweep_families() returns text[]
language plpgsql as $$
declare
    v_queues text[] := fold_families();
    v_parent bigint;
    v_after  record;
begin
    perform drop_tallies((tallied_parents(1000)).others);
    for v_parent in select w.id from waiting w where w.stopping is not null and w.open > 0 order by w.id limit 100 for update skip locked loop
        perform cancel_children(v_parent);
    end loop;
    select array_agg(a.after_id) as ids, array_agg(a.state) as states into v_after
    from (
        select l.after_id, coalesce(f.state, 'cancelled') as state
        from (select distinct l.after_id from later l where l.after_id is not null limit 1000) l
        cross join lateral (select f.place, f.state from find_task(l.after_id) f) f
        where coalesce(f.place, 'ended') = 'ended'
    ) a;
    if v_after.ids is not null then
        v_queues := v_queues || release_after(v_after.ids, v_after.states);
    end if;
    return v_queues || fold_families();
end $$;

-- The children of the latest family of a task, or its follow-ups, by id from behind p_after. Ids of others may lie between theirs, and plain
-- successes lie in arrays: so it goes by stretches of ids.
create or replace function list_family(p_parent bigint, p_after bigint, p_limit int, p_follow_ups boolean) returns setof task_view
language plpgsql
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    c_stretch constant bigint := 4096;
    v_from    bigint := coalesce(p_after, 0) + 1;
    v_left    int := p_limit;
    v_ids     int8multirange;
    v_found   bigint;
begin
    loop
        select min(greatest(b.first_id, v_from)) into v_from from brood b where b.parent_id = p_parent and b.follow_ups = p_follow_ups and b.last_id >= v_from;
        exit when v_from is null or v_left <= 0;
        select range_agg(int8range(b.first_id, b.last_id, '[]')) into v_ids
        from brood b
        where b.parent_id = p_parent
          and b.follow_ups = p_follow_ups
          and b.last_id >= v_from
          and b.first_id < v_from + c_stretch;
        return query
            select v.*
            from family_stretch(v_from, v_from + c_stretch - 1) v
            where v_ids @> v.id
              and case when p_follow_ups then v.parent_id is null and (v.extra->>'after')::bigint = p_parent else v.parent_id = p_parent end
            order by v.id
            limit v_left;
        get diagnostics v_found = row_count;
        v_left := v_left - v_found;
        v_from := v_from + c_stretch;
    end loop;
end $$;
