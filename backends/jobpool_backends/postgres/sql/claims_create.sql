-- Claim up to `most` free messages for `length` microseconds, or return a live claim of that id. A row a message, in no
-- order, and one without a message for a claim that has none left. A row of NULLs means that others have locked all
-- free messages: ask again. `kept`, `age`: the caps on dead letters, as `evict` takes them.
CREATE OR REPLACE FUNCTION {schema}.check_out(
    name text, ident text, most integer, length bigint, new_grace bigint, max_claims integer, new_holder bigint,
    kept bigint DEFAULT NULL, age bigint DEFAULT NULL
) RETURNS TABLE ({held_columns}) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    earlier record;
    free record;
BEGIN
    SELECT c.until > now AS lives INTO earlier FROM {schema}.claims c WHERE c.queue = name AND c.id = ident;
    IF earlier.lives THEN
        RETURN QUERY SELECT * FROM {schema}.held_by(name, ident, now);
        RETURN;
    ELSIF FOUND THEN
        PERFORM {schema}.end_claim(name, ident, now);
    END IF;
    SELECT f.* INTO free FROM {schema}.find_free(name, most, max_claims, now) f;
    IF free.places IS NOT NULL THEN
        INSERT INTO {schema}.claims (queue, id, ttl, grace, since, until, states, seqs)
        VALUES (name, ident, length, new_grace, now, now + length, free.states, free.seqs)
        ON CONFLICT ON CONSTRAINT claims_pkey DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'claim % is being made at the same time', ident USING ERRCODE = 'serialization_failure';
        END IF;
        RETURN QUERY
        UPDATE {schema}.messages m
        SET state = {when_held}, fresh = false, deadline = now + length, ttl = length,
            holder = CASE m.state WHEN 0 THEN new_holder END, claim = ident, claims = m.claims + 1,
            deliveries = m.deliveries + 1, ends_at = {prolonged}
        WHERE m.ctid = ANY (free.places)
        RETURNING length, new_grace, now, now, m.seq, m.id, {body}, m.handler, m.priority,
            m.enqueued_at, m.claims, m.ends_at;
    ELSIF free.busy THEN
        RETURN NEXT;
    END IF;
    IF free.killed > 0 AND (kept IS NOT NULL OR age IS NOT NULL) THEN
        PERFORM {schema}.evict(name, kept, age, {tidy_limit});
    END IF;
END $$;

