-- How long history is kept, by queue and state, and its removal day by day.

-- Days that a queue keeps what ended in this state, when it does not say.
create or replace function history_days(p_state text) returns int
language sql immutable parallel safe as $$ select case p_state when 'failed' then 30 else 7 end $$;

create or replace function kept_days(p_queue text, p_state text) returns int
language sql stable as $$
    select coalesce((
        select case p_state when 'completed' then q.keep_completed_days when 'failed' then q.keep_failed_days else q.keep_cancelled_days end
        from queue q
        where q.name = p_queue
    ), history_days(p_state))
$$;

-- Null leaves a setting as it is, -1 gives it back its default. p_serial: how many children may run at once in a
-- serial queue, 0 for one that is not. p_lane_limit: of lanes that are made from now on and given none.
create or replace function set_queue(
    p_who text, p_reason text, p_queue text, p_keep_completed_days int, p_keep_failed_days int, p_keep_cancelled_days int, p_statistics boolean,
    p_serial int default null, p_lane_limit int default null
) returns void
language plpgsql
set search_path from current
as $$
declare
    v_before jsonb := queue_shown(p_queue);
    v_after  jsonb;
begin
    insert into queue (name) values (p_queue) on conflict (name) do nothing;
    perform from queue q where q.name = p_queue for update;
    if p_serial is not null and exists (select from queue q where q.name = p_queue and q.serial is distinct from nullif(p_serial, 0)) and has_open_tasks(p_queue) then
        perform refuse('serial_queue', format('serial can be changed only while queue `%s` has no open tasks', p_queue));
    end if;
    update queue q
    set keep_completed_days = nullif(coalesce(p_keep_completed_days, q.keep_completed_days), -1),
        keep_failed_days = nullif(coalesce(p_keep_failed_days, q.keep_failed_days), -1),
        keep_cancelled_days = nullif(coalesce(p_keep_cancelled_days, q.keep_cancelled_days), -1),
        statistics = coalesce(p_statistics, q.statistics),
        serial = nullif(coalesce(p_serial, q.serial), 0),
        lane_limit = nullif(coalesce(p_lane_limit, q.lane_limit), 1)
    where q.name = p_queue;
    v_after := queue_shown(p_queue);
    if v_after is distinct from v_before then
        perform record_audit(p_who, p_reason, 'set_queue', 'queue ' || p_queue, '{}', v_before, v_after);
    end if;
end $$;

create or replace function queue_shown(p_queue text) returns jsonb
language sql as $$
    select jsonb_build_object('keep_completed_days', q.keep_completed_days, 'keep_failed_days', q.keep_failed_days,
        'keep_cancelled_days', q.keep_cancelled_days, 'statistics', q.statistics, 'serial', coalesce(q.serial, 0), 'lane_limit', coalesce(q.lane_limit, 1))
    from queue q
    where q.name = p_queue
$$;

create or replace function has_open_tasks(p_queue text) returns boolean
language sql as $$
    select exists (select from task t where t.queue_id = queue_id(p_queue))
        or exists (select from lease l where l.queue = p_queue)
        or exists (select from later l where l.queue = p_queue)
        or exists (select from waiting w where w.queue = p_queue)
$$;

-- Removes history whose time is over: whole days where nothing of them is kept any more, else rows, p_max at most. What the
-- fold has not seen stays. Returns how many rows and days were removed, and how many tasks by state.
create or replace function drop_history(p_max int, out removed_rows bigint, out removed_days int, out removed json)
language plpgsql
set search_path from current
as $$
declare
    v_today date := (clock() at time zone 'utc')::date;
    v_over  record;
    v_tasks jsonb;
    v_gone  record;
    v_sum   jsonb := '{}';
begin
    removed_rows := 0;
    removed_days := 0;
    removed := '{}';
    if not pg_try_advisory_xact_lock(1281452377, hashtext(current_schema() || ' history')) then
        return;
    end if;
    for v_over in
        select c.day, bool_and(c.day + kept_days(c.queue, c.state) < v_today) as wholly
        from ended_count c
        where c.n > 0
          and c.day < v_today
        group by c.day
        having bool_or(c.day + kept_days(c.queue, c.state) < v_today)
        order by c.day
    loop
        v_tasks := tasks_of_day(v_over.day);
        if v_over.wholly and drop_day(v_over.day, p_max) then
            removed_days := removed_days + 1;
            v_sum := add_counts(v_sum, v_tasks);
            continue;
        end if;
        select * into v_gone from delete_expired(v_over.day, v_today, p_max);
        removed_rows := removed_rows + v_gone.n;
        v_sum := add_counts(v_sum, v_gone.tasks);
        exit when removed_rows >= p_max;
    end loop;
    removed := v_sum::json;
    delete from ended_count c where c.n = 0 and c.day < v_today - 1;
    delete from stat_minute s where s.minute < clock() - interval '30 days';
