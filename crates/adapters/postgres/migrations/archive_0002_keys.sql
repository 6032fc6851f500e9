-- The id of a task follows from its request id, which may be used again when the task is forgotten: what was created at
-- another time is another task. A server of the version before cannot write here any more; what ends there waits, and is
-- archived by whoever has its lane next.
ALTER TABLE archived_task DROP CONSTRAINT archived_task_pkey, ADD PRIMARY KEY (id, created_at);

-- When the task was created.
ALTER TABLE archived_attempt ADD COLUMN created_at timestamptz;
UPDATE archived_attempt SET created_at = t.created_at FROM archived_task t WHERE t.id = archived_attempt.task;
ALTER TABLE archived_attempt DROP CONSTRAINT archived_attempt_pkey, ADD PRIMARY KEY (task, created_at, number);
