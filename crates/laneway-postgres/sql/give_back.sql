-- Gives back the open tasks of leases: with their old ids, so that they run first, and in lanes with their turns.
-- p_outcome is `back`, which costs the task nothing, or `crash`. Skips leases that are being settled right now; they are
-- met again by the next caller. Returns how many tasks are runnable again and how many have failed.
create or replace function give_back(p_leases bigint[], p_outcome text, out given_back int, out poisoned int)
language plpgsql as $$
declare
    v_locked bigint[];
    v_asked  bigint[];
    v_ends   ending[];
    v_hand   record;
begin
    v_locked := array(
        select l.id
        from lease l
        where l.id = any (p_leases)
        order by l.id
        for update skip locked
    );
    given_back := 0;
    poisoned := 0;
    if v_locked = '{}' then
        return;
    end if;
    v_asked := array(
        select c.task_id
        from cancel_request c
        where c.task_id = any (array(select t.id from lease l, unnest(l.task_ids) t(id) where l.id = any (v_locked)))
    );
    select array_agg(row(t.id, coalesce(t.lane, 0), t.enqueued_at, t.ready_at, t.parent_id, coalesce(t.size, octet_length(t.payload::text)),
        coalesce(t.priority, 0), coalesce(t.attempt, 0), coalesce(t.max_attempts, 25), coalesce(t.crashes, 0), coalesce(t.depth, 0),
        l.queue, t.kind, t.payload, t.extra, l.claimed_at, p_outcome,
        verdict_of(p_outcome, coalesce(t.attempt, 0::smallint), coalesce(t.max_attempts, 25::smallint), coalesce(t.crashes, 0::smallint), t.id = any (v_asked)),
        null, null, null, l.id, null, null, null, null, null, null, null)::ending order by t.id)
    into v_ends
    from lease l
    cross join lateral unnest(l.task_ids, l.lanes, l.enqueued_ats, l.ready_ats, l.parent_ids, l.sizes, l.priorities, l.attempts,
        l.max_attempts, l.crashes, l.depths, l.kinds, l.payloads, l.extras)
        t(id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, kind, payload, extra)
    where l.id = any (v_locked)
      and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids) offset 0);
    if v_ends is not null then
        v_hand := record_ends(v_ends);
        perform join_lines(v_hand.hand_queues, v_hand.hand_lanes, v_hand.hand_priorities);
        select count(*) filter (where e.verdict = 'pending'), count(*) filter (where e.verdict = 'failed')
        into given_back, poisoned
        from unnest(v_ends) e;
    end if;
    delete from settled where lease_id = any (v_locked);
    delete from lease where id = any (v_locked);
    perform hint(array(select distinct e.queue from unnest(v_ends) e));
end $$;
