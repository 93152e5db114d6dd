-- Folds history into counts and statistics, at no cost for those who write it.
--
-- A row counts as folded when its transaction id is below `folded.tx`, which moves up to the oldest id that is still under way:
-- below it nothing can appear any more. What is removed meanwhile makes this delicate. Say row R was written by
-- transaction T and removed by X. If the fold that passes T no longer sees R, because X has committed, the note that X
-- left in `ended_removed` stands for R; and the fold that passes X subtracts it. So every row is added once and
-- every removal subtracted once, in whatever order the fold meets them. All of it is read in one statement: one snapshot
-- shows either R or its note.
create or replace function fold_history() returns void
language plpgsql
set search_path from current
set enable_seqscan = on
as $$
declare
    v_from xid8;
    v_to   xid8;
begin
    if not pg_try_advisory_xact_lock(1281452377, hashtext(current_schema() || ' history')) then
        return;    -- somebody else is at it
    end if;
    select f.tx into v_from from folded f;
    v_to := pg_snapshot_xmin(pg_current_snapshot());
    if v_to > v_from then
        perform fold_counts(v_from, v_to);
        perform fold_ends(v_from, v_to);
        delete from ended_removed r where r.tx < v_to and r.of_tx < v_to;
        update folded f set tx = v_to;
    end if;
    perform fold_deltas(v_to);
end $$;

create or replace function fold_counts(p_from xid8, p_to xid8) returns void
language plpgsql as $$
begin
    insert into ended_count (day, queue, state, kind, n)
    select c.day, c.queue, c.state, c.kind, sum(c.n)
    from (
        select (e.ended_at at time zone 'utc')::date as day, e.queue, e.state, e.kind, count(*) as n
        from ended e
        where e.tx >= p_from
          and e.tx < p_to
        group by 1, 2, 3, 4
        union all
        select (e.ended_at at time zone 'utc')::date, e.queue, 'completed', t.kind, t.n
        from ended_plain e
        cross join lateral (select t.kind, count(*) as n from unnest(e.kinds) t(kind) group by t.kind) t
        where e.tx >= p_from
          and e.tx < p_to
        union all
        select r.day, r.queue, r.state, r.kind, sum(r.n) from ended_removed r where r.of_tx >= p_from and r.of_tx < p_to group by 1, 2, 3, 4
        union all
        select r.day, r.queue, r.state, r.kind, -sum(r.n) from ended_removed r where r.tx >= p_from and r.tx < p_to group by 1, 2, 3, 4
    ) c
    group by c.day, c.queue, c.state, c.kind
    on conflict (queue, state, kind, day) do update
    set n = ended_count.n + excluded.n;
end $$;

-- The upper bounds of a histogram's buckets but the last, in milliseconds: 1, 2, 4 … 2^31.
create or replace function stat_bounds() returns float8[]
language sql immutable parallel safe as $$ select array(select (2 ^ n)::float8 from generate_series(0, 31) n) $$;

-- Adds up histograms, which have any number of buckets.
create or replace function add_buckets(p_one bigint[], p_two bigint[]) returns bigint[]
language sql immutable parallel safe as $$
    select array(select coalesce(b.one, 0) + coalesce(b.two, 0) from unnest(p_one, p_two) with ordinality b(one, two, place) order by b.place)
$$;

create or replace aggregate sum_buckets(bigint[]) (sfunc = add_buckets, stype = bigint[], initcond = '{}');

-- Ends, and how long tasks had waited and run. Removed rows were seen before or are not worth a chart.
create or replace function fold_ends(p_from xid8, p_to xid8) returns void
language plpgsql as $$
declare
    v_bounds float8[] := stat_bounds();
begin
    with task_end as materialized (
        select e.queue, date_trunc('minute', e.ended_at) as minute, e.state,
            width_bucket(date_part('epoch', e.started_at - coalesce(e.ready_at, e.enqueued_at)) * 1000, v_bounds) as wait,
            width_bucket(date_part('epoch', e.ended_at - e.started_at) * 1000, v_bounds) as run,
            count(*) as n
        from ended e
        where e.tx >= p_from
          and e.tx < p_to
        group by 1, 2, 3, 4, 5
        union all
        -- Of a row with many tasks, some 64 stand for their neighbours.
        select e.queue, date_trunc('minute', e.ended_at), 'completed', t.wait, t.run, t.n
        from ended_plain e
        cross join lateral (
            select
                width_bucket(date_part('epoch', coalesce(t.started_at, e.started_at) - coalesce(t.ready_at, t.enqueued_at)) * 1000, v_bounds) as wait,
                width_bucket(date_part('epoch', e.ended_at - coalesce(t.started_at, e.started_at)) * 1000, v_bounds) as run,
                sum(least(e.tasks / 64 + 1, e.tasks - t.place + 1)) as n
            from unnest(e.enqueued_ats, e.ready_ats, e.started_ats) with ordinality t(enqueued_at, ready_at, started_at, place)
            where (t.place - 1) % (e.tasks / 64 + 1) = 0
            group by 1, 2
        ) t
        where e.tx >= p_from
          and e.tx < p_to
    ),
    minutes as (
        select t.queue, t.minute,
            coalesce(sum(t.n) filter (where t.state = 'completed'), 0) as completed,
            coalesce(sum(t.n) filter (where t.state = 'failed'), 0) as failed,
            coalesce(sum(t.n) filter (where t.state = 'cancelled'), 0) as cancelled,
            buckets(array_agg(t.wait), array_agg(t.n::bigint)) as waits,
            buckets(array_agg(t.run), array_agg(t.n::bigint)) as runs
        from task_end t
        where not exists (select from queue q where q.name = t.queue and not q.statistics)
        group by t.queue, t.minute
    )
    insert into stat_minute (queue, minute, completed, failed, cancelled, waits, runs)
    select m.queue, m.minute, m.completed, m.failed, m.cancelled, m.waits, m.runs
    from minutes m
    on conflict (queue, minute) do update
    set completed = stat_minute.completed + excluded.completed,
        failed = stat_minute.failed + excluded.failed,
        cancelled = stat_minute.cancelled + excluded.cancelled,
        waits = add_buckets(stat_minute.waits, excluded.waits),
        runs = add_buckets(stat_minute.runs, excluded.runs);
