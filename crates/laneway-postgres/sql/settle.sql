-- Settles attempts: one entry per task in parallel arrays. A task of -n stands for n tasks of the lease that have completed at their first
-- attempt, without a result; p_ids holds them, sorted, from p_delays + 1 on. When the lease is not what such an entry says, its tasks are settled
-- one by one, and their verdicts are joined by commas.
--
-- 1 lock the leases, 2 look in a new statement what is already settled, 3 record, 4 close leases. A lease that is gone, or
-- shows another token or session, makes the verdict `stale`; a task that was settled before, `already`; neither changes
-- anything. p_again: the caller repeats a call whose answer it lost, so a missing lease means that it was recorded.
--
-- p_spawn: what the attempts have spawned (family.sql); null for most calls.
-- Returns one verdict per entry, and the turns that are free now.
create or replace function settle_all(
    p_session  uuid,
    p_again    boolean,
    p_leases   bigint[],
    p_tokens   uuid[],
    p_tasks    bigint[],
    p_outcomes text[],
    p_delays   bigint[],
    p_reports  text[],
    p_results  text[],
    p_ids      bigint[],
    p_spawn    spawn,
    out verdicts text[], out hand_queues text[], out hand_lanes bigint[], out hand_priorities smallint[], out hand_afters bigint[], out hand_until bigint
)
language plpgsql as $$
declare
    v_locked  bigint[];
    v_plain   record;
    v_of      bigint[];                -- per entry its place in the call, when some were taken apart
    v_places  bigint[];
    v_ends    ending[];
    v_asked   bigint[] := '{}';
    v_hand    record;
