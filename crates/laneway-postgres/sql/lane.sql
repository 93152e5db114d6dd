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
        insert into lane (id, lim, queue, key, used_at) values (v_lane, new_lane_limit(p_queue), p_queue, p_key, clock()) on conflict do nothing;
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
        where t.queue_id = queue_id(p_queue)
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

-- A lane as it is now; its tasks are counted up to p_rows.
create or replace function lane_view(p_queue text, p_key text, p_rows int)
returns table (key text, lim int, interval_ms bigint, halts boolean, halted boolean, paused boolean, pending bigint, more boolean, held bigint)
language sql
set search_path from current
as $$
    select
        l.key, l.lim, l.interval_ms, l.halts,
        l.may_be_halted and exists (select from halt h where h.lane = l.id and h.task_id <> 0),
        l.may_be_halted and exists (select from halt h where h.lane = l.id and h.task_id = 0),
        least(p.n, p_rows), p.n > p_rows,
        l.issued - (select count(*) from turn t, unnest(t.lanes) u(lane) where t.queue = p_queue and u.lane = l.id) - (select count(*) from parked p where p.lane = l.id)
    from lane l
    cross join lateral (select count(*) as n from (select from task t where t.queue_id = queue_id(p_queue) and t.lane = l.id limit p_rows + 1) t) p
    where l.id = lane_id(p_queue, p_key)
$$;

-- The lanes of a queue: by backlog, held or key, after the lane with that number and key. Lanes that no worker has taken up
-- yet are known by their marks only. By backlog and held, the first p_lanes lanes by key are looked at, and `partial` says when
-- there are more. Up to p_rows tasks are counted in one go. If there are more, every lane has a share of them, and the few that have more
-- than it get a second one.
create or replace function list_lanes(p_queue text, p_order text, p_number bigint, p_key text, p_limit int, p_lanes int, p_rows bigint, p_most bigint)
returns table (
    key text, lim int, interval_ms bigint, halts boolean, halted boolean, paused boolean, pending bigint, more boolean, held bigint, partial boolean
)
language sql stable
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set enable_nestloop = off     -- nothing is known of the numbers of rows here, and 1,000 lanes times 1,000 turns are too many
as $$
    with marked as materialized (
        select distinct on (m.lane) m.lane, m.key, coalesce(m.lim, 1) as lim
        from (select m.id, m.lane, m.key, m.lim from mark m where m.queue = p_queue limit 10000) m
        where m.key > case when p_order = 'key' then coalesce(p_key, e'\x04') else e'\x04' end   -- not the lanes of children and serial queues
        order by m.lane, m.lim is null, m.id desc          -- the last limit that was given
    ),
    found as materialized (
        select f.*
        from (
            (select l.id, l.key, l.lim, l.interval_ms, l.halts, l.may_be_halted, l.issued
            from lane l
            where l.queue = p_queue
              and l.key > case when p_order = 'key' then coalesce(p_key, e'\x04') else e'\x04' end
            order by l.key
            limit case when p_order = 'key' then p_limit else p_lanes end)
            union all
            select m.lane, m.key, m.lim, 0, false, false, 0 from marked m where (select true from lane l where l.id = m.lane) is null
        ) f
        order by f.key
        limit case when p_order = 'key' then p_limit else p_lanes end
    ),
    -- In the order of the index, so that nothing has to be sorted or hashed; ids of lanes are hashes, and 0 is no lane.
    below as materialized (
        select c.lane, count(*) as n
        from (select t.lane from task t where t.queue_id = queue_id(p_queue) and t.lane < 0 order by t.lane limit p_rows + 1) c
        group by c.lane
    ),
    above as materialized (
        select c.lane, count(*) as n
        from (
            select t.lane
            from task t
            where t.queue_id = queue_id(p_queue)
              and t.lane > 0
            order by t.lane
            limit p_rows + 1 - (select coalesce(sum(b.n), 0) from below b)
        ) c
        group by c.lane
    ),
    whole as (
        select * from below
        union all
        select * from above
    ),
    share as materialized (
        select
            w.is_all,
            case when w.is_all then p_most else least(p_most, greatest(20, p_rows / 2 / greatest(f.lanes, 1))) end as bound
        from (select coalesce(sum(w.n), 0) <= p_rows as is_all from whole w) w
        cross join (select count(*) as lanes from found) f
    ),
    counted as materialized (
        select
            f.*, s.bound,
            case
                when s.is_all then least(coalesce(w.n, 0), s.bound + 1)
                else (select count(*) from (select from task t where t.queue_id = queue_id(p_queue) and t.lane = f.id limit s.bound + 1) t)
            end as n
        from found f
        cross join share s
        left join whole w on w.lane = f.id
    ),
    longer as materialized (
        select min(c.bound) as bound, count(*) filter (where c.n > c.bound) as lanes from counted c
    ),
    rest as materialized (
        -- Not when so many have more that counting them again would cost as much as the first time.
        select case when l.lanes * l.bound > p_rows / 2 then l.bound else least(p_most, l.bound + p_rows / 2 / greatest(l.lanes, 1)) end as bound
        from longer l
    ),
    lines as materialized (
        select u.lane, count(*) as n
        from turn t
        cross join lateral unnest(t.lanes) u(lane)
        where t.queue = p_queue
        group by u.lane
    ),
    viewed as materialized (
        select
            c.key, c.lim, c.interval_ms, c.halts,
            c.may_be_halted and exists (select from halt h where h.lane = c.id and h.task_id <> 0) as halted,
            c.may_be_halted and exists (select from halt h where h.lane = c.id and h.task_id = 0) as paused,
            least(p.n, p.bound) as pending, p.n > p.bound as more,
            c.issued - coalesce(l.n, 0) - case when c.interval_ms > 0 then (select count(*) from parked p where p.lane = c.id) else 0 end as held
        from counted c
        cross join lateral (
            select c.n, c.bound
            where c.n <= c.bound or c.bound = (select r.bound from rest r)
            union all
            select count(*), (select r.bound from rest r)
            from (select from task t where t.queue_id = queue_id(p_queue) and t.lane = c.id limit (select r.bound + 1 from rest r)) t
            where c.n > c.bound and c.bound <> (select r.bound from rest r)
            having c.n > c.bound and c.bound <> (select r.bound from rest r)
        ) p
        left join lines l on l.lane = c.id
    ),
    ordered as (
        select v.*, case p_order when 'backlog' then v.pending + v.more::int when 'held' then v.held else 0 end as number from viewed v
    )
    select
        o.key, o.lim, o.interval_ms, o.halts, o.halted, o.paused, o.pending, o.more, o.held,
        p_order <> 'key' and (select count(*) from found) >= p_lanes
    from ordered o
    where p_key is null
       or (o.number < p_number or o.number = p_number and o.key > p_key)
    order by o.number desc, o.key
    limit p_limit
$$;
