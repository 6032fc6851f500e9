//! The statements, with the names of one schema.

use crate::write_lane::LaneWrite;

macro_rules! statements {
    ($($name:ident: $sql:expr;)*) => {
        /// Every statement but those of migrations. `@` stands for the schema.
        #[derive(Debug)]
        pub(crate) struct Statements {
            pub(crate) write: String,
            $(pub(crate) $name: String,)*
        }

        impl Statements {
            /// For a schema whose name is quoted already.
            pub(crate) fn new(schema: &str) -> Self {
                let params: Vec<String> = (1..=LaneWrite::PARAMS).map(|n| format!("${n}")).collect();
                let write = format!("SELECT what, current, answer, base FROM {schema}.write_lane({})", params.join(", "));
                let prefix = format!("{schema}.");
                Self { write, $($name: $sql.replace('@', &prefix),)* }
            }
        }
    };
}

/// The columns of a `TaskRow`. `$1` is the largest body to read; the body of a stripped task is NULL.
macro_rules! task_columns {
    ($rest:literal) => {
        concat!(
            "SELECT t.key, t.id, t.state, t.head, CASE WHEN t.body_bytes <= $1 THEN t.body END AS body ",
            $rest
        )
    };
}

/// Tasks in the order of the list, from the end of the page before: rows that the filter may want in full, of
/// the others the position only. `$1` is the largest body to read, `$5` and `$6` the queues and states, NULL
/// for all.
macro_rules! list {
    ($condition:literal) => {
        concat!(
            "SELECT t.created_at, t.id, w.wanted, CASE WHEN w.wanted THEN t.key END, t.id,
                CASE WHEN w.wanted THEN t.state END, CASE WHEN w.wanted THEN t.head END,
                CASE WHEN w.wanted AND t.body_bytes <= $1 THEN t.body END
            FROM @task t CROSS JOIN LATERAL (
                SELECT ($5::integer[] IS NULL OR t.queue = ANY ($5))
                    AND ($6::integer[] IS NULL OR (t.version & 255)::integer = ANY ($6)) AS wanted) w
            WHERE t.created_at >= $2 AND (t.created_at, t.id) < ($3, $4)",
            $condition,
            " ORDER BY t.created_at DESC, t.id DESC LIMIT $7"
        )
    };
}

