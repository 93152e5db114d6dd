-- The only source of time. Tests replace it to move the clock of their own database.
create or replace function clock() returns timestamptz
language sql volatile parallel safe as $$ select clock_timestamp() $$;