begin
    v_locked := array(
        select l.id
        from lease l
        where l.id = any (p_leases)
          and l.session = p_session
        order by l.id
        for update
    );

    -- Plain successes, the ordinary case, go into history as they are. What few of them have is looked for here, in one statement.
    select array_agg(l.id) as leases, array_agg(case when l.task_ids <> s.ids then i.at + 1 end) as firsts, array_agg(i.at - i.task) as lasts,
        array_agg(d.tasks - i.task = l.tasks) as closes,
        bool_or(l.lanes is not null) as lanes, bool_or(l.sizes is not null) as bodies, bool_or(l.extras is not null) as extras,
        bool_or(l.parent_ids is not null) as parents,
        exists (select from cancel_request) as asked,
        array(select q.name from queue q where q.keep_completed_days = 0) as unkept
    into v_plain
    from unnest(p_leases, p_tokens, p_tasks, p_delays) i(lease, token, task, at)
    cross join lateral (select * from lease l where l.id = i.lease offset 0) l
    cross join lateral (select p_ids[i.at + 1 : i.at - i.task] as ids offset 0) s
    cross join lateral (
        select coalesce(sum(cardinality(d.task_ids)), 0) as tasks, bool_or(d.task_ids && s.ids) as is_done
        from settled d
        where d.lease_id = l.id
    ) d
    where i.task < 0
      and l.token = i.token
      and l.id = any (v_locked)
      and (l.task_ids = s.ids or s.ids <@ l.task_ids)
      and l.attempts is null
      and l.crashes is null
      and l.task_ids[l.tasks] - l.task_ids[1] < 16384
      and d.is_done is not true;
    if v_plain.leases is not null then
        v_hand := settle_plain(v_plain.leases, v_plain.firsts, v_plain.lasts, v_plain.closes, p_ids, v_plain.unkept,
            v_plain.lanes, v_plain.bodies, v_plain.extras, v_plain.parents, v_plain.asked);
        hand_queues := v_hand.hand_queues;
        hand_lanes := v_hand.hand_lanes;
        hand_priorities := v_hand.hand_priorities;
        hand_afters := v_hand.hand_afters;
        hand_until := v_hand.hand_until;
        if cardinality(v_plain.leases) = cardinality(p_leases) then
            verdicts := array_fill('completed'::text, array[cardinality(p_leases)]);
            return;
        end if;
    end if;

    if v_plain.asked then
        v_asked := array(
            select c.task_id
            from cancel_request c
            where c.task_id = any (array(select t.id from lease l, unnest(l.task_ids) t(id) where l.id = any (v_locked)))
        );
    end if;

    if exists (select from unnest(p_leases, p_tasks) i(lease, task) where i.task < 0 and (i.lease = any (v_plain.leases)) is not true) then
        select array_agg(i.lease), array_agg(i.token), array_agg(coalesce(t.id, i.task)), array_agg(i.outcome), array_agg(case when t.id is null then i.delay_ms else 0 end),
            array_agg(i.report), array_agg(i.result), array_agg(i.place)
        into p_leases, p_tokens, p_tasks, p_outcomes, p_delays, p_reports, p_results, v_of
        from unnest(p_leases, p_tokens, p_tasks, p_outcomes, p_delays, p_reports, p_results)
            with ordinality i(lease, token, task, outcome, delay_ms, report, result, place)
        left join lateral unnest(p_ids[i.delay_ms + 1 : i.delay_ms - i.task]) t(id) on i.task < 0 and (i.lease = any (v_plain.leases)) is not true;
    end if;

    with item as materialized (
        select i.*, coalesce(v_of[i.n], i.n) as place
        from unnest(p_leases, p_tokens, p_tasks, p_outcomes, p_delays, p_reports, p_results)
            with ordinality i(lease, token, task, outcome, delay_ms, report, result, n)
        where i.task > 0
          and i.lease = any (v_locked)
    ),
    open as materialized (
        select l.id as lease, l.token, l.queue, l.claimed_at, t.*
        from lease l
        -- A list per lease and not an anti-join, for which the planner may read all of `settled`.
        cross join lateral (
            select array(select s.id from settled, unnest(settled.task_ids) s(id) where settled.lease_id = l.id) as ids
            offset 0
        ) done
        cross join lateral unnest(l.task_ids, l.lanes, l.enqueued_ats, l.ready_ats, l.parent_ids, l.sizes, l.priorities, l.attempts,
            l.max_attempts, l.crashes, l.depths, l.kinds, l.payloads, l.extras)
            t(id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, kind, payload, extra)
        where l.id in (select lease from item)
          and t.id <> all (done.ids)
    ),
    chosen as materialized (
        select distinct on (o.id) o.*, i.outcome, i.delay_ms, i.report, i.result, i.place
        from open o
        join item i on i.lease = o.lease and i.task = o.id and i.token = o.token
        order by o.id, i.place
    )
    select
        array_agg(row(c.id, coalesce(c.lane, 0), c.enqueued_at, c.ready_at, c.parent_id, coalesce(c.size, octet_length(c.payload::text)),
            coalesce(c.priority, 0), coalesce(c.attempt, 0), coalesce(c.max_attempts, 25), coalesce(c.crashes, 0), coalesce(c.depth, 0),
            c.queue, c.kind, c.payload, c.extra, c.claimed_at, c.outcome,
            verdict_of(c.outcome, coalesce(c.attempt, 0::smallint), coalesce(c.max_attempts, 25::smallint), coalesce(c.crashes, 0::smallint), c.id = any (v_asked)),
            c.delay_ms, c.report, c.result::json, c.lease, null, null, null, null, null, null, null)::ending order by c.id),
        array_agg(c.place order by c.id)
    into v_ends, v_places
    from chosen c;
    if v_ends is not null and (p_spawn).families is not null then
        v_ends := spawn_all(v_ends, v_places, v_asked, p_spawn);
    end if;

    verdicts := array(
        select case
            when i.task < 0 then 'completed'
            when e.verdict is not null then e.verdict
            when s.token = i.token and i.task = any (s.task_ids) then 'already'
            when p_again and s.id is null and w.session is not null then 'already'
            else 'stale'
        end
        from unnest(p_leases, p_tokens, p_tasks) with ordinality i(lease, token, task, n)
        left join lease s on s.id = i.lease and s.session = p_session
        left join worker w on w.session = p_session
        left join (
            select distinct on (v.place, t.id) v.place, t.id, t.verdict
            from unnest(v_places) with ordinality v(place, n)
            join unnest(v_ends) with ordinality t(id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth,
                queue, kind, payload, extra, started_at, outcome, verdict, delay_ms, report, result, lease_id, policy, continues, again, children, siblings,
                has_turn, lane_key, n) on t.n = v.n
        ) e on e.place = coalesce(v_of[i.n], i.n) and e.id = i.task
        order by i.n
    );
    if v_of is not null then
        verdicts := array(
            select string_agg(v.verdict, ',' order by v.n)
            from unnest(verdicts, v_of) with ordinality v(verdict, place, n)
            group by v.place
            order by v.place
        );
    end if;
    if v_ends is null then
        return;
    end if;

    v_hand := record_ends(v_ends);
    hand_queues := hand_queues || v_hand.hand_queues;
    hand_lanes := hand_lanes || v_hand.hand_lanes;
    hand_priorities := hand_priorities || v_hand.hand_priorities;
    if v_hand.hand_lanes is not null then
        hand_afters := null;   -- these may be of any lanes
        hand_until := null;
    end if;
    insert into settled (lease_id, task_ids)
    select e.lease_id, array_agg(e.id)
    from unnest(v_ends) e
    group by e.lease_id;
    perform close_leases(array(select e.lease_id from unnest(v_ends) e));
