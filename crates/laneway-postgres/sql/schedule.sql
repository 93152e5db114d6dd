-- Schedules. Reading functions also tell the database's time: the caller computes fires from it and comes back with what it
-- has seen. A writing function whose row is not as it was seen changes nothing and says so.

create or replace view schedule_rows as
select
    s.name, s.revision, s.cron, s.zone, s.every_us, s.anchor_at, s.missed, s.missed_cap, s.skip_open, s.paused_at, s.next_fire_at, s.last_fire_at,
    s.last_task, s.task, clock() as now
from schedule s;

-- For operators: what there is, when it fires, and what is overdue.
create or replace view schedules as
select
    s.name, s.cron, s.zone, s.every_us * interval '1 microsecond' as every, s.task ->> 'kind' as kind, s.task ->> 'queue' as queue, s.missed,
    s.missed_cap, case when s.skip_open then 'skip_while_open' else 'allow' end as overlap, s.paused_at, s.next_fire_at, s.last_fire_at, s.last_task,
    case when s.next_fire_at < clock() then clock() - s.next_fire_at end as overdue
from schedule s;

-- One schedule; one row without a name when there is none, for its time.
create or replace function get_schedule(p_name text) returns setof schedule_row
language plpgsql
set search_path from current
as $$
declare
    v_none schedule_row;
begin
    return query select s.* from schedule_rows s where s.name = p_name;
    if not found then
        v_none.now := clock();
        return next v_none;
    end if;
end $$;

create or replace function list_schedules(p_after text, p_limit int) returns setof schedule_row
language sql
set search_path from current
as $$
    select s.* from schedule_rows s where s.name > coalesce(p_after, '') order by s.name limit p_limit
$$;

create or replace function due_schedules(p_limit int) returns setof schedule_row
language plpgsql
set search_path from current
set enable_seqscan = off
set enable_sort = off
as $$
declare
    v_now timestamptz := clock();
begin
    return query select s.* from schedule_rows s where s.next_fire_at <= v_now order by s.next_fire_at limit p_limit;
end $$;

-- Hints to those who would oversleep a fire.
create or replace function hint_fire(p_at timestamptz) returns void
language plpgsql as $$
begin
    perform hint(array(select distinct s.queue from sleeper s where s.idle_until > p_at));
end $$;

-- A schedule as the audit shows it.
create or replace function schedule_shown(p_name text) returns jsonb
language sql as $$
    select jsonb_strip_nulls(jsonb_build_object('cron', s.cron, 'zone', s.zone, 'every_ms', s.every_us / 1000, 'missed', s.missed, 'missed_cap', s.missed_cap,
        'overlap', case when s.skip_open then 'skip_while_open' else 'allow' end, 'paused', s.paused_at is not null))
        || jsonb_build_object('task', s.task::jsonb)
    from schedule s
    where s.name = p_name
$$;

-- Makes a schedule, or changes the one that was seen: p_seen is its revision, null for none, p_seen_fire its next fire.
create or replace function put_schedule(
    p_who text, p_reason text, p_name text, p_seen bigint, p_seen_fire timestamptz, p_cron text, p_zone text, p_every_us bigint, p_anchor_at timestamptz, p_missed text,
    p_missed_cap int, p_skip_open boolean, p_task text, p_next timestamptz
) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_before jsonb := schedule_shown(p_name);
    v_after  jsonb;
begin
    if p_seen is null then
        insert into schedule (name, revision, cron, zone, every_us, anchor_at, missed, missed_cap, skip_open, next_fire_at, task)
        values (p_name, nextval('schedule_revision_seq'), p_cron, p_zone, p_every_us, p_anchor_at, p_missed, p_missed_cap, p_skip_open, p_next, p_task::json)
        on conflict do nothing;
    else
        update schedule s
        set revision = nextval('schedule_revision_seq'),
            cron = p_cron,
            zone = p_zone,
            every_us = p_every_us,
            anchor_at = p_anchor_at,
            missed = p_missed,
            missed_cap = p_missed_cap,
            skip_open = p_skip_open,
            next_fire_at = p_next,
            task = p_task::json
        where s.name = p_name
          and s.revision = p_seen
          and s.next_fire_at is not distinct from p_seen_fire;   -- a fire that came in between has dealt with times that p_next may repeat
    end if;
    if not found then
        return false;
    end if;
    v_after := schedule_shown(p_name);
    if v_after is distinct from v_before then
        perform record_audit(p_who, p_reason, 'put_schedule', 'schedule ' || p_name, '{}', v_before, v_after);
    end if;
    perform hint_fire(p_next);
    return true;
end $$;

create or replace function remove_schedule(p_who text, p_reason text, p_name text) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_before jsonb;
begin
    perform from schedule s where s.name = p_name for update;
    v_before := schedule_shown(p_name);
    delete from schedule s where s.name = p_name;
    if not found then
        return false;
    end if;
    perform record_audit(p_who, p_reason, 'remove_schedule', 'schedule ' || p_name, '{}', v_before, null);
    return true;
end $$;

