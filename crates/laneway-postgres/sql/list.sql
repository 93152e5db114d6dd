-- Lists of tasks, page by page.
--
-- Lists by id go on after p_id; `later` and `ended` after (p_at, p_id), so that rows of one instant are neither skipped nor
-- repeated. A filter is tried on p_rows rows at most: first the end of that stretch is found by an index alone, then
-- the stretch is read. When it holds fewer matches than wanted and the list goes on behind it, a last row without a state
-- tells where: its id and due_at or ended_at are the place to go on from.
--
-- p_states: those in which something can match; p_plain: whether plain successes can.
create or replace function list_tasks(
    p_place text, p_filter jsonb, p_states text[], p_plain boolean, p_at timestamptz, p_id bigint, p_limit int, p_rows int
) returns setof task_view
language plpgsql
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_condition text := filter_condition(p_filter, clock());
    v_end       record;
    v_found     bigint;
begin
    if p_at > '9999-12-01' then
        p_at := 'infinity';    -- behind a follow-up, which is due at no time
    end if;
    case p_place
    when 'pending', 'leased', 'waiting' then
        select e.id, null::timestamptz as at into v_end from end_by_id(p_place, coalesce(p_id, 0), p_rows) e(id) where p_filter <> '[]';
        return query execute format(
            'select %s from %I v where v.id > $1 and ($2 is null or v.id <= $2) %s order by v.id limit $3',
            task_view_columns(), p_place || '_view', v_condition)
            using coalesce(p_id, 0), v_end.id, p_limit;
    when 'later' then
        select l.due_at as at, l.id into v_end
        from later l
        where p_filter <> '[]'
          and (l.due_at, l.id) > (coalesce(p_at, '-infinity'), coalesce(p_id, 0))
        order by l.due_at, l.id
        offset p_rows - 1
        limit 1;
        return query execute format(
            'select %s from later_view v where (v.sorted_at, v.id) > ($1, $2) and ($3 is null or (v.sorted_at, v.id) <= ($3, $4)) %s
             order by v.sorted_at, v.id limit $5',
            task_view_columns(), v_condition)
            using coalesce(p_at, '-infinity'), coalesce(p_id, 0), v_end.at, v_end.id, p_limit;
    when 'ended' then
        return query select * from list_ended(p_filter, v_condition, p_states, p_plain, coalesce(p_at, 'infinity'), coalesce(p_id, 9223372036854775807), p_limit, p_rows);
        return;
    end case;
    get diagnostics v_found = row_count;
    if v_found < p_limit and v_end.id is not null then
        return query select (jsonb_populate_record(null::task_view, jsonb_build_object('id', v_end.id, 'due_at', nullif(v_end.at, 'infinity')))).*;
    end if;
end $$;

-- The last id of a stretch of p_rows tasks; null when the list ends before.
create or replace function end_by_id(p_place text, p_after bigint, p_rows int) returns bigint
language plpgsql as $$
begin
    if p_place = 'pending' then
        return (select t.id from task t where t.id > p_after order by t.id offset p_rows - 1 limit 1);
    end if;
    if p_place = 'waiting' then
        return (select w.id from waiting w where w.id > p_after order by w.id offset p_rows - 1 limit 1);
    end if;
    return (select t.id from lease l, unnest(l.task_ids) t(id) where t.id > p_after order by t.id offset p_rows - 1 limit 1);
end $$;

-- History, last ended first. Its two tables are merged by time and id. Ends that are not successes have an index of their own.
create or replace function list_ended(
    p_filter jsonb, p_condition text, p_states text[], p_plain boolean, p_at timestamptz, p_id bigint, p_limit int, p_rows int
) returns setof task_view
language plpgsql as $$
declare
    v_span   record;
    v_failed text := case when 'completed' = any (p_states) then '' else 'and v.state <> ''completed''' end;
    v_end    timestamptz;
    v_found  bigint;
begin
    select * into v_span from filter_span(p_filter, clock());
    if p_filter <> '[]' then
        execute format('select v.ended_at from ended v where v.ended_at >= $1 and v.ended_at < $2 and (v.ended_at, v.id) < ($3, $4) %s
            order by v.ended_at desc, v.id desc offset $5 limit 1', v_failed)
            into v_end using v_span.since, v_span.until, p_at, p_id, p_rows - 1;
        if p_plain then
            v_end := greatest(v_end, end_of_plain(v_span.since, v_span.until, p_at, p_id, p_rows));
        end if;
    end if;
    return query execute format(
        'select %1$s
        from (
            (select %1$s from ended_view v
            where v.ended_at >= $1 and v.ended_at < $2 and (v.ended_at, v.id) < ($3, $4) %2$s %3$s
            order by v.ended_at desc, v.id desc
            limit $5)
            union all
            (select %1$s from ended_plain_view v
            where $6 and v.ended_at >= $1 and v.ended_at < $2 and v.ended_at <= $3 and (v.ended_at, v.id) < ($3, $4) %3$s
            order by v.ended_at desc, v.id desc
            limit $5)
        ) v
        order by v.ended_at desc, v.id desc
        limit $5', task_view_columns(), v_failed, p_condition)
        using greatest(v_span.since, v_end), v_span.until, p_at, p_id, p_limit, p_plain;
    get diagnostics v_found = row_count;
    if v_found < p_limit and v_end is not null then
        -- All rows of that instant have been looked at.
        return query select (jsonb_populate_record(null::task_view, jsonb_build_object('id', 0, 'ended_at', v_end))).*;
    end if;
end $$;

-- The time at which a stretch of p_rows plain successes ends; null when the list ends before.
create or replace function end_of_plain(p_since timestamptz, p_until timestamptz, p_at timestamptz, p_id bigint, p_rows int) returns timestamptz
language sql as $$
    select s.ended_at
    from (
        select e.ended_at, sum(e.tasks) over (order by e.ended_at desc rows unbounded preceding) as so_far
        from ended_plain e
        where e.ended_at >= p_since
          and e.ended_at < p_until
          and (e.ended_at, e.lowest_id) < (p_at, p_id)
        order by e.ended_at desc
        limit p_rows
    ) s
    where s.so_far >= p_rows
    limit 1
$$;
