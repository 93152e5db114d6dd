-- Tokens of the server. Whether one has expired is told by the database's clock.

create or replace function list_tokens(p_id bigint)
returns table (id bigint, name text, scopes text, hash bytea, created_at timestamptz, expires_at timestamptz, expired boolean)
language sql
set search_path from current
as $$
    select t.id, t.name, t.scopes, t.hash, t.created_at, t.expires_at, coalesce(t.expires_at <= clock(), false)
    from token t
    where p_id is null or t.id = p_id
    order by t.id
$$;

create or replace function create_token(p_who text, p_reason text, p_name text, p_scopes text, p_hash bytea, p_expires_at timestamptz)
returns table (id bigint, name text, scopes text, hash bytea, created_at timestamptz, expires_at timestamptz, expired boolean)
language plpgsql
set search_path from current
as $$
declare
    v_id bigint;
begin
    insert into token as t (name, scopes, hash, created_at, expires_at)
    values (p_name, p_scopes, p_hash, clock(), p_expires_at)
    returning t.id into v_id;
    perform record_audit(p_who, p_reason, 'create_token', 'token ' || v_id, '{}', null, token_shown(p_name, p_scopes));
    return query select * from list_tokens(v_id);
end $$;

create or replace function token_shown(p_name text, p_scopes text) returns jsonb
language sql immutable as $$
    select jsonb_build_object('name', p_name, 'scopes', p_scopes)
$$;

-- False when there is none.
create or replace function revoke_token(p_who text, p_reason text, p_id bigint) returns boolean
language plpgsql
set search_path from current
as $$
declare
    v_before jsonb;
begin
    delete from token t where t.id = p_id returning token_shown(t.name, t.scopes) into v_before;
    if v_before is null then
        return false;
    end if;
    perform record_audit(p_who, p_reason, 'revoke_token', 'token ' || p_id, '{}', v_before, null);
    return true;
end $$;
