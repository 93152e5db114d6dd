-- The change feed: which task entered which state. Written only while somebody watches; the one writer gives out the
-- numbers, so readers simply go by them.

create table watcher (
    id blob primary key,
    keep_us integer not null,
    until integer not null                   -- watched until then, unless the watcher reads before
) strict, without rowid;

create table change (
    seq integer primary key autoincrement,
    at integer not null,
    queue integer not null,
    state text not null,
    deleted integer not null check (deleted in (0, 1)),            -- 1: from that state, by an operator
    tasks text not null                      -- a JSON array of ids and kinds
) strict;

-- Up to which number changes were removed: whoever had not read so far has a gap.
insert into sequence (name, last) values ('change_trimmed', 0);