end $$;

-- Ended tasks of a day by state.
create or replace function tasks_of_day(p_day date) returns jsonb
language sql stable as $$
    select coalesce(jsonb_object_agg(c.state, c.n), '{}')
    from (select c.state, sum(c.n) as n from ended_count c where c.day = p_day group by c.state) c
$$;

-- Adds up counts by name.
create or replace function add_counts(p_one jsonb, p_two jsonb) returns jsonb
language sql immutable as $$
    select coalesce(jsonb_object_agg(c.name, c.n), '{}')
    from (
        select b.key as name, sum(b.value::bigint) as n
        from (select * from jsonb_each_text(p_one) union all select * from jsonb_each_text(p_two)) b
        group by b.key
    ) c
$$;

-- Drops the partitions of a day with its counts. False when it has none, when rows of it are not folded, or when others are
-- at work on history: nobody shall queue behind us, so we wait for next to nothing.
create or replace function drop_day(p_day date, p_max int) returns boolean
language plpgsql as $$
declare
    v_name  text := 'ended' || to_char(p_day, '_YYYYMMDD');
    v_plain text := 'ended_plain' || to_char(p_day, '_YYYYMMDD');
    v_is    boolean;
    v_n     bigint;
begin
    if to_regclass(current_schema() || '.' || v_name) is null or to_regclass(current_schema() || '.' || v_plain) is null then
        return false;
    end if;
    execute format('select exists (select from %I e where e.tx >= f.tx) or exists (select from %I e where e.tx >= f.tx) from folded f', v_name, v_plain)
        into v_is;
    if v_is then
        return false;
    end if;
    execute format('delete from failure f where f.ctid = any (array(
        select f.ctid from %I e cross join lateral (select f.ctid from failure f where f.task_id = e.id) f where e.attempt > 1 limit $1))', v_name)
        using p_max;
    get diagnostics v_n = row_count;
    if v_n >= p_max then
        return false;    -- the rest next time
    end if;
    begin
        perform set_config('lock_timeout', '100ms', true);
        execute format('drop table %I, %I', v_name, v_plain);
        perform set_config('lock_timeout', '0', true);
    exception when lock_not_available or insufficient_privilege then
        return false;
    end;
    delete from ended_count c where c.day = p_day;
    delete from ended_removed r where r.day = p_day;
    return true;
end $$;

-- Deletes rows of a day whose queue keeps them no longer, while it keeps others of that day. Returns what that cost, in rows, and how
-- many tasks went by state.
create or replace function delete_expired(p_day date, p_today date, p_max int, out n bigint, out tasks jsonb)
language plpgsql as $$
declare
    v_from  timestamptz := p_day::timestamp at time zone 'utc';
    v_to    timestamptz := (p_day + 1)::timestamp at time zone 'utc';
    v_ids   bigint[];
    v_plain record;
begin
    v_ids := array(
        select e.id
        from ended e, folded f
        where e.ended_at >= v_from
          and e.ended_at < v_to
          and e.tx < f.tx
          and p_day + kept_days(e.queue, e.state) < p_today
        limit p_max
    );
    delete from failure where task_id = any (v_ids);
    with gone as (
        delete from ended where ended_at >= v_from and ended_at < v_to and id = any (v_ids) returning state
    )
    select coalesce(sum(g.n), 0), coalesce(jsonb_object_agg(g.state, g.n), '{}') into n, tasks
    from (select g.state, count(*) as n from gone g group by g.state) g;
    with gone as (
        delete from ended_plain
        where ended_at >= v_from
          and ended_at < v_to
          and (ended_at, lowest_id) in (
              select e.ended_at, e.lowest_id
              from ended_plain e, folded f
              where e.ended_at >= v_from
                and e.ended_at < v_to
                and e.tx < f.tx
                and p_day + kept_days(e.queue, 'completed') < p_today
              limit greatest(p_max / 50, 1)
          )
        returning ended_plain.tasks as plain
    )
    select count(*) as rows, coalesce(sum(g.plain), 0) as tasks into v_plain from gone g;
    n := n + v_plain.rows * 50;
    tasks := add_counts(tasks, jsonb_build_object('completed', v_plain.tasks));
end $$;

-- The errors of a task's attempts, newest first. The last one of a failed task is in its history.
create or replace function list_failures(p_task bigint) returns table (attempt int, at timestamptz, error text)
language sql stable
set search_path from current
as $$
    select e.attempt::int, e.ended_at, e.error from ended e where e.id = p_task and e.state = 'failed' and e.error is not null
    union all
    (select f.attempt::int, f.at, f.error from failure f where f.task_id = p_task order by f.attempt desc limit 20)
$$;
