-- Claims up to p_max tasks of one queue into one lease (tasks of kinds in p_alone: one lease each).
--
-- Turns in line and lane-less tasks are merged by priority and alternate within one. Each turn takes its lane's
-- head by (priority, id): chosen by a plain read, then locked. If the head of an ordered lane is locked by
-- somebody else, the turn stays where it is; skipping to the next task would break the order.
--
--   p_hand_lanes, p_hand_priorities: turns that a settle of this advance has freed. They are used without ever
--     being written when turns are short, behind those in line, and put into the line otherwise.
--   p_bounds: priority and id of the last task, priority and seq of the last turn, from which to look; null: from the
--     beginning. An old snapshot keeps dead index entries alive, and every look from the beginning walks them.
--
-- Returns the leases, and one row without lease that carries the new bounds (a fifth number: microseconds spent
-- looking). Rows of task and turn are never updated, so a ctid that is locked by us stays what it is.
create or replace function claim(
    p_session         uuid,
    p_number          bigint,
    p_queue           text,
    p_max             int,
    p_kinds           text[],
    p_alone           text[],
    p_hand_lanes      bigint[],
    p_hand_priorities smallint[],
    p_bounds          bigint[]
) returns setof advance_row
language plpgsql as $$
declare
    c_start    constant bigint[] := array[-32768, 0, -32768, -9223372036854775807];
    c_bytes    constant bigint := 4000000;    -- of payload in one claim: an array holds 1 GB, and memory is shared
    v_now      timestamptz := clock();
    v_from     bigint[] := coalesce(p_bounds, c_start);
    v_bounds   bigint[] := coalesce(p_bounds, c_start);
    v_tids     tid[] := '{}';                 -- tasks that are locked and will be taken
    v_need     int;
    v_bytes    bigint := 0;
    v_turns    tid[];                         -- the turns of one round; null for a turn in hand
    v_lanes    bigint[];
    v_places   smallint[];                    -- their priorities
    v_seqs     bigint[];
    v_bound    bigint[];
    v_free     smallint[];
    v_take     int;
    v_got      record;
    v_lane_ids bigint[] := '{}';
    v_lane_keys text[] := '{}';
    v_spare_lanes bigint[] := '{}';           -- turns that found nothing to do
    v_spare_priorities smallint[] := '{}';
    v_spare_bound bigint[] := '{}';
    v_ready    bigint;
    v_urgent   smallint;
    v_moved    boolean;
    v_merge    boolean := true;
    v_marked   boolean;                       -- there are marks that were not looked at
    v_priority smallint;
    v_seq      bigint;
    v_row      advance_row;
    v_last     bigint;
    v_started  timestamptz;
    v_us       bigint := 0;
    v_whole    boolean;
