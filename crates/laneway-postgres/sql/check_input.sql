-- The rules of laneway-core's validator for those who enqueue from SQL: same codes, same fields.
-- A refusal has SQLSTATE 22023, the sentence as message, `code` in its detail.
create or replace function refuse(p_code text, p_message text) returns void
language plpgsql as $$
begin
    raise exception using errcode = '22023', message = p_message, detail = 'code: ' || p_code;
end $$;

create or replace function check_name(p_field text, p_name text) returns void
language plpgsql immutable as $$
begin
    if p_name = '' then
        perform refuse('invalid_name', p_field || ' is empty; a name has 1 to 200 bytes');
    elsif octet_length(p_name) > 200 then
        perform refuse('invalid_name', format('%s has %s bytes; a name has 1 to 200', p_field, octet_length(p_name)));
    elsif p_name ~ '[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]' then
        perform refuse('invalid_name', p_field || ' contains a control character; remove it');
    elsif p_name <> btrim(p_name) then
        perform refuse('invalid_name', format('%s `%s` begins or ends with a space; remove it', p_field, p_name));
    end if;
end $$;

create or replace function check_range(p_field text, p_value numeric, p_low numeric, p_high numeric) returns void
language plpgsql immutable as $$
begin
    if p_value not between p_low and p_high then
        perform refuse('out_of_range', format('%s is %s; allowed is %s to %s', p_field, p_value, p_low, p_high));
    end if;
end $$;

create or replace function check_payload(p_payload text) returns void
language plpgsql immutable as $$
begin
    if p_payload is null then
        perform refuse('invalid_json', 'payload is null; send JSON, ''{}'' for none');
    elsif octet_length(p_payload) > 1048576 then
        perform refuse('payload_too_large', format('payload has %s bytes, the limit is 1048576; keep the data elsewhere and enqueue a reference', octet_length(p_payload)));
    elsif p_payload ~ '(?<!\\)(\\\\)*\\u0000' then
        perform refuse('nul_not_allowed', 'payload contains \u0000; a NUL cannot be stored, remove it');
    elsif octet_length(p_payload) >= 130 and jsonb_path_exists(p_payload::jsonb, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")') then
        perform refuse('payload_too_deep', 'payload is nested deeper than 64 levels; flatten it');
    elsif p_payload ~ '[0-9]{19}|[0-9][eE]\+?[0-9]{3}' and jsonb_path_exists(p_payload::jsonb,
        'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308 || (@ == @.floor() && (@ > 9223372036854775807 || @ < -9223372036854775808) && @ < 1e30 && @ > -1e30)))') then
        perform refuse('number_out_of_range', 'payload contains a number that fits neither a 64-bit integer nor a 64-bit float; send it as a string');
    end if;
    -- A lone surrogate is refused by PostgreSQL itself as soon as the text becomes jsonb.
    if p_payload ~* '\\ud[89a-f][0-9a-f]{2}' then
        perform p_payload::jsonb;
    end if;
exception when untranslatable_character or invalid_text_representation then
    perform refuse('invalid_unicode', 'payload contains half of a surrogate pair; send the whole character');
end $$;

create or replace function check_input(
    p_kind text, p_payload text, p_queue text, p_lane text, p_lane_limit int, p_priority int, p_delay interval,
    p_due_at timestamptz, p_max_attempts int, p_timeout interval, p_retry jsonb, p_tags text[]
) returns void
language plpgsql as $$
begin
    if p_kind is null or p_queue is null or p_priority is null or p_max_attempts is null then
        perform refuse('invalid_name', 'kind, queue, priority and max_attempts may not be null');
    end if;
    perform check_name('kind', p_kind);
    perform check_name('queue', p_queue);
    perform check_name('lane', p_lane);
    perform check_name('tag', tag) from unnest(p_tags) tag;
    perform check_payload(p_payload);
    perform check_range('priority', p_priority, -1000, 1000);
    perform check_range('max_attempts', p_max_attempts, 1, 1000);
    perform check_range('lane.limit', p_lane_limit, 1, 1000000);
    perform check_range('tags', cardinality(p_tags), 0, 32);
    perform check_range('timeout', (extract(epoch from p_timeout) * 1000)::bigint, 1, 2592000000);
    if p_delay < interval '0' then
        perform refuse('out_of_range', format('delay is %s seconds; a delay is not negative', extract(epoch from p_delay)));
    elsif p_delay > interval '5 years' then
        perform refuse('time_out_of_range', 'delay is over 5 years; a task may be scheduled up to 5 years ahead');
    elsif p_due_at < timestamptz '2000-01-01 00:00:00+00' or p_due_at > clock() + interval '5 years' then
        perform refuse('time_out_of_range', format('due is %s; allowed is from the year 2000 to 5 years ahead', p_due_at));
    end if;
    if p_retry is not null
       and coalesce(jsonb_typeof(p_retry -> 'exponential' -> 'first_ms') = 'number'
           and jsonb_typeof(p_retry -> 'exponential' -> 'cap_ms') = 'number'
           and jsonb_typeof(p_retry -> 'exponential' -> 'jitter_percent') = 'number', false) is false
       and coalesce(jsonb_typeof(p_retry -> 'list' -> 'delays_ms') = 'array'
           and jsonb_array_length(p_retry -> 'list' -> 'delays_ms') between 1 and 100, false) is false then
        perform refuse('out_of_range', 'retry is neither {"exponential": {"first_ms", "cap_ms", "jitter_percent"}} nor {"list": {"delays_ms": [1 to 100 delays]}}');
    end if;
end $$;
