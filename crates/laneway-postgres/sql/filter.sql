-- Filters as conditions on a row `v` of one of the views in look.sql.
--
-- p_filter: [{"not": false, "any": [{"is": "kind", "value": "mail.send"}, …]}, …]; all terms must hold, each when one of its
-- tests does. Every value goes through %L, so nothing of it is ever read as SQL.
create or replace function filter_condition(p_filter jsonb, p_now timestamptz) returns text
language plpgsql as $$
declare
    v_term jsonb;
    v_text text := '';
begin
    for v_term in select t.term from jsonb_array_elements(p_filter) t(term) loop
        v_text := v_text || format(' and (%s) is %s true',
            (select string_agg(test_condition(t.test, p_now), ' or ') from jsonb_array_elements(v_term -> 'any') t(test)),
            case when (v_term ->> 'not')::boolean then 'not' else '' end);
    end loop;
    return v_text;
end $$;

-- One test. A test of what a task does not have is null, which does not hold.
create or replace function test_condition(p_test jsonb, p_now timestamptz) returns text
language plpgsql as $$
declare
    v_value text := p_test ->> 'value';
    v_sign  text := p_test ->> 'sign';
begin
    if v_sign is not null and v_sign not in ('<', '<=', '=', '>=', '>') then
        perform refuse('invalid_filter', format('filter compares with `%s`; one of: < <= = >= >', v_sign));
    end if;
    case p_test ->> 'is'
    when 'state' then return format('v.state = %L', v_value);
    when 'queue' then return format('v.queue = %L', v_value);
    when 'kind' then return format('v.kind = %L', v_value);
    when 'kind_prefix' then return format('starts_with(v.kind, %L)', v_value);
    when 'lane' then return format('v.lane_id in (lane_id(v.queue, %1$L), lane_id(v.queue, e''\x01'' || %1$L))', v_value);
    when 'tag' then return format('(v.extra::jsonb -> ''tags'') ? %L', v_value);
    when 'worker' then return format('starts_with(replace(v.session::text, ''-'', ''''), %L)', v_value);
    when 'error' then return format('strpos(v.error, %L) > 0', v_value);
    when 'attempt' then return format('v.attempt %s %s', v_sign, v_value::int);
    -- Older than an hour is enqueued before an hour ago.
    when 'age' then return format('%L::timestamptz %s v.enqueued_at', p_now - v_value::bigint * interval '1 millisecond', v_sign);
    when 'since' then return format('coalesce(v.ended_at, v.enqueued_at) >= %L', filter_moment(p_test, p_now));
    when 'until' then return format('coalesce(v.ended_at, v.enqueued_at) < %L', filter_moment(p_test, p_now));
    when 'payload' then return payload_condition(p_test -> 'path', v_value);
    else perform refuse('invalid_filter', format('filter has a test `%s`, which is unknown', p_test ->> 'is'));
    end case;
    return null;
end $$;

-- The moment of `since` and `until`.
create or replace function filter_moment(p_test jsonb, p_now timestamptz) returns timestamptz
language sql as $$
    select case
        when p_test ? 'ago_ms' then p_now - (p_test ->> 'ago_ms')::bigint * interval '1 millisecond'
        when p_test ? 'clock' then (
            select max(at)
            from (select ((p_now at time zone 'utc')::date - n + (p_test ->> 'clock')::time) at time zone 'utc' as at from generate_series(0, 1) n) days
            where at <= p_now
        )
        else (p_test ->> 'value')::timestamptz
    end
$$;

-- Keys of nested objects, never places in lists: that is what the other store can do as well.
create or replace function payload_condition(p_path jsonb, p_value text) returns text
language sql as $$
    select format('json_typeof(%s) in (''string'', ''number'', ''boolean'') and (%s) #>> ''{}'' = %L', found.at, found.at, p_value)
    from (
        select 'v.payload' || string_agg(format(' -> %L::text', key), '' order by place) as at
        from jsonb_array_elements_text(p_path) with ordinality k(key, place)
    ) found
$$;

-- The earliest and the latest moment that a task of this filter can have ended at, where it says so without an "or".
create or replace function filter_span(p_filter jsonb, p_now timestamptz, out since timestamptz, out until timestamptz)
language sql as $$
    select
        coalesce(max(filter_moment(test, p_now)) filter (where test ->> 'is' = 'since'), '-infinity'),
        coalesce(min(filter_moment(test, p_now)) filter (where test ->> 'is' = 'until'), 'infinity')
    from (
        select term -> 'any' -> 0 as test
        from jsonb_array_elements(p_filter) t(term)
        where not (term ->> 'not')::boolean
          and jsonb_array_length(term -> 'any') = 1
    ) single
$$;
