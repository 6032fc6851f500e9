-- Every write of a lane is one call of one of these functions, with arrays, committed by itself: it reaches the server
-- whole, so no client can stop in the middle of it and hold its locks.
--
-- Their statements are planned once, for short arrays: one look into an index for each element, which is right for any
-- length.

-- How many tasks of a queue wait in a lane.
CREATE FUNCTION queue_waiting(p_lane integer, p_queue integer) RETURNS bigint
LANGUAGE sql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off
AS $$
    SELECT coalesce(sum(newest.n), 0)::bigint
    FROM (VALUES (0, 0), (0, 4), (1, 0), (1, 4)) AS v(side, status)
    CROSS JOIN LATERAL (
        SELECT c.n FROM counts c
        WHERE c.queue = p_queue AND c.lane = p_lane AND c.side = v.side AND c.status = v.status
        ORDER BY c.gen DESC LIMIT 1) newest
$$;

-- Locks the counter of a lane. The row is made if it is not there, by one at a time.
CREATE FUNCTION lock_counter(p_lane integer, OUT last bigint, OUT gen bigint, OUT writes bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off
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

-- Adds to counts, whose locks are held.
CREATE FUNCTION add_counts(
    p_lane integer, p_queue integer[], p_side smallint[], p_status smallint[], p_n bigint[]
) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
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

-- Writes what a commit or a submit has decided, if what that rests on holds:
--   what  0 written, 1 written before (see `answer` and `base`), 2 another owner (`current` is the epoch),
--         3 not the next number (`current` is the last), 4 something else is stored: look, and decide again
-- A submit names no owner. SQLSTATE TL001 is the same as 4, after something was written and undone.
CREATE FUNCTION write_lane(
    p_lane integer,
    -- The fence, and what it is to be.
    p_epoch bigint, p_owner uuid, p_number bigint, p_outcomes bytea,
    -- Unique keys that must be free, or held by the one allowed.
    p_key_queue integer[], p_key_name bytea[], p_key_created bigint[], p_key_allowed uuid[],
    -- Queues in which fewer tasks must wait than this.
    p_len_queue integer[], p_len_below bigint[],
    -- Tasks to change: what must be stored, and what is then. A place is without the number, or, where the line is not
    -- known here, only the due time.
    p_change_id uuid[], p_change_expected bigint[], p_change_version bigint[], p_change_state bytea[],
    p_change_result bytea[], p_change_place bytea[], p_change_expiry bytea[],
    -- Which of them leave and enter which places.
    p_from_waiting uuid[], p_to_waiting uuid[], p_from_flight uuid[], p_to_flight uuid[],
    -- What goes with them.
    p_attempt_id uuid[], p_attempt_number bigint[], p_attempt_record bytea[],
    p_done bigint[],
    p_record_kind smallint[], p_record_key bytea[], p_record_value bytea[],
    -- Tasks to create, in the order of their numbers.
    p_new_id uuid[], p_new_created bigint[], p_new_queue integer[], p_new_body_bytes integer[], p_new_fixed bytea[],
    p_new_head bytea[], p_new_body bytea[], p_new_version bigint[], p_new_state bytea[],
    p_new_parent uuid[], p_new_schedule bytea[], p_new_result bytea[], p_new_place bytea[], p_new_expiry bytea[],
    p_take_queue integer[], p_take_name bytea[], p_take_until bigint[], p_take_task uuid[],
    -- How many more tasks of a queue are in a state than before, those that come (side 0) and those that move (side 1).
    p_count_queue integer[], p_count_side smallint[], p_count_status smallint[], p_count_n bigint[],
    OUT what integer, OUT current bigint, OUT answer bytea, OUT base bigint
)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
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

-- Takes a lane over: the new epoch, or NULL and the epoch that is stored.
CREATE FUNCTION claim_lane(
    p_lane integer, p_owner uuid, p_seen bigint, p_failures bigint,
    OUT claimed bigint, OUT current bigint
)
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

CREATE FUNCTION post_commands(p_lane integer, p_commands bytea[]) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

-- The numbers of queues, which are made where there are none, in the order of the names.
CREATE FUNCTION queue_numbers(p_namespace text[], p_name text[]) RETURNS integer[]
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

-- The binding that counts.
CREATE FUNCTION bind_queue(p_queue integer, p_binding bytea) RETURNS bytea
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    v_binding bytea;
BEGIN
    UPDATE queue q SET binding = p_binding WHERE q.queue = p_queue AND q.binding IS NULL;
    SELECT q.binding INTO v_binding FROM queue q WHERE q.queue = p_queue;
    RETURN v_binding;
END
$$;

-- NULL if the policy was put, else the version that is stored.
CREATE FUNCTION put_policy(p_queue integer, p_expected bigint, p_policy bytea) RETURNS bigint
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET jit = off
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

-- Takes their data from finished tasks of a lane, or forgets them.
CREATE FUNCTION retire_tasks(p_lane integer, p_id uuid[], p_forget boolean) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
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

-- Puts documents one after the other. For each the new version, or the one that is stored, as a negative number.
CREATE FUNCTION put_documents(
    p_kind smallint[], p_namespace text[], p_id text[], p_expected bigint[], p_due bigint[], p_value bytea[]
) RETURNS bigint[]
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET jit = off
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
