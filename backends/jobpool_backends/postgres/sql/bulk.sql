-- Lock the messages that were looked at just now, where a row is unchanged; return their places. Any change, even one
-- of the state, has put another row in its place.
CREATE OR REPLACE FUNCTION {schema}.lock_seen(places tid[], seqs bigint[])
RETURNS tid[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(
        SELECT l.ctid FROM unnest(places, seqs) AS w (place, seq), LATERAL (
            SELECT m.ctid FROM {schema}.messages m WHERE m.ctid = w.place AND m.seq = w.seq AND m.state NOT IN (2, 6)
                AND m.holder IS NULL
            FOR UPDATE SKIP LOCKED) l);
END $$;

CREATE OR REPLACE FUNCTION {schema}.discard(places tid[], seqs bigint[])
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    RETURN {schema}.remove({schema}.lock_seen(places, seqs), true, {schema}.moment());
END $$;

-- Raise dead letters. Attempts, crashes, claims, the last error and the cause are gone.
CREATE OR REPLACE FUNCTION {schema}.retry(places tid[], seqs bigint[])
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    RETURN {schema}.raise_dead({schema}.lock_seen(places, seqs), true, {schema}.moment());
END $$;

-- The same, but they stay.
CREATE OR REPLACE FUNCTION {schema}.resume(places tid[], seqs bigint[])
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    RETURN {schema}.raise_dead({schema}.lock_seen(places, seqs), false, {schema}.moment());
END $$;

CREATE OR REPLACE FUNCTION {schema}.raise_dead(locked tid[], afresh boolean, now bigint)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    queues text[];
    back integer;
BEGIN
    WITH changed AS (
        UPDATE {schema}.messages m
        SET state = {back_to_life}, available_at = now, reason = NULL, died_at = NULL, begun = true,
            attempts = CASE WHEN afresh THEN 0 ELSE m.attempts END,
            crashes = CASE WHEN afresh THEN 0 ELSE m.crashes END, claims = CASE WHEN afresh THEN 0 ELSE m.claims END,
            last_error = CASE WHEN NOT afresh THEN m.last_error END, cause = CASE WHEN NOT afresh THEN m.cause END,
            last_crash = CASE WHEN NOT afresh THEN m.last_crash END
        WHERE m.ctid = ANY (locked) AND m.died_at IS NOT NULL RETURNING m.queue)
    SELECT count(*), array_agg(DISTINCT c.queue) INTO back, queues FROM changed c;
    IF back > 0 THEN
        PERFORM {schema}.ring(queues);
    END IF;
    RETURN back;
END $$;

-- Make dead letters of jobs that wait or are delayed. Not fresh any more: raised again, the number of one may be below
-- its queue's floor (`heads`).
CREATE OR REPLACE FUNCTION {schema}.cancel(places tid[], seqs bigint[])
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    locked tid[] := {schema}.lock_seen(places, seqs);
    ends text[] := {schema}.members_at(locked, 'c');
    cancelled integer;
BEGIN
    -- CASE: a plan made for an empty table would go through all that wait, by their states.
    WITH changed AS (
        UPDATE {schema}.messages m
        SET state = 3, died_at = {schema}.moment(), reason = 'cancelled', fresh = false, batch = NULL
        WHERE m.ctid = ANY (locked) AND CASE WHEN m.state IN (0, 1) THEN m.handler <> '' END
        RETURNING 1)
    SELECT count(*) INTO cancelled FROM changed;
    PERFORM {schema}.end_members(ends);
    RETURN cancelled;
END $$;

-- Remove the dead letters of a queue that died `age` microseconds ago or before, and all but the newest `kept`; NULL:
-- no such cap. At most `most` of either; return how many.
CREATE OR REPLACE FUNCTION {schema}.evict(name text, kept bigint, age bigint, most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    places tid[];
    seqs bigint[];
    newest record;
    gone integer := 0;
BEGIN
    IF age IS NOT NULL THEN
        SELECT array_agg(x.ctid), array_agg(x.seq) INTO places, seqs FROM (
            SELECT m.ctid, m.seq FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 3 AND m.died_at <= now - age ORDER BY m.died_at, m.seq LIMIT most) x;
        gone := {schema}.discard(places, seqs);
    END IF;
    IF kept IS NOT NULL THEN
        SELECT m.died_at, m.seq INTO newest FROM {schema}.messages m  -- of those that are to go, out of the index alone
        WHERE m.queue = name AND m.state = 3 ORDER BY m.died_at DESC, m.seq DESC OFFSET kept LIMIT 1;
        SELECT array_agg(x.ctid), array_agg(x.seq) INTO places, seqs FROM (
            SELECT m.ctid, m.seq FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 3 AND (m.died_at, m.seq) <= (newest.died_at, newest.seq)
            ORDER BY m.died_at, m.seq LIMIT most) x;
        gone := gone + {schema}.discard(places, seqs);
    END IF;
    IF gone > 0 THEN
        INSERT INTO {schema}.evictions AS e (queue, count) VALUES (name, gone)
        ON CONFLICT (queue) DO UPDATE SET count = e.count + excluded.count;
    END IF;
    RETURN gone;
END $$;

-- How many dead letters of a queue were evicted.
CREATE OR REPLACE FUNCTION {schema}.evicted(name text) RETURNS bigint LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    RETURN coalesce((SELECT e.count FROM {schema}.evictions e WHERE e.queue = name), 0);
END $$;
