-- No function is compiled at run time: the server's estimates of lists and of empty tables ask for it, and it takes seconds where the
-- statement takes a millisecond. Every function that is called from outside sets its search path, so those are the ones.
do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid
        from pg_proc p
        where p.pronamespace = current_schema()::regnamespace
          and exists (select from unnest(p.proconfig) c where c like 'search_path=%')
    loop
        execute format('alter routine %s set jit = off', v_function);
    end loop;
end $$;
