-- Counts that stay cheap with millions of tasks.
--
-- What has ended is the folded sum plus what the fold has not reached. What is open is counted up to a bound; `more` then says
-- that there are more: 10,000 tasks per queue, or fewer if there are many queues. Every count is of one snapshot.

-- Queues with runnable tasks, by jumping from one to the next in the index.
create or replace function pending_queues() returns setof text
language sql stable as $$
    with recursive jump as (
        (select t.queue_id, t.queue from task t order by t.queue_id limit 1)
        union all
        select n.queue_id, n.queue
        from jump j
        cross join lateral (select t.queue_id, t.queue from task t where t.queue_id > j.queue_id order by t.queue_id limit 1) n
    )
    select j.queue from jump j
$$;

-- Ended tasks by queue, state and kind. At most p_rows rows that the fold has not reached are read, of either table, and rows of many
-- tasks until they have 10 times as many. `more`: something was left out.
create or replace function count_ended(p_rows int) returns table (queue text, state text, kind text, n bigint, more boolean)
language sql stable as $$
    with single as materialized (
        select e.queue, e.state, e.kind
        from (select * from ended e where e.tx >= (select f.tx from folded f) order by e.tx limit p_rows + 1) e
    ),
    plain as materialized (
        select e.queue, e.kinds, sum(e.tasks) over (order by e.tx rows unbounded preceding) - e.tasks as before
        from (select * from ended_plain e where e.tx >= (select f.tx from folded f) order by e.tx limit p_rows + 1) e
    ),
    tail as (
        select e.queue, e.state, e.kind, count(*) as n
        from (select * from single limit p_rows) e
        group by 1, 2, 3
        union all
        select e.queue, 'completed', t.kind, count(*)
        from (select * from plain where before < 10 * p_rows limit p_rows) e
        cross join lateral unnest(e.kinds) t(kind)
        group by 1, 2, 3
    ),
    rest as (
        select (select count(*) > p_rows from single) or (select count(*) > p_rows or coalesce(max(before) >= 10 * p_rows, false) from plain) as more
    )
    select c.queue, c.state, c.kind, sum(c.n)::bigint, (select r.more from rest r)
    from (
        select c.queue, c.state, c.kind, c.n from ended_count c
        union all
        select t.queue, t.state, t.kind, t.n from tail t
        union all
        select r.queue, r.state, r.kind, case when r.of_tx >= f.tx then r.n else 0 end - case when r.tx >= f.tx then r.n else 0 end
        from ended_removed r, folded f
    ) c
    group by c.queue, c.state, c.kind
$$;

create or replace function count_tasks() returns table (queue text, state text, tasks bigint, more boolean)
language sql stable
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off   -- a bitmap would be made of all tasks of a queue, whatever the bound
as $$
    select c.queue, c.state, sum(c.tasks)::bigint, bool_or(c.more)
    from (
        select q.queue, 'pending' as state, least(p.tasks, q.bound) as tasks, p.tasks > q.bound as more
        from (select q.queue, least(10000, greatest(500, 40000 / count(*) over ())) as bound from pending_queues() q(queue)) q
        cross join lateral (select count(*) as tasks from (select from task t where t.queue_id = queue_id(q.queue) limit q.bound + 1) t) p
        union all
        select l.queue, 'later', count(*), (select count(*) > 50000 from (select from later limit 50001) l)
        from (select l.queue from later l order by l.due_at, l.id limit 50000) l
        group by l.queue
        union all
        select l.queue, 'leased', sum(l.tasks - coalesce((select sum(cardinality(s.task_ids)) from settled s where s.lease_id = l.id), 0)), false
        from lease l
        group by l.queue
        union all
        select w.queue, 'waiting', count(*), false from waiting w group by w.queue
        union all
        select e.queue, e.state, e.n, e.more from count_ended(20000) e
    ) c
    group by c.queue, c.state
    having sum(c.tasks) > 0
$$;

