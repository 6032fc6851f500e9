-- Finished tasks, for people and their tools: plain columns, no bytes of ours.
CREATE TABLE archived_task (
    id             uuid PRIMARY KEY,
    namespace      text NOT NULL,
    queue          text NOT NULL,
    type           text NOT NULL,
    -- NULL where the task had lost its data before it was archived, as in all that follows from its spec.
    name           text,
    priority       smallint NOT NULL,
    status         text NOT NULL,
    attempts       bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    scheduled_at   timestamptz,
    started_at     timestamptz,
    finished_at    timestamptz,
    worker         text,
    error_code     text,
    error_message  text,
    result_code    integer,
    result_message text,
    -- JSON as the executor answered it.
    result         text,
    payload        text,
    metadata       jsonb,
    request_id     text,
    parent         uuid,
    schedule       text,
    archived_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX archived_task_finished ON archived_task (finished_at);
CREATE INDEX archived_task_queue ON archived_task (namespace, queue, finished_at);
CREATE INDEX archived_task_parent ON archived_task (parent) WHERE parent IS NOT NULL;

CREATE TABLE archived_attempt (
    task          uuid NOT NULL,
    number        bigint NOT NULL,
    outcome       text,
    worker        text,
    session       uuid,
    scheduled_at  timestamptz NOT NULL,
    started_at    timestamptz,
    ended_at      timestamptz,
    error_code    text,
    error_message text,
    PRIMARY KEY (task, number)
);