begin
    if p_max <= 0 or exists (select from queue q where q.name = p_queue and q.paused_at is not null) then
        perform put_back(p_queue, p_hand_lanes, p_hand_priorities);
        perform take_up_all(p_queue, 1);
        return;
    end if;

    -- What is more urgent than where we stopped lies in front of the bound; the range is short, so looking is cheap.
    if p_bounds is not null then
        if exists (select from task t where t.queue = p_queue and t.lane = 0 and t.priority < v_from[1]) then
            v_from[1:2] := c_start[1:2];
        end if;
        if exists (select from turn t where t.queue = p_queue and t.priority < v_from[3]) then
            v_from[3:4] := c_start[3:4];
        end if;
    end if;

    -- Marks cost as much as tasks, so they are taken up when turns are short, when they are more urgent than the turns
    -- in line, and now and then for newcomers.
    select count(*), max(t.priority) into v_ready, v_priority
    from (
        select t.priority
        from turn t
        where t.queue = p_queue
          and (t.priority, t.seq) > (v_from[3]::smallint, v_from[4])
        order by t.priority, t.seq
        limit p_max
    ) t;
    select m.priority into v_urgent from mark m where m.queue = p_queue order by m.priority, m.id limit 1;
    v_marked := found;
    if v_marked and p_hand_lanes <> '{}' then
        -- A mark may be waiting for one of these turns, to move it up.
        perform put_back(p_queue, p_hand_lanes, p_hand_priorities);
        p_hand_lanes := '{}';
        p_hand_priorities := '{}';
    end if;
    if v_marked and (v_ready < p_max or v_urgent < v_priority or p_number % 8 = 0) then
        perform take_up_all(p_queue, p_max);
        v_marked := false;
    end if;

    loop
        v_need := p_max - cardinality(v_tids);
        exit when v_need <= 0 or v_bytes >= c_bytes;
        v_started := clock_timestamp();
        select array_agg(t.ctid), array_agg(t.priority), array_agg(t.seq), array_agg(t.lane), array_agg(t.task_id)
        into v_turns, v_places, v_seqs, v_lanes, v_bound
        from (
            select ctid, priority, seq, lane, task_id
            from turn
            where queue = p_queue
              and (priority, seq) > (v_from[3]::smallint, v_from[4])
            order by priority, seq
            limit v_need
            for update skip locked
        ) t;
        v_us := v_us + extract(microseconds from clock_timestamp() - v_started)::bigint;
        v_whole := coalesce(cardinality(v_lanes), 0) < v_need;   -- there are no more turns in line behind these
        -- Turns in hand come behind those in line, but before less urgent ones.
        if p_hand_lanes <> '{}' and (v_whole or exists (select from unnest(p_hand_priorities) h(priority) where h.priority < v_places[v_need])) then
            select array_agg(t.tid order by t.priority, t.place), array_agg(t.priority order by t.priority, t.place),
                array_agg(t.seq order by t.priority, t.place), array_agg(t.lane order by t.priority, t.place),
                array_agg(t.task_id order by t.priority, t.place)
            into v_turns, v_places, v_seqs, v_lanes, v_bound
            from (
                select u.tid, u.priority, u.seq, u.lane, u.task_id, u.place
                from unnest(v_turns, v_places, v_seqs, v_lanes, v_bound) with ordinality u(tid, priority, seq, lane, task_id, place)
                union all
                select null::tid, h.priority, null, h.lane, null, 1000000 + h.place
                from unnest(p_hand_lanes, p_hand_priorities) with ordinality h(lane, priority, place)
            ) t;
            p_hand_lanes := '{}';
            p_hand_priorities := '{}';
        end if;

        v_take := least(v_need, coalesce(cardinality(v_lanes), 0));
        v_free := '{}';
        if v_take > 0 and v_merge then
            v_free := array(
                select t.priority
                from task t
                where t.queue = p_queue
                  and t.lane = 0
                  and (t.priority, t.id) > (v_from[1]::smallint, v_from[2])
                  and (p_kinds is null or t.kind = any (p_kinds))
                order by t.priority, t.id
                limit v_need
            );
            if v_free <> '{}' then
                select count(*) filter (where m.is_turn) into v_take
                from (
                    select s.is_turn
                    from (
                        select true as is_turn, u.priority, row_number() over (partition by u.priority order by u.place) as number
                        from unnest(v_places) with ordinality u(priority, place)
                        union all
                        select false, u.priority, row_number() over (partition by u.priority order by u.place)
                        from unnest(v_free) with ordinality u(priority, place)
                    ) s
                    order by s.priority, s.number, s.is_turn = (p_number % 2 = 1) desc   -- a claim of one takes either in turn
                    limit v_need
                ) m;
            end if;
        end if;

        v_moved := false;
        if v_take > 0 then
            select * into v_got
            from claim_heads(p_queue, p_kinds, v_turns[:v_take], v_places[:v_take], v_lanes[:v_take], v_bound[:v_take], v_tids,
                not v_whole or v_free <> '{}', v_now);
            v_tids := v_tids || v_got.tids;
            v_bytes := v_bytes + v_got.bytes;
            v_lane_ids := v_lane_ids || v_got.lane_ids;
            v_lane_keys := v_lane_keys || v_got.lane_keys;
            v_spare_lanes := v_spare_lanes || v_got.spare_lanes;
            v_spare_priorities := v_spare_priorities || v_got.spare_priorities;
            v_spare_bound := v_spare_bound || v_got.spare_bound;
            v_moved := v_got.moved;
        end if;
        -- What was in hand and not needed stands in line now.
        insert into turn (queue, priority, lane)
        select p_queue, u.priority, u.lane
        from unnest(v_turns[v_take + 1:], v_places[v_take + 1:], v_lanes[v_take + 1:]) u(tid, priority, lane)
        where u.tid is null and u.lane is not null;
        if v_moved then
            -- Turns have moved back, so that marks may be more urgent than what is next now. Merge again.
            perform take_up_all(p_queue, p_max);
            continue;
        end if;
        if v_take > 0 then
            -- The next round starts behind the last turn of this one.
            select u.priority, u.seq into v_priority, v_seq
            from unnest(v_places[:v_take], v_seqs[:v_take]) with ordinality u(priority, seq, place)
            where u.seq is not null
            order by u.place desc
            limit 1;
            if found then
                v_from[3] := v_priority;
                v_from[4] := v_seq;
                v_bounds[3] := v_priority;
                v_bounds[4] := v_seq;
            end if;
            if v_take > cardinality(v_got.tids) then
                -- The turns in line were not worth as much as they promised: merge again behind them.
                if v_marked then
                    perform take_up_all(p_queue, p_max);
                    v_marked := false;
                end if;
                continue;
            end if;
        end if;

        v_need := least(p_max - cardinality(v_tids), v_need - v_take);
        v_last := 0;
        if v_need > 0 and v_bytes < c_bytes then
            v_started := clock_timestamp();
            select array_agg(t.ctid) as tids, count(*) as n,
                max(t.size) as largest, array_agg(t.size) as sizes, array_agg(t.priority) as priorities, array_agg(t.id) as ids
            into v_got
            from (
                select ctid, priority, id, size
                from task
                where queue = p_queue
                  and lane = 0
                  and (priority, id) > (v_from[1]::smallint, v_from[2])
                  and (p_kinds is null or kind = any (p_kinds))
                order by priority, id
                limit v_need
                for update skip locked
            ) t;
            v_us := v_us + extract(microseconds from clock_timestamp() - v_started)::bigint;
            v_last := v_got.n;
            if v_got.n > 0 then
                if v_got.largest >= 1000 then
                    -- Large payloads: stop where the claim becomes too heavy. What is behind stays, unlocked by the commit.
                    select count(*) into v_last
                    from (
                        select sum(u.size) over (order by u.place) - u.size as before
                        from unnest(v_got.sizes) with ordinality u(size, place)
                    ) s
                    where v_bytes + s.before < c_bytes;
                    select v_bytes + sum(u.size) into v_bytes from unnest(v_got.sizes[:v_last]) u(size);
                end if;
                v_tids := v_tids || v_got.tids[:v_last];
                v_from[1] := v_got.priorities[v_last];
                v_from[2] := v_got.ids[v_last];
                v_bounds[1] := v_from[1];
                v_bounds[2] := v_from[2];
            end if;
        end if;

        if v_last < v_need and v_take < coalesce(cardinality(v_lanes), 0) then
            -- Free tasks that were counted are held by somebody else: the rest is for the turns.
            v_merge := false;
            continue;
        end if;
        if v_take + v_last = 0 or v_whole and v_take = coalesce(cardinality(v_lanes), 0) and v_last < v_need then
            exit when not v_marked;
            perform take_up_all(p_queue, p_max);
            v_marked := false;
        end if;
    end loop;
    -- Turns in hand that no round has met (the claim was full before) stand in line.
    if p_hand_lanes <> '{}' then
        perform put_back(p_queue, p_hand_lanes, p_hand_priorities);
    end if;

    if v_tids <> '{}' then
        return query select * from take_tasks(p_session, p_number, p_queue, p_alone, v_tids, v_lane_ids, v_lane_keys, v_now);
    end if;
    if v_spare_lanes <> '{}' then
        perform retire(p_queue, v_spare_lanes, v_spare_priorities, v_spare_bound);
    end if;
    v_row.queue := p_queue;
    v_row.bounds := v_bounds || v_us;
    return next v_row;
