-- Moves what is due into place: tasks from `later`, turns from `parked`. Any worker does it for all queues.
-- Returns the queues in which something became claimable.
create or replace function move_due(p_max int) returns text[]
language plpgsql as $$
declare
    v_now    timestamptz := clock();
    v_ids    bigint[];
    v_queues text[] := '{}';
begin
    if exists (select from later l where l.due_at <= v_now) then
        v_ids := array(
            select l.id
            from later l
            where l.due_at <= v_now
            order by l.due_at, l.id
            limit p_max
            for update skip locked
        );
        with moved as materialized (
            delete from later
            where id = any (v_ids)
            returning *
        ),
        runnable as (
            insert into task (id, lane, enqueued_at, ready_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra,
                queue_id)
            select id, lane, enqueued_at, due_at, parent_id, size, priority, attempt, max_attempts, crashes, depth, queue, kind, payload, extra, queue_id(queue)
            from moved
        ),
        turns as (
            insert into turn (queue, priority, lanes, task_id)
            select queue, priority, array[lane], id
            from moved
            where lane <> 0
              and holds_turn
            order by due_at, id
        ),
        marks as (
            insert into mark (lane, n, priority, slowest, queue, key)
            select lane, 1, priority, priority, queue, lane_key
            from moved
            where lane <> 0
              and not holds_turn
            order by due_at, id
        )
        select array_agg(distinct queue) into v_queues from moved;
        if is_watched() then
            perform announce_written(v_ids);
        end if;
    end if;

    if exists (select from parked p where p.due_at <= v_now) then
        with due as materialized (
            select p.ctid as tid
            from parked p
            where p.due_at <= v_now
            order by p.due_at
            limit p_max
            for update skip locked
        ),
        moved as materialized (
            delete from parked
            where ctid = any (array(select tid from due))   -- rows of `parked` are never updated
            returning *
        ),
        turns as (
            insert into turn (queue, priority, lanes, task_id)
            select queue, priority, array[lane], task_id
            from moved
            order by due_at
        )
        select v_queues || array_agg(distinct queue) into v_queues from moved;
    end if;
    if exists (select from pause p where p.expires_at <= v_now) then
        v_queues := v_queues || end_pauses();
    end if;
    return coalesce(v_queues, '{}');
end $$;
