-- Finds and locks a task for each of these turns, and tells which turns leave the line.
--
-- A turn takes the head of its lane by (priority, id), chosen by a plain read and then locked: if somebody else holds the
-- head of an ordered lane, the turn stays where it is, since skipping to the next task would break the order. What becomes
-- of each turn is its fate, one letter per place:
--
--   t  took a task
--   k  keeps its place: others must run its task, or somebody else holds it
--   e  found its lane empty: spare, to be retired once the tasks are taken
--   m  stood too far in front for what its lane has now, and somebody else could use its place (p_contested): moved back
--   p  parked until its lane may start again
--   b  burnt: its lane is above its limit
--   s  its lane needs the long look (look_special)
--
-- Each lane has its own run of dead index entries, which an old snapshot keeps alive and every look for its head walks. So while
-- looks are slow (p_last_id is given), turns carry the task that the lane ran last (`after`) and the highest id that was drawn
-- before the lane was last looked at from the beginning (`until`). A head between the two may be taken without that: a task that
-- became visible since, with a lower id, was committed after the head's id was drawn, so no order is promised between them.
-- A lane with nothing behind `after` counts as empty; `retire` looks from the beginning, and puts the turn back if it is not.
-- Tasks that come back bring their own turn, and in queues with lanes of several priorities nothing is carried. `until` is the
-- lowest that holds for all tasks that were picked, null when one of them is not of an ordinary lane.
--
-- `again`: places have changed, so the claim must plan again before it goes on. back: the lanes whose turns moved back or were burnt, with
-- the most urgent place that each has lost. has_parents, is_odd: see pick_free.
-- p_taken: tasks that this claim has locked in earlier rounds. No joins between lists: the planner takes every list for ten
-- rows, and would compare each with each.
create or replace function pick(
    p_queue text, p_kinds text[], p_priorities smallint[], p_lanes bigint[], p_bound bigint[], p_afters bigint[], p_untils bigint[],
    p_last_id bigint, p_taken tid[], p_contested boolean, p_now timestamptz,
    out tids tid[], out took smallint[], out bytes bigint, out has_parents boolean, out is_odd boolean, out gone boolean[], out again boolean, out until bigint,
    out lane_ids bigint[], out lane_keys text[], out spare_lanes bigint[], out spare_priorities smallint[], out spare_bound bigint[],
    out back_lanes bigint[], out back_priorities smallint[]
)
language plpgsql as $$
declare
    v_fates   "char"[];
    v_heads   smallint[];      -- how urgent the lane is
    v_tids    tid[];
    v_special "char"[];        -- the fates before the long look
    v_look    record;
    v_behind  bigint[];        -- see look_special
    v_paced   bigint[];
    v_moved   bigint[];        -- lanes of turns that moved back,
    v_places  smallint[];      -- to these priorities
    v_urgent  smallint;        -- the most urgent place that changed