-- The first `most` free messages of a queue, locked: their places, the states that they have when they are held, and
-- their sequence numbers. NULL where there are none. Messages claimed `max_claims` times become dead letters.
-- `busy`: there were none because others have locked them, and may leave some. They are not waited for here: this
-- transaction has locked all rows that it looked at, held ones too. Their holder would wait in turn.
CREATE OR REPLACE FUNCTION {schema}.find_free(
    name text, most integer, max_claims integer, now bigint, OUT places tid[], OUT states smallint[], OUT seqs bigint[],
    OUT killed integer, OUT busy boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    may_step boolean;
    head {schema}.heads;
    wide integer := most;
    taken tid[];
    worn tid[];
    ends text[];
BEGIN
    killed := 0;
    busy := false;
    PERFORM {schema}.tidy(name, now);
    may_step := pg_current_xact_id_if_assigned() IS NULL;  -- before any row is locked
    head := (SELECT h FROM {schema}.heads h WHERE h.queue = name AND h.priority = -1);
    LOOP
        taken := {schema}.take_fresh(name, wide, ARRAY(
            SELECT h FROM {schema}.heads h WHERE h.queue = name AND h.priority >= 0 ORDER BY h.queue, h.priority
        ), true, false, may_step);
        PERFORM {schema}.promote(name, now);
        taken := taken || ARRAY(
            SELECT m.ctid FROM {schema}.messages m WHERE m.queue = name AND m.state = 0 AND NOT m.fresh
            ORDER BY m.priority, m.seq LIMIT wide FOR UPDATE SKIP LOCKED);
        taken := taken || {schema}.take_posts(name, wide, head, may_step, now);
        IF max_claims = 0 AND cardinality(taken) > 0 THEN
            SELECT array_agg(x.ctid), array_agg(x.state), array_agg(x.seq) INTO places, states, seqs FROM (
                SELECT m.ctid, {when_held} AS state, m.seq FROM {schema}.messages m WHERE m.ctid = ANY (taken)
                ORDER BY m.priority, m.seq LIMIT most) x;
            RETURN;
        END IF;
        -- `good`: how many before and with this one were not claimed too often. Only messages before the last wanted
        -- one are looked at; after those that die there may be more, which is another round. The first `wide` are
        -- surely the first of all: as many were taken of each kind.
        SELECT array_agg(x.ctid) FILTER (WHERE NOT x.over AND x.good <= most),
            array_agg(x.state) FILTER (WHERE NOT x.over AND x.good <= most),
            array_agg(x.seq) FILTER (WHERE NOT x.over AND x.good <= most),
            array_agg(x.ctid) FILTER (WHERE x.over AND x.good < most)
        INTO places, states, seqs, worn FROM (
            SELECT f.*, count(*) FILTER (WHERE NOT f.over) OVER (ORDER BY f.priority, f.seq) AS good FROM (
                SELECT m.ctid, {when_held} AS state, m.priority, m.seq, m.claims >= max_claims AS over
                FROM {schema}.messages m WHERE m.ctid = ANY (taken) ORDER BY m.priority, m.seq LIMIT wide) f
            ORDER BY f.priority, f.seq) x;
        EXIT WHEN worn IS NULL;
        ends := ends || {schema}.members_at(worn, 'f');
        UPDATE {schema}.messages
        SET state = 3, died_at = now, reason = '{claim_limit}', fresh = false, ends_at = NULL, batch = NULL
        WHERE ctid = ANY (worn);
        killed := killed + cardinality(worn);
        EXIT WHEN killed >= {tidy_limit};
        wide := greatest(most, least({worn_limit}, {tidy_limit} - killed));
        may_step := false;
    END LOOP;
    PERFORM {schema}.end_members(ends);
    IF places IS NULL AND killed = 0 THEN
        -- As in `fetch`: a floor would hide forever a message made free by hand.
        UPDATE {schema}.heads h SET floor = 0, candidate = NULL, settled_before = NULL, reset_at = now
        WHERE h.queue = name AND h.floor > 0 AND h.reset_at <= now - {floor_reset};
    END IF;
    busy := places IS NULL AND killed < {tidy_limit} AND {schema}.is_free(name, now);
END $$;

-- Return whether there is anything that a claim could take, now or once its lock is released.
CREATE OR REPLACE FUNCTION {schema}.is_free(name text, now bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    posted smallint[] := '{4, 7}';
    known_floor bigint := (SELECT h.floor FROM {schema}.heads h WHERE h.queue = name AND h.priority = -1);
BEGIN
    RETURN {schema}.is_ready(name, now)
        OR EXISTS (
            SELECT FROM {schema}.messages m
            WHERE m.queue = name AND m.state = posted[1] AND m.seq >= coalesce(known_floor, 0)
                AND (m.ends_at IS NULL OR m.ends_at > now) ORDER BY m.seq LIMIT 1)
        OR EXISTS (
            SELECT FROM {schema}.messages m
            WHERE m.queue = name AND m.state = posted[2] AND (m.ends_at IS NULL OR m.ends_at > now)
            ORDER BY m.seq LIMIT 1)
        OR EXISTS (
            SELECT FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 5 AND m.available_at <= now AND (m.ends_at IS NULL OR m.ends_at > now)
            ORDER BY m.available_at LIMIT 1)
        OR EXISTS (
            SELECT FROM {schema}.claims c WHERE c.queue = name AND c.until <= now ORDER BY c.until LIMIT 1);
END $$;

-- Take up to `most` free messages and delete them. A row of NULLs: as in `check_out`.
CREATE OR REPLACE FUNCTION {schema}.pop_messages(name text, most integer)
RETURNS TABLE (
    seq bigint, id text, body bytea, handler text, priority smallint, enqueued_at bigint, claims integer,
    ends_at bigint
) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    free record;
BEGIN
    SELECT f.places, f.busy INTO free FROM {schema}.find_free(name, most, 0, now) f;
    IF free.places IS NOT NULL THEN
        RETURN QUERY
        SELECT m.seq, m.id, {body}, m.handler, m.priority, m.enqueued_at, m.claims,
            m.ends_at
        FROM {schema}.messages m WHERE m.ctid = ANY (free.places);
        PERFORM {schema}.remove(free.places, true, now);
    ELSIF free.busy THEN
        RETURN NEXT;
    END IF;
END $$;
