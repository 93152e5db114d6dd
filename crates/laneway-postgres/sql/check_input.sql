-- The rules of laneway-core's validator for those who enqueue from SQL: same codes, same fields, same sentences.
-- A refusal has SQLSTATE 22023, the sentence as message, `code` in its detail. Whatever passes here can be read by
-- every worker: a stored name that the validator would not take, or options that it cannot read, must not get in.
create or replace function refuse(p_code text, p_message text) returns void
language plpgsql as $$
begin
    raise exception using errcode = '22023', message = p_message, detail = 'code: ' || p_code;
end $$;

-- Text for a message, with what does not print written out.
create or replace function shown(p_text text) returns text
language sql immutable as $$
    select string_agg(
        case
            when c in ('\', '"', '''') then '\' || c
            when c = e'\t' then '\t'
            when c = e'\n' then '\n'
            when c = e'\r' then '\r'
            when c ~ '[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]' then '\u{' || to_hex(ascii(c)) || '}'
            else c
        end, '' order by place)
    from regexp_split_to_table(p_text, '') with ordinality s(c, place)
$$;

create or replace function check_name(p_field text, p_name text) returns void
language plpgsql immutable as $$
declare
    v_control text := substring(p_name from '[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]');
begin
    if p_name = '' then
        perform refuse('invalid_name', p_field || ' is empty; a name has 1 to 200 bytes');
    elsif octet_length(p_name) > 200 then
        perform refuse('invalid_name', format('%s has %s bytes; a name has 1 to 200', p_field, octet_length(p_name)));
    elsif v_control is not null then
        perform refuse('invalid_name', format('%s `%s` contains the control character U+%s; remove it',
            p_field, shown(p_name), lpad(upper(to_hex(ascii(v_control))), 4, '0')));
    elsif p_name ~ '^[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]$' then
        perform refuse('invalid_name', format('%s `%s` begins or ends with a space; remove it', p_field, p_name));
    end if;
end $$;

create or replace function check_range(p_field text, p_value numeric, p_low numeric, p_high numeric, p_unit text default '') returns void
language plpgsql immutable as $$
begin
    if p_value not between p_low and p_high then
        perform refuse('out_of_range', format('%s is %s; allowed is %s to %s%s', p_field, p_value, p_low, p_high, p_unit));
    end if;
end $$;

-- The payload is of type json, so its grammar is right; what is left is what no store or client could carry.
create or replace function check_payload(p_payload text) returns void
language plpgsql immutable as $$
declare
    v_bare  text;      -- without its strings
    v_found text;
begin
    if p_payload is null then
        perform refuse('invalid_json', 'payload is null; send JSON, ''{}'' for none');
    elsif octet_length(p_payload) > 1048576 then
        perform refuse('payload_too_large', format('payload has %s bytes, the limit is 1048576; keep the data elsewhere and enqueue a reference', octet_length(p_payload)));
    end if;

    -- A plain search first: most payloads have no such escape, and patterns are slow on large ones.
    if strpos(p_payload, '\u') > 0 and p_payload ~ '(?<!\\)(\\\\)*\\u0000' then
        perform refuse('nul_not_allowed', 'payload contains \u0000; a NUL cannot be stored, remove it');
    end if;
    if strpos(p_payload, '\u') > 0 and p_payload ~* '\\ud[89a-f]' then
        -- Without escaped backslashes and whole pairs, only halves are left.
        v_found := substring(
            regexp_replace(p_payload, '\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', ' ', 'g')
            from '\\u([dD][89a-fA-F][0-9a-fA-F]{2})');
        if v_found is not null then
            perform refuse('invalid_unicode', format('payload contains \u%s, half of a surrogate pair; send the whole character', lower(v_found)));
        end if;
    end if;

    if p_payload ~ '[0-9]{19}|[eE]\+?[0-9]{3}' then
        v_bare := regexp_replace(p_payload, '"(?:[^"\\]|\\.)*"', '', 'g');
        for v_found in
            select m.number[1]
            from regexp_matches(v_bare, '-?[0-9][-+.0-9eE]*', 'g') m(number)
            where m.number[1] ~ '[0-9]{19}|[eE]\+?[0-9]{3}'
        loop
            if not fits_a_client(v_found) then
                perform refuse('number_out_of_range', format('payload contains the number %s, which fits no 64-bit %s; send it as a string',
                    v_found, case when v_found ~ '[.eE]' then 'float' else 'integer' end));
            end if;
        end loop;
    end if;

    if length(p_payload) - length(translate(p_payload, '[{', '')) > 64 then
        v_bare := regexp_replace(p_payload, '"(?:[^"\\]|\\.)*"', '', 'g');
        v_bare := regexp_replace(v_bare, '[^][{}]', '', 'g');
        for v_level in 1 .. 64 loop
            v_bare := regexp_replace(v_bare, '\[\]|\{\}', '', 'g');   -- each round takes the innermost level away
            exit when v_bare = '';
        end loop;
        if v_bare <> '' then
            perform refuse('payload_too_deep', 'payload is nested deeper than 64 levels; flatten it');
        end if;
    end if;
end $$;

-- Whether a number, as it is written, is a 64-bit integer or a 64-bit float.
create or replace function fits_a_client(p_number text) returns boolean
language plpgsql immutable as $$
begin
    if p_number !~ '[.eE]' then
        return length(p_number) <= 20 and p_number::numeric between -9223372036854775808 and 9223372036854775807;
    end if;
    perform p_number::float8;
    return true;
exception when numeric_value_out_of_range then
    return p_number ~ '[eE]-';   -- too close to zero is zero
end $$;

create or replace function check_retry(p_retry jsonb) returns void
language plpgsql immutable as $$
declare
    v_delays jsonb := p_retry #> '{list,delays_ms}';
    v_first  jsonb := p_retry #> '{exponential,first_ms}';
    v_cap    jsonb := p_retry #> '{exponential,cap_ms}';
    v_jitter jsonb := p_retry #> '{exponential,jitter_percent}';
begin
    if p_retry = jsonb_build_object('list', jsonb_build_object('delays_ms', v_delays)) and jsonb_typeof(v_delays) = 'array' then
        if jsonb_array_length(v_delays) not between 1 and 100 then
            perform refuse('out_of_range', format('retry has %s delays; allowed is 1 to 100', jsonb_array_length(v_delays)));
        end if;
    elsif p_retry = jsonb_build_object('exponential', jsonb_build_object('first_ms', v_first, 'cap_ms', v_cap, 'jitter_percent', v_jitter)) then
        v_delays := jsonb_build_array(v_first, v_cap);
    else
        v_delays := '[null]';
    end if;
    if exists (select from jsonb_array_elements_text(v_delays || jsonb_build_array(coalesce(v_jitter, '0'))) n where n is null or n !~ '^[0-9]+$') then
        perform refuse('out_of_range', 'retry is neither {"exponential": {"first_ms", "cap_ms", "jitter_percent"}} nor {"list": {"delays_ms": [1 to 100 delays]}} with whole numbers');
    end if;
    perform check_range('retry', div(n::numeric, 1000), 0, 2592000, ' seconds') from jsonb_array_elements_text(v_delays) n;
    perform check_range('retry.jitter_percent', v_jitter::numeric, 0, 100);
end $$;

create or replace function check_trace(p_trace jsonb) returns void
language plpgsql immutable as $$
declare
    v_entry record;
begin
    if jsonb_typeof(p_trace) <> 'object' then
        perform refuse('invalid_name', 'trace is not an object of strings');
    end if;
    if (select count(*) from jsonb_object_keys(p_trace)) > 32 then
        perform refuse('out_of_range', format('trace has %s entries; allowed are 32', (select count(*) from jsonb_object_keys(p_trace))));
    end if;
    for v_entry in select e.key, jsonb_typeof(e.value) as kind, e.value #>> '{}' as text from jsonb_each(p_trace) e loop
        perform check_name('trace', v_entry.key);
        if v_entry.kind <> 'string' then
            perform refuse('invalid_name', 'trace is not an object of strings');
        elsif octet_length(v_entry.text) > 1000 or v_entry.text ~ '[\u0001-\u001f\u007f-\u009f]' then
            perform refuse('invalid_name', format('trace `%s` is over 1000 bytes or contains control characters', v_entry.key));
        end if;
    end loop;
end $$;

create or replace function check_due(p_due_at timestamptz) returns void
language plpgsql as $$
declare
    v_utc   timestamp := p_due_at at time zone 'utc';
    v_shown text := case
        when isfinite(p_due_at) then rtrim(rtrim(to_char(v_utc, 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z'
        else p_due_at::text
    end;
begin
    if p_due_at < timestamptz '2000-01-01 00:00:00+00' then
        perform refuse('time_out_of_range', format('due is %s; the earliest due time is 2000-01-01T00:00:00Z', v_shown));
    elsif p_due_at > clock() + interval '1830 days' then
        perform refuse('time_out_of_range', format('due is %s; a task may be scheduled up to 5 years ahead', v_shown));
    end if;
end $$;

create or replace function check_input(
    p_kind text, p_payload text, p_queue text, p_lane text, p_lane_limit int, p_priority int, p_delay interval,
    p_due_at timestamptz, p_max_attempts int, p_timeout interval, p_retry jsonb, p_tags text[], p_trace jsonb
) returns void
language plpgsql as $$
declare
    v_delay numeric := extract(epoch from p_delay);
begin
    if p_kind is null or p_queue is null or p_priority is null or p_max_attempts is null then
        perform refuse('invalid_name', 'kind, queue, priority and max_attempts may not be null');
    elsif array_position(p_tags, null) is not null then
        perform refuse('invalid_name', 'tag is null; a name has 1 to 200 bytes');
    end if;
    perform check_name('kind', p_kind);
    perform check_name('queue', p_queue);
    perform check_name('lane', p_lane);
    perform check_name('tag', tag) from unnest(p_tags) tag;
    perform check_payload(p_payload);
    perform check_range('priority', p_priority, -1000, 1000);
    perform check_range('max_attempts', p_max_attempts, 1, 1000);
    perform check_range('lane.limit', p_lane_limit, 1, 1000000);
    perform check_range('timeout', trunc(extract(epoch from p_timeout) * 1000), 1, 2592000000, ' ms');
    if cardinality(p_tags) > 32 then
        perform refuse('out_of_range', format('tags has %s entries; allowed are 32', cardinality(p_tags)));
    elsif v_delay < 0 then
        perform refuse('out_of_range', format('delay is %s seconds; a delay is not negative', trim_scale(v_delay)));
    elsif v_delay > 1830 * 86400 then
        perform refuse('time_out_of_range', format('delay is %s days; a task may be scheduled up to 5 years ahead', div(v_delay, 86400)));
    end if;
    perform check_due(p_due_at);
    if p_retry is not null then
        perform check_retry(p_retry);
    end if;
    if p_trace is not null then
        perform check_trace(p_trace);
    end if;
end $$;

create or replace function check_unique(p_key text, p_while text, p_window_ms bigint, p_on_conflict text, p_idempotency_key text) returns void
language plpgsql as $$
begin
    if p_key is not null and p_idempotency_key is not null then
        perform refuse('invalid_name', 'unique_key and idempotency_key exclude one another: a task has one key');
    elsif p_while is null or p_while not in ('open', 'pending') then
        perform refuse('invalid_name', format('unique_while `%s` is unknown; one of: open, pending', p_while));
    elsif p_on_conflict is null or p_on_conflict not in ('existing', 'replace', 'merge', 'reject') then
        perform refuse('invalid_name', format('on_conflict `%s` is unknown; one of: existing, replace, merge, reject', p_on_conflict));
    end if;
    perform check_name('unique.key', coalesce(p_key, p_idempotency_key));
    perform check_range('unique.within', p_window_ms, 1, 2592000000, ' ms');
end $$;