begin
    -- The ordinary case: ordered lanes with nothing special about them.
    if p_last_id is null then
        v_look := look_from_start(p_queue, p_kinds, p_priorities, p_lanes, p_bound, p_contested);
    else
        v_look := look_behind(p_queue, p_kinds, p_priorities, p_lanes, p_bound, p_contested, p_afters, p_untils, p_last_id);
        until := v_look.until;
    end if;
    v_fates := v_look.fates;
    v_heads := v_look.heads;
    v_tids := v_look.tids;
    lane_keys := v_look.keys;
    again := false;
    lane_ids := p_lanes;
    if 's' = any (v_fates) then
        v_special := v_fates;
        until := null;
        v_look := look_special(p_queue, p_kinds, p_priorities, p_lanes, p_bound, v_fates, v_heads, v_tids, p_taken, p_contested);
        v_fates := v_look.fates;
        v_heads := v_look.heads;
        v_tids := v_look.tids;
        v_behind := v_look.behind;
        v_paced := v_look.paced;
    end if;

    if v_fates && array['m', 'b']::"char"[] then
        -- The turns go where they belong, and the lanes that lost a turn have left a mark. What is less urgent, and the rest
        -- of lanes whose first turn has moved, waits until the claim has planned again.
        again := true;
        select min(case u.fate when 'm' then u.head else u.priority end), coalesce(array_agg(u.lane) filter (where u.fate = 'm'), '{}'),
            array_agg(u.head) filter (where u.fate = 'm')
        into v_urgent, v_moved, v_places
        from unnest(v_fates, p_lanes, p_priorities, v_heads) u(fate, lane, priority, head)
        where u.fate in ('m', 'b');
        perform join_line(p_queue, v_moved, v_places);
        select array_agg(b.lane), array_agg(b.priority) into back_lanes, back_priorities
        from (
            select u.lane, min(u.priority) as priority
            from unnest(v_fates, p_lanes, p_priorities) u(fate, lane, priority)
            where u.fate in ('m', 'b')
            group by u.lane
        ) b;
        v_fates := array(
            select case when u.fate = 't' and (u.priority > v_urgent or u.lane = any (v_moved)) then 'k' else u.fate end
            from unnest(v_fates, p_priorities, p_lanes) u(fate, priority, lane)
        );
    end if;
    if v_paced is not null then
        v_fates := pace(p_queue, v_paced, v_fates, p_priorities, p_lanes, p_bound, p_now);
    end if;

    -- All at once: a row lock per look costs twice as much. What somebody else holds, or has just taken, is not ours.
    select coalesce(array_agg(t.ctid), '{}'), coalesce(sum(t.size), 0), bool_or(t.is_child), bool_or(t.is_odd) into tids, bytes, has_parents, is_odd
    from (
        select t.ctid, t.size, t.parent_id is not null as is_child, is_odd(t) as is_odd
        from task t
        where t.ctid = any (case when 't' = all (v_fates) then v_tids else array(select u.tid from unnest(v_fates, v_tids) u(fate, tid) where u.fate = 't') end)
        for update skip locked
    ) t;
    if cardinality(tids) = cardinality(p_lanes) and v_special is null then
        gone := array_fill(true, array[cardinality(p_lanes)]);
        took := p_priorities;
        return;
    end if;
    v_fates := array(
        select case when u.fate = 't' and u.tid <> all (tids) then 'k' else u.fate end
        from unnest(v_fates, v_tids) u(fate, tid)
    );
    if v_special is not null then
        v_fates := settle_special(p_queue, p_kinds, p_priorities, p_lanes, v_special, v_fates, v_behind, p_taken || tids);
    end if;
    took := array(select u.priority from unnest(v_fates, p_priorities) u(fate, priority) where u.fate = 't');
    gone := array(select u.fate <> 'k' from unnest(v_fates) u(fate));
    spare_lanes := array(select u.lane from unnest(v_fates, p_lanes) u(fate, lane) where u.fate = 'e');
    spare_priorities := array(select u.priority from unnest(v_fates, p_priorities) u(fate, priority) where u.fate = 'e');
    spare_bound := array(
        select (select t.id from task t where t.id = u.task_id)
        from unnest(v_fates, p_bound) u(fate, task_id)
        where u.fate = 'e'
    );
end $$;

-- The heads of these lanes, with the fates of their turns. Lanes that need the long look are not looked at.
create or replace function look_from_start(
    p_queue text, p_kinds text[], p_priorities smallint[], p_lanes bigint[], p_bound bigint[], p_contested boolean,
    out fates "char"[], out heads smallint[], out tids tid[], out keys text[]
)
language plpgsql as $$
begin
    select array_agg(case when l.is_ordinary then fate(h.tid, h.can_run, p_contested and h.priority > u.priority) else 's' end),
        array_agg(h.priority), array_agg(h.tid), array_agg(l.key)
    into fates, heads, tids, keys
    from unnest(p_lanes, p_priorities, p_bound) u(lane, priority, task_id)
    cross join lateral (select n.key, u.task_id is null and is_ordinary(n) as is_ordinary from lane n where n.id = u.lane offset 0) l
    left join lateral (
        select t.ctid as tid, t.priority, p_kinds is null or t.kind = any (p_kinds) as can_run
        from task t
        where t.queue_id = queue_id(p_queue)
          and t.lane = u.lane
          and l.is_ordinary
        order by t.priority, t.id
        limit 1
    ) h on true;
end $$;

