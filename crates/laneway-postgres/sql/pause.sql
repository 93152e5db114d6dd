-- Pauses of queues, kinds and lanes.

-- Stops claims. False when it was paused before; then the pause lasts as this call says.
create or replace function pause(p_who text, p_reason text, p_what text, p_queue text, p_name text, p_expires_ms bigint) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_now     timestamptz := clock();
    v_expires timestamptz := v_now + p_expires_ms * interval '1 millisecond';
    v_before  jsonb;
    v_lane    bigint;
begin
    select pause_shown(p.paused_at, p.expires_at, p.who) into v_before
    from pause p
    where p.what = p_what and p.queue = p_queue and p.name = p_name;
    insert into pause (what, queue, name, paused_at, expires_at, who, reason)
    values (p_what, p_queue, p_name, v_now, v_expires, p_who, p_reason)
    on conflict (what, queue, name) do update
    set expires_at = excluded.expires_at,
        who = excluded.who,
        reason = excluded.reason;
    if p_what = 'queue' then
        insert into queue (name, paused_at) values (p_queue, v_now)
        on conflict (name) do update set paused_at = coalesce(queue.paused_at, excluded.paused_at);
    elsif p_what = 'lane' then
        v_lane := lane_id(p_queue, p_name);
        perform set_lane(p_queue, p_name, null, null, null);   -- makes it, and locks it
        insert into halt (lane, task_id, at)
        select v_lane, 0, v_now                                -- no task's failure: a pause
        where not exists (select from halt h where h.lane = v_lane and h.task_id = 0);
        update lane l set may_be_halted = true where l.id = v_lane;
    end if;
    perform record_audit(p_who, p_reason, 'pause', pausable_shown(p_what, p_queue, p_name), '{}', v_before, pause_shown(v_now, v_expires, p_who));
    if v_expires is not null then
        perform hint(array(select distinct s.queue from sleeper s));   -- who sleeps longer than that must know
    end if;
    return v_before is null;
end $$;

create or replace function pause_shown(p_paused_at timestamptz, p_expires_at timestamptz, p_who text) returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object('paused_at', p_paused_at, 'expires_at', p_expires_at, 'by', p_who))
$$;

create or replace function pausable_shown(p_what text, p_queue text, p_name text) returns text
language sql immutable as $$
    select p_what || ' ' || case p_what when 'queue' then p_queue when 'kind' then p_name else p_queue || '/' || p_name end
$$;

-- Ends a pause. False when there was none.
create or replace function resume(p_who text, p_reason text, p_what text, p_queue text, p_name text) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_before jsonb;
begin
    delete from pause p
    where p.what = p_what and p.queue = p_queue and p.name = p_name
    returning pause_shown(p.paused_at, p.expires_at, p.who) into v_before;
    if v_before is null then
        return false;
    end if;
    if p_what = 'lane' then
        perform from lane l where l.id = lane_id(p_queue, p_name) for update;
    end if;
    perform record_audit(p_who, p_reason, 'resume', pausable_shown(p_what, p_queue, p_name), '{}', v_before, null);
    perform hint(let_go_on(p_what, p_queue, p_name));
    return true;
end $$;

-- Lets go on what a pause has held; the caller has locked the lane. Returns the queues in which something may be claimable now.
create or replace function let_go_on(p_what text, p_queue text, p_name text) returns text[]
language plpgsql as $$
declare
    v_lane record;
begin
    if p_what = 'kind' then
        return array(select distinct s.queue from sleeper s);
    elsif p_what = 'queue' then
        update queue q set paused_at = null where q.name = p_queue;
    else
        delete from halt h where h.lane = lane_id(p_queue, p_name) and h.task_id = 0;
        select l.id, l.lim, l.issued into v_lane from lane l where l.id = lane_id(p_queue, p_name);
        if found and not exists (select from halt h where h.lane = v_lane.id) then
            update lane l set may_be_halted = l.halts where l.id = v_lane.id;
            perform mark_backlog(p_queue, p_name, v_lane.id, v_lane.lim - v_lane.issued);
        end if;
    end if;
    return array[p_queue];
end $$;

-- Ends pauses whose time is over. Any worker does it; what others hold just now is left to the next. Returns queues as above.
create or replace function end_pauses() returns text[]
language plpgsql as $$
declare
    v_pause  record;
    v_queues text[] := '{}';
begin
    for v_pause in
        select p.what, p.queue, p.name
        from pause p
        where p.expires_at <= clock()
        for update skip locked
    loop
        if v_pause.what = 'lane' then
            perform from lane l where l.id = lane_id(v_pause.queue, v_pause.name) for update skip locked;
            continue when not found and exists (select from lane l where l.id = lane_id(v_pause.queue, v_pause.name));
        end if;
        delete from pause p where p.what = v_pause.what and p.queue = v_pause.queue and p.name = v_pause.name;
        v_queues := v_queues || let_go_on(v_pause.what, v_pause.queue, v_pause.name);
    end loop;
    return v_queues;
end $$;

-- The kinds that a claimer of p_kinds (null: all) may be given now.
create or replace function open_kinds(p_queues text[], p_kinds text[]) returns text[]
language plpgsql as $$
declare
    v_paused text[] := array(select p.name from pause p where p.what = 'kind' and p.queue = '');
begin
    if v_paused = '{}' then
        return p_kinds;
    elsif p_kinds is null then
        -- Claims know only what to take, not what to leave. Workers that name their kinds are spared this look.
        return array(select distinct t.kind from task t where t.queue_id = any (array(select queue_id(u.queue) from unnest(p_queues) u(queue))) and t.kind <> all (v_paused));
    end if;
    return array(select k from unnest(p_kinds) k where k <> all (v_paused));
end $$;

create or replace function list_pauses()
returns table (what text, queue text, name text, who text, reason text, paused_at timestamptz, expires_at timestamptz)
language sql
set search_path from current
as $$
    select p.what, p.queue, p.name, p.who, p.reason, p.paused_at, p.expires_at
    from pause p
    order by p.paused_at, p.what, p.queue, p.name
$$;

-- Tells a worker to end. False when it is not known, or was told before.
create or replace function stop_worker(p_who text, p_reason text, p_session uuid) returns boolean
language plpgsql
set search_path from current
as $$
begin
    update worker w set stop_ordered = true where w.session = p_session and not w.stop_ordered;
    if not found then
        return false;
    end if;
    perform record_audit(p_who, p_reason, 'stop', 'worker ' || p_session, '{}', '{"stop": false}', '{"stop": true}');
    perform hint_orders(p_session);
    return true;
end $$;

-- Tells a worker to take nothing new. False when it is not known, or was told before.
create or replace function drain_worker(p_who text, p_reason text, p_session uuid) returns boolean
language plpgsql
set search_path from current
as $$
begin
    update worker w set drain_ordered = true where w.session = p_session and not w.drain_ordered;
    if not found then
        return false;
    end if;
    perform record_audit(p_who, p_reason, 'drain', 'worker ' || p_session, '{}', '{"drain": false}', '{"drain": true}');
    perform hint_orders(p_session);
    return true;
end $$;
