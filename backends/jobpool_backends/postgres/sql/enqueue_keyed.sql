-- Add messages as `enqueue` does, which may claim unique keys, join batches, and come from another queue with their
-- counters. `brought`: by a settlement; see `join_batches`. Crashes that came with it count as if the last were of this
-- moment. Returns, for each that is left out because its key is known, its id and that of the message which has the
-- key.
CREATE OR REPLACE FUNCTION {schema}.bring(
    ids text[], given boolean[], queues text[], handlers text[], priorities smallint[], dues bigint[], bodies bytea[],
    unique_keys text[], attempts integer[], crashes integer[], deliveries bigint[], errors text[], causes text[],
    eager boolean DEFAULT false, batches text[] DEFAULT '{}', brought boolean DEFAULT false
) RETURNS TABLE (asked text, known text) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.begin_enqueue();
    left_out bigint[] := '{}';
    chosen text[];
    ready text[];
    members text[];
    one record;
    claim record;
    claimed_name text;  -- the last that was claimed in this call, and for whom; in this order, others are adjacent
    claimed_by text;
BEGIN
    FOR one IN  -- in one order for all, so that no two wait for each other
        SELECT n.* FROM unnest(ids, given, queues, unique_keys) WITH ORDINALITY AS n (id, given, queue, key, place)
        WHERE n.key IS NOT NULL
        ORDER BY n.queue COLLATE "C", n.key COLLATE "C",
            -- first those with known ids, which add nothing and so have no other's key
            NOT EXISTS (SELECT FROM {schema}.messages m WHERE m.id = n.id)
            AND NOT EXISTS (SELECT FROM {schema}.ended e WHERE n.given AND e.id = n.id AND e.until > now), n.place
    LOOP
        asked := one.id;
        IF claimed_name = one.queue || ' ' || one.key THEN
            known := claimed_by;
        ELSE
            SELECT c.known, c.claimed INTO claim FROM {schema}.claim(one.queue, one.key, one.id, one.given, now) c;
            known := claim.known;
            IF claim.claimed THEN
                claimed_name := one.queue || ' ' || one.key;
                claimed_by := one.id;
            END IF;
        END IF;
        IF known IS NOT NULL THEN
            left_out := left_out || one.place;
            RETURN NEXT;
        END IF;
    END LOOP;
    WITH added AS (
        INSERT INTO {schema}.messages AS m
            (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body, unique_key, attempts,
            crashes, deliveries, last_error, cause, last_crash, batch)
        SELECT now, greatest(n.due, now), n.priority, CASE WHEN n.due > now THEN 1 ELSE 0 END, n.given,
            n.due IS NULL OR n.due <= now, n.id, n.queue, n.handler, n.body, n.key, n.attempts, n.crashes,
            n.deliveries, n.error, n.cause, CASE WHEN n.crashes > 0 THEN now END, n.batch
        FROM unnest(ids, given, queues, handlers, priorities, dues, bodies, unique_keys, bring.attempts, bring.crashes,
            bring.deliveries, errors, causes, batches) WITH ORDINALITY
            AS n (id, given, queue, handler, priority, due, body, key, attempts, crashes, deliveries, error, cause,
                batch, place)
        WHERE n.place <> ALL (left_out) ORDER BY n.place
        ON CONFLICT (id) DO NOTHING
        RETURNING m.id, m.given, m.queue, m.fresh, m.batch)
    SELECT array_agg(a.id) FILTER (WHERE a.given), array_agg(DISTINCT a.queue) FILTER (WHERE a.fresh),
        array_agg(a.id) FILTER (WHERE a.batch IS NOT NULL)
    INTO chosen, ready, members FROM added a;
    PERFORM {schema}.finish_enqueue(chosen, ready, now, eager);
    PERFORM {schema}.drop_claims(ids, queues, unique_keys);
    IF members IS NOT NULL THEN
        PERFORM {schema}.join_batches(members, brought);
    END IF;
END $$;

-- Claim a unique key for a message that is about to be added, or with `is_given` NULL to move from another queue. Else
-- return the id of the message that has it, if there is one. A transaction that has claimed it is waited for. A message
-- that is known will not be added, and so claims nothing. A claim that has ended, or whose message was deleted by hand,
-- is never changed; it can only be removed.
CREATE OR REPLACE FUNCTION {schema}.claim(
    scope text, wanted_key text, ident text, is_given boolean, now bigint, OUT known text, OUT claimed boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    earlier record;
BEGIN
    claimed := false;
    LOOP
        IF EXISTS (SELECT FROM {schema}.messages m WHERE is_given IS NOT NULL AND m.id = ident)
            OR EXISTS (SELECT FROM {schema}.ended e WHERE is_given AND e.id = ident AND e.until > now)
        THEN
            RETURN;
        END IF;
        SELECT u.ctid AS place, u.id, CASE WHEN u.until IS NULL
            THEN EXISTS (SELECT FROM {schema}.messages m WHERE m.id = u.id) ELSE u.until > now END AS valid
        INTO earlier FROM {schema}.uniques u WHERE u.queue = scope AND u.key = wanted_key;
        IF earlier.valid THEN
            known := earlier.id;
            RETURN;
        END IF;
        DELETE FROM {schema}.uniques WHERE ctid = earlier.place;
        INSERT INTO {schema}.uniques (queue, key, id) VALUES (scope, wanted_key, ident)
        ON CONFLICT (queue, key) DO NOTHING;
        claimed := FOUND;
        EXIT WHEN claimed;  -- else another was quicker: look again
    END LOOP;
END $$;

-- Take back claims whose message was not added after all, because its id turned out to be known.
CREATE OR REPLACE FUNCTION {schema}.drop_claims(ids text[], queues text[], unique_keys text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    vain tid[] := ARRAY(
        SELECT u.place FROM unnest(ids, queues, unique_keys) AS n (id, queue, key), LATERAL (
            SELECT x.ctid AS place, x.id, x.until FROM {schema}.uniques x
            WHERE x.queue = n.queue AND x.key = n.key OFFSET 0) u
        WHERE n.key IS NOT NULL AND u.id = n.id AND u.until IS NULL AND (
            SELECT m.queue = n.queue AND m.unique_key = n.key FROM {schema}.messages m WHERE m.id = n.id) IS NOT TRUE);
BEGIN
    IF cardinality(vain) > 0 THEN
        DELETE FROM {schema}.uniques WHERE ctid = ANY (vain);
    END IF;
END $$;

-- End the claims of messages that are about to be removed: they are known until then; NULL: no longer.
CREATE OR REPLACE FUNCTION {schema}.end_claims(places tid[], known_until bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    claims tid[] := ARRAY(
        SELECT u.place FROM {schema}.messages m, LATERAL (
            SELECT x.ctid AS place, x.id FROM {schema}.uniques x WHERE x.queue = m.queue AND x.key = m.unique_key
            OFFSET 0) u
        WHERE m.ctid = ANY (places) AND m.unique_key IS NOT NULL AND u.id = m.id);
BEGIN
    IF known_until IS NULL THEN
        DELETE FROM {schema}.uniques WHERE ctid = ANY (claims);
    ELSE
        UPDATE {schema}.uniques SET until = known_until WHERE ctid = ANY (claims);
    END IF;
END $$;