end $$;

-- A histogram from numbers of buckets (from 0; null for what never started) and how many are in each.
create or replace function buckets(p_buckets int[], p_counts bigint[]) returns bigint[]
language sql immutable parallel safe as $$
    select array(
        select coalesce((select sum(b.n) from unnest(p_buckets, p_counts) b(bucket, n) where b.bucket = place), 0)::bigint
        from generate_series(0, (select max(bucket) from unnest(p_buckets) bucket)) place
    )
$$;

-- What enqueues and claims have told.
create or replace function fold_deltas(p_to xid8) returns void
language plpgsql as $$
begin
    with told as (
        delete from stat_delta d where d.tx < p_to returning d.*
    )
    insert into stat_minute (queue, minute, enqueued, started, completed)
    select t.queue, date_trunc('minute', t.at), sum(t.enqueued), sum(t.started), sum(t.completed)
    from told t
    group by 1, 2
    on conflict (queue, minute) do update
    set enqueued = stat_minute.enqueued + excluded.enqueued,
        started = stat_minute.started + excluded.started,
        completed = stat_minute.completed + excluded.completed;
end $$;

-- Remembers what is deleted from history, whoever does it. Dropping a day's partition removes its counts instead.
create or replace function remember_removed() returns trigger
language plpgsql
set search_path from current
as $$
begin
    insert into ended_removed (of_tx, day, queue, state, kind, n)
    select g.tx, (g.ended_at at time zone 'utc')::date, g.queue, g.state, g.kind, count(*)
    from gone g
    group by 1, 2, 3, 4, 5;
    return null;
end $$;

create or replace function remember_removed_plain() returns trigger
language plpgsql
set search_path from current
as $$
begin
    insert into ended_removed (of_tx, day, queue, state, kind, n)
    select g.tx, (g.ended_at at time zone 'utc')::date, g.queue, 'completed', t.kind, count(*)
    from gone g
    cross join lateral unnest(g.kinds) t(kind)
    group by 1, 2, 3, 4, 5;
    return null;
end $$;

create or replace trigger ended_removed after delete on ended
    referencing old table as gone for each statement execute function remember_removed();
create or replace trigger ended_plain_removed after delete on ended_plain
    referencing old table as gone for each statement execute function remember_removed_plain();

-- Statistics per step for charts: p_from, p_from + p_step_s … Null for all queues together.
create or replace function read_series(p_queue text, p_from timestamptz, p_to timestamptz, p_step_s bigint)
returns table (step bigint, enqueued bigint, started bigint, completed bigint, failed bigint, cancelled bigint, waits bigint[], runs bigint[])
language sql stable
set search_path from current
as $$
    select
        floor(date_part('epoch', s.minute - p_from) / p_step_s)::bigint, sum(s.enqueued)::bigint, sum(s.started)::bigint, sum(s.completed)::bigint,
        sum(s.failed)::bigint, sum(s.cancelled)::bigint, sum_buckets(s.waits), sum_buckets(s.runs)
    from stat_minute s
    where s.minute >= p_from
      and s.minute < p_to
      and (p_queue is null or s.queue = p_queue)
    group by 1
    order by 1
$$;

-- What happened in each queue, by whole minutes.
create or replace function read_totals(p_from timestamptz, p_to timestamptz)
returns table (queue text, enqueued bigint, started bigint, completed bigint, failed bigint, cancelled bigint)
language sql stable
set search_path from current
as $$
    select s.queue, sum(s.enqueued)::bigint, sum(s.started)::bigint, sum(s.completed)::bigint, sum(s.failed)::bigint, sum(s.cancelled)::bigint
    from stat_minute s
    where s.minute >= p_from
      and s.minute < p_to
    group by s.queue
    order by s.queue
$$;