create or replace function pause_schedule(p_who text, p_reason text, p_name text) returns boolean
language plpgsql
set search_path from current
as $$
begin
    update schedule s
    set revision = nextval('schedule_revision_seq'),
        paused_at = clock(),
        next_fire_at = null
    where s.name = p_name
      and s.paused_at is null;
    if not found then
        return false;
    end if;
    perform record_audit(p_who, p_reason, 'pause_schedule', 'schedule ' || p_name, '{}', '{"paused": false}', '{"paused": true}');
    return true;
end $$;

create or replace function resume_schedule(p_who text, p_reason text, p_name text, p_seen bigint, p_next timestamptz) returns boolean
language plpgsql
set search_path from current
as $$
begin
    update schedule s
    set revision = nextval('schedule_revision_seq'),
        paused_at = null,
        next_fire_at = p_next
    where s.name = p_name
      and s.revision = p_seen
      and s.paused_at is not null;
    if not found then
        return false;
    end if;
    perform record_audit(p_who, p_reason, 'resume_schedule', 'schedule ' || p_name, '{}', '{"paused": true}', '{"paused": false}');
    perform hint_fire(p_next);
    return true;
end $$;

-- The last task of a schedule, if it is open and the schedule may not overlap itself.
create or replace function open_task(p_skip_open boolean, p_last_task bigint) returns bigint
language plpgsql as $$
begin
    if p_skip_open and exists (select from get_task(p_last_task) t where t.state not in ('completed', 'failed', 'cancelled')) then
        return p_last_task;
    end if;
    return null;
end $$;

-- Deals with the fire that was seen: enqueues its tasks (as in enqueue_keyed), if any, and moves the schedule on to p_next.
-- Whoever finds the row locked or moved comes too late: `lost`. Else `fired`, or `skipped`: also when its key is taken.
create or replace function fire_schedule(
    p_name text, p_seen bigint, p_fire_at timestamptz, p_last timestamptz, p_next timestamptz, p_kinds text[], p_payloads text[], p_queues text[],
    p_priorities smallint[], p_max_attempts smallint[], p_lanes text[], p_lane_limits int[], p_delays_ms bigint[], p_dues timestamptz[], p_extras text[],
    p_keys text[], p_scopes text[], p_windows_ms bigint[], p_conflicts text[], p_hashes bigint[], p_bytes_max int, p_wait_ms int,
    out verdict text, out ids bigint[]
)
language plpgsql
set search_path from current
as $$
declare
    v_schedule record;
begin
    select s.skip_open, s.last_task into v_schedule
    from schedule s
    where s.name = p_name
      and s.revision = p_seen
      and s.next_fire_at = p_fire_at
    for update skip locked;
    if not found then
        verdict := 'lost';
        return;
    end if;
    if p_kinds <> '{}' and open_task(v_schedule.skip_open, v_schedule.last_task) is null then
        select array_agg(e.id order by e.place) into ids
        from enqueue_keyed(p_kinds, p_payloads, p_queues, p_priorities, p_max_attempts, p_lanes, p_lane_limits, p_delays_ms, p_dues, p_extras,
            p_keys, p_scopes, p_windows_ms, p_conflicts, p_hashes, p_bytes_max, p_wait_ms) k
        cross join lateral unnest(k.ids, k.effects) with ordinality e(id, effect, place)
        where e.effect = 'made';
    end if;
    verdict := case when ids is null then 'skipped' else 'fired' end;
    update schedule s
    set next_fire_at = p_next,
        last_fire_at = p_last,
        last_task = coalesce(ids[cardinality(ids)], s.last_task)
    where s.name = p_name;
end $$;

-- Enqueues the task of a schedule that was seen, and leaves its next fire alone.
-- `ran`; `open` with the task that is open or holds the key; or `lost` when it was changed or removed meanwhile.
create or replace function run_schedule(
    p_who text, p_reason text, p_name text, p_seen bigint, p_kinds text[], p_payloads text[], p_queues text[], p_priorities smallint[], p_max_attempts smallint[],
    p_lanes text[], p_lane_limits int[], p_delays_ms bigint[], p_dues timestamptz[], p_extras text[],
    p_keys text[], p_scopes text[], p_windows_ms bigint[], p_conflicts text[], p_hashes bigint[], p_bytes_max int, p_wait_ms int,
    out verdict text, out task bigint
)
language plpgsql
set search_path from current
as $$
declare
    v_schedule record;
begin
    select s.skip_open, s.last_task into v_schedule from schedule s where s.name = p_name and s.revision = p_seen for update;
    if not found then
        verdict := 'lost';
        return;
    end if;
    verdict := 'open';
    task := open_task(v_schedule.skip_open, v_schedule.last_task);
    if task is not null then
        return;
    end if;
    select k.ids[1], case when k.effects[1] = 'made' then 'ran' else 'open' end into task, verdict
    from enqueue_keyed(p_kinds, p_payloads, p_queues, p_priorities, p_max_attempts, p_lanes, p_lane_limits, p_delays_ms, p_dues, p_extras,
        p_keys, p_scopes, p_windows_ms, p_conflicts, p_hashes, p_bytes_max, p_wait_ms) k;
    if verdict = 'ran' then
        update schedule s set last_task = run_schedule.task where s.name = p_name;
        perform record_audit(p_who, p_reason, 'run_schedule', 'schedule ' || p_name, array[task], null, null);
    end if;
end $$;
