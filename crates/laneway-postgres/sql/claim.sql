-- Claims up to p_max tasks of one queue into one lease (tasks of kinds in p_alone: one lease each).
--
-- Turns in line and lane-less tasks are merged by priority and alternate within one. A round reads as many of both as are
-- still needed, plans which come first, and takes those (pick.sql). What turns out to be worth nothing leaves its slot to
-- whatever comes next, which a further round finds.
--
--   p_hand_lanes, p_hand_priorities, p_hand_afters, p_hand_until: turns that a settle of this advance has freed. They are used without ever
--     being written when turns are short, behind those in line, and put into the line otherwise.
--   p_bounds: priority and id of the last task, priority and seq of the last turn, from which to look; null: from the
--     beginning. An old snapshot keeps dead index entries alive, and every look from the beginning walks them.
--
-- Returns the leases, and with the last of them, or in a row of its own, the new bounds (a fifth number: microseconds spent
-- looking). Rows of task and turn are never updated, and the snapshot of the call keeps their places from being reused, so
-- a ctid that was read stays what it is.
create or replace function claim(
    p_session         uuid,
    p_number          bigint,
    p_queue           text,
    p_max             int,
    p_kinds           text[],
    p_alone           text[],
    p_hand_lanes      bigint[],
    p_hand_priorities smallint[],
    p_hand_afters     bigint[],
    p_hand_until      bigint,
    p_bounds          bigint[]
) returns setof advance_row
language plpgsql as $$
declare
    c_start    constant bigint[] := array[-32768, 0] || line_beginning();
    c_bytes    constant bigint := 4000000;    -- of payload in one claim: an array holds 1 GB, and memory is shared
    v_now      timestamptz := clock();
    v_from     bigint[] := coalesce(p_bounds, c_start);
    v_bounds   bigint[] := coalesce(p_bounds, c_start);
    v_tids     tid[] := '{}';                 -- tasks that are locked and will be taken
    v_took_turns smallint[] := '{}';          -- their priorities: those of turns,
    v_took_free smallint[] := '{}';           -- and those without a lane
    v_parents  boolean := false;              -- some are children
    v_odd      boolean := p_alone is not null;-- they need the long way into a lease
    v_need     int;
    v_bytes    bigint := 0;
    v_seen     record;
    v_lined    boolean;                       -- there may be turns
    v_line     record;                        -- those of one round, tid null for a turn in hand
    v_whole    boolean;                       -- and there are no more of them
    v_turns    int;                           -- how many these are
    v_take     int;                           -- and how many of them the plan takes
    v_free     int;                           -- tasks without a lane that the plan takes
    v_found    int;                           -- and how many of these it got
    v_picked   record;
    v_got      record;
    v_lane_ids bigint[] := '{}';
    v_lane_keys text[] := '{}';
    v_spare_lanes bigint[] := '{}';           -- turns that found nothing to do
    v_spare_priorities smallint[] := '{}';
    v_spare_bound bigint[] := '{}';
    v_back_lanes bigint[] := '{}';            -- see pick
    v_back_priorities smallint[] := '{}';
    v_contested boolean;
    v_merge    boolean := true;
    v_marked   boolean;                       -- there are marks that were not taken up; null: not known
    v_rounds   int := 0;                      -- in which turns were taken
    v_last_id  bigint;                        -- the last id that was drawn, while looks from the beginning are slow
    v_until    bigint;
    v_row      advance_row;
    v_started  timestamptz;
    v_us       bigint := 0;
