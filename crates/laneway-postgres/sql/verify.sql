-- The invariants, one sentence per violation. Exact while no transaction is under way.
create or replace function verify() returns setof text
language sql
set search_path from current
as $$
    with held as (
        select t.lane, t.id, 'leased' as place
        from lease l
        cross join lateral unnest(l.task_ids, l.lanes) t(id, lane)
        where t.lane <> 0
          and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids))
        union all
        select l.lane, l.id, 'later' from later l where l.holds_turn
        union all
        select w.lane, w.id, 'waiting' from waiting w where w.holds_turn
    ),
    places as (
        select t.id, 'task' as place from task t
        union all
        select l.id, 'later' from later l
        union all
        select w.id, 'waiting' from waiting w
        union all
        select t.id, 'lease' from lease l, unnest(l.task_ids) t(id)
        where not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids))
        union all
        select e.id, 'ended' from ended e
        union all
        select t.id, 'ended' from ended_plain e, unnest(e.task_ids) t(id)
    ),
    account as (
        select
            l.id, l.queue, l.key, l.lim, l.issued, l.may_be_halted and exists (select from halt h where h.lane = l.id) as halted,
            (select count(*) from turn t, unnest(t.lanes) u(lane) where u.lane = l.id) as in_line,
            (select count(*) from parked p where p.lane = l.id) as parked,
            (select count(*) from held h where h.lane = l.id) as held,
            (select count(*) from task t where t.queue_id = queue_id(l.queue) and t.lane = l.id) as runnable,
            exists (select from mark m where m.queue = l.queue and m.lane = l.id) as marked
        from lane l
    )
    select format('lane %s/%s has issued %s turns, but %s are in line, %s parked and %s with tasks', queue, key, issued, in_line, parked, held)
    from account
    where issued <> in_line + parked + held
    union all
    select format('lane %s/%s has %s runnable tasks and nothing that could start one', queue, key, runnable)
    from account
    where runnable > 0 and in_line + parked = 0 and not marked and not halted and held < lim
    union all
    select format('task %s is in a lane that is not known and has no mark', t.id)
    from task t
    where t.lane <> 0 and not exists (select from lane l where l.id = t.lane) and not exists (select from mark m where m.queue = t.queue and m.lane = t.lane)
    union all
    select format('task %s is not where claims look for tasks of queue %s', t.id, t.queue)
    from task t
    where t.queue_id <> queue_id(t.queue)
    union all
    select format('a turn belongs to lane %s, which is not known', u.lane)
    from turn t, unnest(t.lanes) u(lane)
    where not exists (select from lane l where l.id = u.lane)
    union all
    select format('lane %s/%s: its turn number %s stands at priority %s, behind a task of priority %s, and no mark tells', l.queue, l.key, t.number, t.priority, h.priority)
    from account l
    cross join lateral (
        select t.priority, row_number() over (order by t.priority) as number
        from turn t, unnest(t.lanes) u(lane)
        where u.lane = l.id
          and (t.task_id is null or not exists (select from task k where k.id = t.task_id))
    ) t
    cross join lateral (
        select k.priority, row_number() over (order by k.priority, k.id) as number
        from task k
        where k.queue_id = queue_id(l.queue)
          and k.lane = l.id
          and not exists (select from turn b where b.lanes[1] = l.id and b.task_id = k.id)
    ) h
    where h.number = t.number
      and t.priority > h.priority
      and not l.marked
      and l.parked = 0   -- those stand where they stood when they were parked
    union all
    select format('task %s is in %s', id, string_agg(place, ' and ' order by place))
    from places
    group by id
    having count(*) > 1
    union all
    select format('task %s has a large payload, which is missing', t.id)
    from task t
    where t.size >= 1000 and not exists (select from body b where b.task_id = t.id)
    union all
    select format('a payload is kept for task %s, which has ended or never was', b.task_id)
    from body b
    where not exists (select from places p where p.id = b.task_id and p.place <> 'ended')
    union all
    select format('settled tasks are remembered for lease %s, which is gone', s.lease_id)
    from settled s
    where not exists (select from lease l where l.id = s.lease_id)
    union all
    select format('a request to cancel task %s is left, which does not run', c.task_id)
    from cancel_request c
    where not exists (select from places p where p.id = c.task_id and p.place = 'lease')
    union all
    select format('the key `%s` is held by task %s, which %s', k.key, k.task_id,
        case when k.scope = 'while_pending' then 'does not wait for its first attempt' else 'has ended or never was' end)
    from unique_key k
    where k.scope <> 'within'
      and not exists (
          select from places p
          where p.id = k.task_id
            and (p.place in ('task', 'later') or p.place in ('lease', 'waiting') and k.scope = 'while_open')
      )
    union all
    select format('task %s does not hold its key `%s`', o.id, o.extra->'unique'->>'key')
    from (
        select t.id, t.queue, t.kind, t.extra from task t
        union all
        select l.id, l.queue, l.kind, l.extra from later l
        union all
        select w.id, w.queue, w.kind, w.extra from waiting w
        union all
        select t.id, l.queue, t.kind, t.extra from lease l, unnest(l.task_ids, l.kinds, l.extras) t(id, kind, extra)
        where not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids))
    ) o
    where o.extra->'unique'->>'scope' = 'while_open'
      and not exists (
          select from unique_key k
          where k.queue = o.queue and k.kind = o.kind and k.key = o.extra->'unique'->>'key' and k.task_id = o.id
      )
    union all
    select format('task %s waits for %s children, and tallies add %s, but %s are open', f.id, f.open, f.told, f.children)
    from (
        select w.id, w.open, (select coalesce(sum(t.delta), 0) from tally t where t.parent_id = w.id) as told, (select count(*) from open_children(w.id)) as children
        from waiting w
    ) f
    where f.open + f.told <> f.children
    union all
    select format('task %s waits, and of its %s open children only %s are known to be', c.parent_id, count(*), (select count(*) from open_children(c.parent_id)))
    from (
        select t.parent_id from task t
        union all
        select l.parent_id from later l
        union all
        select w.parent_id from waiting w
        union all
        select t.parent_id from lease l, unnest(l.task_ids, l.parent_ids) t(id, parent_id)
        where l.parent_ids is not null
          and not exists (select from settled s where s.lease_id = l.id and t.id = any (s.task_ids))
    ) c
    join waiting p on p.id = c.parent_id
    group by c.parent_id
    having count(*) <> (select count(*) from open_children(c.parent_id))
    union all
    select format('the numbers of the family of task %s do not add up: %s', w.id, family_now(w))
    from waiting w
    cross join lateral jsonb_to_record(family_now(w)) f(total int, open int, completed int, failed int, cancelled int)
    where f.total <> f.open + f.completed + f.failed + f.cancelled
       or least(f.open, f.completed, f.failed, f.cancelled) < 0
    union all
    select format('task %s waits for nobody', w.id)
    from waiting w
    where w.open <= 0
      and not exists (select from tally t where t.parent_id = w.id)
    union all
    select format('task %s follows task %s, which has ended or never was', l.id, l.after_id)
    from later l
    where l.after_id is not null
      and not exists (select from places p where p.id = l.after_id and p.place <> 'ended')
    union all
    select format('task %s is due at no time and follows nobody', l.id) from later l where l.due_at = 'infinity' and l.after_id is null
    union all
    select format('queue %s has %s tasks of kind %s that ended as %s, but %s are counted', c.queue, sum(c.there), c.kind, c.state, sum(c.counted))
    from (
        select e.queue, e.state, e.kind, count(*) as there, 0 as counted from ended e group by e.queue, e.state, e.kind
        union all
        select e.queue, 'completed', t.kind, count(*), 0 from ended_plain e, unnest(e.kinds) t(kind) group by e.queue, t.kind
        union all
        select e.queue, e.state, e.kind, 0, e.n from count_ended(1000000) e
    ) c
    group by c.queue, c.state, c.kind
    having sum(c.there) <> sum(c.counted)
$$;