end $$;

-- Plain successes of leases: of each the tasks p_ids[first:last], or all of it where first is null. History takes the arrays of a whole lease
-- as they are. p_closes: nothing of the lease is left then. p_unkept: the queues that keep no successes. The flags: some task has a lane, a large payload, extras, a parent; somebody has
-- asked to cancel some running task.
create or replace function settle_plain(
    p_leases bigint[], p_firsts bigint[], p_lasts bigint[], p_closes boolean[], p_ids bigint[], p_unkept text[],
    p_lanes boolean, p_bodies boolean, p_extras boolean, p_parents boolean, p_asked boolean,
    out hand_queues text[], out hand_lanes bigint[], out hand_priorities smallint[], out hand_afters bigint[], out hand_until bigint
)
language plpgsql as $$
declare
    v_whole bigint[] := p_leases;
    v_closed bigint[];
    v_parts boolean := num_nonnulls(variadic p_firsts) > 0;
begin
    if p_unkept <> '{}' then
        perform count_unkept(array_agg(l.queue), array_agg(coalesce(p.last - p.first + 1, l.tasks)::int), clock())
        from unnest(p_leases, p_firsts, p_lasts) p(lease, first, last)
        cross join lateral (select * from lease l where l.id = p.lease offset 0) l
        where l.queue = any (p_unkept);
    end if;
    if p_lanes then
        select array_agg(t.queue), array_agg(t.lane), array_agg(coalesce(t.priority, 0::smallint)),
            -- From where to look for the next of a lane. Of a lease that is not whole another task may have come back, in front of these.
            case when bool_and(t.until is not null) and not v_parts then array_agg(t.id) end,
            case when bool_and(t.until is not null) and not v_parts then min(t.until) end
        into hand_queues, hand_lanes, hand_priorities, hand_afters, hand_until
        from plain_tasks(p_leases, p_firsts, p_lasts, p_ids) t
        where t.lane <> 0;
    end if;
    if p_parents then
        -- Not by plain_tasks, which takes all columns apart: large families end here. Mostly all are children of one parent.
        insert into tally (parent_id, delta, completed)
        select t.parent_id, -sum(t.n), sum(t.n)
        from unnest(p_leases, p_firsts, p_lasts) p(lease, first, last)
        cross join lateral (select l.tasks, l.task_ids, l.parent_ids, l.parent_ids[1] = all (l.parent_ids) as is_one from lease l where l.id = p.lease offset 0) l
        cross join lateral (
            select l.parent_ids[1] as parent_id, coalesce(p.last - p.first + 1, l.tasks) as n
            where l.is_one
            union all
            select u.parent_id, 1
            from unnest(l.task_ids, l.parent_ids) u(id, parent_id)
            where l.is_one is not true
              and u.parent_id is not null
              and (p.first is null or u.id = any (p_ids[p.first : p.last]))
        ) t
        group by t.parent_id;
    end if;
    if p_bodies then
        delete from body
        where task_id = any (array(select t.id from plain_tasks(p_leases, p_firsts, p_lasts, p_ids) t));
    end if;
    if p_extras then
        perform release_keys(array_agg(t.id), array_agg(t.queue), array_agg(t.kind), array_agg(t.extra), false)
        from plain_tasks(p_leases, p_firsts, p_lasts, p_ids) t;
    end if;
    if p_asked then
        delete from cancel_request
        where task_id = any (array(select t.id from plain_tasks(p_leases, p_firsts, p_lasts, p_ids) t));
    end if;
    if is_watched() then
        perform announce('completed', t.queue, array_agg(t.id), array_agg(t.kind))
        from plain_tasks(p_leases, p_firsts, p_lasts, p_ids) t
        group by t.lease, t.queue;
    end if;
    if v_parts then
        insert into ended_plain (ended_at, started_at, lowest_id, tasks, queue, task_ids, kinds, enqueued_ats, lanes, priorities, max_attempts, ready_ats,
            parent_ids, depths)
        select clock(), l.claimed_at, s.ids[1], cardinality(s.ids), l.queue, s.ids, t.kinds, t.enqueued_ats,
            part_of(l.task_ids, l.lanes, s.ids), part_of(l.task_ids, l.priorities, s.ids), part_of(l.task_ids, l.max_attempts, s.ids),
            part_of(l.task_ids, l.ready_ats, s.ids), part_of(l.task_ids, l.parent_ids, s.ids), part_of(l.task_ids, l.depths, s.ids)
        from unnest(p_leases, p_firsts, p_lasts) p(lease, first, last)
        cross join lateral (select * from lease l where l.id = p.lease offset 0) l
        cross join lateral (select p_ids[p.first : p.last] as ids offset 0) s
        cross join lateral (
            select array_agg(u.kind) as kinds, array_agg(u.enqueued_at) as enqueued_ats
            from unnest(l.task_ids, l.kinds, l.enqueued_ats) u(id, kind, enqueued_at)
            where u.id = any (s.ids)
        ) t
        where p.first is not null
          and l.queue <> all (p_unkept);

        if false = any (p_closes) then
            insert into settled (lease_id, task_ids)
            select p.lease, p_ids[p.first : p.last]
            from unnest(p_leases, p_firsts, p_lasts, p_closes) p(lease, first, last, closes)
            where not p.closes;
        end if;
        if true = any (p_closes) then
            v_closed := array(select p.lease from unnest(p_leases, p_firsts, p_closes) p(lease, first, closes) where p.closes and p.first is not null);
            v_whole := array(select p.lease from unnest(p_leases, p_firsts) p(lease, first) where p.first is null);
            delete from settled where lease_id = any (v_closed);
            delete from lease where id = any (v_closed);
        else
            v_whole := '{}';
        end if;
    end if;
    if v_whole <> '{}' then
        with gone as (
            delete from lease
            where id = any (v_whole)
            returning *
        )
        insert into ended_plain (ended_at, started_at, lowest_id, tasks, queue, task_ids, kinds, enqueued_ats, lanes, priorities, max_attempts, ready_ats,
            parent_ids, depths)
        select clock(), l.claimed_at, l.task_ids[1], l.tasks, l.queue, l.task_ids, l.kinds, l.enqueued_ats, l.lanes, l.priorities, l.max_attempts, l.ready_ats,
            l.parent_ids, l.depths
        from gone l
        where l.queue <> all (p_unkept);
    end if;
