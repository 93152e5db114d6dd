-- Looking at tasks, wherever they are. Each view has the columns of the type task_view, and then those that only filters need.

create or replace view pending_view as
select
    t.id, t.kind, t.queue, shown_lane(l.key) as lane, t.priority, 'pending' as state, t.attempt::int as attempt, t.max_attempts, t.crashes, t.parent_id, t.depth,
    t.enqueued_at, null::timestamptz as due_at, null::timestamptz as started_at, null::timestamptz as ended_at, null::uuid as session,
    coalesce(t.payload, (select b.payload from body b where b.task_id = t.id)) as payload, t.extra, null::json as result,
    (select f.error from failure f where f.task_id = t.id order by f.at desc, f.attempt desc limit 1) as error, false as cancel_requested,
    t.lane as lane_id, null::json as family
from task t
left join lane l on l.id = t.lane;

create or replace view later_view as
select
    t.id, t.kind, t.queue, shown_lane(t.lane_key) as lane, t.priority, 'later' as state, t.attempt::int as attempt, t.max_attempts, t.crashes, t.parent_id, t.depth,
    t.enqueued_at, nullif(t.due_at, 'infinity') as due_at, null::timestamptz as started_at, null::timestamptz as ended_at, null::uuid as session,
    coalesce(t.payload, (select b.payload from body b where b.task_id = t.id)) as payload, t.extra, null::json as result,
    (select f.error from failure f where f.task_id = t.id order by f.at desc, f.attempt desc limit 1) as error, false as cancel_requested,
    t.lane as lane_id, null::json as family, t.due_at as sorted_at
from later t;

create or replace view leased_view as
select
    t.id, t.kind, l.queue, shown_lane(n.key) as lane, coalesce(t.priority, 0::smallint) as priority, 'leased' as state, coalesce(t.attempt, 0) + 1 as attempt,
    coalesce(t.max_attempts, 25::smallint) as max_attempts, coalesce(t.crashes, 0::smallint) as crashes, t.parent_id, coalesce(t.depth, 0::smallint) as depth,
    t.enqueued_at, null::timestamptz as due_at, l.claimed_at as started_at, null::timestamptz as ended_at, l.session,
    coalesce(t.payload, (select b.payload from body b where b.task_id = t.id)) as payload, t.extra, null::json as result,
    (select f.error from failure f where f.task_id = t.id order by f.at desc, f.attempt desc limit 1) as error,
    exists (select from cancel_request c where c.task_id = t.id) as cancel_requested, coalesce(t.lane, 0) as lane_id, null::json as family
from lease l
cross join lateral unnest(l.task_ids, l.lanes, l.enqueued_ats, l.parent_ids, l.priorities, l.attempts, l.max_attempts, l.crashes, l.depths, l.kinds, l.payloads, l.extras)
    t(id, lane, enqueued_at, parent_id, priority, attempt, max_attempts, crashes, depth, kind, payload, extra)
left join lane n on n.id = t.lane
where not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids));

create or replace view waiting_view as
select
    t.id, t.kind, t.queue, shown_lane(t.lane_key) as lane, t.priority, 'waiting' as state, t.attempt::int as attempt, t.max_attempts, t.crashes, t.parent_id, t.depth,
    t.enqueued_at, null::timestamptz as due_at, t.started_at, null::timestamptz as ended_at, null::uuid as session,
    coalesce(t.payload, (select b.payload from body b where b.task_id = t.id)) as payload, t.extra, null::json as result,
    (select f.error from failure f where f.task_id = t.id order by f.at desc, f.attempt desc limit 1) as error,
    t.stopping is not distinct from 'cancelled' as cancel_requested, t.lane as lane_id, family_now(t)::json as family
from waiting t;

