-- Actions on all tasks that a filter means. The filter is read by whoever takes a step; a step is recorded and carried out here.

create or replace function start_bulk(
    p_who text, p_reason text, p_action text, p_delay_ms bigint, p_priority smallint, p_filter text, p_dry_run boolean,
    p_pace int
) returns bigint
language plpgsql
set search_path from current
as $$
declare
    v_id bigint;
begin
    insert into bulk (started_at, state, who, reason, action, delay_ms, priority, filter, dry_run, pace)
    values (clock(), 'running', p_who, p_reason, p_action, p_delay_ms, p_priority, p_filter, p_dry_run, p_pace)
    returning id into v_id;
    perform record_audit(p_who, p_reason, 'start_bulk', 'bulk ' || v_id, '{}', null,
        jsonb_build_object('action', p_action, 'filter', p_filter, 'dry_run', p_dry_run, 'pace', p_pace));
    return v_id;
end $$;

create or replace function bulk_view(p_bulk bigint) returns setof bulk
language sql
set search_path from current
as $$
    select * from bulk b where b.id = p_bulk
$$;

-- Newest first, before p_before, in p_state if it is given.
create or replace function list_bulks(p_before bigint, p_state text, p_limit int) returns setof bulk
language sql
set search_path from current
as $$
    select *
    from bulk b
    where b.id < coalesce(p_before, 9223372036854775807)
      and (p_state is null or b.state = p_state)
    order by b.id desc
    limit p_limit
$$;

-- Takes step number p_number. False when it was not the next one: somebody else was faster, the bulk does not run, or it is
-- ahead of its pace, which holds for all who drive it together.
create or replace function step_bulk(
    p_bulk bigint, p_number bigint, p_tasks bigint[], p_place int, p_micros bigint, p_id bigint, p_is_last boolean
) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_bulk    bulk;
    v_results text[] := '{}';
begin
    select b.* into v_bulk from bulk b where b.id = p_bulk for update;
    if v_bulk.id is null or v_bulk.state <> 'running' or v_bulk.steps <> p_number then
        return false;
    elsif v_bulk.matched > v_bulk.pace * date_part('epoch', clock() - v_bulk.started_at) then
        return false;
    end if;
    if p_tasks <> '{}' and not v_bulk.dry_run then
        v_results := act(v_bulk.who, v_bulk.reason, v_bulk.action, p_tasks, v_bulk.delay_ms, v_bulk.priority, v_bulk.started_at);
    end if;
    update bulk b
    set steps = b.steps + 1,
        matched = b.matched + cardinality(p_tasks),
        done = b.done + (select count(*) from unnest(v_results) r where r in ('done', 'requested')),
        place = p_place,
        at_micros = p_micros,
        at_id = p_id,
        state = case when p_is_last then 'finished' else b.state end
    where b.id = p_bulk;
    return true;
end $$;

-- Stops a bulk, or lets one that was stopped go on.
create or replace function set_bulk_state(p_who text, p_reason text, p_bulk bigint, p_state text) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_state text;
begin
    select b.state into v_state from bulk b where b.id = p_bulk for update;
    if v_state is null or v_state = 'finished' or v_state = p_state or p_state = 'finished' then
        return false;
    end if;
    update bulk b set state = p_state where b.id = p_bulk;
    perform record_audit(p_who, p_reason, case p_state when 'aborted' then 'abort_bulk' else 'resume_bulk' end, 'bulk ' || p_bulk, '{}',
        jsonb_build_object('state', v_state), jsonb_build_object('state', p_state));
    return true;
end $$;