end $$;

-- Of the values of a lease's tasks those of a part of its tasks.
create or replace function part_of(p_ids bigint[], p_values anyarray, p_part bigint[]) returns anyarray
language sql immutable strict as $$
    select array_agg(u.value)
    from unnest(p_ids, p_values) u(id, value)
    where u.id = any (p_part)
$$;

-- The tasks that settle_plain settles, with what few of them have.
create or replace function plain_tasks(
    p_leases bigint[], p_firsts bigint[], p_lasts bigint[], p_ids bigint[],
    out lease bigint, out queue text, out until bigint, out id bigint, out kind text, out lane bigint, out priority smallint, out parent_id bigint, out extra json
) returns setof record
language sql stable as $$
    select p.lease, l.queue, l.until, t.*
    from unnest(p_leases, p_firsts, p_lasts) p(lease, first, last)
    cross join lateral (select * from lease l where l.id = p.lease offset 0) l
    cross join lateral (select p_ids[p.first : p.last] as ids offset 0) s
    cross join lateral unnest(l.task_ids, l.kinds, l.lanes, l.priorities, l.parent_ids, l.extras) t(id, kind, lane, priority, parent_id, extra)
    where p.first is null
       or t.id = any (s.ids)
$$;

-- Of leases without open tasks nothing stays. A task may have been in another lease of this session before, so each counts for the lease
-- that it was settled in.
create or replace function close_leases(p_leases bigint[]) returns void
language plpgsql as $$
declare
    v_closed bigint[] := array(
        select l.id
        from lease l
        where l.id = any (p_leases)
          and l.tasks = (select sum(cardinality(s.task_ids)) from settled s where s.lease_id = l.id)
    );
