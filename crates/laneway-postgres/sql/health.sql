-- How the store is: versions, what tables take, and the oldest open transaction. Reads the server's statistics, no rows of ours.

create or replace function store_health()
returns table (name text, live bigint, dead bigint, bytes bigint, oldest_s float8, server text, version int)
language sql
set search_path from current
as $$
    select
        t.name, sum(t.live)::bigint, sum(t.dead)::bigint, sum(t.bytes)::bigint,
        -- Of other users' sessions the server tells only to those who may read all statistics.
        (select max(date_part('epoch', clock_timestamp() - a.xact_start)) from pg_stat_activity a where a.pid <> pg_backend_pid()),
        current_setting('server_version'),
        (select max(m.version) from migration m)
    from (
        select
            coalesce(p.relname, s.relname)::text as name, s.n_live_tup as live, s.n_dead_tup as dead, pg_total_relation_size(s.relid) as bytes
        from pg_stat_user_tables s
        left join pg_inherits i on i.inhrelid = s.relid
        left join pg_class p on p.oid = i.inhparent
        where s.schemaname = current_schema()
    ) t
    group by t.name
    order by 4 desc, 1
$$;
