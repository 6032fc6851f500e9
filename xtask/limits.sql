-- The leanest layouts that a task queue on SQLite could have, measured by `cargo xtask bench-limits`. Nothing can be found
-- in them but by key: no look-up by id, no list, no order of priority.

-- Unfinished tasks are found after a crash.
CREATE TABLE indexed (
    key    INTEGER PRIMARY KEY,
    status INTEGER NOT NULL,
    state  BLOB NOT NULL,
    spec   BLOB NOT NULL
) STRICT;
CREATE INDEX indexed_unfinished ON indexed (key) WHERE status < 5;

-- They are not: whoever takes over reads everything.
CREATE TABLE bare (
    key    INTEGER PRIMARY KEY,
    status INTEGER NOT NULL,
    state  BLOB NOT NULL,
    spec   BLOB NOT NULL
) STRICT;