end $$;

-- Finds and locks the heads for these turns (tid null: in hand), and removes the turns that got one from the line.
-- Turns without any task in their lane come back as spare, to be retired once the tasks are taken; those of paced
-- lanes are parked; a turn that stands too far in front for what its lane has now moves to its place when somebody
-- else could use it (p_contested). p_taken: tasks that this claim has locked in earlier rounds.
--
-- No joins between lists: the planner takes every list for ten rows, and would compare each with each.
create or replace function claim_heads(
    p_queue text, p_kinds text[], p_turns tid[], p_priorities smallint[], p_lanes bigint[], p_bound bigint[], p_taken tid[],
    p_contested boolean, p_now timestamptz,
    out tids tid[], out bytes bigint, out lane_ids bigint[], out lane_keys text[],
    out spare_lanes bigint[], out spare_priorities smallint[], out spare_bound bigint[], out moved boolean
)
language plpgsql as $$
declare
    v_bound   bigint[] := array(
        select t.id
        from unnest(p_bound) b(id)
        cross join lateral (select t.id, t.ctid from task t where t.id = b.id offset 0) t
        where b.id is not null
          and (p_taken = '{}' or t.ctid <> all (p_taken))
    );
    v_places  bigint[];        -- turns that have a task to start
    v_tids    tid[];
    v_ids     bigint[];
    v_prios   smallint[];      -- how urgent their lanes are
    v_idle    bigint[];        -- turns that have none
    v_stay    bigint[];        -- turns whose task others must run
    v_over    bigint[];        -- idle turns of lanes above their limit
    v_behind  bigint[];        -- turns whose lane has something more urgent that others must run
    v_paced   bigint[];        -- lanes with an interval
    v_simple  boolean;
    v_more    record;
    v_done    bigint[];
    v_used    bigint[];
    v_moved   bigint[];
