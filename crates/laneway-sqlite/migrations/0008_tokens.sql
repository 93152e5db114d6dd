-- Who may use the store over the network. The secret of a token is not here, only its SHA-256.
create table token (
    id integer primary key autoincrement,
    name text not null,
    scopes text not null check (scopes <> ''),   -- with commas between them
    hash blob not null check (length(hash) = 32),
    created_at integer not null,
    expires_at integer
) strict;
