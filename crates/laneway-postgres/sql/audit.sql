-- The record of what operators did. Written in the transaction that did it.
create or replace function record_audit(
    p_who text, p_reason text, p_action text, p_subject text, p_tasks bigint[], p_before jsonb, p_after jsonb
) returns void
language plpgsql as $$
begin
    insert into audit (at, who, reason, action, subject, tasks, before, after)
    values (clock(), p_who, p_reason, p_action, p_subject, p_tasks, p_before, p_after);
end $$;

-- One page, newest first, before the entry p_before.
create or replace function list_audit(p_before bigint, p_limit int)
returns table (id bigint, at timestamptz, who text, reason text, action text, subject text, tasks bigint[], before json, after json)
language sql
set search_path from current
as $$
    select a.id, a.at, a.who, a.reason, a.action, a.subject, a.tasks, a.before::json, a.after::json
    from audit a
    where a.id < coalesce(p_before, 9223372036854775807)
    order by a.id desc
    limit p_limit
$$;
