-- What an outcome means for its task. A request to cancel ends what would otherwise run again; spent attempts and
-- repeated crashes are failures.
create or replace function verdict_of(p_outcome text, p_attempt smallint, p_max_attempts smallint, p_crashes smallint, p_cancel boolean) returns text
language sql immutable parallel safe as $$
    select case
        when p_outcome in ('completed', 'failed', 'cancelled') then p_outcome
        when p_cancel then 'cancelled'
        when p_outcome = 'retry' and p_attempt + 1 >= p_max_attempts then 'failed'
        when p_outcome in ('retry', 'snooze') then 'later'
        when p_outcome = 'crash' and p_crashes + 1 >= 3 then 'failed'
        else 'pending'
    end
$$;

-- Records how attempts ended: the one way on from a lease, for settle, give-back and sweep alike.
--
-- Writes each task to where its verdict puts it, and returns the turns of lanes that are free now. The caller holds
-- the lease and has computed the verdicts.
create or replace function record_ends(
    p_ends ending[], out hand_queues text[], out hand_lanes bigint[], out hand_priorities smallint[]
)
language plpgsql as $$
declare
    v_now  timestamptz := clock();
    v_has  record;
    v_ends boolean;
begin
    -- One look at what there is, since most of it is rarely there.
    select array_agg(distinct e.verdict) as verdicts, bool_or(e.lane <> 0) as lanes, bool_or(e.parent_id is not null) as parents,
        bool_or(e.size >= 1000) as bodies, bool_or(e.extra is not null) as extras, bool_and(e.verdict = 'completed' and is_plain(e)) as only_plain
    into v_has
    from unnest(p_ends) e;
    v_ends := v_has.verdicts && array['completed', 'failed', 'cancelled'];
    if v_ends then
        perform record_history(p_ends, v_now, v_has.only_plain);
        if v_has.bodies then
            delete from body
            where task_id = any (array(select e.id from unnest(p_ends) e where e.size >= 1000 and e.verdict in ('completed', 'failed', 'cancelled')));
        end if;
        if v_has.extras then
            perform release_keys(array_agg(e.id), array_agg(e.queue), array_agg(e.kind), array_agg(e.extra), false)
            from unnest(p_ends) e
            where e.extra is not null
              and e.verdict in ('completed', 'failed', 'cancelled')
            having count(*) > 0;
        end if;
        if exists (select from cancel_request) then
            delete from cancel_request
            where task_id = any (array(select e.id from unnest(p_ends) e where e.verdict in ('completed', 'failed', 'cancelled')));
        end if;
    end if;
    if 'later' = any (v_has.verdicts) then
        perform record_later(p_ends, v_now);
    end if;
    if 'pending' = any (v_has.verdicts) then
        perform record_back(p_ends);
    end if;
    if 'waiting' = any (v_has.verdicts) then
        perform record_waiting(p_ends);
    end if;
    if v_has.parents then
        perform record_tallies(p_ends);
    end if;
    if is_watched() then
        perform announce_ends(p_ends);
    end if;
    if v_has.lanes then
        if 'failed' = any (v_has.verdicts) then
            insert into halt (lane, task_id, at)
            select e.lane, e.id, v_now
            from unnest(p_ends) e
            join lane l on l.id = e.lane and l.halts
            where e.verdict = 'failed';
        end if;
        -- Back-off in an ordered lane keeps the turn, as do top-level tasks that wait for children, and what is pending has its
        -- turn bound to it.
        select array_agg(e.queue), array_agg(e.lane), array_agg(e.priority) into hand_queues, hand_lanes, hand_priorities
        from unnest(p_ends) e
        where e.lane <> 0
          and e.has_turn is not false
          and e.verdict <> 'pending'
          and (e.verdict <> 'waiting' or e.parent_id is not null)
          and (e.verdict <> 'later' or (select l.holds_turn from later l where l.id = e.id) is not true);   -- a join may read all of `later`
    end if;
    if v_ends and v_has.extras then
        perform release_follow_ups(p_ends);
    end if;
end $$;

-- What is kept as the error of a task that has ended.
create or replace function end_error(e ending) returns text
language sql immutable parallel safe as $$
    select case
        when e.verdict = 'failed' and e.outcome = 'crash' then 'the worker died 3 times while it ran this task'
        when e.verdict = 'cancelled' then coalesce(e.report, 'cancelled')
        else e.report
    end