begin
    v_started := clock_timestamp();
    -- While looks are slow, marks are looked at now and then, and when turns are short.
    select
        p_max <= 0 or exists (select from queue q where q.name = p_queue and q.paused_at is not null) as is_closed,
        case when p_bounds is null or p_number % 8 = 0 then exists (select from mark m where m.queue = p_queue) end as has_marks,
        p_bounds is not null or p_hand_lanes <> '{}' or exists (select from turn t where t.queue = p_queue) as has_turns
    into v_seen;
    v_us := v_us + extract(microseconds from clock_timestamp() - v_started)::bigint;
    if v_seen.is_closed then
        perform join_line(p_queue, p_hand_lanes, p_hand_priorities);
        perform take_up_all(p_queue, 1);
        return;
    end if;
    v_marked := v_seen.has_marks;
    v_lined := v_seen.has_turns or v_marked;
    if v_marked then
        -- A mark may be waiting for one of these turns, to move it up.
        perform join_line(p_queue, p_hand_lanes, p_hand_priorities, p_hand_afters, p_hand_until);
        p_hand_lanes := '{}';
        if p_number % 8 = 0 or marks_are_due(p_queue, line_start(p_queue, p_bounds), p_max) then
            perform take_up_all(p_queue, p_max);
            v_marked := false;
        end if;
    end if;
    if p_bounds is not null then
        -- What is more urgent than where we stopped lies in front of the bound; the range is short, so looking is cheap.
        if exists (select from task t where t.queue_id = queue_id(p_queue) and t.lane = 0 and t.priority < v_from[1]) then
            v_from[1:2] := c_start[1:2];
        end if;
        v_from[3:4] := line_start(p_queue, p_bounds);
        select s.last_value into v_last_id from task_id_seq s;
    end if;

    loop
        v_need := p_max - cardinality(v_tids);
        exit when v_need <= 0 or v_bytes >= c_bytes;
        v_turns := 0;
        v_take := 0;
        v_whole := true;
        if v_lined then
            v_started := clock_timestamp();
            v_line := read_line(p_queue, v_from[3]::smallint, v_from[4], v_need);
            v_us := v_us + extract(microseconds from clock_timestamp() - v_started)::bigint;
            -- Turns in hand come behind those in line, but before less urgent ones.
            if p_hand_lanes <> '{}' and (v_line.whole or v_line.priorities[v_need] > any (p_hand_priorities)) then
                v_line := add_hand(v_line.tids, v_line.priorities, v_line.seqs, v_line.lanes, v_line.bound, v_line.afters, v_line.untils, v_line.whole,
                    p_hand_lanes, p_hand_priorities, p_hand_afters, p_hand_until);
                p_hand_lanes := '{}';
            end if;
            v_whole := v_line.whole;
            v_turns := cardinality(v_line.lanes);
            v_take := least(v_need, v_turns);
            v_contested := not v_whole;
            if v_take > 0 and v_merge then
                v_got := plan(p_queue, p_kinds, v_from[1]::smallint, v_from[2], v_line.priorities, v_need, p_number % 2 = 1, v_took_turns, v_took_free);
                v_take := v_got.turns;
                v_contested := v_contested or v_got.is_contested;
            end if;
        end if;
        v_free := v_need - v_take;

        if v_take > 0 then
            v_started := clock_timestamp();
            v_now := clock();      -- after whoever had these turns
            v_picked := pick(p_queue, p_kinds, v_line.priorities[:v_take], v_line.lanes[:v_take], v_line.bound[:v_take], v_line.afters[:v_take],
                v_line.untils[:v_take], v_last_id, v_tids, v_contested, v_now);
            v_until := case when v_rounds = 0 then v_picked.until when v_until is not null and v_picked.until is not null then least(v_until, v_picked.until) end;
            v_rounds := v_rounds + 1;
            v_us := v_us + greatest(0, extract(microseconds from clock_timestamp() - v_started)::bigint - 20 * v_take);
            v_tids := v_tids || v_picked.tids;
            v_took_turns := v_took_turns || v_picked.took;
            v_bytes := v_bytes + v_picked.bytes;
            v_parents := v_parents or v_picked.has_parents is true;
            v_odd := v_odd or v_picked.is_odd is true;
            v_lane_ids := v_lane_ids || v_picked.lane_ids;
            v_lane_keys := v_lane_keys || v_picked.lane_keys;
            v_spare_lanes := v_spare_lanes || v_picked.spare_lanes;
            v_spare_priorities := v_spare_priorities || v_picked.spare_priorities;
            v_spare_bound := v_spare_bound || v_picked.spare_bound;
            v_back_lanes := v_back_lanes || v_picked.back_lanes;
            v_back_priorities := v_back_priorities || v_picked.back_priorities;
            perform leave_line(p_queue, v_line.tids, v_line.priorities, v_line.seqs, v_line.lanes, v_line.bound, v_line.afters, v_line.untils, v_take, v_picked.gone);
            if v_picked.again then
                -- Marks may be more urgent than what is next now.
                perform take_up_all(p_queue, p_max, v_tids);
                v_from[3:4] := line_start(p_queue, p_bounds);
                continue;
            end if;
            v_from[3:4] := coalesce(end_of_line(v_line.priorities, v_line.seqs, v_take), v_from[3:4]);
            v_bounds[3:4] := v_from[3:4];
        elsif v_turns > 0 then
            perform leave_line(p_queue, v_line.tids, v_line.priorities, v_line.seqs, v_line.lanes, v_line.bound, v_line.afters, v_line.untils, 0, '{}');
        end if;

        v_found := 0;
        if v_free > 0 and v_bytes < c_bytes then
            v_started := clock_timestamp();
            v_got := pick_free(p_queue, p_kinds, v_from[1]::smallint, v_from[2], v_free, c_bytes - v_bytes);
            v_us := v_us + extract(microseconds from clock_timestamp() - v_started)::bigint;
            v_found := cardinality(v_got.tids);
            v_tids := v_tids || v_got.tids;
            v_took_free := v_took_free || v_got.took;
            v_bytes := v_bytes + v_got.bytes;
            v_parents := v_parents or v_got.has_parents is true;
            v_odd := v_odd or v_got.is_odd is true;
            v_from[1:2] := coalesce(v_got.last, v_from[1:2]);
            v_bounds[1:2] := v_from[1:2];
        end if;

        if v_marked is not false then
            -- The turns in line were not worth as much as they promised.
            perform take_up_all(p_queue, p_max, v_tids);
            v_marked := false;
            v_from[3:4] := line_start(p_queue, p_bounds);
        elsif v_found < v_free and v_take < v_turns then
            -- Tasks without a lane that the plan counted on are held by somebody else: the rest is for the turns.
            v_merge := false;
        else
            exit when v_whole and v_found < v_free;
        end if;
    end loop;
    if p_hand_lanes <> '{}' then
        perform join_line(p_queue, p_hand_lanes, p_hand_priorities, p_hand_afters, p_hand_until);   -- no round had use for them
    end if;

    if v_tids <> '{}' and v_odd then
        return query select * from take_tasks(p_session, p_number, p_queue, p_alone, v_tids, v_lane_ids, v_lane_keys, v_until, v_now);
    elsif v_tids <> '{}' then
        v_row := take_plain(p_session, p_number, p_queue, v_tids, v_parents, v_now, v_took_turns <> '{}', v_until);
        v_row.lane_ids := v_lane_ids;
        v_row.lane_keys := v_lane_keys;
    end if;
    if v_spare_lanes <> '{}' then
        perform retire(p_queue, v_spare_lanes, v_spare_priorities, v_spare_bound);
    end if;
    if v_back_lanes <> '{}' then
        -- Somebody may have counted on a turn in its old place, for an urgent task that this claim cannot see yet. The next one looks.
        insert into mark (lane, n, priority, slowest, queue, key)
        select l.id, 1, b.priority, b.priority, p_queue, l.key
        from unnest(v_back_lanes, v_back_priorities) b(lane, priority)
        cross join lateral (select l.id, l.key from lane l where l.id = b.lane offset 0) l;
    end if;
    v_row.queue := p_queue;
    v_row.bounds := v_bounds || v_us;
    return next v_row;
