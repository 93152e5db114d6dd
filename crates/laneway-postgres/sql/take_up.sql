-- Takes up marks: makes or wakes lanes, and issues the turns that they are short of.
--
-- 1 lock marks, 2 lock their lanes, 3 make those that are missing, 4 issue. Each is a statement of its own: what is computed
-- in 4 must see the lane as it was locked in 2. Whatever is locked by others is skipped, and its mark stays.
-- The lane is locked even when nothing is to be issued: otherwise a turn that is being retired elsewhere, on the
-- ground that the lane is empty, would leave this mark's task without any turn.
--
-- Marks behind p_after (priority and id), at most p_max; p_taken: tasks that the caller is about to take. Returns the last one that was seen, null when none was there.
create or replace function take_up(p_queue text, p_after bigint[], p_max int, p_taken tid[]) returns bigint[]
language plpgsql as $$
declare
    v_marks      bigint[];
    v_tids       tid[];
    v_mark_lanes bigint[];
    v_counts     int[];
    v_limits     int[];
    v_priorities smallint[];
    v_slowests   smallint[];
    v_keys       text[];
    v_short      bigint[];     -- lanes that may want turns, and are locked by us
    v_absent     bigint[];     -- lanes that are missing, or locked by others
    v_done       tid[];
begin
    select array_agg(m.id), array_agg(m.ctid), array_agg(m.lane), array_agg(m.n), array_agg(m.lim), array_agg(m.priority), array_agg(m.slowest),
        array_agg(m.key)
    into v_marks, v_tids, v_mark_lanes, v_counts, v_limits, v_priorities, v_slowests, v_keys
    from (
        select id, ctid, lane, n, lim, priority, slowest, key
        from mark
        where queue = p_queue
          and (priority, id) > (p_after[1]::smallint, p_after[2])
        order by priority, id
        limit p_max
        for update skip locked
    ) m;
    if v_marks is null then
        return null;
    end if;

    -- Most marks of busy lanes find that all turns are issued: with the lane locked, they have nothing more to say.
    select coalesce(array_agg(m.tid) filter (where l.is_served), '{}'), array_agg(distinct m.lane) filter (where not l.is_served),
        array_agg(distinct m.lane) filter (where l.id is null)
    into v_done, v_short, v_absent
    from unnest(v_tids, v_mark_lanes, v_limits, v_priorities, v_slowests) m(tid, lane, lim, priority, slowest)
    left join lateral (
        select l.id, l.issued >= l.lim and (m.lim is null or m.lim = l.lim or l.own) and m.priority >= l.slowest and m.slowest <= l.slowest as is_served
        from lane l
        where l.id = m.lane
        for update skip locked
    ) l on true;
    if v_absent is not null then
        v_short := v_short || make_lanes(p_queue, v_absent, v_mark_lanes, v_keys);
    end if;
    if v_short <> '{}' then
        v_done := v_done || issue_turns(p_queue, v_short, v_marks, v_tids, v_mark_lanes, v_counts, v_limits, v_priorities, v_slowests, p_taken);
    end if;
    delete from mark where ctid = any (v_done);   -- marks are never updated, and these are locked by us
    return array[v_priorities[cardinality(v_marks)], v_marks[cardinality(v_marks)]];
end $$;

-- Makes the lanes that are missing, and returns those that are locked by us now.
create or replace function make_lanes(p_queue text, p_absent bigint[], p_lanes bigint[], p_keys text[]) returns bigint[]
language plpgsql as $$
declare
    v_missing bigint[] := array(
        select m.lane
        from unnest(p_absent) m(lane)
        left join lateral (select l.id from lane l where l.id = m.lane offset 0) l on true
        where l.id is null
    );
begin
    -- Inserting waits for an uncommitted insert of the same key, so only the holder of the key's bucket inserts.
    -- Buckets, because a lock per lane would fill the server's lock table.
    insert into lane (id, lim, queue, key, used_at)
    select m.lane, new_lane_limit(p_queue), p_queue, min(m.key), clock()
    from unnest(p_lanes, p_keys) m(lane, key)
    where m.lane = any (v_missing)
      and (m.lane & 63) in (
          select bucket
          from (select distinct b.lane & 63 as bucket from unnest(v_missing) b(lane)) buckets
          where pg_try_advisory_xact_lock(1281452377, (hashtext(p_queue) & -64 | buckets.bucket)::int)
      )
    group by m.lane
    order by m.lane
    on conflict do nothing;
    return array(
        select l.id
        from unnest(v_missing) m(lane)
        cross join lateral (select l.id from lane l where l.id = m.lane for update skip locked) l
    );
