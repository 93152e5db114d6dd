-- Why a task is not running: one row per reason, as the JSON that the Rust type is read from. Null kinds of workers stand for
-- all of them. A stable function: every statement in it sees the snapshot of the call.
create or replace function why(p_task bigint) returns table (state text, reason jsonb)
language plpgsql stable
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_task   task_view;
    v_lane   bigint;
    v_able   bigint;
    v_free   bigint;
    v_blocked boolean := false;
begin
    select * into v_task from get_task(p_task);
    if v_task.id is null then
        return;
    end if;
    state := v_task.state;
    if v_task.ended_at is not null then
        reason := jsonb_build_object('reason', 'ended', 'state', v_task.state, 'at', v_task.ended_at, 'error', v_task.error);
        return next;
        return;
    elsif v_task.state = 'leased' then
        reason := jsonb_build_object('reason', 'running', 'worker', v_task.session, 'since', v_task.started_at, 'stopping', v_task.cancel_requested,
            'name', (select w.name from worker w where w.session = v_task.session));
        return next;
        return;
    elsif v_task.state = 'waiting' then
        reason := jsonb_build_object('reason', 'waiting', 'open', v_task.family->'open',
            'failed', (v_task.family->>'failed')::int + (v_task.family->>'cancelled')::int, 'children', coalesce((
            select jsonb_agg(jsonb_build_object('task', c.id, 'state', c.state) order by c.id)
            from (select c.id, c.state from open_children(p_task) c order by c.id limit 5) c
        ), '[]'));
        return next;
        return;
    elsif exists (select from later l where l.id = p_task and l.after_id is not null) then
        reason := jsonb_build_object('reason', 'after', 'task', (select l.after_id from later l where l.id = p_task));
        return next;
    elsif v_task.state = 'later' then
        reason := case
            when v_task.attempt > 0 and v_task.error is not null
                then jsonb_build_object('reason', 'back_off', 'until', v_task.due_at, 'attempt', v_task.attempt, 'error', v_task.error)
            else jsonb_build_object('reason', 'due', 'at', v_task.due_at)
        end;
        return next;
    end if;
    for reason in
        select jsonb_build_object('reason', p.what || '_paused', 'since', p.paused_at, 'by', p.who, 'until', p.expires_at)
        from pause p
        where p.what = 'queue' and p.queue = v_task.queue
           or p.what = 'kind' and p.name = v_task.kind
           or p.what = 'lane' and p.queue = v_task.queue and p.name = v_task.lane and v_task.parent_id is null
        order by p.what desc
    loop
        v_blocked := true;
        return next;
    end loop;
    select t.lane into v_lane from (select t.lane from task t where t.id = p_task union all select l.lane from later l where l.id = p_task) t;
    if v_lane <> 0 then
        for reason in select w.reason from why_lane(v_task, v_lane) w(reason) loop
            v_blocked := true;
            return next;
        end loop;
    end if;

    select count(*), coalesce(sum(w.free) filter (where not w.draining), 0) into v_able, v_free
    from worker w
    where v_task.queue = any (w.queues)
      and (w.kinds is null or v_task.kind = any (w.kinds))
      and w.seen_at > clock() - interval '30 seconds';
    v_blocked := v_blocked or v_free = 0;
    if v_able = 0 then
        reason := jsonb_build_object('reason', 'no_worker', 'serving', coalesce((
            select jsonb_agg(jsonb_build_object('worker', w.session, 'name', w.name, 'kinds', w.kinds))
            from (
                select w.session, w.name, w.kinds
                from worker w
                where v_task.queue = any (w.queues)
                  and w.seen_at > clock() - interval '30 seconds'
                order by w.started_at, w.session
                limit 20
            ) w
        ), '[]'));
        return next;
    elsif v_free = 0 then
        reason := jsonb_build_object('reason', 'no_free_slot');
        return next;
    end if;
    if v_task.state = 'pending' then
        reason := tasks_ahead(v_task.queue, v_lane, v_task.priority, p_task);
        if reason is null and not v_blocked then
            reason := jsonb_build_object('reason', 'claimable');
        end if;
        if reason is not null then
            return next;
        end if;
    end if;
end $$;

-- What a lane has to say. Holders of its turns are in leases, in `later` while they are in back-off, and in `waiting`.
create or replace function why_lane(p_task task_view, p_lane bigint) returns setof jsonb
language plpgsql stable as $$
declare
    v_lane lane;
    v_held jsonb;
    v_n    bigint;
begin
    select * into v_lane from lane l where l.id = p_lane;
    if not found then
        return;
    end if;
    if v_lane.may_be_halted and exists (select from halt h where h.lane = p_lane and h.task_id <> 0) then   -- 0 stands for a pause
        return next jsonb_build_object('reason', 'lane_halted');
    end if;
    if v_lane.interval_ms > 0 and v_lane.next_start_at > clock() then
        return next jsonb_build_object('reason', 'lane_rests', 'until', v_lane.next_start_at);
    end if;
    select count(*), jsonb_agg(jsonb_build_object('task', h.id, 'state', h.state, 'worker', h.session, 'name', w.name, 'at', h.at) order by h.id) filter (where h.place <= 20)
    into v_n, v_held
    from (
        select h.*, row_number() over (order by h.id) as place
        from (
            select t.id, 'leased' as state, l.session, l.claimed_at as at
            from lease l
            cross join lateral unnest(l.task_ids, l.lanes) t(id, lane)
            where p_lane = any (l.lanes)
              and t.lane = p_lane
              and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids))
            union all
            select l.id, 'later', null, l.due_at from later l where l.lane = p_lane and l.lane <> 0 and l.holds_turn
            union all
            select w.id, 'waiting', null, w.started_at from waiting w where w.lane = p_lane and w.lane <> 0 and w.holds_turn
        ) h
        where h.id <> p_task.id
    ) h
    left join worker w on w.session = h.session;
    if v_n >= v_lane.lim then
        return next jsonb_build_object('reason', 'lane_full', 'limit', v_lane.lim, 'held_by', v_held);
    end if;
end $$;

-- Tasks of the same lane, or of the same queue without lanes, that go first.
create or replace function tasks_ahead(p_queue text, p_lane bigint, p_priority smallint, p_task bigint) returns jsonb
language sql stable as $$
    select case when count(*) > 0 then jsonb_build_object('reason', 'behind', 'ahead', least(count(*), 1000), 'more', count(*) > 1000) end
    from (
        select
        from task t
        where t.queue_id = queue_id(p_queue)
          and t.lane = p_lane
          and (t.priority, t.id) < (p_priority, p_task)
        limit 1001
    ) ahead
$$;

-- The same with the reasons as text, for our client.
create or replace function why_text(p_task bigint) returns table (state text, reason text)
language sql stable
set search_path from current
as $$ select w.state, w.reason::text from why(p_task) w $$;
