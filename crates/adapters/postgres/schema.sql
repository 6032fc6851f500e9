-- The schema after all migrations, that of the archive included. Written by a test: run it with TASKLANE_BLESS=1 after adding a step.

CREATE FUNCTION add_counts(p_lane integer, p_queue integer[], p_side smallint[], p_status smallint[], p_n bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_found bigint;
BEGIN
    UPDATE counts c SET n = c.n + u.n, writes = c.writes + 1, gen = (c.writes + 1) / 64
        FROM unnest(p_queue, p_side, p_status, p_n) AS u(queue, side, status, n)
        CROSS JOIN LATERAL (
            SELECT k.ctid AS at FROM counts k
            WHERE k.queue = u.queue AND k.lane = p_lane AND k.side = u.side AND k.status = u.status
            ORDER BY k.gen DESC LIMIT 1) newest
        WHERE c.ctid = newest.at;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    IF v_found < cardinality(p_queue) THEN
        INSERT INTO counts (queue, lane, side, status, gen, n, writes)
            SELECT u.queue, p_lane, u.side, u.status, 0, u.n, 0
            FROM unnest(p_queue, p_side, p_status, p_n) AS u(queue, side, status, n)
            WHERE NOT EXISTS (
                SELECT FROM counts k
                WHERE k.queue = u.queue AND k.lane = p_lane AND k.side = u.side AND k.status = u.status);
    END IF;
END
$$;

CREATE FUNCTION bind_queue(p_queue integer, p_binding bytea) RETURNS bytea
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
DECLARE
    v_binding bytea;
BEGIN
    UPDATE queue q SET binding = p_binding WHERE q.queue = p_queue AND q.binding IS NULL;
    SELECT q.binding INTO v_binding FROM queue q WHERE q.queue = p_queue;
    RETURN v_binding;
END
$$;

CREATE FUNCTION claim_lane(p_lane integer, p_owner uuid, p_seen bigint, p_failures bigint, OUT claimed bigint, OUT current bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
DECLARE
    v_gen bigint;
    v_owner uuid;
    v_commit bigint;
BEGIN
    SELECT l.gen, l.epoch, l.owner, l.commit_no INTO v_gen, current, v_owner, v_commit
        FROM lane l WHERE l.lane = p_lane ORDER BY l.gen DESC LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        -- Made by one at a time.
        PERFORM pg_advisory_xact_lock('lane'::regclass::oid::integer, p_lane);
        INSERT INTO lane SELECT p_lane, 0, 0, NULL, 0, 0, '', 0
            WHERE NOT EXISTS (SELECT FROM lane l WHERE l.lane = p_lane);
        SELECT l.gen, l.epoch, l.owner, l.commit_no INTO v_gen, current, v_owner, v_commit
            FROM lane l WHERE l.lane = p_lane ORDER BY l.gen DESC LIMIT 1 FOR UPDATE;
    END IF;
    IF current = p_seen THEN
        UPDATE lane l SET epoch = p_seen + 1, owner = p_owner, commit_no = 0, failures = p_failures,
                outcomes = '', base = 0, gen = l.gen + 1
            WHERE l.lane = p_lane AND l.gen = v_gen;
        claimed := p_seen + 1;
    ELSIF current = p_seen + 1 AND v_owner = p_owner AND v_commit = 0 THEN
        claimed := current;
    END IF;
END
$$;

CREATE FUNCTION grant_acquire(p_session uuid, p_secret uuid, p_lane integer, p_channel text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
BEGIN
    PERFORM 1 FROM members FOR UPDATE;
    PERFORM 1 FROM session WHERE session = p_session AND secret = p_secret;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO lane_grant VALUES (p_lane, p_session) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM members_changed(p_channel);
        RETURN true;
    END IF;
    RETURN (SELECT session = p_session FROM lane_grant WHERE lane = p_lane);
END
$$;

CREATE FUNCTION grant_release(p_session uuid, p_secret uuid, p_lane integer, p_channel text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
BEGIN
    PERFORM 1 FROM members FOR UPDATE;
    PERFORM 1 FROM session WHERE session = p_session AND secret = p_secret;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM lane_grant WHERE lane = p_lane AND session = p_session;
    IF FOUND THEN
        PERFORM members_changed(p_channel);
    END IF;
    RETURN true;
END
$$;

CREATE FUNCTION lock_counter(p_lane integer, OUT last bigint, OUT gen bigint, OUT writes bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    SET enable_seqscan TO 'off'
    AS $$
BEGIN
    SELECT s.last, s.gen, s.writes INTO last, gen, writes
        FROM lane_seq s WHERE s.lane = p_lane ORDER BY s.gen DESC LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM pg_advisory_xact_lock('lane_seq'::regclass::oid::integer, p_lane);
        INSERT INTO lane_seq SELECT p_lane, 0, 0, 0
            WHERE NOT EXISTS (SELECT FROM lane_seq s WHERE s.lane = p_lane);
        SELECT s.last, s.gen, s.writes INTO last, gen, writes
            FROM lane_seq s WHERE s.lane = p_lane ORDER BY s.gen DESC LIMIT 1 FOR UPDATE;
    END IF;
END
$$;

CREATE FUNCTION members_changed(p_channel text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
DECLARE
    v_revision bigint;
BEGIN
    UPDATE members SET revision = revision + 1 RETURNING revision INTO v_revision;
    PERFORM pg_notify(p_channel, v_revision::text);
    RETURN v_revision;
END
$$;

CREATE FUNCTION members_raise(p_above bigint, p_channel text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
BEGIN
    UPDATE members SET revision = greatest(revision, p_above);
    PERFORM members_changed(p_channel);
END
$$;

CREATE FUNCTION post_commands(p_lane integer, p_commands bytea[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
DECLARE
    v_counter record := lock_counter(p_lane);
BEGIN
    UPDATE lane_seq s SET last = s.last + cardinality(p_commands), writes = s.writes + 1, gen = (s.writes + 1) / 64
        WHERE s.lane = p_lane AND s.gen = v_counter.gen;
    INSERT INTO inbox (key, command)
        SELECT (p_lane::bigint << 48) + v_counter.last + u.n, u.command
        FROM unnest(p_commands) WITH ORDINALITY AS u(command, n);
END
$$;

CREATE FUNCTION put_documents(p_kind smallint[], p_namespace text[], p_id text[], p_expected bigint[], p_due bigint[], p_value bytea[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    SET jit TO 'off'
    AS $$
DECLARE
    v_first bigint;
    v_last bigint;
    v_version bigint;
    v_answers bigint[] := '{}';
    u record;
BEGIN
    -- Locked until all is visible: puts are done one after the other, and no version is given twice.
    SELECT v.version INTO v_first FROM document_version v ORDER BY v.version DESC LIMIT 1 FOR UPDATE;
    v_last := v_first;
    FOR u IN
        SELECT * FROM unnest(p_kind, p_namespace, p_id, p_expected, p_due, p_value)
            AS u(kind, namespace, id, expected, due, value)
    LOOP
        SELECT d.version INTO v_version
            FROM document d WHERE d.kind = u.kind AND d.namespace = u.namespace AND d.id = u.id;
        v_version := coalesce(v_version, 0);
        IF v_version <> u.expected THEN
            v_answers := v_answers || -v_version;
            CONTINUE;
        END IF;
        v_last := v_last + 1;
        v_answers := v_answers || v_last;
        IF u.value IS NULL THEN
            DELETE FROM document d WHERE d.kind = u.kind AND d.namespace = u.namespace AND d.id = u.id;
        ELSE
            INSERT INTO document (kind, namespace, id, version, due, value)
                VALUES (u.kind, u.namespace, u.id, v_last, u.due, u.value)
                ON CONFLICT (kind, namespace, id) DO UPDATE SET
                    version = excluded.version, due = excluded.due, value = excluded.value;
        END IF;
    END LOOP;
    UPDATE document_version v SET version = v_last WHERE v.version = v_first;
    RETURN v_answers;
END
$$;

CREATE FUNCTION put_policy(p_queue integer, p_expected bigint, p_policy bytea) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    SET jit TO 'off'
    AS $$
DECLARE
    v_revision bigint;
    v_version bigint;
BEGIN
    -- Locked until the change is visible, so revisions become visible in their order.
    SELECT r.last + 1 INTO v_revision FROM policy_revision r ORDER BY r.last DESC LIMIT 1 FOR UPDATE;
    SELECT p.version INTO v_version FROM policy p WHERE p.queue = p_queue;
    v_version := coalesce(v_version, 0);
    IF v_version <> p_expected THEN
        RETURN v_version;
    END IF;
    UPDATE policy_revision r SET last = v_revision WHERE r.last = v_revision - 1;
    INSERT INTO policy (queue, version, revision, policy) VALUES (p_queue, v_version + 1, v_revision, p_policy)
        ON CONFLICT (queue) DO UPDATE SET version = excluded.version, revision = excluded.revision,
            policy = excluded.policy;
    RETURN NULL;
END
$$;

CREATE FUNCTION queue_numbers(p_namespace text[], p_name text[]) RETURNS integer[]
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
BEGIN
    -- Sorted, so that two of these cannot wait for each other.
    INSERT INTO queue (namespace, name)
        SELECT u.namespace, u.name FROM unnest(p_namespace, p_name) AS u(namespace, name)
        WHERE NOT EXISTS (SELECT FROM queue q WHERE q.namespace = u.namespace AND q.name = u.name)
        ORDER BY u.namespace COLLATE "C", u.name COLLATE "C"
        ON CONFLICT (namespace, name) DO NOTHING;
    RETURN (
        SELECT array_agg(q.queue ORDER BY u.n)
        FROM unnest(p_namespace, p_name) WITH ORDINALITY AS u(namespace, name, n)
        JOIN queue q ON q.namespace = u.namespace AND q.name = u.name);
END
$$;

CREATE FUNCTION queue_waiting(p_lane integer, p_queue integer) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'tasklane'
    SET enable_seqscan TO 'off'
    AS $$
    SELECT coalesce(sum(newest.n), 0)::bigint
    FROM (VALUES (0, 0), (0, 4), (1, 0), (1, 4)) AS v(side, status)
    CROSS JOIN LATERAL (
        SELECT c.n FROM counts c
        WHERE c.queue = p_queue AND c.lane = p_lane AND c.side = v.side AND c.status = v.status
        ORDER BY c.gen DESC LIMIT 1) newest
$$;

CREATE FUNCTION retire_tasks(p_lane integer, p_id uuid[], p_forget boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_id uuid[];
    v_queue integer[];
    v_side smallint[];
    v_status smallint[];
    v_n bigint[];
BEGIN
    PERFORM lock_counter(p_lane);
    SELECT array_agg(t.id) INTO v_id
        FROM task t WHERE t.id = ANY (p_id) AND t.version & 255 >= 5 AND (p_forget OR t.body_bytes > 0);
    IF v_id IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM attempt a WHERE a.id = ANY (v_id);
    IF NOT p_forget THEN
        UPDATE task t SET body = NULL, body_bytes = 0, result = NULL, parent = NULL, schedule = NULL
            WHERE t.id = ANY (v_id);
        RETURN;
    END IF;
    DELETE FROM unique_key k WHERE k.task = ANY (v_id);
    WITH gone AS (
        DELETE FROM task t WHERE t.id = ANY (v_id) RETURNING t.queue, (t.version & 255)::smallint AS status
    ), sums AS (
        SELECT g.queue, g.status, -count(*) AS n FROM gone g GROUP BY g.queue, g.status
    )
    SELECT array_agg(s.queue), array_agg(s.status), array_agg(s.n), array_agg(0::smallint)
        INTO v_queue, v_status, v_n, v_side
        FROM sums s;
    PERFORM add_counts(p_lane, v_queue, v_side, v_status, v_n);
END
$$;

CREATE FUNCTION session_close(p_session uuid, p_secret uuid, p_channel text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
BEGIN
    PERFORM 1 FROM members FOR UPDATE;
    DELETE FROM session WHERE session = p_session AND secret = p_secret;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM session_gone(p_session, p_channel);
    RETURN true;
END
$$;

CREATE FUNCTION session_end(p_session uuid[], p_renewals bigint[], p_channel text) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
DECLARE
    v_ended integer := 0;
BEGIN
    PERFORM 1 FROM members FOR UPDATE;
    FOR i IN 1 .. cardinality(p_session) LOOP
        -- Waits for a renewal that is under way, and then looks again.
        DELETE FROM session WHERE session = p_session[i] AND renewals = p_renewals[i];
        IF FOUND THEN
            PERFORM session_gone(p_session[i], p_channel);
            v_ended := v_ended + 1;
        END IF;
    END LOOP;
    RETURN v_ended;
END
$$;

CREATE FUNCTION session_gone(p_session uuid, p_channel text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
DECLARE
    v_revision bigint;
BEGIN
    DELETE FROM lane_grant WHERE session = p_session;
    v_revision := members_changed(p_channel);
    INSERT INTO session_used VALUES (p_session, v_revision);
    DELETE FROM session_used WHERE revision < v_revision - 4096;
END
$$;

CREATE FUNCTION session_open(p_session uuid, p_secret uuid, p_ttl bigint, p_role bytea, p_channel text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
BEGIN
    PERFORM 1 FROM members FOR UPDATE;
    IF EXISTS (SELECT 1 FROM session WHERE session = p_session)
        OR EXISTS (SELECT 1 FROM session_used WHERE session = p_session) THEN
        RETURN false;
    END IF;
    INSERT INTO session VALUES (p_session, p_secret, 0, p_ttl, false, p_role);
    PERFORM members_changed(p_channel);
    RETURN true;
END
$$;

CREATE FUNCTION session_update(p_session uuid, p_secret uuid, p_role bytea, p_channel text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    AS $$
DECLARE
    v_role bytea;
BEGIN
    PERFORM 1 FROM members FOR UPDATE;
    SELECT role INTO v_role FROM session WHERE session = p_session AND secret = p_secret;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF v_role <> p_role THEN
        UPDATE session SET role = p_role WHERE session = p_session;
        PERFORM members_changed(p_channel);
    END IF;
    RETURN true;
END
$$;

CREATE FUNCTION write_lane(p_lane integer, p_epoch bigint, p_owner uuid, p_number bigint, p_outcomes bytea, p_key_queue integer[], p_key_name bytea[], p_key_created bigint[], p_key_allowed uuid[], p_len_queue integer[], p_len_below bigint[], p_change_id uuid[], p_change_expected bigint[], p_change_version bigint[], p_change_state bytea[], p_change_result bytea[], p_change_place bytea[], p_change_expiry bytea[], p_from_waiting uuid[], p_to_waiting uuid[], p_from_flight uuid[], p_to_flight uuid[], p_attempt_id uuid[], p_attempt_number bigint[], p_attempt_record bytea[], p_done bigint[], p_record_kind smallint[], p_record_key bytea[], p_record_value bytea[], p_new_id uuid[], p_new_created bigint[], p_new_queue integer[], p_new_body_bytes integer[], p_new_fixed bytea[], p_new_head bytea[], p_new_body bytea[], p_new_version bigint[], p_new_state bytea[], p_new_parent uuid[], p_new_schedule bytea[], p_new_result bytea[], p_new_place bytea[], p_new_expiry bytea[], p_take_queue integer[], p_take_name bytea[], p_take_until bigint[], p_take_task uuid[], p_count_queue integer[], p_count_side smallint[], p_count_status smallint[], p_count_n bigint[], OUT what integer, OUT current bigint, OUT answer bytea, OUT base bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'tasklane'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_owner uuid;
    v_commit bigint;
    v_gen bigint;
    v_counter record;
    v_new integer := cardinality(p_new_id);
    v_key bigint;
    v_places bytea[];
    v_changed bigint;
BEGIN
    IF p_epoch IS NOT NULL THEN
        SELECT l.gen, l.epoch, l.owner, l.commit_no, CASE WHEN l.commit_no = p_number THEN l.outcomes END, l.base
            INTO v_gen, current, v_owner, v_commit, answer, base
            FROM lane l WHERE l.lane = p_lane ORDER BY l.gen DESC LIMIT 1 FOR UPDATE;
        IF current IS DISTINCT FROM p_epoch OR v_owner IS DISTINCT FROM p_owner THEN
            what := 2;
            current := coalesce(current, 0);
            RETURN;
        END IF;
        IF v_commit = p_number AND v_commit > 0 THEN
            what := 1;
            RETURN;
        END IF;
        IF v_commit + 1 <> p_number THEN
            what := 3;
            current := v_commit;
            RETURN;
        END IF;
    END IF;

    IF v_new > 0 THEN
        v_counter := lock_counter(p_lane);
        base := v_counter.last;
        what := 4;
        PERFORM FROM task t WHERE t.id = ANY (p_new_id) LIMIT 1;
        IF FOUND THEN
            RETURN;
        END IF;
        IF cardinality(p_key_queue) > 0 THEN
            PERFORM FROM unnest(p_key_queue, p_key_name, p_key_created, p_key_allowed)
                    AS u(queue, name, created, allowed)
                JOIN unique_key k ON k.lane = p_lane AND k.queue = u.queue AND k.name = u.name
                LEFT JOIN task t ON t.id = k.task
                WHERE k.task IS DISTINCT FROM u.allowed
                    AND CASE WHEN k.until IS NULL THEN t.version & 255 < 5 ELSE k.until > u.created END
                LIMIT 1;
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
        IF cardinality(p_len_queue) > 0 THEN
            PERFORM FROM unnest(p_len_queue, p_len_below) AS u(queue, below)
                WHERE queue_waiting(p_lane, u.queue) >= u.below
                LIMIT 1;
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
    END IF;
    what := 0;

    IF cardinality(p_from_waiting) > 0 THEN
        SELECT array_agg(p.place) INTO v_places
            FROM unnest(p_from_waiting) AS u(id)
            JOIN task t ON t.id = u.id
            CROSS JOIN LATERAL (VALUES (t.place), (t.expiry)) AS p(place)
            WHERE p.place IS NOT NULL;
        DELETE FROM place p WHERE p.place = ANY (v_places);
    END IF;
    IF cardinality(p_from_flight) > 0 THEN
        DELETE FROM flight f WHERE f.id = ANY (p_from_flight);
    END IF;

    IF cardinality(p_change_id) > 0 THEN
        UPDATE task t SET
            version = u.version,
            state = u.state,
            result = coalesce(u.result, t.result),
            place = CASE
                WHEN u.place IS NULL THEN NULL
                WHEN length(u.place) = 8 THEN
                    substring(int8send(t.key) FROM 1 FOR 2) || '\x00' || substring(t.fixed FROM 10) || u.place
                        || int8send(t.key & 281474976710655)
                ELSE u.place || int8send(t.key & 281474976710655)
            END,
            expiry = CASE WHEN u.expiry IS NOT NULL THEN u.expiry || int8send(t.key & 281474976710655) END
            FROM unnest(p_change_id, p_change_expected, p_change_version, p_change_state, p_change_result,
                    p_change_place, p_change_expiry)
                AS u(id, expected, version, state, result, place, expiry)
            WHERE t.id = u.id AND t.version = u.expected;
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        IF v_changed <> cardinality(p_change_id) THEN
            RAISE EXCEPTION 'a task is not as expected' USING ERRCODE = 'TL001';
        END IF;
        IF cardinality(p_to_waiting) > 0 THEN
            INSERT INTO place (place, id)
                SELECT p.place, t.id
                FROM unnest(p_to_waiting) AS u(id)
                JOIN task t ON t.id = u.id
                CROSS JOIN LATERAL (VALUES (t.place), (t.expiry)) AS p(place)
                WHERE p.place IS NOT NULL;
        END IF;
    END IF;

    IF v_new > 0 THEN
        v_key := (p_lane::bigint << 48) + base;
        INSERT INTO task (key, created_at, id, queue, body_bytes, parent, schedule, fixed, head, body, version, state,
                result, place, expiry)
            SELECT v_key + u.n, u.created, u.id, u.queue, u.body_bytes, u.parent, u.schedule, u.fixed, u.head, u.body,
                u.version, u.state, u.result,
                CASE WHEN u.place IS NOT NULL THEN u.place || int8send(base + u.n) END,
                CASE WHEN u.expiry IS NOT NULL THEN u.expiry || int8send(base + u.n) END
            FROM unnest(p_new_id, p_new_created, p_new_queue, p_new_body_bytes, p_new_fixed, p_new_head, p_new_body,
                    p_new_version, p_new_state, p_new_parent, p_new_schedule, p_new_result, p_new_place,
                    p_new_expiry)
                WITH ORDINALITY
                AS u(id, created, queue, body_bytes, fixed, head, body, version, state, parent, schedule, result, place,
                    expiry, n);
        IF cardinality(p_new_place) > 0 THEN
            INSERT INTO place (place, id)
                SELECT p.place || int8send(base + u.n), u.id
                FROM unnest(p_new_id, p_new_place, p_new_expiry) WITH ORDINALITY AS u(id, place, expiry, n)
                CROSS JOIN LATERAL (VALUES (u.place), (u.expiry)) AS p(place)
                WHERE p.place IS NOT NULL;
        END IF;
        IF cardinality(p_take_queue) > 0 THEN
            INSERT INTO unique_key (lane, queue, name, until, task)
                SELECT p_lane, u.queue, u.name, u.until, u.task
                FROM unnest(p_take_queue, p_take_name, p_take_until, p_take_task) AS u(queue, name, until, task)
                ON CONFLICT (lane, queue, name) DO UPDATE SET until = excluded.until, task = excluded.task;
        END IF;
        UPDATE lane_seq s SET last = base + v_new, writes = s.writes + 1, gen = (s.writes + 1) / 64
            WHERE s.lane = p_lane AND s.gen = v_counter.gen;
    END IF;

    IF cardinality(p_count_queue) > 0 THEN
        PERFORM add_counts(p_lane, p_count_queue, p_count_side, p_count_status, p_count_n);
    END IF;
    IF cardinality(p_to_flight) > 0 THEN
        INSERT INTO flight (id) SELECT unnest(p_to_flight);
    END IF;
    IF cardinality(p_attempt_id) > 0 THEN
        INSERT INTO attempt (id, number, record)
            SELECT u.id, u.number, u.record
            FROM unnest(p_attempt_id, p_attempt_number, p_attempt_record) AS u(id, number, record)
            ON CONFLICT (id, number) DO UPDATE SET record = excluded.record;
    END IF;
    IF cardinality(p_done) > 0 THEN
        DELETE FROM inbox i WHERE i.key = ANY (p_done);
    END IF;
    IF cardinality(p_record_kind) > 0 THEN
        DELETE FROM record r
            USING unnest(p_record_kind, p_record_key, p_record_value) AS u(kind, key, value)
            WHERE u.value IS NULL AND r.lane = p_lane AND r.kind = u.kind AND r.key = u.key;
        INSERT INTO record (lane, kind, key, value)
            SELECT p_lane, u.kind, u.key, u.value
            FROM unnest(p_record_kind, p_record_key, p_record_value) AS u(kind, key, value)
            WHERE u.value IS NOT NULL
            ON CONFLICT (lane, kind, key) DO UPDATE SET value = excluded.value;
    END IF;

    IF p_epoch IS NOT NULL THEN
        base := coalesce(base, 0);
        UPDATE lane l SET commit_no = p_number, outcomes = p_outcomes, base = write_lane.base,
                gen = l.gen + (p_number % 64 = 0)::integer
            WHERE l.lane = p_lane AND l.gen = v_gen;
    END IF;
END
$$;

CREATE TABLE archive_version (
    version integer NOT NULL
);

CREATE TABLE archived_attempt (
    task uuid NOT NULL,
    number bigint NOT NULL,
    outcome text,
    worker text,
    session uuid,
    scheduled_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    error_code text,
    error_message text,
    created_at timestamp with time zone NOT NULL
);

CREATE TABLE archived_task (
    id uuid NOT NULL,
    namespace text NOT NULL,
    queue text NOT NULL,
    type text NOT NULL,
    name text,
    priority smallint NOT NULL,
    status text NOT NULL,
    attempts bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    scheduled_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    worker text,
    error_code text,
    error_message text,
    result_code integer,
    result_message text,
    result text,
    payload text,
    metadata jsonb,
    request_id text,
    parent uuid,
    schedule text,
    archived_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE attempt (
    id uuid NOT NULL,
    number bigint NOT NULL,
    record bytea NOT NULL
);

CREATE TABLE counts (
    queue integer NOT NULL,
    lane integer NOT NULL,
    side smallint NOT NULL,
    status smallint NOT NULL,
    gen bigint NOT NULL,
    n bigint NOT NULL,
    writes bigint NOT NULL
)
WITH (fillfactor='10', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE document (
    kind smallint NOT NULL,
    namespace text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    due bigint,
    value bytea NOT NULL
);

CREATE TABLE document_version (
    version bigint NOT NULL
);

CREATE TABLE flight (
    id uuid NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE inbox (
    key bigint NOT NULL,
    command bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE lane (
    lane integer NOT NULL,
    gen bigint NOT NULL,
    epoch bigint NOT NULL,
    owner uuid,
    commit_no bigint NOT NULL,
    failures bigint NOT NULL,
    outcomes bytea NOT NULL,
    base bigint NOT NULL
)
WITH (fillfactor='10', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE lane_grant (
    lane integer NOT NULL,
    session uuid NOT NULL
);

CREATE TABLE lane_seq (
    lane integer NOT NULL,
    gen bigint NOT NULL,
    last bigint NOT NULL,
    writes bigint NOT NULL
)
WITH (fillfactor='10', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE log (
    task uuid NOT NULL,
    attempt bigint NOT NULL,
    number bigint NOT NULL,
    stream smallint NOT NULL,
    at bigint NOT NULL,
    bytes bytea NOT NULL
);

CREATE TABLE members (
    revision bigint NOT NULL
)
WITH (fillfactor='10');

CREATE TABLE place (
    place bytea NOT NULL,
    id uuid NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE policy (
    queue integer NOT NULL,
    version bigint NOT NULL,
    revision bigint NOT NULL,
    policy bytea NOT NULL
);

CREATE TABLE policy_revision (
    last bigint NOT NULL
);

CREATE TABLE queue (
    queue integer NOT NULL,
    namespace text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    binding bytea
);

ALTER TABLE queue ALTER COLUMN queue ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME queue_queue_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE record (
    lane integer NOT NULL,
    kind smallint NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE schema_version (
    version integer NOT NULL
);

CREATE TABLE session (
    session uuid NOT NULL,
    secret uuid NOT NULL,
    renewals bigint NOT NULL,
    ttl bigint NOT NULL,
    revoked boolean NOT NULL,
    role bytea NOT NULL
)
WITH (fillfactor='10');

CREATE TABLE session_used (
    session uuid NOT NULL,
    revision bigint NOT NULL
);

CREATE TABLE task (
    key bigint NOT NULL,
    created_at bigint NOT NULL,
    id uuid NOT NULL,
    queue integer NOT NULL,
    body_bytes integer NOT NULL,
    parent uuid,
    schedule bytea,
    fixed bytea NOT NULL,
    head bytea NOT NULL,
    body bytea,
    version bigint NOT NULL,
    state bytea NOT NULL,
    result bytea,
    place bytea,
    expiry bytea
)
WITH (fillfactor='50');

CREATE TABLE unique_key (
    lane integer NOT NULL,
    queue integer NOT NULL,
    name bytea NOT NULL,
    until bigint,
    task uuid NOT NULL
);

ALTER TABLE ONLY archived_attempt
    ADD CONSTRAINT archived_attempt_pkey PRIMARY KEY (task, created_at, number);

ALTER TABLE ONLY archived_task
    ADD CONSTRAINT archived_task_pkey PRIMARY KEY (id, created_at);

ALTER TABLE ONLY attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (id, number);

ALTER TABLE ONLY counts
    ADD CONSTRAINT counts_pkey PRIMARY KEY (queue, lane, side, status, gen);

ALTER TABLE ONLY document
    ADD CONSTRAINT document_pkey PRIMARY KEY (kind, namespace, id);

ALTER TABLE ONLY document_version
    ADD CONSTRAINT document_version_pkey PRIMARY KEY (version);

ALTER TABLE ONLY flight
    ADD CONSTRAINT flight_pkey PRIMARY KEY (id);

ALTER TABLE ONLY inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (key);

ALTER TABLE ONLY lane_grant
    ADD CONSTRAINT lane_grant_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (lane, gen);

ALTER TABLE ONLY lane_seq
    ADD CONSTRAINT lane_seq_pkey PRIMARY KEY (lane, gen);

ALTER TABLE ONLY log
    ADD CONSTRAINT log_pkey PRIMARY KEY (task, attempt, number);

ALTER TABLE ONLY place
    ADD CONSTRAINT place_pkey PRIMARY KEY (place);

ALTER TABLE ONLY policy
    ADD CONSTRAINT policy_pkey PRIMARY KEY (queue);

ALTER TABLE ONLY policy
    ADD CONSTRAINT policy_revision_key UNIQUE (revision);

ALTER TABLE ONLY policy_revision
    ADD CONSTRAINT policy_revision_pkey PRIMARY KEY (last);

ALTER TABLE ONLY queue
    ADD CONSTRAINT queue_namespace_name_key UNIQUE (namespace, name);

ALTER TABLE ONLY queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (queue);

ALTER TABLE ONLY record
    ADD CONSTRAINT record_pkey PRIMARY KEY (lane, kind, key);

ALTER TABLE ONLY session
    ADD CONSTRAINT session_pkey PRIMARY KEY (session);

ALTER TABLE ONLY session_used
    ADD CONSTRAINT session_used_pkey PRIMARY KEY (session);

ALTER TABLE ONLY task
    ADD CONSTRAINT task_pkey PRIMARY KEY (id);

ALTER TABLE ONLY unique_key
    ADD CONSTRAINT unique_key_pkey PRIMARY KEY (lane, queue, name);

CREATE INDEX archived_task_finished ON archived_task USING btree (finished_at);

CREATE INDEX archived_task_parent ON archived_task USING btree (parent) WHERE (parent IS NOT NULL);

CREATE INDEX archived_task_queue ON archived_task USING btree (namespace, queue, finished_at);

CREATE INDEX document_due ON document USING btree (kind, due, namespace, id) WHERE (due IS NOT NULL);

CREATE INDEX session_used_revision ON session_used USING btree (revision);

CREATE INDEX task_created ON task USING btree (created_at, id);

CREATE UNIQUE INDEX task_key ON task USING btree (key);

CREATE INDEX task_parent ON task USING btree (parent, created_at, id) WHERE (parent IS NOT NULL);

CREATE INDEX task_schedule ON task USING btree (schedule, created_at, id) WHERE (schedule IS NOT NULL);

CREATE INDEX unique_key_task ON unique_key USING btree (task);