$$;

-- Whether a success leaves no more than its place in an array. A task that had children is looked at again.
create or replace function is_plain(e ending) returns boolean
language sql immutable parallel safe as $$
    select e.result is null and e.attempt = 0 and e.crashes = 0 and (e.extra is null or e.extra->'family' is null)
$$;

-- Tasks that have ended. Plain successes of one settle share a row; ids in it lie within 16384 of each other. p_only_plain: there is nothing else.
create or replace function record_history(p_ends ending[], p_now timestamptz, p_only_plain boolean) returns void
language plpgsql as $$
declare
    v_unkept text[] := unkept_queues();
begin
    insert into ended_plain (ended_at, started_at, lowest_id, tasks, queue, task_ids, kinds, enqueued_ats, lanes, priorities, max_attempts, started_ats, ready_ats,
        parent_ids, depths)
    select p_now, min(e.started_at), min(e.id), count(*), e.queue, array_agg(e.id), array_agg(e.kind), array_agg(e.enqueued_at),
        case when bool_or(e.lane <> 0) then array_agg(e.lane) end,
        case when bool_or(e.priority <> 0) then array_agg(e.priority) end,
        case when bool_or(e.max_attempts <> 25) then array_agg(e.max_attempts) end,
        case when min(e.started_at) <> max(e.started_at) then array_agg(e.started_at) end,
        case when bool_or(e.ready_at is not null) then array_agg(e.ready_at) end,
        case when bool_or(e.parent_id is not null) then array_agg(e.parent_id) end,
        case when bool_or(e.depth <> 0) then array_agg(e.depth) end
    from unnest(p_ends) e
    where e.verdict = 'completed'
      and is_plain(e)
      and e.queue <> all (v_unkept)
    group by e.queue, e.id >> 14;

    if not p_only_plain then
        insert into ended (id, lane, enqueued_at, started_at, ended_at, parent_id, priority, attempt, max_attempts, crashes, depth, state, queue, kind, payload, extra, result, error,
            lane_key, ready_at)
        select
            e.id, e.lane, e.enqueued_at, e.started_at, p_now, e.parent_id, e.priority,
            -- Give-backs and crashes charge nothing, even when they are the end.
            e.attempt + (e.started_at is not null and e.outcome not in ('back', 'crash'))::int,
            e.max_attempts, e.crashes + (e.outcome = 'crash' and e.verdict = 'failed')::int, e.depth, e.verdict, e.queue, e.kind,
            coalesce(e.payload, (select b.payload from body b where b.task_id = e.id)),
            e.extra, case when e.verdict = 'completed' then e.result end,
            end_error(e),
            case when e.lane <> 0 then coalesce(e.lane_key, lane_key_of(e.queue, e.lane)) end,
            e.ready_at
        from unnest(p_ends) e
        where e.verdict in ('completed', 'failed', 'cancelled')
          and not (e.verdict = 'completed' and is_plain(e))
          and (e.verdict <> 'completed' or e.queue <> all (v_unkept));
    end if;
    if v_unkept <> '{}' then
        perform count_unkept(array_agg(e.queue), array_agg(1), p_now) from unnest(p_ends) e where e.verdict = 'completed' and e.queue = any (v_unkept);
        delete from failure where task_id = any (array(select e.id from unnest(p_ends) e where e.verdict = 'completed' and e.queue = any (v_unkept)));
    end if;
end $$;

-- Tasks that run again later, and the errors that made them.
create or replace function record_later(p_ends ending[], p_now timestamptz) returns void
language plpgsql as $$
begin
    insert into later (id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra,
        due_at, holds_turn, lane_key)
    select
        e.id, e.lane, e.enqueued_at, e.ready_at, e.parent_id, e.size, e.priority, e.attempt + (e.outcome = 'retry')::int, e.max_attempts, e.crashes,
        e.depth, e.queue, e.kind, e.payload, e.extra,
        p_now + e.delay_ms * interval '1 millisecond', coalesce(l.lim = 1, false), l.key
    from unnest(p_ends) e
    left join lane l on l.id = e.lane
    where e.verdict = 'later';

    insert into failure (task_id, attempt, at, error)
    select e.id, e.attempt + 1, p_now, coalesce(e.report, 'failed')
    from unnest(p_ends) e
    where e.verdict = 'later'
      and e.outcome = 'retry';

    -- The newest 20 are kept.
    if exists (select from unnest(p_ends) e where e.attempt >= 20) then
        delete from failure f
        using unnest(p_ends) e
        where f.task_id = e.id
          and f.attempt <= e.attempt - 19
          and e.attempt >= 20;
    end if;
