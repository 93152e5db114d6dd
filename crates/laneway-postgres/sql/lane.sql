-- The operator's side of lanes.

-- Changes a lane; null leaves a setting as it is. Waits for the lane's row, and, when the limit goes down, for turns that a
-- claim has locked: claims never wait for lanes, so there is no cycle.
create or replace function set_lane(p_queue text, p_key text, p_limit int, p_interval_ms bigint, p_halts boolean) returns void
language plpgsql
set search_path from current
as $$
declare
    v_lane  bigint := lane_id(p_queue, p_key);
    v_row   record;
    v_spare int;
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
        with spare as (
            select t.ctid as tid
            from turn t
            where t.lane = v_lane
              and t.task_id is null
            order by t.priority desc, t.seq desc
            limit v_row.issued - p_limit
            for update
        )
        delete from turn where ctid = any (array(select tid from spare));
        get diagnostics v_spare = row_count;
        update lane set issued = issued - v_spare where id = v_lane;
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
        insert into turn (queue, priority, lane, task_id)
        select queue, priority, lane, task_id
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

-- Lets a halted lane go on. False when it was not halted.
create or replace function resume_lane(p_queue text, p_key text) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_lane bigint := lane_id(p_queue, p_key);
    v_row  record;
begin
    select l.lim, l.issued into v_row from lane l where l.id = v_lane for update;
    delete from halt h where h.lane = v_lane;
    if not found then
        return false;
    end if;
    perform mark_backlog(p_queue, p_key, v_lane, v_row.lim - v_row.issued);
    perform hint(array[p_queue]);
    return true;
end $$;

create or replace function lane_view(p_queue text, p_key text)
returns table (lim int, interval_ms bigint, halts boolean, halted boolean, pending bigint, held bigint)
language sql
set search_path from current
as $$
    select
        l.lim, l.interval_ms, l.halts,
        l.may_be_halted and exists (select from halt h where h.lane = l.id),
        (select count(*) from task t where t.queue = p_queue and t.lane = l.id),
        l.issued - (select count(*) from turn t where t.lane = l.id) - (select count(*) from parked p where p.lane = l.id)
    from lane l
    where l.id = lane_id(p_queue, p_key)
$$;

create or replace function pause_queue(p_queue text) returns boolean
language plpgsql
set search_path from current
as $$
begin
    insert into queue (name, paused_at) values (p_queue, clock())
    on conflict (name) do update set paused_at = excluded.paused_at where queue.paused_at is null;
    return found;
end $$;

create or replace function resume_queue(p_queue text) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_found boolean;
begin
    update queue q set paused_at = null where q.name = p_queue and q.paused_at is not null;
    v_found := found;
    perform hint(array[p_queue]);
    return v_found;
end $$;
