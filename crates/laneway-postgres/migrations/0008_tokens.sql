-- Who may use the store over the network. The secret of a token is not here, only its SHA-256.
create table token (
    id         bigint generated always as identity primary key,
    name       text not null,
    scopes     text not null check (scopes <> ''),   -- with commas between them
    hash       bytea not null check (length(hash) = 32),
    created_at timestamptz not null,
    expires_at timestamptz
);
