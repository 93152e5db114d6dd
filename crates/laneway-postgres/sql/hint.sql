-- Tells sleeping workers of these queues that there may be work: the producer rule.
--
-- Every transaction that leaves claimable work behind which it does not take itself calls this after its last
-- write, in a statement of its own: the statement's snapshot is then younger than the transaction's id, and a
-- worker that announced its sleep too late to be seen here waits for that id to end (see sleep.sql). NOTIFY
-- serialises commits, so it is sent only when somebody sleeps; under load nobody does.
--
-- Payload: number told, queue, first eight digits of each session told or `*`, separated by tabs.
-- `set local laneway.hint = off` keeps it silent, as PREPARE TRANSACTION needs; the tasks wait for a poll.
create or replace function hint(p_queues text[]) returns void
language plpgsql as $$
declare
    v_channel text;
    v_payload text;
begin
    if current_setting('laneway.hint', true) = 'off' then
        return;
    end if;
    v_channel := 'laneway:' || current_schema();
    if current_setting('transaction_isolation') <> 'read committed' then
        -- The snapshot is as old as the transaction: it cannot tell who sleeps now.
        perform pg_notify(v_channel, '2' || e'\t' || named || e'\t*') from unnest(p_queues) named;
        return;
    end if;
    if not exists (select from sleeper s where s.queue = any (p_queues) and s.idle_until > clock()) then
        return;
    end if;
    for v_payload in
        select count(*) || e'\t' || named.queue || e'\t'
            || case when count(*) <= 12 then '*' else string_agg(named.short, ',') filter (where named.place <= 12) end
        from (
            select s.queue, left(s.session::text, 8) as short, row_number() over (partition by s.queue order by random()) as place
            from sleeper s
            where s.queue = any (p_queues)
              and s.idle_until > clock()
        ) named
        group by named.queue
    loop
        perform pg_notify(v_channel, v_payload);
    end loop;
end $$;

-- Tells the worker of a session that it has orders, so that it need not wait for its next renewal.
create or replace function hint_orders(p_session uuid) returns void
language plpgsql as $$
begin
    if coalesce(current_setting('laneway.hint', true), '') <> 'off' and p_session is not null then
        perform pg_notify('laneway:' || current_schema(), 'orders' || e'\t\t' || left(p_session::text, 8));
    end if;
end $$;