end $$;

-- The same for a queue that is open and has no lanes: the ordinary case, in one round. p_bound: priority and id. Answers with one row, which
-- carries the lease, if there was a task, and the bounds.
create or replace function claim_plain(p_session uuid, p_number bigint, p_queue text, p_max int, p_kinds text[], p_bound bigint[]) returns advance_row
language plpgsql as $$
declare
    c_start   constant bigint[] := array[-32768, 0];
    c_bytes   constant bigint := 4000000;     -- as above
    v_now     timestamptz := clock();
    v_started timestamptz := clock_timestamp();
    v_from    bigint[] := coalesce(p_bound, c_start);
    v_got     record;
    v_us      bigint;
    v_row     advance_row;
begin
    if p_bound is not null and exists (select from task t where t.queue_id = queue_id(p_queue) and t.lane = 0 and t.priority < p_bound[1]) then
        v_from := c_start;
    end if;
    v_got := pick_free(p_queue, p_kinds, v_from[1]::smallint, v_from[2], p_max, c_bytes);
    v_us := extract(microseconds from clock_timestamp() - v_started);
    if v_got.is_odd then
        select * into v_row from take_tasks(p_session, p_number, p_queue, null, v_got.tids, '{}', '{}', null, v_now);
    elsif v_got.tids <> '{}' then
        v_row := take_plain(p_session, p_number, p_queue, v_got.tids, v_got.has_parents, v_now);
    end if;
    v_row.queue := p_queue;
    v_row.bounds := coalesce(v_got.last, v_from) || line_beginning() || v_us;
    return v_row;