begin
    -- The ordinary case in one short look: ordered lanes with nothing special about them, each with its head.
    select array_agg(u.place) filter (where h.can_run), array_agg(h.tid) filter (where h.can_run), array_agg(h.id) filter (where h.can_run),
        array_agg(h.priority) filter (where h.can_run), array_agg(u.place) filter (where h.id is null),
        array_agg(u.place) filter (where not h.can_run), array_agg(u.lane), array_agg(l.key), bool_and(l.is_simple)
    into v_places, v_tids, v_ids, v_prios, v_idle, v_stay, lane_ids, lane_keys, v_simple
    from unnest(p_lanes) with ordinality u(lane, place)
    cross join lateral (
        select n.key, n.lim = 1 and n.issued <= 1 and n.interval_ms = 0 and not n.may_be_halted and v_bound = '{}' as is_simple
        from lane n
        where n.id = u.lane
        offset 0
    ) l
    left join lateral (
        select t.ctid as tid, t.id, t.priority, p_kinds is null or t.kind = any (p_kinds) as can_run
        from task t
        where t.queue = p_queue
          and t.lane = u.lane
          and l.is_simple
        order by t.priority, t.id
        limit 1
    ) h on true;

    if v_simple is not true then
        -- Free turns, and bound ones whose task is gone: the first tasks of the lane. In an ordered lane the head or nothing.
        select array_agg(p.place) filter (where p.can_run), array_agg(p.tid) filter (where p.can_run), array_agg(p.id) filter (where p.can_run),
            array_agg(p.priority) filter (where p.can_run), array_agg(p.place) filter (where p.id is null),
            array_agg(p.place) filter (where p.id is not null and not p.can_run), array_agg(p.place) filter (where p.id is null and p.over),
            array_agg(p.place) filter (where p.can_run and p.behind),
            array_agg(p.lane) filter (where p.number = 1), array_agg(p.key) filter (where p.number = 1), array_agg(p.lane) filter (where p.number = 1 and p.paced)
        into v_places, v_tids, v_ids, v_prios, v_idle, v_stay, v_over, v_behind, lane_ids, lane_keys, v_paced
        from (
            -- Behind tasks that others must run, the place in line tells nothing about this one.
            select g.lane, l.key, l.paced, l.over, p.place, p.tid, p.id, case when p_kinds is null or l.lim = 1 then p.priority else -32768 end as priority, p.number,
                p_kinds is not null and l.lim <> 1 and p.priority > p_priorities[p.place] as behind, p.id is not null and (p_kinds is null or p.kind = any (p_kinds)) as can_run
            from (
                select u.lane, array_agg(u.place) filter (where u.is_free) as places, count(*) as n, count(*) filter (where not u.is_free) as bound
                from (
                    select u.lane, u.place, v_bound = '{}' or u.task_id is null or u.task_id <> all (v_bound) as is_free
                    from unnest(p_lanes, p_bound) with ordinality u(lane, task_id, place)
                ) u
                group by u.lane
            ) g
            cross join lateral (
                select n.key, n.lim, n.interval_ms > 0 as paced, n.issued > n.lim as over,
                    -- Above its limit a lane burns as many turns as are too many; those bound to a task are used first.
                    case when n.may_be_halted and exists (select from halt h where h.lane = n.id) then 0 else greatest(0, g.n - greatest(n.issued - n.lim, 0) - g.bound) end as usable
                from lane n
                where n.id = g.lane
                offset 0
            ) l
            cross join lateral (
                select array_agg(t.ctid) as tids, array_agg(t.id) as ids, array_agg(t.priority) as priorities, array_agg(t.kind) as kinds
                from (
                    (select t.ctid, t.id, t.priority, t.kind
                    from task t
                    where t.queue = p_queue
                      and t.lane = g.lane
                      and (p_taken = '{}' or t.ctid <> all (p_taken))
                      and (v_bound = '{}' or t.id <> all (v_bound))
                    order by t.priority, t.id
                    limit case when l.lim = 1 then l.usable else 0 end)
                    union all
                    -- Where order does not matter, a task that somebody holds is passed over.
                    select w.*
                    from (
                        select t.ctid, t.id, t.priority, t.kind
                        from task t
                        where t.queue = p_queue
                          and t.lane = g.lane
                          and (p_kinds is null or t.kind = any (p_kinds))
                          and (p_taken = '{}' or t.ctid <> all (p_taken))
                          and not exists (select from turn b where b.lane = t.lane and b.task_id = t.id)   -- that turn's task
                        order by t.priority, t.id
                        limit case when l.lim = 1 then 0 else l.usable end
                        for update skip locked
                    ) w
                ) t
            ) h
            cross join lateral unnest(g.places, h.tids, h.ids, h.priorities, h.kinds) with ordinality p(place, tid, id, priority, kind, number)
        ) p;
    end if;

    -- Bound turns: their own task.
    if v_bound <> '{}' then
        select array_agg(p.place) filter (where p.can_run) as places, array_agg(p.tid) filter (where p.can_run) as tids, array_agg(p.id) filter (where p.can_run) as ids,
            array_agg(p.priority) filter (where p.can_run) as prios, array_agg(p.place) filter (where p.over) as idle,
            array_agg(p.lane) as lanes, array_agg(p.key) as keys, array_agg(p.lane) filter (where p.paced) as paced
        into v_more
        from (
            select b.place, b.lane, l.key, l.paced, l.over, t.ctid as tid, t.id, t.priority, not l.over and (p_kinds is null or t.kind = any (p_kinds)) as can_run
            from (
                select u.lane, u.task_id, u.place, count(*) over (partition by u.lane) as n,
                    row_number() over (partition by u.lane order by u.task_id = any (v_bound) is not true, u.place) as number
                from unnest(p_lanes, p_bound) with ordinality u(lane, task_id, place)
            ) b
            cross join lateral (
                select n.key, n.interval_ms > 0 as paced,
                    b.number > b.n - greatest(n.issued - n.lim, 0) or n.may_be_halted and exists (select from halt h where h.lane = n.id) as over
                from lane n
                where n.id = b.lane
                offset 0
            ) l
            cross join lateral (select t.ctid, t.id, t.priority, t.kind from task t where t.id = b.task_id and t.id = any (v_bound) offset 0) t
        ) p;
        v_places := v_more.places || v_places;
        v_tids := v_more.tids || v_tids;
        v_ids := v_more.ids || v_ids;
        v_prios := v_more.prios || v_prios;
        v_idle := v_idle || v_more.idle;
        v_over := v_over || v_more.idle;
        lane_ids := lane_ids || v_more.lanes;
        lane_keys := lane_keys || v_more.keys;
        v_paced := v_paced || v_more.paced;
    end if;

    moved := false;
    if p_contested then
        v_moved := array(
            select u.place
            from unnest(v_places, v_prios) u(place, priority)
            where u.priority > p_priorities[u.place]
              and (p_bound[u.place] is null or p_bound[u.place] <> all (v_bound))
        );
        if v_moved <> '{}' then
            -- Somebody else may be next: the turns go where they belong, and the claim looks again.
            moved := true;
            tids := '{}';
            bytes := 0;
            delete from turn where ctid = any (array(select p_turns[place] from unnest(v_moved) place));
            insert into turn (queue, priority, lane)
            select p_queue, u.priority, p_lanes[u.place]
            from unnest(v_places, v_prios) u(place, priority)
            where u.place = any (v_moved)
            order by u.place;
            insert into turn (queue, priority, lane)
            select p_queue, u.priority, u.lane
            from unnest(p_turns, p_priorities, p_lanes) with ordinality u(tid, priority, lane, place)
            where u.tid is null
              and u.place <> all (v_moved);
            return;
        end if;
    end if;

    if v_paced is not null then
        v_done := pace(p_queue, v_paced, v_places, p_turns, p_priorities, p_lanes, p_bound, p_now);
        v_idle := array(select place from unnest(v_idle) place where place <> all (v_done));
        select array_agg(u.place), array_agg(u.tid), array_agg(u.id), array_agg(u.priority) into v_places, v_tids, v_ids, v_prios
        from unnest(v_places, v_tids, v_ids, v_prios) u(place, tid, id, priority)
        where u.place <> all (v_done);
    end if;

    select coalesce(array_agg(t.ctid), '{}'), coalesce(sum(t.size), 0), array_agg(t.id) into tids, bytes, v_used
    from (
        select t.ctid, t.size, t.id
        from task t
        where t.ctid = any (v_tids)
          and t.id = any (v_ids)       -- the place may have been given to another task since it was read
        for update skip locked
    ) t;

    -- Turns that got their task leave the line; in hand they are simply used. The others stay, or go into it.
    if cardinality(v_used) = cardinality(v_ids) then
        v_used := v_places;
    else
        v_used := array(select u.place from unnest(v_places, v_ids) u(place, id) where u.id = any (v_used));
        insert into turn (queue, priority, lane)
        select p_queue, p_priorities[place], p_lanes[place]
        from unnest(v_places) place
        where p_turns[place] is null
          and place <> all (v_used);
    end if;
    delete from turn where ctid = any (array(select p_turns[place] from unnest(v_used) place));
    if v_behind is not null then
        -- The lane loses a turn that stood in line for its head: when one is back, it must stand there again.
        insert into mark (lane, n, priority, slowest, queue, key)
        select p_lanes[place], 1, min(p_priorities[place]), min(p_priorities[place]), p_queue, lane_keys[array_position(lane_ids, p_lanes[place])]
        from unnest(v_behind) place
        where place = any (v_used)
        group by p_lanes[place];
    end if;
    if v_stay is not null then
        insert into turn (queue, priority, lane)
        select p_queue, p_priorities[place], p_lanes[place]
        from unnest(v_stay) place
        where p_turns[place] is null
          and place <> all (coalesce(v_done, '{}'));   -- unless it was parked
    end if;

    if v_over is not null then
        v_over := burn(v_over, p_turns, p_lanes, p_priorities, p_bound);
        v_idle := array(select place from unnest(v_idle) place where place <> all (v_over));
    end if;
    if v_idle is not null and v_idle <> '{}' then
        if p_kinds is not null then
            -- A lane that has only tasks which others can run is not empty.
            v_done := array(
                select place
                from unnest(v_idle) place
                where exists (select from task t where t.queue = p_queue and t.lane = p_lanes[place] and t.ctid <> all (tids) and t.ctid <> all (p_taken))
                  and exists (select from lane l where l.id = p_lanes[place] and l.issued <= l.lim)
            );
            insert into turn (queue, priority, lane)
            select p_queue, p_priorities[place], p_lanes[place]
            from unnest(v_done) place
            where p_turns[place] is null;
            v_idle := array(select place from unnest(v_idle) place where place <> all (v_done));
        end if;
        delete from turn where ctid = any (array(select p_turns[place] from unnest(v_idle) place));
        spare_lanes := array(select p_lanes[place] from unnest(v_idle) place);
        spare_priorities := array(select p_priorities[place] from unnest(v_idle) place);
        spare_bound := array(select case when p_bound[place] = any (v_bound) then p_bound[place] end from unnest(v_idle) place);
    end if;
