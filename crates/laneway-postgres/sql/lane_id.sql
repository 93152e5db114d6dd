-- The id of a lane: a hash, so that enqueue needs no look-up. Two keys with one hash would share a limit.
create or replace function lane_id(p_queue text, p_key text) returns bigint
language sql immutable parallel safe as $$
    select case
        when p_key is null then 0
        else coalesce(nullif(hashtextextended(p_key, hashtextextended(p_queue, 0)), 0), 1)
    end
$$;
