-- The line: turns that may be taken, by (priority, seq).
--
-- Up to 16 turns share a row. Rows are never updated: whoever takes some turns of a row writes the others again in the
-- same place.

-- Puts turns at the end of the line, each at its priority. p_afters, p_until: see pick.sql.
create or replace function join_line(
    p_queue text, p_lanes bigint[], p_priorities smallint[], p_afters bigint[] default null, p_until bigint default null
) returns void
language plpgsql as $$
declare
    v_mixed boolean := exists (select from mixed_queue m where m.queue = p_queue);
begin
    if p_lanes = '{}' then
        return;
    end if;
    if not v_mixed and p_priorities[1] = all (p_priorities) then
        insert into turn (queue, priority, lanes, afters, until)
        select p_queue, p_priorities[1], p_lanes[n * 16 + 1 : n * 16 + 16], p_afters[n * 16 + 1 : n * 16 + 16], p_until
        from generate_series(0, (cardinality(p_lanes) - 1) / 16) n;
    else
        insert into turn (queue, priority, lanes)
        select p_queue, t.priority, array_agg(t.lane order by t.place)
        from (
            select u.lane, u.priority, u.place,
                case when v_mixed then u.place else (row_number() over (partition by u.priority order by u.place) - 1) / 16 end as shared
            from unnest(p_lanes, p_priorities) with ordinality u(lane, priority, place)
        ) t
        group by t.priority, t.shared
        order by min(t.place);
    end if;
end $$;

-- The same for turns of several queues.
create or replace function join_lines(p_queues text[], p_lanes bigint[], p_priorities smallint[]) returns void
language plpgsql as $$
begin
    perform join_line(u.queue, array_agg(u.lane), array_agg(u.priority))
    from unnest(p_queues, p_lanes, p_priorities) u(queue, lane, priority)
    group by u.queue;
end $$;

-- Locks the next turns behind (p_priority, p_seq), row by row until there are p_need, and lists them one by one.
-- `whole`: the line ends here.
create or replace function read_line(
    p_queue text, p_priority smallint, p_seq bigint, p_need int,
    out tids tid[], out priorities smallint[], out seqs bigint[], out lanes bigint[], out bound bigint[], out afters bigint[], out untils bigint[],
    out whole boolean
)
language plpgsql as $$
declare
    v_line cursor for
        select t.ctid as tid, t.priority, t.seq, t.lanes, t.task_id, t.afters, t.until, cardinality(t.lanes) as n
        from turn t
        where t.queue = p_queue
          and (t.priority, t.seq) > (p_priority, p_seq)
        order by t.priority, t.seq
        for update skip locked;
begin
    tids := '{}';
    priorities := '{}';
    seqs := '{}';
    lanes := '{}';
    bound := '{}';
    afters := '{}';
    untils := '{}';
    whole := true;
    for v_row in v_line loop
        tids := tids || array_fill(v_row.tid, array[v_row.n]);
        priorities := priorities || array_fill(v_row.priority, array[v_row.n]);
        seqs := seqs || array_fill(v_row.seq, array[v_row.n]);
        lanes := lanes || v_row.lanes;
        bound := bound || array_fill(v_row.task_id, array[v_row.n]);
        afters := afters || coalesce(v_row.afters, array_fill(null::bigint, array[v_row.n]));
        untils := untils || array_fill(v_row.until, array[v_row.n]);
        if cardinality(lanes) >= p_need then
            whole := false;
            exit;
        end if;
    end loop;
end $$;

-- Takes turns out of the line: those of the first p_judged that are gone. The lists are as read_line made them, with turns
-- in hand (tid null) among them; of these, those that are not gone join the line. What nobody has judged of a row stands
-- one behind it from now on, so that a claim which goes on behind the last turn meets it; there is room, since the
-- sequence counts in steps of 32.
create or replace function leave_line(
    p_queue text, p_tids tid[], p_priorities smallint[], p_seqs bigint[], p_lanes bigint[], p_bound bigint[], p_afters bigint[],
    p_untils bigint[], p_judged int, p_gone boolean[]
) returns void
language plpgsql as $$
declare
    v_left tid[];          -- rows that lose some of their turns
    v_end  int := p_judged;
    v_hand record;
begin
    while p_tids[v_end + 1] = p_tids[p_judged] loop
        v_end := v_end + 1;
    end loop;
    if false = any (p_gone) then
        v_left := array(select u.tid from unnest(p_tids[:p_judged], p_gone) with ordinality u(tid, gone, place) where u.gone or u.tid = p_tids[p_judged] and v_end > p_judged);
        insert into turn (queue, priority, seq, lanes, task_id)
        select p_queue, u.priority, u.seq, array_agg(u.lane order by u.place), min(u.task_id)
        from unnest(p_tids[:p_judged], p_priorities, p_seqs, p_lanes, p_bound, p_gone) with ordinality u(tid, priority, seq, lane, task_id, gone, place)
        where not u.gone
          and u.tid = any (v_left)
        group by u.tid, u.priority, u.seq;
    else
        v_left := p_tids[:p_judged];
    end if;
    delete from turn where ctid = any (v_left);
    if v_end > p_judged then
        insert into turn (queue, priority, seq, lanes, afters, until)
        values (p_queue, p_priorities[v_end], p_seqs[v_end] + 1, p_lanes[p_judged + 1 : v_end], p_afters[p_judged + 1 : v_end], p_untils[v_end]);
    end if;

    if array_position(p_tids, null) is not null then
        select coalesce(array_agg(u.lane), '{}') as lanes, array_agg(u.priority) as priorities into v_hand
        from unnest(p_tids, p_priorities, p_lanes, p_gone) u(tid, priority, lane, gone)
        where u.tid is null
          and u.lane is not null
          and u.gone is not true;
        perform join_line(p_queue, v_hand.lanes, v_hand.priorities);
    end if;
end $$;

-- Gives the turns of these lanes rows of their own, in the same places.
create or replace function split_line(p_queue text, p_lanes bigint[]) returns void
language plpgsql as $$
declare
    v_tids tid[] := array(
        select t.ctid
        from turn t
        where t.queue = p_queue
          and cardinality(t.lanes) > 1
          and t.lanes && p_lanes
        for update skip locked
    );
begin
    if v_tids = '{}' then
        return;
    end if;
    with shared as (
        delete from turn
        where ctid = any (v_tids)
        returning priority, seq, lanes
    )
    insert into turn (queue, priority, seq, lanes)
    select p_queue, s.priority, s.seq, array[u.lane]
    from shared s
    cross join lateral unnest(s.lanes) u(lane);
end $$;
