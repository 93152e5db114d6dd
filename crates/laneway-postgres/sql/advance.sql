-- One step of a worker, in one transaction: settle what ended, move what is due, add up tallies, take up marks, claim what is next.
--
-- Claims come as parallel arrays, one entry per queue; kinds and kinds-apart are lists separated by the unit separator,
-- null for all kinds. p_bounds holds four numbers per queue (see claim.sql), or is null: look from the beginning. p_spawn: what the settled
-- attempts have spawned (family.sql).
-- Answers with one row per lease, one per queue with bounds, which may be that of its lease, and a last one about the whole.
create or replace function advance(
    p_session  uuid,
    p_number   bigint,
    p_again    boolean,
    p_leases   bigint[],
    p_tokens   uuid[],
    p_tasks    bigint[],
    p_outcomes text[],
    p_delays   bigint[],
    p_reports  text[],
    p_results  text[],
    p_ids      bigint[],
    p_queues   text[],
    p_maxes    int[],
    p_kinds    text[],
    p_alone    text[],
    p_bounds   bigint[],
    p_spawn    spawn default null
) returns setof advance_row
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_now     timestamptz;
    v_answer  advance_row;
    v_settled record;
    v_lanes   bigint[] := '{}';
    v_turns   smallint[] := '{}';
    v_afters  bigint[];
    v_until   bigint;
    v_single  boolean;                 -- everything in hand is of the only queue that is claimed from
    v_queues  text[] := '{}';
    v_hand_lanes bigint[];             -- of one queue
    v_hand_turns smallint[];
    v_kinds   text[];
    v_seen    record;
    v_spared  boolean := false;        -- some kinds are paused
    v_due_at  timestamptz;             -- when something is due next
    v_alive   boolean;
    v_plain   boolean;                 -- there are no lanes and no pauses in the queues that are claimed from
    v_moved   boolean := false;        -- what was due or has ended may have made tasks runnable, and changed what is due next
    v_wanted  int := 0;
    v_got     int := 0;
    v_before  int := 0;
    v_started int[];
    v_leases  bigint[] := '{}';        -- that were made, and nulls
    v_folded  boolean := false;
    v_short   boolean;                 -- fewer were claimed than wanted
    v_left    record;
    v_row     advance_row;
    i         int;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise 'advance needs a read committed transaction: it looks again after it has locked';
    end if;
    if p_leases <> '{}' then
        v_settled := settle_all(p_session, p_again, p_leases, p_tokens, p_tasks, p_outcomes, p_delays, p_reports, p_results, p_ids, p_spawn);
        v_answer.verdicts := v_settled.verdicts;
        v_queues := coalesce(v_settled.hand_queues, '{}');
        v_lanes := coalesce(v_settled.hand_lanes, '{}');
        v_turns := coalesce(v_settled.hand_priorities, '{}');
        v_afters := v_settled.hand_afters;
        v_until := v_settled.hand_until;
    end if;

    v_plain := v_lanes = '{}';
    if p_bounds is not null then
        for i in 1 .. cardinality(p_queues) loop
            v_plain := v_plain and p_bounds[i * 4 - 1 : i * 4] = line_beginning();
        end loop;
    end if;

    -- One look at everything that there is to do besides, since most of it is rarely there.
    v_now := clock();
    select
        exists (select from worker w where w.session = p_session) as alive,
        exists (select from tally) as tallied,
        exists (select from pause) as paused,
        least(
            (select l.due_at from later l where l.due_at < 'infinity' order by l.due_at limit 1),   -- follow-ups are due at no time
            (select p.due_at from parked p order by p.due_at limit 1)
        ) as due_at,
        (select s.next_fire_at from schedule s order by s.next_fire_at limit 1) as fire_at,
        -- While looks from the beginning are slow, lanes are not asked for where turns were taken before.
        v_plain and not exists (select from turn t where t.queue = any (p_queues))
            and not exists (select from mark m where m.queue = any (p_queues)) as is_plain
    into v_seen;
    v_due_at := v_seen.due_at;
    v_plain := v_seen.is_plain;
    if v_seen.paused then
        select
            least(v_due_at, (select p.expires_at from pause p where p.expires_at is not null order by p.expires_at limit 1)),
            exists (select from pause p where p.what = 'kind'),
            v_plain and not exists (select from queue q where q.name = any (p_queues) and q.paused_at is not null)
        into v_due_at, v_spared, v_plain;
    end if;
    v_alive := v_seen.alive;
    v_answer.session_lost := not v_alive;
    if v_alive and p_again then
        for v_row in select * from leases_of(p_session, p_number) loop
            v_got := v_got + cardinality(v_row.task_ids);
            return next v_row;
        end loop;
        v_alive := v_got = 0;
    end if;
    if v_alive and v_due_at <= v_now and p_queues <> '{}' then
        perform move_due(1000);
        v_moved := true;
    end if;
    if v_seen.tallied then
        v_folded := p_number % 32 = 0 or not tallies_can_wait();
        if v_folded then
            perform fold_families(p_drops => p_leases <> '{}');     -- process_tasks, which may be part of a long transaction, settles elsewhere
            v_moved := true;
        end if;
    end if;
    if v_moved and v_plain then
        v_plain := not exists (select from turn t where t.queue = any (p_queues)) and not exists (select from mark m where m.queue = any (p_queues));
    end if;

    -- Turns that were freed in queues from which nothing is claimed now go back into the line.
    if not (v_alive and v_queues <@ p_queues) then
        perform join_lines(array_agg(h.queue), array_agg(h.lane), array_agg(h.priority))
        from unnest(v_queues, v_lanes, v_turns) h(queue, lane, priority)
        where not v_alive or h.queue <> all (p_queues)
        having count(*) > 0;
    end if;
    if v_alive then
        v_single := cardinality(p_queues) = 1 and v_queues <@ p_queues;
        for i in 1 .. cardinality(p_queues) loop
            v_wanted := v_wanted + p_maxes[i];
            v_kinds := string_to_array(p_kinds[i], e'\x1f');
            if v_spared then
                v_kinds := open_kinds(p_queues[i : i], v_kinds);
            end if;
            if v_plain and p_alone[i] is null then
                v_row := claim_plain(p_session, p_number, p_queues[i], p_maxes[i], v_kinds, p_bounds[i * 4 - 3 : i * 4 - 2]);
                v_got := v_got + coalesce(cardinality(v_row.task_ids), 0);
                v_leases := v_leases || v_row.lease_id;
                return next v_row;
            else
                v_hand_lanes := v_lanes;
                v_hand_turns := v_turns;
                if v_lanes <> '{}' and not v_single then
                    select coalesce(array_agg(h.lane), '{}'), coalesce(array_agg(h.priority), '{}')
                    into v_hand_lanes, v_hand_turns
                    from unnest(v_queues, v_lanes, v_turns) h(queue, lane, priority)
                    where h.queue = p_queues[i]
                      and p_queues[i] <> all (p_queues[: i - 1]);   -- an earlier claim of the same queue has used them
                end if;
                for v_row in
                    select *
                    from claim(
                        p_session => p_session,
                        p_number => p_number,
                        p_queue => p_queues[i],
                        p_max => p_maxes[i],
                        p_kinds => v_kinds,
                        p_alone => string_to_array(p_alone[i], e'\x1f'),
                        p_hand_lanes => v_hand_lanes,
                        p_hand_priorities => v_hand_turns,
                        p_hand_afters => case when v_single then v_afters end,
                        p_hand_until => case when v_single then v_until end,
                        p_bounds => p_bounds[i * 4 - 3 : i * 4]
                    )
                loop
                    v_got := v_got + coalesce(cardinality(v_row.task_ids), 0);
                    v_leases := v_leases || v_row.lease_id;
                    return next v_row;
                end loop;
            end if;
            v_started[i] := v_got - v_before;
            v_before := v_got;
        end loop;
        if v_got > 0 then
            insert into stat_delta (at, queue, started)
            select clock(), u.queue, u.n
            from unnest(p_queues, v_started) u(queue, n)
            where u.n > 0
              and not exists (select from queue q where q.name = u.queue and not q.statistics);
        end if;
    end if;
    v_short := v_got < v_wanted or v_wanted = 0;
    if v_seen.tallied and not v_folded and v_short then
        perform fold_families();
        v_moved := true;
    end if;

    -- One look at what is left, after all that this transaction writes: whoever sleeps or watches since then waits for its id to end.
    if not v_short then
        select
            exists (select from sleeper s where s.session <> p_session) as others_sleep
        into v_left;
        v_answer.remaining := 'more';
    else
        select
            exists (select from sleeper s where s.session <> p_session) as others_sleep,
            -- Not while looks from the beginning are slow: this is one.
            p_bounds is null and exists (select from task t where t.queue_id = any (array(select queue_id(u.queue) from unnest(p_queues) u(queue)))) as blocked
        into v_left;
        -- A parent that somebody else holds just now: its end may let others start.
        v_left.blocked := v_left.blocked or v_seen.tallied and is_tallied();
        v_answer.remaining := case when v_left.blocked then 'blocked' else 'nothing' end;
        if v_moved or not v_plain then
            v_due_at := least(     -- lanes may have been parked, too
                (select l.due_at from later l where l.due_at < 'infinity' order by l.due_at limit 1),
                (select p.due_at from parked p order by p.due_at limit 1),
                (select p.expires_at from pause p where p.expires_at is not null order by p.expires_at limit 1)
            );
        end if;
        v_due_at := least(v_due_at, v_seen.fire_at);
        if v_due_at is not null then
            v_answer.next_due_ms := greatest(0, ceil(extract(epoch from v_due_at - clock()) * 1000));
        end if;
    end if;
    if v_got > 0 and is_watched() then
        perform announce('leased', l.queue, l.task_ids, l.kinds) from lease l where l.id = any (v_leases);
    end if;
    -- The producer rule: what this transaction made claimable and did not take itself, or put off to a time that a sleeper
    -- would oversleep. Whoever settles knows that time too, but may be gone by then.
    if v_left.others_sleep then
        perform hint(array(
            select distinct s.queue
            from sleeper s
            where s.session <> p_session
              and (
                  is_claimable(array[s.queue], null)
                  or 'later' = any (v_answer.verdicts)
                  and exists (select from later l where l.queue = s.queue and l.due_at < s.idle_until)
              )
        ));
    end if;
    return next v_answer;
