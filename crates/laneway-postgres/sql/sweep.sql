-- Removes sessions that have been silent for too long, and gives back what nobody runs.
--
-- Leases are found by "its session is not there", not by "I have just removed its session": a slow claim may commit a
-- lease after its session is gone, and a lease that is being settled is skipped now and found by the next sweep. A
-- lease becomes visible together with its session's row, so no living one is hit.
create or replace function sweep(out sessions int, out given_back int, out poisoned int)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_silent uuid[];
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

    select g.given_back, g.poisoned into given_back, poisoned
    from give_back(array(
        select l.id
        from lease l
        where not exists (select from worker w where w.session = l.session)
    ), 'crash') g;
    perform hint(sweep_families());
end $$;
