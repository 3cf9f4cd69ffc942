-- Called before messages are added; returns the time. The transaction must have its number before it draws the first
-- sequence number from `messages.seq`; see `step_floor`.
CREATE OR REPLACE FUNCTION {schema}.begin_enqueue() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    mine xid8 := pg_current_xact_id();  -- PERFORM would be a statement
BEGIN
    RETURN {schema}.moment();
END $$;

-- Called when messages have been added. Takes away those whose ids, chosen by their producers, are remembered; returns
-- how many. Of the jobs that are left it drops the results of earlier ones with their ids. Rings for the queues that
-- have something to fetch. It is done afterwards because an id may have ended just now. Then the unique index has made
-- us wait for that end, and only a later look sees it.
CREATE OR REPLACE FUNCTION {schema}.finish_enqueue(chosen text[], ready text[], now bigint, eager boolean DEFAULT false)
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    known integer := 0;
BEGIN
    IF cardinality(chosen) > 0 THEN
        DELETE FROM {schema}.messages WHERE id = ANY (ARRAY(
            SELECT e.id FROM unnest(chosen) AS ident, LATERAL (
                SELECT x.id, x.until FROM {schema}.ended x WHERE x.id = ident OFFSET 0) e WHERE e.until > now));
        GET DIAGNOSTICS known = ROW_COUNT;
        DELETE FROM {schema}.results r WHERE r.id = ANY (chosen) AND EXISTS (
            SELECT FROM {schema}.messages m WHERE m.id = r.id AND m.state < 4);
    END IF;
    IF cardinality(ready) > 0 THEN
        PERFORM {schema}.ring(ready, eager);
    END IF;
    RETURN known;
END $$;

-- Add messages in this order, except those whose id is known. `dues`: microseconds of Unix time, NULL = now.
CREATE OR REPLACE FUNCTION {schema}.enqueue(
    ids text[], given boolean[], queues text[], handlers text[], priorities smallint[], dues bigint[], bodies bytea[],
    eager boolean DEFAULT false
) RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.begin_enqueue();
    chosen text[];
    ready text[];
BEGIN
    WITH added AS (
        INSERT INTO {schema}.messages AS m
            (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body)
        SELECT now, greatest(n.due, now), n.priority, CASE WHEN n.due > now THEN 1 ELSE 0 END, n.given,
            n.due IS NULL OR n.due <= now, n.id, n.queue, n.handler, n.body
        FROM unnest(ids, given, queues, handlers, priorities, dues, bodies) WITH ORDINALITY
            AS n (id, given, queue, handler, priority, due, body, place)
        ORDER BY n.place
        ON CONFLICT (id) DO NOTHING
        RETURNING m.id, m.given, m.queue, m.fresh)
    SELECT array_agg(a.id) FILTER (WHERE a.given), array_agg(DISTINCT a.queue) FILTER (WHERE a.fresh)
    INTO chosen, ready FROM added a;
    PERFORM {schema}.finish_enqueue(chosen, ready, now, eager);
END $$;

-- The same for one message, at two thirds of the cost.
CREATE OR REPLACE FUNCTION {schema}.enqueue_one(
    id text, given boolean, queue text, handler text, priority smallint, due bigint, body bytea
) RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.begin_enqueue();
    later boolean := coalesce(due > now, false);
    asleep boolean;
BEGIN
    INSERT INTO {schema}.messages (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body)
    VALUES (now, greatest(enqueue_one.due, now), enqueue_one.priority, later::integer, enqueue_one.given, NOT later,
        enqueue_one.id, enqueue_one.queue, enqueue_one.handler, enqueue_one.body)
    ON CONFLICT ON CONSTRAINT messages_pkey DO NOTHING;
    IF FOUND THEN
        asleep := NOT later AND EXISTS (SELECT FROM {schema}.sleepers s WHERE s.queue = enqueue_one.queue);
        IF enqueue_one.given THEN
            PERFORM {schema}.finish_enqueue(
                ARRAY[enqueue_one.id], CASE WHEN asleep THEN ARRAY[enqueue_one.queue] END, now);
        ELSIF asleep THEN
            PERFORM {schema}.ring(ARRAY[enqueue_one.queue]);
        END IF;
    END IF;
END $$;