end $$;

-- Takes up marks until p_max turns are in line or no mark is left.
create or replace function take_up_all(p_queue text, p_max int, p_taken tid[] default '{}') returns void
language plpgsql as $$
declare
    v_after bigint[] := array[-32768, 0];
begin
    loop
        v_after := take_up(p_queue, v_after, 500, p_taken);
        exit when v_after is null
            or (select sum(cardinality(t.lanes)) >= p_max from (select t.lanes from turn t where t.queue = p_queue limit p_max) t);
    end loop;
end $$;

-- Issues turns for the marks of lanes that the caller has locked, and returns the marks that are dealt with.
-- A mark stays when its task is more urgent than others of its lane and the lane's turns are all out: it is
-- needed again to move one of them up when it is back in line.
create or replace function issue_turns(
    p_queue text, p_short bigint[], p_marks bigint[], p_tids tid[], p_lanes bigint[], p_counts int[], p_limits int[], p_priorities smallint[],
    p_slowests smallint[], p_taken tid[]
) returns tid[]
language plpgsql as $$
declare
    v_ids       bigint[];
    v_issue     int[];
    v_new       smallint[];
    v_lims      int[];
    v_slowest   smallint[];
    v_late      bigint[];
    v_waiting   bigint[] := '{}';
begin
    select array_agg(g.lane), array_agg(t.turns),
        array_agg(least(g.priority, t.head)),
        array_agg(t.lim), array_agg(greatest(l.slowest, g.least_urgent))
    into v_ids, v_issue, v_new, v_lims, v_slowest
    from (
        select m.lane, sum(m.n)::int as n,
            min(m.priority) filter (where m.n > 0) as priority, max(m.slowest) filter (where m.n > 0) as least_urgent,
            (array_agg(m.lim order by m.id desc) filter (where m.lim is not null))[1] as lim
        from unnest(p_marks, p_lanes, p_counts, p_limits, p_priorities, p_slowests) m(id, lane, n, lim, priority, slowest)
        where m.lane = any (p_short)
        group by m.lane
        order by min(m.id)
    ) g
    cross join lateral (
        select l.lim, l.issued, l.slowest, l.own, l.may_be_halted and exists (select from halt h where h.lane = l.id) as halted
        from lane l
        where l.id = g.lane
        offset 0
    ) l
    cross join lateral (
        select n.lim,
            -- With a higher limit a new turn may be for a task that is more urgent than those just marked.
            case when n.lim > l.lim or g.n = 0 then coalesce((
                select t.priority from task t where t.queue_id = queue_id(p_queue) and t.lane = g.lane order by t.priority, t.id limit 1
            ), 0::smallint) end as head,
            case
            when l.halted then 0
            -- A higher limit: tasks already in the lane, whose marks are gone, want turns too.
            when n.lim > l.lim then least(greatest(n.lim - l.issued, 0), greatest(g.n, (
                select count(*)::int
                from (select from task t where t.queue_id = queue_id(p_queue) and t.lane = g.lane limit greatest(n.lim - l.issued, 0)) backlog
            )))
            else least(greatest(n.lim - l.issued, 0), g.n)
        end as turns
        from (select case when l.own then l.lim else coalesce(g.lim, l.lim) end as lim) n
    ) t;
    if v_ids is null then
        return '{}';
    end if;

    update lane l
    set issued = l.issued + i.n,
        lim = i.lim,
        slowest = i.slowest,
        used_at = clock()
    from unnest(v_ids, v_issue, v_lims, v_slowest) i(lane, n, lim, slowest)
    cross join lateral (select r.ctid as tid from lane r where r.id = i.lane offset 0) r
    where l.ctid = r.tid               -- locked by us, so it stays where it is
      and (i.n > 0 or i.lim <> l.lim or i.slowest > l.slowest);

    perform shed_turns(p_queue, i.lane)
    from unnest(v_ids, v_lims) i(lane, lim)
    cross join lateral (select from lane l where l.id = i.lane and l.issued > i.lim offset 0) l;
    if exists (select from unnest(v_new, v_slowest) i(priority, slowest) where i.priority < i.slowest)
        and not exists (select from mixed_queue m where m.queue = p_queue) then
        insert into mixed_queue values (p_queue) on conflict do nothing;   -- once in the life of a queue
    end if;
    perform join_line(p_queue, coalesce(array_agg(i.lane), '{}'), array_agg(i.priority))
    from unnest(v_ids, v_issue, v_new) i(lane, n, priority)
    cross join lateral generate_series(1, i.n);

    v_late := array(
        select i.lane
        from unnest(v_ids, v_new, v_slowest) i(lane, priority, slowest)
        where i.priority < i.slowest
          and exists (select from unnest(p_lanes, p_counts) m(lane, n) where m.lane = i.lane and m.n > 0)
    );
    if v_late <> '{}' then
        v_waiting := move_up(p_queue, v_late, p_taken);
    end if;
    return array(
        select m.tid
        from unnest(p_tids, p_lanes) m(tid, lane)
        where m.lane = any (v_ids)
          and (m.lane <> all (v_waiting) or v_issue[array_position(v_ids, m.lane)] > 0)   -- a mark issues turns once
    );
