-- Liveness: a session is registered, renewed and ended.

create or replace function register(
    p_session uuid, p_name text, p_queues text[], p_kinds text[], p_slots int, p_free int, p_memory_percent smallint, p_draining boolean
) returns void
language plpgsql
set search_path from current
as $$
begin
    insert into worker (session, started_at, seen_at, slots, free, memory_percent, draining, name, queues, kinds)
    values (p_session, clock(), clock(), p_slots, p_free, p_memory_percent, p_draining, p_name, p_queues, p_kinds)
    on conflict (session) do update
    set seen_at = excluded.seen_at,
        slots = excluded.slots,
        free = excluded.free,
        memory_percent = excluded.memory_percent,
        draining = excluded.draining,
        name = excluded.name,
        queues = excluded.queues,
        kinds = excluded.kinds;
end $$;

-- A sign of life. p_leases: those the worker knows; leases that the session got from an advance up to p_number and does not
-- know came with an answer that was lost, and their tasks are given back.
create or replace function renew(
    p_session uuid, p_slots int, p_free int, p_memory_percent smallint, p_draining boolean, p_leases bigint[], p_number bigint,
    out alive boolean, out cancel bigint[], out drain boolean, out stop boolean, out given_back int
)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql: one plan, whatever the tables were like when it was made
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_unknown bigint[];
begin
    update worker w
    set seen_at = clock(),
        slots = p_slots,
        free = p_free,
        memory_percent = p_memory_percent,
        draining = p_draining
    where w.session = p_session
    returning w.drain_ordered, w.stop_ordered into drain, stop;
    alive := found;
    given_back := 0;
    if not alive then
        return;
    end if;
    v_unknown := array(
        select l.id
        from lease l
        where l.session = p_session
          and l.number <= p_number
          and l.id <> all (p_leases)
    );
    if v_unknown <> '{}' then
        given_back := (give_back(v_unknown, 'back')).given_back;
    end if;
    if exists (select from cancel_request) then
        cancel := array(
            select t.id
            from lease l
            cross join lateral unnest(l.task_ids) t(id)
            join cancel_request c on c.task_id = t.id
            where l.session = p_session
              and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids))
            order by t.id
        );
    end if;
end $$;

-- An orderly end: what is still leased is given back at once and costs the tasks nothing.
create or replace function deregister(p_session uuid) returns void
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    delete from worker w where w.session = p_session;
    delete from sleeper s where s.session = p_session;
    perform give_back(array(select l.id from lease l where l.session = p_session), 'back');
end $$;