-- The same while looks are slow: behind the task that a lane ran last, where that is enough. `until`: see pick.
create or replace function look_behind(
    p_queue text, p_kinds text[], p_priorities smallint[], p_lanes bigint[], p_bound bigint[], p_contested boolean, p_afters bigint[], p_untils bigint[],
    p_last_id bigint,
    out fates "char"[], out heads smallint[], out tids tid[], out keys text[], out until bigint
)
language plpgsql as $$
begin
    select array_agg(case when l.is_ordinary then fate(h.tid, h.can_run, p_contested and h.priority > u.priority) else 's' end),
        array_agg(h.priority), array_agg(h.tid), array_agg(l.key), min(case when b.tid is null then p_last_id else u.until end)
    into fates, heads, tids, keys, until
    from unnest(p_lanes, p_priorities, p_bound, p_afters, p_untils) u(lane, priority, task_id, after, until)
    cross join lateral (select n.key, u.task_id is null and is_ordinary(n) as is_ordinary from lane n where n.id = u.lane offset 0) l
    left join lateral (
        select case when t.priority = u.priority and t.id <= u.until then t.tid end as tid, t.priority, t.can_run, true as goes_on
        from (
            select t.ctid as tid, t.id, t.priority, p_kinds is null or t.kind = any (p_kinds) as can_run
            from task t
            where t.queue_id = queue_id(p_queue)
              and t.lane = u.lane
              and l.is_ordinary
              and (t.priority, t.id) > (u.priority, u.after)
            order by t.priority, t.id
            limit 1
        ) t
    ) b on true
    left join lateral (
        select b.tid, b.priority, b.can_run where b.tid is not null
        union all
        (select t.ctid, t.priority, p_kinds is null or t.kind = any (p_kinds)
        from task t
        where t.queue_id = queue_id(p_queue)
          and t.lane = u.lane
          and l.is_ordinary
          and b.tid is null
          and (b.goes_on or u.after is null)
        order by t.priority, t.id
        limit 1)
    ) h on true;
end $$;

-- A lane for which the short looks suffice.
create or replace function is_ordinary(l lane) returns boolean
language sql immutable as $$ select l.lim = 1 and l.issued <= 1 and l.interval_ms = 0 and not l.may_be_halted $$;

-- What becomes of a turn whose lane has this head.
create or replace function fate(p_tid tid, p_can_run boolean, p_moves boolean) returns "char"
language sql immutable as $$
    select case when p_tid is null then 'e' when not p_can_run then 'k' when p_moves then 'm' else 't' end::"char"
$$;

-- The long look, for turns with fate s: lanes of other limits than 1, above their limit, halted or paced, and turns that are
-- bound to a task. Lists are of all turns, one entry per place. Burns what is above a limit; locks nothing else for good.
-- `behind`: turns whose lane has something more urgent that others must run; `paced`: lanes with an interval.
create or replace function look_special(
    p_queue text, p_kinds text[], p_priorities smallint[], p_lanes bigint[], p_bound bigint[], inout fates "char"[], inout heads smallint[],
    inout tids tid[], p_taken tid[], p_contested boolean, out behind bigint[], out paced bigint[]
)
language plpgsql as $$
declare
    v_waited bigint[] := array(   -- tasks that turns are bound to; a turn whose task is gone is free
        select t.id
        from unnest(p_bound) b(id)
        cross join lateral (select t.id, t.ctid from task t where t.id = b.id offset 0) t
        where b.id is not null
          and t.ctid <> all (p_taken)
    );
    v_free   record;
    v_own    record;
    v_places bigint[];
    v_tids   tid[];
    v_heads  smallint[];
begin
    v_free := look_free(p_queue, p_kinds, p_priorities, p_lanes, p_bound, fates, v_waited, p_taken);
    v_own := look_bound(p_kinds, p_lanes, p_bound, fates, v_waited);
    v_places := v_free.places || v_own.places;
    v_tids := v_free.tids || v_own.tids;
    v_heads := v_free.heads || v_own.heads;
    for i in 1 .. coalesce(cardinality(v_places), 0) loop
        tids[v_places[i]] := v_tids[i];
        heads[v_places[i]] := v_heads[i];
    end loop;
    fates := mark_fates(fates, v_places, 't');
    fates := mark_fates(fates, v_free.stay || v_own.stay, 'k');
    fates := mark_fates(fates, v_free.idle || v_own.over, 'e');
    if p_contested then
        fates := mark_fates(fates, array(
            select u.place
            from unnest(v_free.places, v_free.heads) u(place, head)
            where u.head > p_priorities[u.place]
        ), 'm');
    end if;
    if v_free.over || v_own.over is not null then
        fates := mark_fates(fates, burn(v_free.over || v_own.over, p_lanes, p_priorities, p_bound), 'b');
    end if;
    behind := v_free.behind;
    paced := v_free.paced || v_own.paced;
