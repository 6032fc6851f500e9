-- Who is alive and who should own what. No time is looked at: whoever watches counts by its own steady clock.

CREATE TABLE session (
    session  uuid PRIMARY KEY,
    secret   uuid NOT NULL,
    -- Rises with every renewal. The only column that changes often, and in no index.
    renewals bigint NOT NULL,
    -- In milliseconds.
    ttl      bigint NOT NULL,
    revoked  boolean NOT NULL,
    role     bytea NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE lane_grant (
    lane    integer PRIMARY KEY,
    session uuid NOT NULL
);

-- Identities that were used, with the revision at their end.
CREATE TABLE session_used (
    session  uuid PRIMARY KEY,
    revision bigint NOT NULL
);
CREATE INDEX session_used_revision ON session_used (revision);

-- One row, which every change that somebody can see locks first and raises: so changes become visible in the order of
-- their revisions, and no session ends while something is done in its name. Renewals leave it alone.
CREATE TABLE members (
    revision bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO members VALUES (0);

-- Raises the revision and tells who listens.
CREATE FUNCTION members_changed(p_channel text) RETURNS bigint
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
DECLARE
    v_revision bigint;
BEGIN
    UPDATE members SET revision = revision + 1 RETURNING revision INTO v_revision;
    PERFORM pg_notify(p_channel, v_revision::text);
    RETURN v_revision;
END
$$;

-- Makes the next revision higher than one that was shown.
CREATE FUNCTION members_raise(p_above bigint, p_channel text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
BEGIN
    UPDATE members SET revision = greatest(revision, p_above);
    PERFORM members_changed(p_channel);
END
$$;

-- What is left to do when a session is gone. Of identities some thousand are remembered.
CREATE FUNCTION session_gone(p_session uuid, p_channel text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

-- Whether it was opened: its identity must never have been used.
CREATE FUNCTION session_open(p_session uuid, p_secret uuid, p_ttl bigint, p_role bytea, p_channel text) RETURNS boolean
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

-- Whether there is such a session.
CREATE FUNCTION session_update(p_session uuid, p_secret uuid, p_role bytea, p_channel text) RETURNS boolean
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

-- Whether there was something to close.
CREATE FUNCTION session_close(p_session uuid, p_secret uuid, p_channel text) RETURNS boolean
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

-- Ends sessions that still have the numbers that a judge has seen for a whole TTL. Answers how many.
CREATE FUNCTION session_end(p_session uuid[], p_renewals bigint[], p_channel text) RETURNS integer
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

-- Whether the session holds the lane now; NULL if there is no such session.
CREATE FUNCTION grant_acquire(p_session uuid, p_secret uuid, p_lane integer, p_channel text) RETURNS boolean
LANGUAGE plpgsql
SET search_path FROM CURRENT
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

-- Whether there is such a session.
CREATE FUNCTION grant_release(p_session uuid, p_secret uuid, p_lane integer, p_channel text) RETURNS boolean
LANGUAGE plpgsql
SET search_path FROM CURRENT
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
