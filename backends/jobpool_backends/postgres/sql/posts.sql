-- Add messages that no pool fetches, as `enqueue` adds jobs. `lives`: microseconds, NULL = forever. `delays`:
-- microseconds.
CREATE OR REPLACE FUNCTION {schema}.post(
    name text, ids text[], given boolean[], bodies bytea[], lives bigint[], delays bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.begin_enqueue();
    chosen text[] := ARRAY(SELECT n.id FROM unnest(ids, given) AS n (id, given) WHERE n.given);
BEGIN
    IF cardinality(chosen) > 0 THEN
        -- A message whose life has ended is not there, though it may not be removed yet.
        PERFORM {schema}.bury(ARRAY(
            SELECT e.ctid FROM (SELECT DISTINCT unnest(chosen)) AS n (id), LATERAL (
                SELECT m.ctid FROM {schema}.messages m WHERE m.id = n.id AND m.state > 3 AND m.ends_at <= now
                FOR UPDATE SKIP LOCKED) e), now);
    END IF;
    WITH added AS (
        INSERT INTO {schema}.messages AS m
            (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body, ends_at)
        SELECT now, now + n.delay, {post_priority}, CASE WHEN n.delay > 0 THEN 5 ELSE 4 END, n.given, false, n.id, name,
            '', n.body, now + n.life
        FROM unnest(ids, given, bodies, lives, delays) WITH ORDINALITY AS n (id, given, body, life, delay, place)
        ORDER BY n.place
        ON CONFLICT (id) DO NOTHING
        RETURNING m.id, m.given)
    SELECT array_agg(a.id) FILTER (WHERE a.given) INTO chosen FROM added a;
    PERFORM {schema}.finish_enqueue(chosen, NULL, now);
END $$;

-- Write to the table the changes that time alone has made in one queue. Claims that have ended hold nothing, posted
-- messages whose life has ended are gone, and those whose delay is over are free. Up to {tidy_limit} of each.
CREATE OR REPLACE FUNCTION {schema}.tidy(name text, now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_ended record;
BEGIN
    SELECT
        (SELECT true FROM {schema}.claims c WHERE c.queue = name AND c.until <= now ORDER BY c.until LIMIT 1) AS claims,
        (SELECT true FROM {schema}.messages m WHERE m.queue = name AND m.state > 3 AND m.ends_at <= now
            ORDER BY m.ends_at LIMIT 1) AS lives,
        (SELECT true FROM {schema}.messages m WHERE m.queue = name AND m.state = 5 AND m.available_at <= now
            ORDER BY m.available_at LIMIT 1) AS delays
    INTO found_ended;
    IF found_ended.claims THEN
        PERFORM {schema}.free_ended(name, now, {tidy_limit});
    END IF;
    IF found_ended.lives THEN
        PERFORM {schema}.remove_ended(name, now);
    END IF;
    IF found_ended.delays THEN
        UPDATE {schema}.messages SET state = 7 WHERE ctid = ANY (ARRAY(
            SELECT m.ctid FROM {schema}.messages m WHERE m.queue = name AND m.state = 5 AND m.available_at <= now
            ORDER BY m.available_at LIMIT {tidy_limit} FOR UPDATE SKIP LOCKED));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.remove_ended(name text, now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.bury(ARRAY(
        SELECT m.ctid FROM {schema}.messages m WHERE m.queue = name AND m.state > 3 AND m.ends_at <= now
        ORDER BY m.ends_at LIMIT {tidy_limit} FOR UPDATE SKIP LOCKED), now);
END $$;

-- Remove posted messages whose lives have ended. Ids are remembered from when that was, not from now. Counts
-- never wait for each other.
CREATE OR REPLACE FUNCTION {schema}.bury(places tid[], now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    many record;
BEGIN
    FOR many IN
        WITH deleted AS (
            DELETE FROM {schema}.messages m WHERE m.ctid = ANY (places) RETURNING m.queue, m.id, m.given, m.ends_at
        ), remembered AS (
            INSERT INTO {schema}.ended (id, until)
            SELECT d.id, d.ends_at + {enqueue_memory} FROM deleted d
            WHERE d.given AND d.ends_at + {enqueue_memory} > now
            ON CONFLICT (id) DO UPDATE SET until = excluded.until)
        SELECT d.queue, count(*) AS ended FROM deleted d GROUP BY d.queue
    LOOP
        UPDATE {schema}.expiries SET count = count + many.ended WHERE ctid = ANY (ARRAY(
            SELECT e.ctid FROM {schema}.expiries e WHERE e.queue = many.queue ORDER BY e.queue LIMIT 1
            FOR UPDATE SKIP LOCKED));
        IF NOT FOUND THEN
            INSERT INTO {schema}.expiries (queue, count) VALUES (many.queue, many.ended);
        END IF;
    END LOOP;
END $$;

-- Up to `most` free posted messages of one queue of either kind, those never claimed and the others, locked. The former
-- have a floor like fresh jobs, in `heads` under priority -1: they are all of one.
CREATE OR REPLACE FUNCTION {schema}.take_posts(
    name text, most integer, head {schema}.heads, may_step boolean, now bigint
) RETURNS tid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    states smallint[] := '{4, 7}';
    taken tid[];
    top bigint;
BEGIN
    SELECT array_agg(x.place), max(x.seq) INTO taken, top FROM (
        SELECT m.ctid AS place, m.seq FROM {schema}.messages m
        WHERE m.queue = name AND m.state = states[1] AND m.seq >= coalesce(head.floor, 0)
            AND (m.ends_at IS NULL OR m.ends_at > now)
        ORDER BY m.seq LIMIT most FOR UPDATE SKIP LOCKED) x;
    IF top IS NOT NULL AND head.queue IS NULL THEN
        INSERT INTO {schema}.heads (queue, priority) VALUES (name, -1) ON CONFLICT DO NOTHING;
    ELSIF top IS NOT NULL AND may_step THEN
        PERFORM {schema}.step_floor(head, top);
    END IF;
    RETURN taken || ARRAY(
        SELECT m.ctid FROM {schema}.messages m
        WHERE m.queue = name AND m.state = states[2] AND (m.ends_at IS NULL OR m.ends_at > now)
        ORDER BY m.seq LIMIT most FOR UPDATE SKIP LOCKED);
END $$;
