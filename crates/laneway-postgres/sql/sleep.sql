-- Falling asleep without missing a task.
--
-- The worker announces itself and commits; then it takes a transaction id of its own as the fence. Every id that was handed
-- out before is smaller, and whoever gets an id later looks for sleepers after that and sees the announcement. So once
-- every transaction below the fence has ended, each task that was enqueued silently is visible. The fence must be an own,
-- new id: the xmax of a snapshot is only the last *completed* id plus one, and an enqueuer may already have it.
create or replace function fall_asleep(p_session uuid, p_queues text[], p_at_most_ms bigint) returns void
language plpgsql
set search_path from current
as $$
begin
    insert into sleeper (session, queue, idle_until)
    select p_session, q, clock() + (p_at_most_ms + 1000) * interval '1 millisecond'
    from unnest(p_queues) q
    on conflict (session, queue) do update
    set idle_until = excluded.idle_until;
end $$;

-- Its own statement, after the commit of fall_asleep.
create or replace function fence() returns bigint
language sql as $$ select pg_current_xact_id()::text::bigint $$;

create or replace function fence_passed(p_fence bigint) returns boolean
language sql as $$ select pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= p_fence $$;

create or replace function wake_up(p_session uuid) returns void
language plpgsql
set search_path from current
as $$
begin
    delete from sleeper s where s.session = p_session;
end $$;

-- A plain look, which also sees what others are just about to take: "nothing claimed" only means that nothing was free.
create or replace function is_claimable(p_queues text[], p_kinds text[]) returns boolean
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
begin
    p_queues := array(
        select q
        from unnest(p_queues) q
        where not exists (select from queue s where s.name = q and s.paused_at is not null)
    );
    p_kinds := open_kinds(p_queues, p_kinds);
    return exists (select from task t where t.queue_id = any (array(select queue_id(u.queue) from unnest(p_queues) u(queue))) and t.lane = 0 and (p_kinds is null or t.kind = any (p_kinds)))
        or exists (
            select from turn u
            where u.queue = any (p_queues)
              and (u.task_id is null or not exists (     -- these wait for an operator
                  select from halt h cross join lateral (select from lane l where l.id = h.lane and l.may_be_halted offset 0) l where h.lane = u.lanes[1]
              ))
              and (p_kinds is null or exists (
                  select from unnest(u.lanes) n(lane), task t
                  where t.queue_id = queue_id(u.queue) and t.lane = n.lane and t.kind = any (p_kinds)
              ))
        )
        or exists (
            select from mark m
            where m.queue = any (p_queues)
              and (p_kinds is null or exists (select from task t where t.queue_id = queue_id(m.queue) and t.lane = m.lane and t.kind = any (p_kinds)))
              -- Marks that are more urgent than the turns of a busy lane wait for it. But if the lane is locked, its last turn
              -- may just be given up: then the mark is all that tells of its task.
              and not exists (
                  select from lane l
                  where l.id = m.lane
                    and l.issued >= l.lim
                  for key share skip locked
              )
        )
        or exists (select from later l where l.due_at <= clock())
        or is_tallied()    -- any worker may end any parent
        or exists (select from parked p where p.due_at <= clock())
        or exists (select from pause p where p.expires_at <= clock());
end $$;