end $$;

-- Burns turns of lanes above their limit, as many as are too many, at once: the next turn of such a lane may be good.
-- Returns the places of those that are gone.
create or replace function burn(p_places bigint[], p_turns tid[], p_lanes bigint[], p_priorities smallint[], p_bound bigint[]) returns bigint[]
language plpgsql as $$
declare
    v_lane record;
    v_mine bigint[];
    v_gone bigint[] := '{}';
begin
    for v_lane in
        select l.id, l.queue, l.key, l.issued - l.lim as extra
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
        delete from turn where ctid = any (array(select p_turns[place] from unnest(v_mine) place));
        update lane set issued = issued - cardinality(v_mine) where id = v_lane.id;
        -- The turns that are left may stand further back than these did: a mark moves one up.
        insert into mark (lane, n, priority, slowest, queue, key)
        select v_lane.id, 1, min(p_priorities[place]), min(p_priorities[place]), v_lane.queue, v_lane.key
        from unnest(v_mine) place;
        v_gone := v_gone || v_mine;
    end loop;
    return v_gone;
end $$;

-- Moves the locked tasks into leases and answers with them.
create or replace function take_tasks(
    p_session uuid, p_number bigint, p_queue text, p_alone text[], p_tids tid[], p_lane_ids bigint[], p_lane_keys text[], p_now timestamptz
) returns setof advance_row
language plpgsql as $$
declare
    v_rows  advance_row[];
    v_row   advance_row;
    v_taken int;
