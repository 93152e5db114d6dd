-- Gives up turns that found nothing to do: the caller has them in hand, one entry per turn.
--
-- 1 lock the lanes, 2 look again in a new statement, 3 retire. A task that was committed after the caller looked
-- is seen in 2; one that is committed later has a mark whose take-up waits for nothing, but will find the lane
-- with a turn less. Looking and locking in one statement would share a snapshot and strand that task.
-- Turns of lanes that are locked elsewhere go back into the line.
create or replace function retire(p_queue text, p_lanes bigint[], p_priorities smallint[], p_bound bigint[]) returns void
language plpgsql as $$
declare
    v_locked bigint[];
    v_lanes  bigint[];
    v_drops  int[];
    v_heads  smallint[];   -- how urgent the lane is, null when it is empty
begin
    v_locked := array(
        select l.id
        from (select distinct u.lane from unnest(p_lanes) u(lane) order by u.lane) u
        cross join lateral (select l.id from lane l where l.id = u.lane for update skip locked) l
    );

    select array_agg(d.lane), array_agg(d.drops), array_agg(d.head) into v_lanes, v_drops, v_heads
    from (
        select s.lane, t.head, case when h.halted then s.spare else least(s.spare, greatest(l.issued - l.lim, s.spare - t.visible, 0)) end as drops
        from (select u.lane, count(*)::int as spare from unnest(p_lanes) u(lane) where u.lane = any (v_locked) group by u.lane) s
        cross join lateral (select * from lane l where l.id = s.lane offset 0) l
        cross join lateral (select l.may_be_halted and exists (select from halt h where h.lane = s.lane) as halted) h
        cross join lateral (   -- a lane's look walks all that an old snapshot keeps of it: one must do
            select count(*)::int as visible, min(t.priority) as head
            from (select t.priority from task t where t.queue_id = queue_id(p_queue) and t.lane = s.lane order by t.priority, t.id limit s.spare) t
        ) t
    ) d;

    update lane l
    set issued = l.issued - d.drops,
        used_at = clock()
    from unnest(v_lanes, v_drops) d(lane, drops)
    cross join lateral (select r.ctid as tid from lane r where r.id = d.lane offset 0) r
    where l.ctid = r.tid               -- locked by us, so it stays where it is
      and d.drops > 0;

    -- A lane above its limit has lost turns though it has tasks. Those that are left may stand further back than these did, or than
    -- the tasks: a mark moves one up.
    insert into mark (lane, n, priority, slowest, queue, key)
    select u.lane, 1, least(min(u.priority), d.head), least(min(u.priority), d.head), p_queue, l.key
    from unnest(v_lanes, v_drops, v_heads) d(lane, drops, head)
    join unnest(p_lanes, p_priorities) u(lane, priority) on u.lane = d.lane
    cross join lateral (select l.key from lane l where l.id = u.lane offset 0) l
    where d.drops > 0
      and d.head is not null
    group by u.lane, d.head, l.key;

    insert into turn (queue, priority, lanes, task_id)
    select p_queue, case when k.task_id is null then least(k.priority, d.head) else k.priority end, array[k.lane], k.task_id
    from (
        -- Turns that wait for a task go last.
        select u.lane, u.priority, u.task_id, u.place, row_number() over (partition by u.lane order by u.task_id is not null, u.place) as number
        from unnest(p_lanes, p_priorities, p_bound) with ordinality u(lane, priority, task_id, place)
    ) k
    left join unnest(v_lanes, v_drops, v_heads) d(lane, drops, head) on d.lane = k.lane
    where k.number > coalesce(d.drops, 0)
    order by k.place;
end $$;