create or replace view ended_view as
select
    t.id, t.kind, t.queue, shown_lane(coalesce(n.key, t.lane_key)) as lane, t.priority, t.state, t.attempt::int as attempt, t.max_attempts, t.crashes, t.parent_id, t.depth,
    t.enqueued_at, null::timestamptz as due_at, t.started_at, t.ended_at, null::uuid as session, t.payload, t.extra, t.result,
    coalesce(t.error, (select f.error from failure f where f.task_id = t.id order by f.at desc, f.attempt desc limit 1)) as error, false as cancel_requested,
    t.lane as lane_id, null::json as family
from ended t
left join lane n on n.id = t.lane;

create or replace view ended_plain_view as
select
    t.id, t.kind, p.queue, shown_lane(n.key) as lane, coalesce(t.priority, 0::smallint) as priority, 'completed' as state, 1 as attempt,
    coalesce(t.max_attempts, 25::smallint) as max_attempts, 0::smallint as crashes, t.parent_id, coalesce(t.depth, 0::smallint) as depth,
    t.enqueued_at, null::timestamptz as due_at, coalesce(t.started_at, p.started_at) as started_at, p.ended_at, null::uuid as session, null::json as payload,
    null::json as extra, null::json as result, null as error, false as cancel_requested, coalesce(t.lane, 0) as lane_id, null::json as family, p.lowest_id
from ended_plain p
cross join lateral unnest(p.task_ids, p.kinds, p.enqueued_ats, p.lanes, p.priorities, p.max_attempts, p.started_ats, p.parent_ids, p.depths)
    t(id, kind, enqueued_at, lane, priority, max_attempts, started_at, parent_id, depth)
left join lane n on n.id = t.lane;

-- The columns of task_view, for statements that are put together.
create or replace function task_view_columns() returns text
language sql immutable as $$
    select 'v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at, '
        || 'v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family'
$$;

create or replace function get_task(p_task bigint) returns setof task_view
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return query
        -- A lane that no worker has met yet is known by its marks, which are too many to be looked through for a list.
        select v.id, v.kind, v.queue, coalesce(v.lane, case when v.lane_id <> 0 then shown_lane(lane_key_of(v.queue, v.lane_id)) end), v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
            v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
        from pending_view v where v.id = p_task
        union all
        select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
            v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
        from later_view v where v.id = p_task
        union all
        select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
            v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
        from leased_view v where v.id = p_task
        union all
        select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
            v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
        from waiting_view v where v.id = p_task
        union all
        select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
            v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
        from ended_view v where v.id = p_task
        union all
        select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
            v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
        from ended_plain_view v
        where v.lowest_id between p_task - 16383 and p_task
          and v.id = p_task
        limit 1;
end $$;

-- All tasks with ids in a short stretch, for list_family.
create or replace function family_stretch(p_from bigint, p_to bigint) returns setof task_view
language sql stable as $$
    select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
        v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
    from pending_view v where v.id between p_from and p_to
    union all
    select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
        v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
    from later_view v where v.id between p_from and p_to
    union all
    select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
        v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
    from leased_view v where v.id between p_from and p_to
    union all
    select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
        v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
    from waiting_view v where v.id between p_from and p_to
    union all
    select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
        v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
    from ended_view v where v.id between p_from and p_to
    union all
    select v.id, v.kind, v.queue, v.lane, v.priority, v.state, v.attempt, v.max_attempts, v.crashes, v.parent_id, v.depth, v.enqueued_at, v.due_at,
        v.started_at, v.ended_at, v.session, v.payload, v.extra, v.result, v.error, v.cancel_requested, v.family
    from ended_plain_view v where v.lowest_id between p_from - 16383 and p_to and v.id between p_from and p_to
$$;

create or replace function list_workers()
returns table (session uuid, name text, queues text[], kinds text[], slots int, free int, memory_percent smallint, draining boolean, started_at timestamptz, seen_at timestamptz)
language sql
set search_path from current
as $$
    select w.session, w.name, w.queues, w.kinds, w.slots, w.free, w.memory_percent, w.draining, w.started_at, w.seen_at
    from worker w
    order by w.started_at, w.session
$$;
