-- The operator's side of lanes.

-- Changes a lane; null leaves a setting as it is. Waits for the lane's row; claims never wait for lanes, so there is no cycle.
-- When the limit goes down, claims burn the turns that are too many and not in line now.
create or replace function set_lane(p_queue text, p_key text, p_limit int, p_interval_ms bigint, p_halts boolean) returns void
language plpgsql
set search_path from current
as $$
declare
    v_lane bigint := lane_id(p_queue, p_key);
    v_row  record;
begin
    loop
        select l.lim, l.issued into v_row from lane l where l.id = v_lane for update;
        exit when found;
        -- The bucket of take_up.sql: whoever takes up marks of this lane meanwhile passes it by, instead of waiting for
        -- our insert to be committed. Again, since a janitor may remove the lane before we have locked it.
        perform pg_advisory_xact_lock(1281452377, (hashtext(p_queue) & -64 | (v_lane & 63))::int);
        insert into lane (id, lim, queue, key, used_at) values (v_lane, 1, p_queue, p_key, clock()) on conflict do nothing;
    end loop;
    update lane
    set lim = coalesce(p_limit, lim),
        own = own or p_limit is not null,
        interval_ms = coalesce(p_interval_ms, interval_ms),
        next_start_at = case when p_interval_ms = 0 then null else next_start_at end,
        halts = coalesce(p_halts, halts),
        may_be_halted = coalesce(p_halts, halts) or exists (select from halt h where h.lane = v_lane),
        used_at = clock()
    where id = v_lane;
    if p_limit < v_row.issued then
        perform shed_turns(p_queue, v_lane);
    elsif p_limit > v_row.lim then
        perform mark_backlog(p_queue, p_key, v_lane, p_limit - v_row.issued);
    end if;
    if p_interval_ms = 0 then
        -- Nothing paces the parked turns any more.
        with freed as (
            delete from parked p
            where p.lane = v_lane
            returning *
        )
        insert into turn (queue, priority, lanes, task_id)
        select queue, priority, array[lane], task_id
        from freed;
    end if;
    perform hint(array[p_queue]);
end $$;

-- A mark for tasks that are already in the lane, at most p_most of them.
create or replace function mark_backlog(p_queue text, p_key text, p_lane bigint, p_most int) returns void
language plpgsql as $$
begin
    insert into mark (lane, n, priority, slowest, queue, key)
    select p_lane, count(*), min(b.priority), max(b.priority), p_queue, p_key
    from (
        select t.priority
        from task t
        where t.queue = p_queue
          and t.lane = p_lane
        order by t.priority, t.id
        limit greatest(p_most, 0)
    ) b
    having count(*) > 0;
end $$;

-- The same by an operator, for the record.
create or replace function set_lane_by(
    p_who text, p_reason text, p_queue text, p_key text, p_limit int, p_interval_ms bigint, p_halts boolean
) returns void
language plpgsql
set search_path from current
as $$
declare
    v_before jsonb := lane_shown(p_queue, p_key);
begin
    perform set_lane(p_queue, p_key, p_limit, p_interval_ms, p_halts);
    perform record_audit(p_who, p_reason, 'set_lane', format('lane %s/%s', p_queue, p_key), '{}', v_before, lane_shown(p_queue, p_key));
end $$;

create or replace function lane_shown(p_queue text, p_key text) returns jsonb
language sql as $$
    select jsonb_build_object('limit', nullif(l.lim, 2147483647), 'interval_ms', l.interval_ms, 'halts', l.halts)
    from lane l
    where l.id = lane_id(p_queue, p_key)
$$;

-- Lets a lane go on that a failure has halted. False when it was not halted. A pause of it stays.
create or replace function resume_lane(p_who text, p_reason text, p_queue text, p_key text) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_lane bigint := lane_id(p_queue, p_key);
    v_row  record;
begin
    select l.lim, l.issued into v_row from lane l where l.id = v_lane for update;
    delete from halt h where h.lane = v_lane and h.task_id <> 0;
    if not found then
        return false;
    end if;
    perform record_audit(p_who, p_reason, 'resume_lane', format('lane %s/%s', p_queue, p_key), '{}', '{"halted": true}', '{"halted": false}');
    if not exists (select from halt h where h.lane = v_lane) then
        perform mark_backlog(p_queue, p_key, v_lane, v_row.lim - v_row.issued);
        perform hint(array[p_queue]);
    end if;
    return true;
end $$;

create or replace function lane_view(p_queue text, p_key text)
returns table (lim int, interval_ms bigint, halts boolean, halted boolean, pending bigint, held bigint)
language sql
set search_path from current
as $$
    select
        l.lim, l.interval_ms, l.halts,
        l.may_be_halted and exists (select from halt h where h.lane = l.id and h.task_id <> 0),
        (select count(*) from task t where t.queue = p_queue and t.lane = l.id),
        l.issued - (select count(*) from turn t, unnest(t.lanes) u(lane) where t.queue = p_queue and u.lane = l.id) - (select count(*) from parked p where p.lane = l.id)
    from lane l
    where l.id = lane_id(p_queue, p_key)
$$;