end $$;

-- What is left to do for the turns that had the long look, once their tasks are locked. p_special: the fates before that look;
-- p_taken: all tasks that the claim has locked.
create or replace function settle_special(
    p_queue text, p_kinds text[], p_priorities smallint[], p_lanes bigint[], p_special "char"[], p_fates "char"[], p_behind bigint[], p_taken tid[]
) returns "char"[]
language plpgsql as $$
begin
    if p_behind is not null then
        -- The lane loses a turn that stood in line for its head: when one is back, it must stand there again.
        insert into mark (lane, n, priority, slowest, queue, key)
        select p_lanes[place], 1, min(p_priorities[place]), min(p_priorities[place]), p_queue, l.key
        from unnest(p_behind) place
        cross join lateral (select l.key from lane l where l.id = p_lanes[place] offset 0) l
        where p_fates[place] = 't'
        group by p_lanes[place], l.key;
    end if;
    if p_kinds is not null then
        -- A lane that has only tasks which others can run is not empty.
        p_fates := mark_fates(p_fates, array(
            select u.place
            from unnest(p_special, p_fates, p_lanes) with ordinality u(special, fate, lane, place)
            where u.special = 's'
              and u.fate = 'e'
              and exists (select from task t where t.queue_id = queue_id(p_queue) and t.lane = u.lane and t.ctid <> all (p_taken))
              and exists (select from lane l where l.id = u.lane and l.issued <= l.lim)
        ), 'k');
    end if;
    return p_fates;
end $$;

create or replace function mark_fates(p_fates "char"[], p_places bigint[], p_fate "char") returns "char"[]
language plpgsql immutable as $$
declare
    v_place bigint;
begin
    foreach v_place in array coalesce(p_places, '{}') loop
        p_fates[v_place] := p_fate;
    end loop;
    return p_fates;
end $$;

-- Turns that are not bound, and those whose task is gone: the first tasks of the lane. In an ordered lane the head or nothing.
create or replace function look_free(
    p_queue text, p_kinds text[], p_priorities smallint[], p_lanes bigint[], p_bound bigint[], p_fates "char"[], p_waited bigint[], p_taken tid[],
    out places bigint[], out tids tid[], out heads smallint[], out idle bigint[], out stay bigint[], out over bigint[], out behind bigint[], out paced bigint[]
)
language plpgsql as $$
begin
    select array_agg(p.place) filter (where p.can_run), array_agg(p.tid) filter (where p.can_run), array_agg(p.priority) filter (where p.can_run),
        array_agg(p.place) filter (where p.tid is null), array_agg(p.place) filter (where p.tid is not null and not p.can_run),
        array_agg(p.place) filter (where p.tid is null and p.over), array_agg(p.place) filter (where p.can_run and p.behind),
        array_agg(p.lane) filter (where p.number = 1 and p.paced)
    into places, tids, heads, idle, stay, over, behind, paced
    from (
        -- Behind tasks that others must run, the place in line tells nothing about this one.
        select g.lane, l.paced, l.over, p.place, p.tid, case when p_kinds is null or l.lim = 1 then p.priority else -32768 end as priority, p.number,
            p_kinds is not null and l.lim <> 1 and p.priority > p_priorities[p.place] as behind, p.tid is not null and (p_kinds is null or p.kind = any (p_kinds)) as can_run
        from (
            select u.lane, array_agg(u.place) filter (where u.is_free) as places, count(*) as n, count(*) filter (where not u.is_free) as bound
            from (
                select u.lane, u.place, u.task_id is null or u.task_id <> all (p_waited) as is_free
                from unnest(p_lanes, p_bound, p_fates) with ordinality u(lane, task_id, fate, place)
                where u.fate = 's'
            ) u
            group by u.lane
        ) g
        cross join lateral (
            select n.lim, n.interval_ms > 0 as paced, n.issued > n.lim as over,
                -- Above its limit a lane burns as many turns as are too many; those bound to a task are used first.
                case when n.may_be_halted and exists (select from halt h where h.lane = n.id) then 0 else greatest(0, g.n - greatest(n.issued - n.lim, 0) - g.bound) end as usable
            from lane n
            where n.id = g.lane
            offset 0
        ) l
        cross join lateral (
            select array_agg(t.ctid) as tids, array_agg(t.priority) as priorities, array_agg(t.kind) as kinds
            from (
                (select t.ctid, t.priority, t.kind
                from task t
                where t.queue_id = queue_id(p_queue)
                  and t.lane = g.lane
                  and t.ctid <> all (p_taken)
                  and t.id <> all (p_waited)
                order by t.priority, t.id
                limit case when l.lim = 1 then l.usable else 0 end)
                union all
                -- Where order does not matter, a task that somebody holds is passed over.
                select w.*
                from (
                    select t.ctid, t.priority, t.kind
                    from task t
                    where t.queue_id = queue_id(p_queue)
                      and t.lane = g.lane
                      and (p_kinds is null or t.kind = any (p_kinds))
                      and t.ctid <> all (p_taken)
                      and not exists (select from turn b where b.lanes[1] = t.lane and cardinality(b.lanes) = 1 and b.task_id = t.id)   -- that turn's task
                    order by t.priority, t.id
                    limit case when l.lim = 1 then 0 else l.usable end
                    for update skip locked
                ) w
            ) t
        ) h
        cross join lateral unnest(g.places, h.tids, h.priorities, h.kinds) with ordinality p(place, tid, priority, kind, number)
    ) p;