-- The tasks of one queue by kind and state.
create or replace function count_kinds(p_queue text) returns table (kind text, state text, tasks bigint, more boolean)
language sql stable
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off   -- a bitmap would be made of all tasks of a queue, whatever the bound
as $$
    select c.kind, c.state, sum(c.tasks)::bigint, bool_or(c.more)
    from (
        select t.kind, 'pending' as state, count(*) as tasks, (select count(*) > 10000 from (select from task t where t.queue_id = queue_id(p_queue) limit 10001) t) as more
        from (select t.kind from task t where t.queue_id = queue_id(p_queue) limit 10000) t
        group by t.kind
        union all
        select l.kind, 'later', count(*), (select count(*) > 50000 from (select from later limit 50001) l)
        from (select l.kind, l.queue from later l order by l.due_at, l.id limit 50000) l
        where l.queue = p_queue
        group by l.kind
        union all
        select t.kind, 'leased', count(*), false
        from lease l
        cross join lateral unnest(l.task_ids, l.kinds) t(id, kind)
        where l.queue = p_queue
          and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids))
        group by t.kind
        union all
        select w.kind, 'waiting', count(*), false from waiting w where w.queue = p_queue group by w.kind
        union all
        select e.kind, e.state, e.n, e.more from count_ended(20000) e where e.queue = p_queue
    ) c
    group by c.kind, c.state
    having sum(c.tasks) > 0
$$;

-- When the oldest runnable task of a queue became runnable. Looked for among the first of every lane and priority, and among the
-- first thousand without a lane: exact unless a queue has more than 500 lanes.
create or replace function oldest_ready(p_queue text) returns timestamptz
language sql stable as $$
    with recursive head as (
        (select t.lane, t.priority, coalesce(t.ready_at, t.enqueued_at) as at, 1 as place
        from task t
        where t.queue_id = queue_id(p_queue)
        order by t.lane, t.priority, t.id
        limit 1)
        union all
        select n.*
        from head h
        cross join lateral (
            select t.lane, t.priority, coalesce(t.ready_at, t.enqueued_at), h.place + 1
            from task t
            where t.queue_id = queue_id(p_queue)
              and (t.lane, t.priority) > (h.lane, h.priority)
            order by t.lane, t.priority, t.id
            limit 1
        ) n
        where h.place < 500
    )
    select least(
        (select min(h.at) from head h),
        (select min(coalesce(t.ready_at, t.enqueued_at))
        from (select t.ready_at, t.enqueued_at from task t where t.queue_id = queue_id(p_queue) and t.lane = 0 order by t.priority, t.id limit 1000) t)
    )
$$;

-- Queues that are known: by their settings, their tasks, their workers or their history.
create or replace function list_queues()
returns table (
    queue text, paused_at timestamptz, oldest_ready_at timestamptz, oldest_waiting_at timestamptz, keep_completed_days int, keep_failed_days int, keep_cancelled_days int,
    statistics boolean, serial int, lane_limit int
)
language sql stable
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    with parents as materialized (select w.queue, min(w.started_at) as oldest_at from waiting w group by w.queue)
    select
        n.queue, q.paused_at, oldest_ready(n.queue), p.oldest_at, q.keep_completed_days, q.keep_failed_days, q.keep_cancelled_days, coalesce(q.statistics, true), q.serial, q.lane_limit
    from (
        select p.queue from pending_queues() p(queue)
        union
        select q.name from queue q
        union
        select w.queue from worker, unnest(worker.queues) w(queue)
        union
        select l.queue from (select l.queue from later l order by l.due_at, l.id limit 50000) l
        union
        select l.queue from lease l
        union
        select p.queue from parents p
        union
        select c.queue from ended_count c where c.n > 0
        union
        select e.queue from (select e.queue from ended e where e.tx >= (select f.tx from folded f) order by e.tx limit 20000) e
        union
        select e.queue from (select e.queue from ended_plain e where e.tx >= (select f.tx from folded f) order by e.tx limit 20000) e
    ) n
    left join queue q on q.name = n.queue
    left join parents p on p.queue = n.queue
    order by n.queue
$$;
