-- How far running attempts are.

-- Keeps what a session tells about tasks that run under its leases; anything else is passed over.
create or replace function report_progress(p_session uuid, p_tasks bigint[], p_leases bigint[], p_fractions float8[], p_notes text[]) returns void
language plpgsql
set search_path from current
as $$
begin
    insert into progress (task_id, lease_id, at, fraction, note)
    select distinct on (u.task) u.task, u.lease, clock(), u.fraction, u.note
    from unnest(p_tasks, p_leases, p_fractions, p_notes) with ordinality u(task, lease, fraction, note, place)
    cross join lateral (
        select
        from lease l
        where l.id = u.lease
          and l.session = p_session
          and u.task = any (l.task_ids)
          and not exists (select from settled s where s.lease_id = l.id and u.task = any (s.task_ids))
        offset 0
    ) l
    order by u.task, u.place desc
    on conflict (task_id) do update
    set lease_id = excluded.lease_id,
        at = excluded.at,
        fraction = excluded.fraction,
        note = excluded.note;
end $$;

-- What a task that runs has told under its present lease.
create or replace function progress_of(p_task bigint)
returns table (progress_fraction float8, progress_note text, progress_at timestamptz)
language sql stable strict
set search_path from current
as $$
    select p.fraction, p.note, p.at
    from progress p
    join lease l on l.id = p.lease_id
    where p.task_id = p_task
      and p_task = any (l.task_ids)
      and not exists (select from settled s where s.lease_id = l.id and p_task = any (s.task_ids))
$$;

-- Removes what leases that are gone have left.
create or replace function remove_old_progress(p_max int) returns void
language plpgsql
set search_path from current
as $$
begin
    delete from progress p
    where p.task_id in (
        select o.task_id from progress o where not exists (select from lease l where l.id = o.lease_id) limit p_max for update skip locked
    );
end $$;
