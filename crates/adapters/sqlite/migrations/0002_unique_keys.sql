-- The task that took a unique key last, and until when it holds it; NULL for until it has finished. The entry goes with
-- its task, and `unique_key_task` is how it is found then.
CREATE TABLE unique_key (
    lane  INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    name  TEXT NOT NULL,
    until INTEGER,
    key   INTEGER NOT NULL,
    PRIMARY KEY (lane, queue, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX unique_key_task ON unique_key (key);