end $$;

-- The bound of a line from which no turn was taken.
create or replace function line_beginning() returns bigint[]
language sql immutable as $$ select '{-32768, -9223372036854775807}'::bigint[] $$;

-- Where to look for turns: at the bound, unless something more urgent stands in front of it.
create or replace function line_start(p_queue text, p_bounds bigint[]) returns bigint[]
language plpgsql as $$
begin
    if p_bounds is null or exists (select from turn t where t.queue = p_queue and t.priority < p_bounds[3]) then
        return line_beginning();
    end if;
    return p_bounds[3:4];
end $$;

-- Marks cost as much as tasks, so they are taken up when turns are short and when they are more urgent than the turns that
-- are next; and now and then for newcomers.
create or replace function marks_are_due(p_queue text, p_start bigint[], p_max int) returns boolean
language plpgsql as $$
declare
    v_ready  bigint;
    v_last   smallint;
begin
    select sum(t.n), max(t.priority) into v_ready, v_last
    from (
        select t.priority, cardinality(t.lanes) as n
        from turn t
        where t.queue = p_queue
          and (t.priority, t.seq) > (p_start[1]::smallint, p_start[2])
        order by t.priority, t.seq
        limit p_max
    ) t;
    return v_ready is null or v_ready < p_max or v_last > (select m.priority from mark m where m.queue = p_queue order by m.priority, m.id limit 1);
end $$;

-- The turns of read_line with those in hand among them, by priority.
create or replace function add_hand(
    inout tids tid[], inout priorities smallint[], inout seqs bigint[], inout lanes bigint[], inout bound bigint[], inout afters bigint[],
    inout untils bigint[], inout whole boolean, p_lanes bigint[], p_priorities smallint[], p_afters bigint[], p_until bigint
)
language plpgsql as $$
begin
    select array_agg(t.tid order by t.priority, t.place), array_agg(t.priority order by t.priority, t.place),
        array_agg(t.seq order by t.priority, t.place), array_agg(t.lane order by t.priority, t.place),
        array_agg(t.task_id order by t.priority, t.place), array_agg(t.after order by t.priority, t.place), array_agg(t.until order by t.priority, t.place)
    into tids, priorities, seqs, lanes, bound, afters, untils
    from (
        select u.tid, u.priority, u.seq, u.lane, u.task_id, u.after, u.until, u.place
        from unnest(tids, priorities, seqs, lanes, bound, afters, untils) with ordinality u(tid, priority, seq, lane, task_id, after, until, place)
        union all
        select null::tid, h.priority, null, h.lane, null, h.after, p_until, 1000000 + h.place
        from unnest(p_lanes, p_priorities, p_afters) with ordinality h(lane, priority, after, place)
    ) t;
end $$;

