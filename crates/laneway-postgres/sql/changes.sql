-- The change feed. Writers append only while somebody watches; a watcher misses nothing that commits after it is ready.
--
-- It works like falling asleep (sleep.sql). A watcher announces itself and commits, then takes a transaction id of its own
-- as the fence: whoever gets an id later looks for watchers after that, sees this one and writes its changes. Once every
-- transaction below the fence has ended, the watcher is ready: it looks at the tasks as they are, and from then on reads
-- changes from the fence on.
--
-- A watcher that does not read for its time lapses, and is told that it has a gap. Writers go on for ten seconds longer,
-- so that no watcher is given up by a writer before it is given up by itself.

create or replace function is_watched() returns boolean
language plpgsql as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        return true;    -- the snapshot is as old as the transaction and cannot tell who watches now
    end if;
    return exists (select from watcher w where w.until > clock() - interval '10 seconds');
end $$;

create or replace function announce(p_state text, p_queue text, p_tasks bigint[], p_kinds text[]) returns void
language plpgsql as $$
begin
    insert into change (at, state, queue, task_ids, kinds) values (clock(), p_state, p_queue, p_tasks, p_kinds);
end $$;

-- A task that an operator has deleted, and the state in which it was.
create or replace function announce_deleted(p_state text, p_queue text, p_task bigint, p_kind text) returns void
language plpgsql as $$
begin
    insert into change (at, state, queue, task_ids, kinds, deleted) values (clock(), p_state, p_queue, array[p_task], array[p_kind], true);
end $$;

-- Tasks that were just written to `task` or `later`.
create or replace function announce_written(p_tasks bigint[]) returns void
language plpgsql as $$
begin
    insert into change (at, state, queue, task_ids, kinds)
    select clock(), w.state, w.queue, array_agg(w.id order by w.id), array_agg(w.kind order by w.id)
    from (
        select 'pending' as state, t.queue, t.id, t.kind from task t where t.id = any (p_tasks)
        union all
        select 'later', l.queue, l.id, l.kind from later l where l.id = any (p_tasks)
    ) w
    group by w.state, w.queue;
end $$;

-- Attempts that have ended, each in the state that its verdict says.
create or replace function announce_ends(p_ends ending[]) returns void
language plpgsql as $$
begin
    insert into change (at, state, queue, task_ids, kinds)
    select clock(), e.verdict, e.queue, array_agg(e.id), array_agg(e.kind)
    from unnest(p_ends) e
    group by e.verdict, e.queue;
end $$;

create or replace function watch(p_watcher uuid, p_keep_ms bigint) returns void
language plpgsql
set search_path from current
as $$
begin
    insert into watcher (id, keep_ms, until)
    values (p_watcher, p_keep_ms, clock() + p_keep_ms * interval '1 millisecond');
end $$;

create or replace function unwatch(p_watcher uuid) returns void
language plpgsql
set search_path from current
as $$
begin
    delete from watcher w where w.id = p_watcher;
end $$;

-- The changes behind (p_tx, p_seq), at most p_max rows, and a last row without tasks: the place to go on from, and whether
-- changes may have been missed.
create or replace function read_changes(p_watcher uuid, p_tx bigint, p_seq bigint, p_max int)
returns table (tx bigint, seq bigint, at timestamptz, state text, queue text, task_ids bigint[], kinds text[], deleted boolean, gap boolean)
language plpgsql
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_alive boolean;
    v_end   xid8;
    v_read  bigint;
    v_last  record;
begin
    update watcher w
    set until = clock() + w.keep_ms * interval '1 millisecond'
    where w.id = p_watcher
      and w.until > clock();
    v_alive := found;
    v_end := pg_snapshot_xmin(pg_current_snapshot());
    return query
        select c.tx::text::bigint, c.seq, c.at, c.state, c.queue, c.task_ids, c.kinds, c.deleted, false
        from change c
        where (c.tx, c.seq) > (p_tx::text::xid8, p_seq)
          and c.tx < v_end
        order by c.tx, c.seq
        limit p_max;
    get diagnostics v_read = row_count;
    tx := greatest(v_end::text::bigint, p_tx);
    seq := case when tx = p_tx then p_seq else 0 end;
    if v_read = p_max then
        select l.tx::text::bigint as tx, l.seq into v_last
        from (
            select c.tx, c.seq from change c where (c.tx, c.seq) > (p_tx::text::xid8, p_seq) and c.tx < v_end order by c.tx, c.seq limit p_max
        ) l
        order by l.tx desc, l.seq desc
        limit 1;
        tx := v_last.tx;
        seq := v_last.seq;
    end if;
    at := null;
    gap := not v_alive or exists (select from change_trimmed t where t.tx >= p_tx::text::xid8);
    return next;
end $$;

-- Removes changes that are older than any watcher may be slow, and watchers that have lapsed.
create or replace function trim_changes(p_max int) returns void
language plpgsql
set search_path from current
as $$
declare
    v_newest xid8;
begin
    delete from watcher w where w.until < clock() - interval '1 minute';
    with gone as (
        delete from change c
        where (c.tx, c.seq) in (
            select o.tx, o.seq
            from change o
            where o.at < clock() - interval '15 minutes'
            order by o.tx, o.seq
            limit p_max
        )
        returning c.tx
    )
    select g.tx into v_newest from gone g order by g.tx desc limit 1;
    update change_trimmed t set tx = v_newest where v_newest > t.tx;
end $$;