end $$;

-- Takes turns of a lane above its limit out of the line, the least urgent first. Those bound to a task stay: if they are too
-- many, claims burn them. The caller has locked the lane.
create or replace function shed_turns(p_queue text, p_lane bigint) returns void
language plpgsql as $$
declare
    v_tids tid[];
begin
    perform split_line(p_queue, array[p_lane]);
    v_tids := array(
        select t.ctid
        from turn t
        where t.lanes[1] = p_lane
          and cardinality(t.lanes) = 1
          and t.task_id is null
        order by t.priority desc, t.seq desc
        limit (select greatest(l.issued - l.lim, 0) from lane l where l.id = p_lane)
        for update skip locked
    );
    if v_tids = '{}' then
        return;
    end if;
    delete from turn where ctid = any (v_tids);
    update lane set issued = issued - cardinality(v_tids) where id = p_lane;
    perform mark_lost_turns(p_lane, null);
end $$;

-- A lane has lost turns though it may have tasks. Those that are left, or out, may stand further back than these did (p_priority), or than
-- the tasks: a mark moves one up.
create or replace function mark_lost_turns(p_lane bigint, p_priority smallint) returns void
language sql as $$
    insert into mark (lane, n, priority, slowest, queue, key)
    select l.id, 1, u.priority, u.priority, l.queue, l.key
    from lane l
    cross join lateral (
        select least(p_priority, (select t.priority from task t where t.queue_id = queue_id(l.queue) and t.lane = l.id order by t.priority, t.id limit 1)) as priority
    ) u
    where l.id = p_lane
      and u.priority is not null
$$;

-- A turn that may go with any task of its lane: it is not bound, or its task is gone.
create or replace function is_free(p_turn turn) returns boolean
language sql stable as $$
    select p_turn.task_id is null or not exists (select from task t where t.id = p_turn.task_id)
$$;

-- Moves turns of these lanes up, until as many stand in line for each priority as there are urgent tasks. Returns the lanes
-- that have too few free turns in line for that: the others are out, bound to a task, or locked.
create or replace function move_up(p_queue text, p_late bigint[], p_taken tid[]) returns bigint[]
language plpgsql as $$
declare
    v_lane    bigint;
    v_urgent  smallint[];
    v_turn    tid;
    v_waiting bigint[] := '{}';
begin
    perform split_line(p_queue, p_late);
    foreach v_lane in array p_late loop
        v_urgent := array(
            select t.priority
            from lane l
            cross join lateral (
                select t.priority, t.id
                from task t
                where t.queue_id = queue_id(p_queue)
                  and t.lane = v_lane
                  and t.priority < l.slowest
                  and t.ctid <> all (p_taken)
                  and not exists (select from turn b where b.lanes[1] = v_lane and cardinality(b.lanes) = 1 and b.task_id = t.id)
                order by t.priority, t.id
                limit least(l.lim, 100)
            ) t
            where l.id = v_lane
        );
        for i in 1 .. cardinality(v_urgent) loop
            continue when i <= (
                select count(*)
                from turn t
                where t.lanes[1] = v_lane and cardinality(t.lanes) = 1 and t.queue = p_queue and t.priority <= v_urgent[i] and is_free(t)
            );
            v_turn := (
                select t.tid
                from (
                    select t.ctid as tid
                    from turn t
                    where t.lanes[1] = v_lane and cardinality(t.lanes) = 1 and t.queue = p_queue and t.priority > v_urgent[i] and is_free(t)
                    order by t.priority desc, t.seq
                    limit 1
                    for update skip locked
                ) t
            );
            if v_turn is null then
                v_waiting := v_waiting || v_lane;
                exit;
            end if;
            delete from turn t where t.ctid = v_turn;
            insert into turn (queue, priority, lanes) values (p_queue, v_urgent[i], array[v_lane]);
        end loop;
    end loop;
    return v_waiting;
end $$;