end $$;

-- Queues that keep no history of successes; few have a setting at all.
create or replace function unkept_queues() returns text[]
language plpgsql as $$
begin
    return array(select q.name from queue q where q.keep_completed_days = 0);
end $$;

-- Successes that leave nothing behind are at least counted.
create or replace function count_unkept(p_queues text[], p_counts int[], p_now timestamptz) returns void
language plpgsql as $$
begin
    insert into stat_delta (at, queue, completed)
    select p_now, c.queue, sum(c.n)
    from unnest(p_queues, p_counts) c(queue, n)
    where not exists (select from queue q where q.name = c.queue and not q.statistics)
    group by c.queue;
end $$;

-- Tasks that are runnable again, in their old place and, in a lane, with the turn that they had. A child that has waited for its
-- own children had to give it up, and queues for another.
create or replace function record_back(p_ends ending[]) returns void
language plpgsql as $$
begin
    insert into task (id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra,
        queue_id)
    select e.id, e.lane, e.enqueued_at, e.ready_at, e.parent_id, e.size, e.priority, e.attempt, e.max_attempts,
        e.crashes + (e.outcome = 'crash')::int, e.depth, e.queue, e.kind, e.payload, e.extra, queue_id(e.queue)
    from unnest(p_ends) e
    where e.verdict = 'pending';

    -- Numbers far below those of the sequence: in front of all others of the same priority, oldest first.
    insert into turn (queue, priority, seq, lanes, task_id)
    select e.queue, e.priority, e.id - 4611686018427387904, array[e.lane], e.id
    from unnest(p_ends) e
    where e.verdict = 'pending'
      and e.lane <> 0
      and e.has_turn is not false;

    insert into mark (lane, n, priority, slowest, queue, key)
    select e.lane, 1, e.priority, e.priority, e.queue, coalesce(e.lane_key, lane_key_of(e.queue, e.lane))
    from unnest(p_ends) e
    where e.verdict = 'pending'
      and e.lane <> 0
      and e.has_turn is false;
end $$;

-- Tasks that wait for their children from now on.
create or replace function record_waiting(p_ends ending[]) returns void
language plpgsql as $$
begin
    insert into waiting (id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra,
        started_at, holds_turn, lane_key, policy, continues, total, open, completed, result)
    select e.id, e.lane, e.enqueued_at, e.ready_at, e.parent_id, e.size, e.priority, e.attempt + 1, e.max_attempts, e.crashes, e.depth, e.queue, e.kind,
        e.payload, e.extra,
        e.started_at, e.lane <> 0 and e.parent_id is null, case when e.lane <> 0 then lane_key_of(e.queue, e.lane) end, e.policy, e.continues,
        case when e.again then (e.extra->'family'->>'completed')::int else 0 end + e.children, e.children,
        case when e.again then (e.extra->'family'->>'completed')::int else 0 end, e.result
    from unnest(p_ends) e
    where e.verdict = 'waiting';
end $$;

-- One tally per parent: what its children of this call have done. Siblings count before the end of who has spawned them.
create or replace function record_tallies(p_ends ending[]) returns void
language plpgsql as $$
begin
    insert into tally (parent_id, delta, completed, failed, cancelled, errors)
    select t.parent_id, t.siblings - t.completed - t.failed - t.cancelled, t.completed, t.failed, t.cancelled, t.errors
    from (
        select e.parent_id, coalesce(sum(e.siblings), 0) as siblings,
            count(*) filter (where e.verdict = 'completed') as completed,
            count(*) filter (where e.verdict = 'failed') as failed,
            count(*) filter (where e.verdict = 'cancelled') as cancelled,
            to_jsonb((array_agg(jsonb_build_array(e.id, left(end_error(e), 200)) order by e.id) filter (where e.verdict in ('failed', 'cancelled')))[1:3]) as errors
        from unnest(p_ends) e
        where e.parent_id is not null
          and (e.verdict in ('completed', 'failed', 'cancelled') or e.siblings > 0)
        group by e.parent_id
    ) t;
end $$;