-- How many of the next p_need are turns, when those with these priorities are merged with the tasks without a lane. What
-- earlier rounds took counts, so that a turn which proves worthless leaves its place to the next turn.
create or replace function plan(
    p_queue text, p_kinds text[], p_priority smallint, p_id bigint, p_turns smallint[], p_need int, p_turns_begin boolean,
    p_took_turns smallint[], p_took_free smallint[],
    out turns int, out is_contested boolean
)
language plpgsql as $$
declare
    v_free smallint[] := array(
        select t.priority
        from task t
        where t.queue_id = queue_id(p_queue)
          and t.lane = 0
          and (t.priority, t.id) > (p_priority, p_id)
          and (p_kinds is null or t.kind = any (p_kinds))
        order by t.priority, t.id
        limit p_need
    );
begin
    is_contested := v_free <> '{}';
    turns := least(p_need, cardinality(p_turns));
    if is_contested then
        select count(*) filter (where m.is_turn) into turns
        from (
            select s.is_turn
            from (
                select true as is_turn, u.priority, row_number() over (partition by u.priority order by u.place) + cardinality(array_positions(p_took_turns, u.priority)) as number
                from unnest(p_turns) with ordinality u(priority, place)
                union all
                select false, u.priority, row_number() over (partition by u.priority order by u.place) + cardinality(array_positions(p_took_free, u.priority))
                from unnest(v_free) with ordinality u(priority, place)
            ) s
            order by s.priority, s.number, s.is_turn = p_turns_begin desc   -- a claim of one takes either in turn
            limit p_need
        ) m;
    end if;
end $$;

-- From where the line goes on behind these turns; null when all of them were in hand.
create or replace function end_of_line(p_priorities smallint[], p_seqs bigint[], p_judged int) returns bigint[]
language plpgsql immutable as $$
begin
    for i in reverse p_judged .. 1 loop
        if p_seqs[i] is not null then
            return array[p_priorities[i], p_seqs[i]];
        end if;
    end loop;
    return null;
end $$;

-- Locks the next p_max tasks without a lane behind (p_priority, p_id). Payloads are large at times: stops where they become
-- too much, after at least one. What is behind stays, unlocked by the commit.
-- has_parents: some of them are children. is_odd: some have more that few tasks have.
create or replace function pick_free(
    p_queue text, p_kinds text[], p_priority smallint, p_id bigint, p_max int, p_bytes bigint,
    out tids tid[], out took smallint[], out bytes bigint, out last bigint[], out has_parents boolean, out is_odd boolean
)
language plpgsql as $$
declare
    v_got record;
    v_n   int;
begin
    select array_agg(t.ctid) as tids, count(*) as n,
        max(t.size) as largest, array_agg(t.size) as sizes, array_agg(t.priority) as priorities, array_agg(t.id) as ids,
        bool_or(t.is_child) as has_parents, bool_or(t.is_odd) as is_odd
    into v_got
    from (
        select t.ctid, t.priority, t.id, t.size, t.parent_id is not null as is_child, is_odd(t) as is_odd
        from task t
        where t.queue_id = queue_id(p_queue)
          and t.lane = 0
          and (t.priority, t.id) > (p_priority, p_id)
          and (p_kinds is null or t.kind = any (p_kinds))
        order by t.priority, t.id
        limit p_max
        for update skip locked
    ) t;
    bytes := 0;
    v_n := v_got.n;
    if v_n > 0 then
        if v_got.largest >= 1000 then
            select count(*), sum(s.size) into v_n, bytes
            from (
                select u.size, sum(u.size) over (order by u.place) - u.size as before
                from unnest(v_got.sizes) with ordinality u(size, place)
            ) s
            where s.before < p_bytes;
        end if;
        last := array[v_got.priorities[v_n], v_got.ids[v_n]];
    end if;
    tids := coalesce(v_got.tids[:v_n], '{}');
    took := v_got.priorities[:v_n];
    has_parents := v_got.has_parents;
    is_odd := v_got.is_odd;
end $$;

-- A task with more than most tasks have, beside a lane and a parent.
create or replace function is_odd(t task) returns boolean
language sql immutable as $$
    select t.priority <> 0 or t.attempt <> 0 or t.max_attempts <> 25 or t.crashes <> 0 or t.size >= 1000 or t.ready_at is not null or t.extra is not null
        or t.depth <> 0 and t.parent_id is null