end $$;

-- The open tasks of leases that an advance has made whose answer was lost.
create or replace function leases_of(p_session uuid, p_number bigint) returns setof advance_row
language sql as $$
    select
        l.id, l.token, l.queue, array_agg(t.id order by t.id), array_agg(t.kind order by t.id), array_agg(t.enqueued_at order by t.id),
        array_agg(coalesce(t.lane, 0) order by t.id), array_agg(coalesce(t.priority, 0::smallint) order by t.id),
        array_agg(coalesce(t.attempt, 0::smallint) order by t.id), array_agg(coalesce(t.max_attempts, 25::smallint) order by t.id),
        array_agg(coalesce(t.crashes, 0::smallint) order by t.id), array_agg(coalesce(t.depth, 0::smallint) order by t.id),
        array_agg(t.parent_id order by t.id), array_agg(t.payload order by t.id), array_agg(t.extra order by t.id),
        (select array_agg(n.id) from lane n where n.id = any (l.lanes)), (select array_agg(n.key) from lane n where n.id = any (l.lanes)),
        (select array_agg(b.task_id) from body b where b.task_id = any (l.task_ids)), (select array_agg(b.payload) from body b where b.task_id = any (l.task_ids)),
        l.claimed_at, array_agg(t.ready_at order by t.id), null::bigint[], null::text[], null::text, null::bigint, null::boolean
    from lease l
    cross join lateral unnest(l.task_ids, l.kinds, l.enqueued_ats, l.lanes, l.priorities, l.attempts, l.max_attempts, l.crashes, l.depths, l.parent_ids, l.payloads, l.extras, l.ready_ats)
        t(id, kind, enqueued_at, lane, priority, attempt, max_attempts, crashes, depth, parent_id, payload, extra, ready_at)
    where l.session = p_session
      and l.number = p_number
      and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids))
    group by l.id
$$;
