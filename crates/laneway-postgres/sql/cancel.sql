-- Cancels a task wherever it is. Looks for it in all places in one statement, because one snapshot shows it in exactly
-- one; then locks it there, and looks again if it has moved meanwhile.
-- Returns cancelled, requested, ended_ and the state in which it had ended, not_found, or busy.
create or replace function cancel(p_task bigint) returns text
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan   -- as in advance.sql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_result text := cancel_here(p_task);
begin
    if v_result in ('cancelled', 'requested') then
        perform hint(fold_families());
        if v_result = 'requested' and exists (select from ended e where e.id = p_task and e.state = 'cancelled') then
            v_result := 'cancelled';   -- a parent whose children could all be cancelled at once
        end if;
    end if;
    return v_result;
end $$;

-- The same without what follows from it for parents.
create or replace function cancel_here(p_task bigint) returns text
language plpgsql as $$
declare
    v_place text;
    v_state text;
    v_lease bigint;
    v_end   ending;
    v_hand  record;
begin
    for v_try in 1 .. 5 loop
        select f.place, f.state, f.lease into v_place, v_state, v_lease from find_task(p_task) f;
        if v_place is null then
            return 'not_found';
        elsif v_place = 'ended' then
            return 'ended_' || v_state;
        elsif v_place = 'lease' then
            -- An update and not only a lock: a settle with an older snapshot, which cannot see the request, must fail.
            update lease l set number = l.number where l.id = v_lease;
            if found and not exists (select from settled s where s.lease_id = v_lease and p_task = any (s.task_ids)) then
                insert into cancel_request (task_id, at) values (p_task, clock()) on conflict do nothing;
                perform hint_orders((select l.session from lease l where l.id = v_lease));
                return 'requested';
            end if;
        elsif v_place = 'waiting' then
            perform from waiting w where w.id = p_task for update;
            if found then
                update waiting w set stopping = 'cancelled' where w.id = p_task;
                perform cancel_children(p_task);
                return 'requested';
            end if;
        else
            if v_place = 'task' then
                perform from task t where t.id = p_task for update;
                delete from task t where t.id = p_task returning (cancelled_end(t, null, false, null)).* into v_end;
            else
                perform from later l where l.id = p_task for update;
                delete from later l where l.id = p_task returning (cancelled_end(as_task(l), null, l.holds_turn, l.lane_key)).* into v_end;
            end if;
            if found then
                v_hand := record_ends(array[v_end]);
                perform join_lines(v_hand.hand_queues, v_hand.hand_lanes, v_hand.hand_priorities);
                perform hint(v_hand.hand_queues);
                return 'cancelled';
            end if;
        end if;
    end loop;
    return 'busy';
end $$;

-- Where a task is: task, later, waiting, lease (with its id) or ended (with its state); null when it is nowhere.
create or replace function find_task(p_task bigint, out place text, out state text, out lease bigint)
language plpgsql as $$
begin
    select f.place, f.state, f.lease into place, state, lease
    from (
        select 'task' as place, null as state, null::bigint as lease from task t where t.id = p_task
        union all
        select 'later', null, null from later l where l.id = p_task
        union all
        select 'waiting', null, null from waiting w where w.id = p_task
        union all
        select 'lease', null, l.id from lease l
        where p_task = any (l.task_ids)
          and not exists (select from settled s where s.lease_id = l.id and p_task = any (s.task_ids))
        union all
        select 'ended', e.state, null from ended e where e.id = p_task
        union all
        select 'ended', 'completed', null from ended_plain e
        where e.lowest_id between p_task - 16383 and p_task
          and p_task = any (e.task_ids)
    ) f
    limit 1;
end $$;
