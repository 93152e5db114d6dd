-- Lanes with an interval: decides which of a claim's turns may start now, and parks the others.
--
-- At most one start per interval and lane over all workers, so the lane is locked; a lane that is locked elsewhere
-- starts nothing now. p_places are the places of turns that have a task to start. Returns as `done` the places that
-- the claim shall not touch any more.
create or replace function pace(
    p_queue text, p_lanes bigint[], p_places bigint[], p_turns tid[], p_priorities smallint[], p_turn_lanes bigint[], p_bound bigint[],
    p_now timestamptz, out done bigint[]
)
language plpgsql as $$
declare
    v_lane   record;
    v_mine   bigint[];
    v_chosen bigint;
begin
    done := array(select u.place from unnest(p_turn_lanes) with ordinality u(lane, place) where u.lane = any (p_lanes));
    for v_lane in
        select l.id, l.interval_ms, l.next_start_at
        from lane l
        where l.id = any (p_lanes)
        order by l.id
        for update skip locked
    loop
        v_mine := array(select u.place from unnest(p_turn_lanes) with ordinality u(lane, place) where u.lane = v_lane.id);
        if v_lane.next_start_at is null or v_lane.next_start_at <= p_now then
            select min(place) into v_chosen from unnest(p_places) place where place = any (v_mine);
            if v_chosen is null then
                done := array(select place from unnest(done) place where place <> all (v_mine));   -- empty: may retire
                continue;
            end if;
            done := array_remove(done, v_chosen);
            v_mine := array_remove(v_mine, v_chosen);
            v_lane.next_start_at := p_now + v_lane.interval_ms * interval '1 millisecond';
            update lane set next_start_at = v_lane.next_start_at where id = v_lane.id;
        end if;
        delete from turn where ctid = any (array(select p_turns[place] from unnest(v_mine) place));
        insert into parked (due_at, queue, priority, lane, task_id)
        select v_lane.next_start_at, p_queue, p_priorities[place], v_lane.id, p_bound[place]
        from unnest(v_mine) place;
        p_turn_lanes := array_replace(p_turn_lanes, v_lane.id, 0);
    end loop;
    -- Turns in hand of lanes that are locked elsewhere stand in line.
    insert into turn (queue, priority, lane)
    select p_queue, p_priorities[place], p_turn_lanes[place]
    from unnest(done) place
    where p_turns[place] is null
      and p_turn_lanes[place] <> 0;
end $$;