end $$;

-- Bound turns: their own task. In a halted lane they stay, so that nothing overtakes that task when the lane goes on. They stay as well
-- when the task is gone by now: whoever cancels or edits it may commit after p_waited was read. And when an earlier turn is bound to
-- the same task: one was parked, and the task came back by another.
create or replace function look_bound(
    p_kinds text[], p_lanes bigint[], p_bound bigint[], p_fates "char"[], p_waited bigint[],
    out places bigint[], out tids tid[], out heads smallint[], out stay bigint[], out over bigint[], out paced bigint[]
)
language plpgsql as $$
begin
    if p_waited = '{}' then
        return;
    end if;
    select array_agg(p.place) filter (where p.can_run), array_agg(p.tid) filter (where p.can_run), array_agg(p.priority) filter (where p.can_run),
        array_agg(p.place) filter (where not p.over and not p.can_run), array_agg(p.place) filter (where p.over), array_agg(p.lane) filter (where p.paced)
    into places, tids, heads, stay, over, paced
    from (
        select b.place, b.lane, l.paced, l.over, t.ctid as tid, t.priority,
            t.ctid is not null and b.is_first and not l.over and not l.halted and (p_kinds is null or t.kind = any (p_kinds)) as can_run
        from (
            select u.lane, u.task_id, u.place, count(*) over (partition by u.lane) as n,
                row_number() over (partition by u.lane order by u.task_id = any (p_waited) is not true, u.place) as number,
                row_number() over (partition by u.task_id order by u.place) = 1 as is_first
            from unnest(p_lanes, p_bound, p_fates) with ordinality u(lane, task_id, fate, place)
            where u.fate = 's'
        ) b
        cross join lateral (
            select n.interval_ms > 0 as paced, b.number > b.n - greatest(n.issued - n.lim, 0) as over,
                n.may_be_halted and exists (select from halt h where h.lane = n.id) as halted
            from lane n
            where n.id = b.lane
            offset 0
        ) l
        left join lateral (select t.ctid, t.priority, t.kind from task t where t.id = b.task_id offset 0) t on true
        where b.task_id = any (p_waited)
    ) p;
end $$;

-- Burns turns of lanes above their limit, as many as are too many, at once: the next turn of such a lane may be good.
-- Returns the places of those that are gone.
create or replace function burn(p_places bigint[], p_lanes bigint[], p_priorities smallint[], p_bound bigint[]) returns bigint[]
language plpgsql as $$
declare
    v_lane record;
    v_mine bigint[];
    v_gone bigint[] := '{}';
begin
    for v_lane in
        select l.id, l.issued - l.lim as extra
        from lane l
        where l.id = any (array(select p_lanes[place] from unnest(p_places) place))
          and l.issued > l.lim
        order by l.id
        for update skip locked
    loop
        v_mine := array(
            select place
            from unnest(p_places) place
            where p_lanes[place] = v_lane.id
            order by p_bound[place] is not null   -- those that wait for a task last
            limit v_lane.extra
        );
        update lane set issued = issued - cardinality(v_mine) where id = v_lane.id;
        perform mark_lost_turns(v_lane.id, (select min(p_priorities[place]) from unnest(v_mine) place));
        v_gone := v_gone || v_mine;
    end loop;
    return v_gone;
end $$;