begin
    with taken as (
        delete from task
        where ctid = any (p_tids)
        returning *
    ),
    sorted as (
        select *, case when kind = any (p_alone) then id else 0 end as apart
        from taken
        order by apart, id
    ),
    made as (
        insert into lease (session, token, number, claimed_at, tasks, queue, task_ids, kinds, enqueued_ats, lanes, priorities, attempts,
            max_attempts, crashes, depths, parent_ids, ready_ats, sizes, payloads, extras)
        select
            p_session, gen_random_uuid(), p_number, p_now, count(*), p_queue,
            array_agg(s.id), array_agg(s.kind), array_agg(s.enqueued_at),
            case when bool_or(s.lane <> 0) then array_agg(s.lane) end,
            case when bool_or(s.priority <> 0) then array_agg(s.priority) end,
            case when bool_or(s.attempt <> 0) then array_agg(s.attempt) end,
            case when bool_or(s.max_attempts <> 25) then array_agg(s.max_attempts) end,
            case when bool_or(s.crashes <> 0) then array_agg(s.crashes) end,
            case when bool_or(s.depth <> 0) then array_agg(s.depth) end,
            case when bool_or(s.parent_id is not null) then array_agg(s.parent_id) end,
            case when bool_or(s.ready_at is not null) then array_agg(s.ready_at) end,
            case when bool_or(s.size >= 1000) then array_agg(s.size) end,
            array_agg(s.payload),
            case when bool_or(s.extra is not null) then array_agg(s.extra) end
        from sorted s
        group by s.apart
        returning *
    )
    select array_agg(row(m.id, m.token, m.queue, m.task_ids, m.kinds, m.enqueued_ats, m.lanes, m.priorities, m.attempts, m.max_attempts,
        m.crashes, m.depths, m.parent_ids, m.payloads, m.extras, p_lane_ids, p_lane_keys, m.sizes::bigint[], null, null, null, null, null, null)::advance_row),
        sum(m.tasks)
    into v_rows, v_taken
    from made m;
    if v_taken is distinct from cardinality(p_tids) then
        raise 'claim locked % tasks and took %', cardinality(p_tids), v_taken;
    end if;
    foreach v_row in array v_rows loop
        if v_row.body_ids is not null then   -- sizes were kept, so some payload is large
            select array_agg(b.task_id), array_agg(b.payload) into v_row.body_ids, v_row.bodies
            from body b
            where b.task_id = any (v_row.task_ids);
        end if;
        return next v_row;
    end loop;
end $$;