begin
    if v_closed <> '{}' then
        delete from settled where lease_id = any (v_closed);
        delete from lease where id = any (v_closed);
    end if;
end $$;

-- The public face: settles one attempt inside the caller's transaction, so that its effects happen exactly once.
--   select laneway.settle(session, lease, token, task, 'completed', result => '{"sent": true}');
-- Outcomes: completed, retry (delay, error), snooze (delay), failed (error), cancelled (error), back.
-- What `laneway.spawn` and `laneway.follow_up` have prepared for this task in the same transaction is stored with it.
-- The caller's transaction may last: freed turns are always put back into the line, for a claim to retire, and tallies are left to
-- the next advance.
create or replace function settle(
    session uuid,
    lease   bigint,
    token   uuid,
    task    bigint,
    outcome text,
    delay   interval default '0',
    error   text     default null,
    result  json     default null
) returns text
language plpgsql
set search_path from current
as $$
begin
    if settle.outcome is null or settle.outcome not in ('completed', 'retry', 'snooze', 'failed', 'cancelled', 'back') then
        perform refuse('invalid_name', format('outcome `%s` is unknown; one of: completed, retry, snooze, failed, cancelled, back', settle.outcome));
    elsif settle.task is null then
        perform refuse('invalid_id', 'task is null; name the task to settle');
    end if;
    return settle_spawning(settle.session, settle.lease, settle.token, settle.task, settle.outcome,
        greatest(extract(epoch from settle.delay) * 1000, 0)::bigint, left(settle.error, 65536), settle.result::text, take_spawned(settle.task));
end $$;

-- The same for an attempt with what it has spawned.
create or replace function settle_spawning(
    p_session uuid, p_lease bigint, p_token uuid, p_task bigint, p_outcome text, p_delay_ms bigint, p_report text, p_result text, p_spawn spawn
) returns text
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql: one plan, whatever the tables were like when it was made
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_settled record;
begin
    if current_setting('transaction_isolation') <> 'read committed' and exists (select from lease l where l.id = p_lease and l.tasks > 1) then
        -- Settling one of several tasks leaves the lease's row as it is, so an old snapshot would not show that
        -- somebody has done so meanwhile. When the last one is settled the row goes, and the conflict is noticed.
        raise exception using
            errcode = 'feature_not_supported',
            message = format('settle above read committed needs a lease of its own, and lease %s has several tasks', p_lease),
            hint = 'Claim this kind alone, or settle in a read committed transaction.';
    end if;
    v_settled := settle_all(p_session, false, array[p_lease], array[p_token], array[p_task], array[p_outcome], array[p_delay_ms], array[p_report], array[p_result],
        '{}', p_spawn);
    perform join_lines(v_settled.hand_queues, v_settled.hand_lanes, v_settled.hand_priorities);
    perform hint(v_settled.hand_queues || (p_spawn).queues || queues_touched(p_task));
    return v_settled.verdicts[1];
end $$;

-- The queues in which the settle of a task may have left work: its own, if it runs again, and its parent's, whose tallies any
-- worker adds up.
create or replace function queues_touched(p_task bigint) returns text[]
language sql as $$
    select array(
        select t.queue from task t where t.id = p_task
        union all
        select l.queue from later l where l.id = p_task
        union all
        select w.queue from tally t cross join lateral (select w.queue from waiting w where w.id = t.parent_id offset 0) w
        union all
        select s.queue from sleeper s where exists (select from tally)
    )
$$;