$$;

-- Moves the locked tasks, of which none is odd, into one lease and answers with it. p_parents: some are children; p_lanes: some have lanes.
create or replace function take_plain(
    p_session uuid, p_number bigint, p_queue text, p_tids tid[], p_parents boolean, p_now timestamptz, p_lanes boolean default false,
    p_until bigint default null
) returns advance_row
language plpgsql as $$
declare
    v_row   advance_row;
    v_taken int;
begin
    with taken as (
        delete from task
        where ctid = any (p_tids)
        returning id, lane, kind, enqueued_at, depth, parent_id, payload
    )
    insert into lease as m (session, token, number, claimed_at, tasks, queue, task_ids, kinds, enqueued_ats, lanes, depths, parent_ids, until, payloads)
    select
        p_session, gen_random_uuid(), p_number, p_now, count(*), p_queue,
        array_agg(s.id), array_agg(s.kind), array_agg(s.enqueued_at), array_agg(s.lane) filter (where p_lanes),
        array_agg(s.depth) filter (where p_parents), array_agg(s.parent_id) filter (where p_parents),
        p_until, array_agg(s.payload)
    from (select * from taken order by id) s
    returning m.id, m.token, m.queue, m.task_ids, m.kinds, m.enqueued_ats, m.lanes, m.depths, m.parent_ids, m.payloads, m.claimed_at, m.tasks
    into v_row.lease_id, v_row.token, v_row.queue, v_row.task_ids, v_row.kinds, v_row.enqueued_ats, v_row.lanes, v_row.depths, v_row.parent_ids, v_row.payloads,
        v_row.claimed_at, v_taken;
    if v_taken <> cardinality(p_tids) then
        raise 'claim locked % tasks and took %', cardinality(p_tids), v_taken;
    end if;
    return v_row;
end $$;

-- Moves the locked tasks into leases and answers with them.
create or replace function take_tasks(
    p_session uuid, p_number bigint, p_queue text, p_alone text[], p_tids tid[], p_lane_ids bigint[], p_lane_keys text[], p_until bigint, p_now timestamptz
) returns setof advance_row
language plpgsql as $$
declare
    v_row   advance_row;
    v_taken int := 0;
begin
    for v_row in
        with taken as (
            delete from task
            where ctid = any (p_tids)
            returning *
        ),
        sorted as (
            select *, case when kind = any (p_alone) then id else 0 end as apart
            from taken
            order by apart, id
        )
        insert into lease as m (session, token, number, claimed_at, tasks, queue, task_ids, kinds, enqueued_ats, lanes, priorities, attempts,
            max_attempts, crashes, depths, parent_ids, ready_ats, sizes, until, payloads, extras)
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
            p_until,
            array_agg(s.payload),
            case when bool_or(s.extra is not null) then array_agg(s.extra) end
        from sorted s
        group by s.apart
        returning m.id, m.token, m.queue, m.task_ids, m.kinds, m.enqueued_ats, m.lanes, m.priorities, m.attempts, m.max_attempts, m.crashes, m.depths,
            m.parent_ids, m.payloads, m.extras, p_lane_ids, p_lane_keys, m.sizes::bigint[], null::json[], m.claimed_at, m.ready_ats, null::bigint[], null::text[], null::text,
            null::bigint, null::boolean
    loop
        v_taken := v_taken + cardinality(v_row.task_ids);
        if v_row.body_ids is not null then   -- sizes were kept, so some payload is large
            select array_agg(b.task_id), array_agg(b.payload) into v_row.body_ids, v_row.bodies
            from body b
            where b.task_id = any (v_row.task_ids);
        end if;
        if v_row.extras is not null then
            perform release_keys(v_row.task_ids, array_fill(p_queue, array[cardinality(v_row.task_ids)]), v_row.kinds, v_row.extras, true);
        end if;
        return next v_row;
    end loop;
    if v_taken <> cardinality(p_tids) then
        raise 'claim locked % tasks and took %', cardinality(p_tids), v_taken;
    end if;
end $$;
