-- Removes sessions that have been silent for too long, and gives back what nobody runs.
--
-- Leases are found by "its session is not there", not by "I have just removed its session": a slow claim may commit a
-- lease after its session is gone, and a lease that is being settled is skipped now and found by the next sweep. A
-- lease becomes visible together with its session's row, so no living one is hit.
-- `queues` and `rescued`: how many tasks of which queue are runnable again.
create or replace function sweep(out sessions int, out given_back int, out poisoned int, out queues text[], out rescued int[])
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_silent uuid[];
    v_queue  text;
    v_did    record;
begin
    v_silent := array(
        select w.session
        from worker w
        where w.seen_at < clock() - interval '30 seconds'
        order by w.session
        for update skip locked
    );
    delete from worker w
    where w.session = any (v_silent)
      and w.seen_at < clock() - interval '30 seconds';
    get diagnostics sessions = row_count;
    delete from sleeper s where not exists (select from worker w where w.session = s.session);

    given_back := 0;
    poisoned := 0;
    for v_queue in
        select distinct l.queue
        from lease l
        where not exists (select from worker w where w.session = l.session)
        order by 1
    loop
        v_did := give_back(array(
            select l.id
            from lease l
            where l.queue = v_queue
              and not exists (select from worker w where w.session = l.session)
        ), 'crash');
        given_back := given_back + v_did.given_back;
        poisoned := poisoned + v_did.poisoned;
        queues := queues || v_queue;
        rescued := rescued || v_did.given_back;
    end loop;
    perform hint(sweep_families());
end $$;
