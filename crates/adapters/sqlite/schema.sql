-- The schema after all migrations. Written by a test: run it with TASKLANE_BLESS=1 after adding a step.

CREATE TABLE attempt (
    key    INTEGER NOT NULL,
    number INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (key, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE child (
    parent     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    id         BLOB NOT NULL,
    key        INTEGER NOT NULL,
    PRIMARY KEY (parent, created_at, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE counts (
    queue INTEGER PRIMARY KEY,
    s0    INTEGER NOT NULL,
    s1    INTEGER NOT NULL,
    s2    INTEGER NOT NULL,
    s3    INTEGER NOT NULL,
    s4    INTEGER NOT NULL,
    s5    INTEGER NOT NULL,
    s6    INTEGER NOT NULL,
    s7    INTEGER NOT NULL
) STRICT;

CREATE TABLE document (
    kind      INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    id        TEXT NOT NULL,
    version   INTEGER NOT NULL,
    due       INTEGER,
    value     BLOB NOT NULL,
    PRIMARY KEY (kind, namespace, id)
) STRICT;

CREATE TABLE document_version (
    version INTEGER NOT NULL
) STRICT;

CREATE TABLE fired (
    schedule   TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    id         BLOB NOT NULL,
    key        INTEGER NOT NULL,
    PRIMARY KEY (schedule, created_at, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE inbox (
    key     INTEGER PRIMARY KEY,
    command BLOB NOT NULL
) STRICT;

CREATE TABLE lane (
    lane      INTEGER PRIMARY KEY,
    epoch     INTEGER NOT NULL,
    owner     BLOB,
    commit_no INTEGER NOT NULL,
    failures  INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    outcomes  BLOB NOT NULL
) STRICT;

CREATE TABLE log (
    task    BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    stream  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    bytes   BLOB NOT NULL,
    PRIMARY KEY (task, attempt, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE policy (
    queue    INTEGER PRIMARY KEY,
    version  INTEGER NOT NULL,
    revision INTEGER NOT NULL UNIQUE,
    policy   BLOB NOT NULL
) STRICT;

CREATE TABLE queue (
    queue     INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    binding   BLOB,
    UNIQUE (namespace, name)
) STRICT;

CREATE TABLE record (
    lane  INTEGER NOT NULL,
    kind  INTEGER NOT NULL,
    key   TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (lane, kind, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE result (
    key    INTEGER PRIMARY KEY,
    result BLOB NOT NULL
) STRICT;

CREATE TABLE spec (
    key                 INTEGER PRIMARY KEY,
    fingerprint_version INTEGER NOT NULL,
    fingerprint_hash    INTEGER NOT NULL,
    body_bytes          INTEGER NOT NULL,
    head                BLOB NOT NULL,
    body                BLOB NOT NULL
) STRICT;

CREATE TABLE task (
    key        INTEGER PRIMARY KEY,
    id         BLOB NOT NULL UNIQUE,
    queue      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    status     INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    place      BLOB,
    expiry     BLOB,
    state      BLOB NOT NULL
) STRICT;

CREATE TABLE unique_key (
    lane  INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    name  TEXT NOT NULL,
    until INTEGER,
    key   INTEGER NOT NULL,
    PRIMARY KEY (lane, queue, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX document_due ON document (kind, due, namespace, id) WHERE due IS NOT NULL;

CREATE INDEX task_created ON task (created_at, id, queue);

CREATE INDEX task_expiry ON task (expiry) WHERE expiry IS NOT NULL;

CREATE INDEX task_place ON task (place) WHERE place IS NOT NULL;

CREATE INDEX unique_key_task ON unique_key (key);
