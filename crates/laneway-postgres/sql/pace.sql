-- Lanes with an interval: decides which of a claim's turns may start now, and parks the others.
--
-- At most one start per interval and lane over all workers, so the lane is locked; a lane that is locked elsewhere starts
-- nothing now, and its turns wait. Lists are of all turns of the claim, one entry per place (pick.sql): those with fate t
-- have a task to start. Returns the fates.
create or replace function pace(
    p_queue text, p_paced bigint[], p_fates "char"[], p_priorities smallint[], p_lanes bigint[], p_bound bigint[], p_now timestamptz
) returns "char"[]
language plpgsql as $$
declare
    v_lane    record;
    v_mine    bigint[];
    v_chosen  bigint;
    v_parked  bigint[] := '{}';
    v_waiting bigint[];
begin
    v_waiting := array(select u.place from unnest(p_lanes) with ordinality u(lane, place) where u.lane = any (p_paced) and p_fates[u.place] in ('t', 'e'));
    for v_lane in
        select l.id, l.interval_ms, l.next_start_at
        from lane l
        where l.id = any (p_paced)
        order by l.id
        for update skip locked
    loop
        v_mine := array(select place from unnest(v_waiting) place where p_lanes[place] = v_lane.id);
        v_waiting := array(select place from unnest(v_waiting) place where p_lanes[place] <> v_lane.id);
        if v_lane.next_start_at is null or v_lane.next_start_at <= p_now then
            v_chosen := (select min(place) from unnest(v_mine) place where p_fates[place] = 't');
            continue when v_chosen is null;   -- empty: may retire
            v_mine := array_remove(v_mine, v_chosen);
            v_lane.next_start_at := p_now + v_lane.interval_ms * interval '1 millisecond';
            update lane set next_start_at = v_lane.next_start_at where id = v_lane.id;
        end if;
        insert into parked (due_at, queue, priority, lane, task_id)
        select v_lane.next_start_at, p_queue, p_priorities[place], v_lane.id, p_bound[place]
        from unnest(v_mine) place;
        v_parked := v_parked || v_mine;
    end loop;
    return mark_fates(mark_fates(p_fates, v_parked, 'p'), v_waiting, 'k');
end $$;
