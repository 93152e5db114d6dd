-- Prepares a partition of history for today and the two days to come. Days that cannot be prepared now (somebody else is
-- doing it, or rows of that day have already landed beside it) are left to the partition for other days.
create or replace function prepare_days() returns void
language plpgsql
set search_path from current
as $$
declare
    v_day   date;
    v_table text;
    v_name  text;
begin
    foreach v_table in array array['ended', 'ended_plain'] loop
        for v_day in select (clock() at time zone 'utc')::date + n from generate_series(0, 2) n loop
            v_name := v_table || to_char(v_day, '_YYYYMMDD');
            continue when to_regclass(current_schema() || '.' || v_name) is not null;
            begin
                execute format('create table %I partition of %I for values from (%L) to (%L)',
                    v_name, v_table, v_day::timestamp at time zone 'utc', (v_day + 1)::timestamp at time zone 'utc');
            exception when duplicate_table or check_violation or lock_not_available or invalid_object_definition or insufficient_privilege then
                null;    -- what ends on that day goes to the tables for other days
            end;
        end loop;
    end loop;
end $$;

-- Removes lanes that have been empty for ten minutes and that nobody has set up. A lane whose tasks come later, or wait for their
-- children, is not empty: they expect its limit when they are back. The same bucket lock as take-up, and a look
-- in a new statement after the lanes are locked.
create or replace function remove_idle_lanes(p_max int) returns int
language plpgsql
set search_path from current
as $$
declare
    v_idle    bigint[];
    v_used    bigint[];
    v_removed int;
begin
    v_idle := array(
        select l.id
        from lane l
        where l.issued = 0
          and not l.own
          and not l.may_be_halted
          and l.interval_ms = 0
          and l.used_at < clock() - interval '10 minutes'
        order by l.id
        limit p_max
        for update skip locked
    );
    v_used := array(
        select u.lane
        from unnest(v_idle) u(lane)
        where exists (select from later t where t.lane = u.lane and t.lane <> 0 offset 0)
           or exists (select from waiting t where t.lane = u.lane and t.lane <> 0 offset 0)
    );
    if v_used <> '{}' then
        update lane set used_at = clock() where id = any (v_used);   -- and others have their chance the next time
    end if;
    delete from lane l
    where l.id = any (v_idle)
      and l.id <> all (v_used)
      and l.issued = 0
      and pg_try_advisory_xact_lock(1281452377, (hashtext(l.queue) & -64 | (l.id & 63))::int)
      and not exists (select from task t where t.queue_id = queue_id(l.queue) and t.lane = l.id)
      and not exists (select from mark m where m.queue = l.queue and m.lane = l.id);
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;

-- Forgets where the children of tasks are that nobody remembers: p_max of them from anywhere, since most are still remembered.
create or replace function remove_broods(p_max int) returns int
language plpgsql
set search_path from current
as $$
declare
    v_start   bigint;
    v_removed int;
begin
    select min(b.parent_id) + (random() * (max(b.parent_id) - min(b.parent_id)))::bigint into v_start from brood b;
    delete from brood b
    where b.parent_id = any (array(
        select f.parent_id
        from (select distinct b.parent_id from (select b.parent_id from brood b where b.parent_id >= v_start order by b.parent_id limit p_max) b) f
        where (select t.place from find_task(f.parent_id) t) is null
    ));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
