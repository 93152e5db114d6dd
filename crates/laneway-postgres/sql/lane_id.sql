-- The id of a queue in the index for claims: a hash, so that enqueue needs no look-up. Numbers are compared faster than names, and take
-- the same space however long a name is. Of 64 bits: among a thousand queues two share one with a probability of 3e-14.
create or replace function queue_id(p_queue text) returns bigint
language sql immutable parallel safe as $$ select hashtextextended(p_queue, 0) $$;

-- The id of a lane: a hash, so that enqueue needs no look-up. Two keys with one hash would share a limit.
create or replace function lane_id(p_queue text, p_key text) returns bigint
language sql immutable parallel safe as $$
    select case
        when p_key is null then 0
        else coalesce(nullif(hashtextextended(p_key, hashtextextended(p_queue, 0)), 0), 1)
    end
$$;

-- The key of a lane that has tasks: the lane knows it, or the mark of its first task does.
create or replace function lane_key_of(p_queue text, p_lane bigint) returns text
language sql stable as $$
    select coalesce(
        (select l.key from lane l where l.id = p_lane),
        (select m.key from mark m where m.queue = p_queue and m.lane = p_lane limit 1)
    )
$$;

-- The limit of a lane that is given none. In a serial queue lanes are ours.
create or replace function new_lane_limit(p_queue text) returns int
language sql stable as $$
    select coalesce((select q.lane_limit from queue q where q.name = p_queue and q.serial is null), 1)
$$;

-- The key of a lane as users know it. Lanes of children begin with a character that no key can contain; those of serial queues
-- consist of one, and show as no lane.
create or replace function shown_lane(p_key text) returns text
language sql immutable parallel safe as $$ select nullif(ltrim(p_key, e'\x01\x02\x03'), '') $$;
