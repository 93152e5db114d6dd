//! Checks what must always be true, and describes what is not.

use rusqlite::Connection;

use crate::row::Sql;
use crate::schedule;

/// Each statement returns one text per violation.
const CHECKS: [&str; 14] = [
    ISSUED, LIMIT, STRANDED, LINE, PRIORITY, PLACES, LEASES, OPEN, KEYS, KEYLESS, COUNTED, FAMILIES, NUMBERS,
    FOLLOW_UPS,
];

const ISSUED: &str = "
with place as (
    select lane, 1 as in_line, 0 as held from turn
    union all
    select lane, 0, 1 from leased where lane <> 0
    union all
    select lane, 0, 1 from later where holds_turn = 1
    union all
    select lane, 0, 1 from waiting where holds_turn = 1
),
found as (
    select lane,
           sum(in_line) as in_line,
           sum(held) as held
    from place
    group by lane
)
select format('lane %d has issued %d turns, but %d are in line and %d are with tasks', id, issued, in_line, held)
from (
    select lane.id,
           lane.issued,
           coalesce(found.in_line, 0) as in_line,
           coalesce(found.held, 0) as held
    from lane
    left join found on found.lane = lane.id
)
where issued <> in_line + held";

const LIMIT: &str = "
select format('lane %d has %d turns in line although %d are issued and its limit is %d', id, in_line, issued, lim)
from (
    select id,
           lim,
           issued,
           (select count(*) from turn where turn.lane = lane.id) as in_line
    from lane
)
where in_line > 0
  and issued > lim";

// A lane that waits for nothing must have a turn that can be taken.
const STRANDED: &str = "
select format('lane %d has runnable tasks and no turn for them (%d of %d issued)', id, issued, lim)
from lane
where exists (select 1 from task where task.queue = lane.queue and task.lane = lane.id)
  and halted = 0
  and paused = 0
  and not exists (select 1 from turn where turn.lane = lane.id and turn.priority is not null)
  and not exists (select 1 from parked where parked.lane = lane.id)
  and issued - (select count(*) from turn where turn.lane = lane.id) < lim";

const LINE: &str = "
select format('turn %d of lane %d is in line, but %s', turn.seq, turn.lane, problem)
from (
    select turn.*,
           case
               when lane.id is null then 'its lane does not exist'
               when (lane.halted or lane.paused) and turn.priority is not null then 'its lane is halted'
               when turn.task_id is not null
                   and not exists (select 1 from task where task.id = turn.task_id) then 'its task is gone'
               when turn.priority is not null
                   and not exists (select 1 from task where task.queue = turn.queue and task.lane = turn.lane)
                   then 'its lane is empty'
           end as problem
    from turn
    left join lane on lane.id = turn.lane
) as turn
where problem is not null";

// What a turn shows decides when it is served.
const PRIORITY: &str = "
select format('turn %d of lane %d shows priority %d, its task has %d', seq, lane, priority, head)
from (
    select seq,
           lane,
           priority,
           (
               select task.priority
               from task
               where task.queue = turn.queue
                 and task.lane = turn.lane
                 and case
                     when turn.task_id is not null then task.id = turn.task_id
                     else task.id not in (
                         select bound.task_id
                         from turn as bound
                         where bound.lane = turn.lane
                           and bound.task_id is not null
                     )
                 end
               order by task.priority, task.id
               limit 1
           ) as head
    from turn
    where priority is not null
)
where priority is not head";

const PLACES: &str = "
select format('task %d is in %d places: %s', id, count(*), group_concat(place, ', '))
from (
    select id, 'task' as place from task
    union all
    select id, 'later' from later
    union all
    select id, 'leased' from leased
    union all
    select id, 'waiting' from waiting
    union all
    select id, 'ended' from ended
)
group by id
having count(*) > 1";

const LEASES: &str = "
select format('task %d is leased by lease %d, which does not exist', id, lease)
from leased
where not exists (select 1 from lease where lease.id = leased.lease)
union all
select format('task %d shall be cancelled, but is not leased', task_id)
from cancel_request
where not exists (select 1 from leased where leased.id = cancel_request.task_id)";

const OPEN: &str = "
select format('lease %d counts %d open tasks, but has %d', lease.id, lease.open, coalesce(found.tasks, 0))
from lease
left join (select lease, count(*) as tasks from leased group by lease) as found on found.lease = lease.id
where lease.open <> coalesce(found.tasks, 0)";

const KEYS: &str = "
select format('the key `%s` is held by task %d, which has started or ended, or never was', key, task_id)
from unique_key
where scope <> 'within'
  and not exists (select 1 from task where task.id = task_id)
  and not exists (select 1 from later where later.id = task_id)
  and not (scope = 'while_open' and exists (select 1 from leased where leased.id = task_id))
  and not (scope = 'while_open' and exists (select 1 from waiting where waiting.id = task_id))";

const KEYLESS: &str = "
select format('task %d does not hold its key `%s`', id, json_extract(options, '$.unique.key'))
from (
    select id, queue, kind, options from task
    union all
    select id, queue, kind, options from later
    union all
    select id, queue, kind, options from leased
    union all
    select id, queue, kind, options from waiting
) as open
where json_extract(options, '$.unique.scope') = 'while_open'
  and not exists (
      select 1
      from unique_key
      where unique_key.queue = open.queue
        and unique_key.kind = open.kind
        and unique_key.key = json_extract(options, '$.unique.key')
        and unique_key.task_id = open.id
  )";

// History is counted as it is.
const COUNTED: &str = "
select format('queue %d has %d tasks of kind %s that ended in state %d, but %d are counted', queue, sum(there), kind, state, sum(counted))
from (
    select queue, state, kind, ended_at / 86400000000 as day, 1 as there, 0 as counted from ended
    union all
    select queue, state, kind, day, 0, n from ended_count
)
group by queue, state, kind, day
having sum(there) <> sum(counted)";

// A parent waits for exactly the children that are open, and for at least one.
const FAMILIES: &str = "
with child as (
    select parent from task
    union all
    select parent from later
    union all
    select parent from leased
    union all
    select parent from waiting
)
select format('task %d waits for %d children, but %d are open', id, counted, open)
from (
    select id,
           json_extract(family, '$.open') as counted,
           (select count(*) from child where child.parent = waiting.id) as open
    from waiting
)
where counted <> open
   or open = 0";

const NUMBERS: &str = "
select format('the numbers of the family of task %d do not add up: %s', id, family)
from waiting
where family ->> 'total' <> (family ->> 'open') + (family ->> 'completed') + (family ->> 'failed') + (family ->> 'cancelled')";

const FOLLOW_UPS: &str = "
select format('task %d follows task %d, which is not open', id, after)
from follow_up
where after not in (
    select id from task
    union all
    select id from later
    union all
    select id from leased
    union all
    select id from waiting
)
union all
select format('task %d has no due time and follows nothing, or the other way round', later.id)
from later
left join follow_up on follow_up.id = later.id
where (later.due_at = 9223372036854775807) <> (follow_up.id is not null)";

/// Describes each violation of an invariant.
pub(crate) fn verify(db: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut problems = Vec::new();
    for check in CHECKS {
        problems.extend(db.all(check, [], |row| row.get::<_, String>(0))?);
    }
    problems.extend(schedule::verify(db)?);
    Ok(problems)
}