statements! {
    claim: "SELECT claimed, current FROM @claim_lane($1, $2, $3, $4)";
    post: "SELECT @post_commands($1, $2)";
    retire: "SELECT @retire_tasks($1, $2, $3)";
    queue_numbers: "SELECT @queue_numbers($1, $2)";
    bind: "SELECT @bind_queue($1, $2)";
    put_policy: "SELECT @put_policy($1, $2, $3)";

    lane_head: "SELECT epoch, owner, commit_no, failures FROM @lane WHERE lane = $1
        ORDER BY gen DESC LIMIT 1";
    facts: "SELECT id, version, queue, fixed FROM @task WHERE id = ANY ($1)";
    key_facts: "SELECT u.n, k.task, k.until, t.version, t.queue, t.fixed
        FROM unnest($2::integer[], $3::bytea[]) WITH ORDINALITY AS u(queue, name, n)
        JOIN @unique_key k ON k.lane = $1 AND k.queue = u.queue AND k.name = u.name
        LEFT JOIN @task t ON t.id = k.task";
    waiting_facts: "SELECT u.queue, @queue_waiting($1, u.queue) FROM unnest($2::integer[]) AS u(queue)";

    cursor: "SELECT last FROM @lane_seq WHERE lane = $1 ORDER BY gen DESC LIMIT 1";
    records: "SELECT kind, key, value FROM @record
        WHERE lane = $1 AND (kind, key) > ($2, $3) ORDER BY kind, key LIMIT $4";
    inbox: "SELECT key, command FROM @inbox WHERE key > $1 AND key <= $2 ORDER BY key LIMIT $3";
    in_flight: task_columns!("FROM @flight f JOIN @task t ON t.id = f.id
        WHERE f.id > $2 AND f.id <= $3 ORDER BY f.id LIMIT $4");
    places: task_columns!("FROM @place p JOIN @task t ON t.id = p.id
        WHERE p.place > $2 AND p.place < $3 ORDER BY p.place LIMIT $4");
    // From the first task of one line a single step leads to the next, however many tasks lie between.
    lines: concat!("WITH RECURSIVE first AS (
            (SELECT place, id, 1 AS n FROM @place WHERE place > $2 AND place < $3 ORDER BY place LIMIT 1)
            UNION ALL
            SELECT next.place, next.id, first.n + 1 FROM first CROSS JOIN LATERAL (
                SELECT p.place, p.id FROM @place p
                WHERE p.place > substring(first.place FROM 1 FOR 19) || '\\xff'::bytea AND p.place < $3
                ORDER BY p.place LIMIT 1) next
            WHERE first.n < $4) ",
        task_columns!("FROM first f JOIN @task t ON t.id = f.id ORDER BY f.place"));
    arrivals: "SELECT s.last, a.key, a.id, a.state, a.head, a.body, a.command
        FROM (SELECT last FROM @lane_seq WHERE lane = $2 ORDER BY gen DESC LIMIT 1) s LEFT JOIN LATERAL (
            SELECT * FROM (
                (SELECT t.key, t.id, t.state, t.head, CASE WHEN t.body_bytes <= $1 THEN t.body END AS body,
                        NULL::bytea AS command
                    FROM @task t WHERE t.key > $3 AND t.key <= $4 ORDER BY t.key LIMIT $5)
                UNION ALL
                (SELECT i.key, NULL, NULL, NULL, NULL, i.command
                    FROM @inbox i WHERE i.key > $3 AND i.key <= $4 ORDER BY i.key LIMIT $5)) b
            ORDER BY b.key LIMIT $5) a ON true
        ORDER BY a.key";
    tasks: task_columns!("FROM @task t WHERE t.id = ANY ($2)");
    policies: "SELECT r.last, p.revision, q.namespace, q.name, p.version, p.policy
        FROM (SELECT last FROM @policy_revision ORDER BY last DESC LIMIT 1) r LEFT JOIN (
            SELECT * FROM @policy WHERE revision > $1 ORDER BY revision LIMIT $2) p ON true
        LEFT JOIN @queue q ON q.queue = p.queue
        ORDER BY p.revision";

    policy: "SELECT p.version, p.policy FROM @queue q JOIN @policy p ON p.queue = q.queue
        WHERE q.namespace = $1 AND q.name = $2";
    views: "SELECT key, id, state, head, body, result FROM @task WHERE id = ANY ($1)";
    attempts: "SELECT record FROM @attempt WHERE id = $1 AND number > $2 ORDER BY number LIMIT $3";
    counts: "SELECT q.namespace, q.name, c.statuses, c.counts
        FROM @queue q CROSS JOIN LATERAL (
            SELECT sum(s.n) AS n, array_agg(s.status) AS statuses, array_agg(s.n) AS counts FROM (
                SELECT status, sum(n)::bigint AS n FROM @counts WHERE queue = q.queue GROUP BY status) s) c
        WHERE (q.namespace, q.name) > ($1, $2) AND c.n > 0
        ORDER BY q.namespace, q.name LIMIT $3";
    queues_of: "SELECT id, queue FROM @task WHERE id = ANY ($1)";
    queues_named: "SELECT queue FROM @queue WHERE ($1::text IS NULL OR namespace = $1) AND ($2::text IS NULL OR name = $2)";
    list: list!("");
    list_of_parent: list!(" AND t.parent = $8");
    list_of_schedule: list!(" AND t.schedule = $8");
    expired: "SELECT created_at, id, CASE WHEN version & 255 >= 5 THEN state END, body_bytes > 0
        FROM @task WHERE (created_at, id) > ($1, $2) AND created_at < $3 ORDER BY created_at, id LIMIT $4";

    put_documents: "SELECT @put_documents($1, $2, $3, $4, $5, $6)";
    documents: "SELECT u.n, d.version, d.due, d.value
        FROM unnest($1::smallint[], $2::text[], $3::text[]) WITH ORDINALITY AS u(kind, namespace, id, n)
        JOIN @document d ON d.kind = u.kind AND d.namespace = u.namespace AND d.id = u.id";
    documents_by_name: "SELECT namespace, id, version, due, value FROM @document
        WHERE kind = $1 AND namespace = $2 AND id > $3 ORDER BY id LIMIT $4";
    documents_by_time: "SELECT namespace, id, version, due, value FROM @document
        WHERE kind = $1 AND due <= $2 AND (due, namespace, id) > ($3, $4, $5)
        ORDER BY due, namespace, id LIMIT $6";

    archive: "WITH attempts AS (
            INSERT INTO @archived_attempt (task, created_at, number, outcome, worker, session, scheduled_at, started_at,
                    ended_at, error_code, error_message)
                SELECT u.task, e.epoch + u.created_at * e.unit, u.number, u.outcome, u.worker, u.session,
                    e.epoch + u.scheduled_at * e.unit, e.epoch + u.started_at * e.unit, e.epoch + u.ended_at * e.unit,
                    u.error_code, u.error_message
                FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::uuid[], $7::bigint[],
                        $8::bigint[], $9::bigint[], $10::text[], $11::text[])
                    AS u(task, created_at, number, outcome, worker, session, scheduled_at, started_at, ended_at,
                        error_code, error_message)
                CROSS JOIN (SELECT 'epoch'::timestamptz AS epoch, interval '1 microsecond' AS unit) e
                ORDER BY 1, 2, 3
                ON CONFLICT (task, created_at, number) DO NOTHING)
        INSERT INTO @archived_task (id, namespace, queue, type, name, priority, status, attempts, created_at,
                scheduled_at, started_at, finished_at, worker, error_code, error_message, result_code, result_message,
                result, payload, metadata, request_id, parent, schedule)
            SELECT u.id, u.namespace, u.queue, u.type, u.name, u.priority, u.status, u.attempts,
                e.epoch + u.created_at * e.unit, e.epoch + u.scheduled_at * e.unit, e.epoch + u.started_at * e.unit,
                e.epoch + u.finished_at * e.unit, u.worker, u.error_code, u.error_message, u.result_code,
                u.result_message, u.result, u.payload, u.metadata::jsonb, u.request_id, u.parent, u.schedule
            FROM unnest($12::uuid[], $13::text[], $14::text[], $15::text[], $16::text[], $17::smallint[], $18::text[],
                    $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[], $24::text[],
                    $25::text[], $26::text[], $27::integer[], $28::text[], $29::text[], $30::text[], $31::text[],
                    $32::text[], $33::uuid[], $34::text[])
                AS u(id, namespace, queue, type, name, priority, status, attempts, created_at, scheduled_at, started_at,
                    finished_at, worker, error_code, error_message, result_code, result_message, result, payload,
                    metadata, request_id, parent, schedule)
            CROSS JOIN (SELECT 'epoch'::timestamptz AS epoch, interval '1 microsecond' AS unit) e
            ORDER BY u.id, u.created_at
            ON CONFLICT (id, created_at) DO NOTHING";

    append_logs: "INSERT INTO @log (task, attempt, number, stream, at, bytes)
        SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::smallint[], $5::bigint[], $6::bytea[])
        ON CONFLICT (task, attempt, number) DO NOTHING";
    logs: "SELECT attempt, number, stream, at, bytes FROM @log
        WHERE task = $1 AND (attempt, number) > ($2, $3) ORDER BY attempt, number LIMIT $4";
    log_tail: "SELECT attempt, number, stream, at, bytes FROM @log
        WHERE task = $1 ORDER BY attempt DESC, number DESC LIMIT $2";
    remove_logs: "DELETE FROM @log WHERE ctid = ANY (ARRAY (SELECT ctid FROM @log WHERE task = ANY ($1) LIMIT $2))";
}
