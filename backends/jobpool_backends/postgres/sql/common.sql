-- The time, in microseconds of Unix time: each call of a verb reads it once, and everything in the call agrees.
CREATE OR REPLACE FUNCTION {schema}.moment() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Wake the sleepers of these queues, if there are any. At the commit NOTIFY takes one lock for the whole server, so
-- commits wait for each other's disk: it must be rare. A row is good for one ring, and its sleeper then adds it anew.
-- A row that another transaction rings for just now is left to that one. `eager` is for a transaction with an unknown
-- end: it rings even if others have rung, and leaves the row.
CREATE OR REPLACE FUNCTION {schema}.ring(queues text[], eager boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY queues LOOP
        IF NOT eager THEN
            DELETE FROM {schema}.sleepers WHERE ctid = ANY (ARRAY(
                SELECT s.ctid FROM {schema}.sleepers s WHERE s.queue = name FOR UPDATE SKIP LOCKED));
            CONTINUE WHEN NOT FOUND;
        END IF;
        PERFORM pg_notify('jobpool:' || btrim('{schema}', '"'), name);
    END LOOP;
END $$;

-- Remember the answer to a call. If another transaction answers the same call at the same time, this one must be
-- undone. When it is tried again, it finds the other's answer.
CREATE OR REPLACE FUNCTION {schema}.remember(call text, answer text, now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.calls AS c (id, until, answer) VALUES (call, now + {remember_calls}, remember.answer)
    ON CONFLICT (id) DO UPDATE SET until = excluded.until, answer = excluded.answer WHERE c.until <= now;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'call % is being answered at the same time', call USING ERRCODE = 'serialization_failure';
    END IF;
END $$;

-- Remember the ids of messages that have come to their end.
CREATE OR REPLACE FUNCTION {schema}.remember_ended(ids text[], now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.ended (id, until) SELECT ident, now + {enqueue_memory} FROM unnest(ids) AS ident
    ON CONFLICT (id) DO UPDATE SET until = excluded.until;
END $$;

-- Forget up to `most` outdated rows of each kind; return how many there were of the most frequent kind.
CREATE OR REPLACE FUNCTION {schema}.sweep(most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    -- Without the first, counts would walk over all messages settled since the fetches of the last ttl.
    most_found integer := greatest(
        {schema}.forget_fetches(ARRAY(SELECT f.ctid FROM {schema}.fetches f ORDER BY f.queue, f.until LIMIT most), '{}'),
        {schema}.sweep_holds(most, now));
    kind text;
    found_now integer;
BEGIN
    -- A waiter that was killed, or woken for another of its jobs, has left its row; one that waits looks again anyway.
    DELETE FROM {schema}.sleepers WHERE ctid = ANY (ARRAY(
        SELECT s.ctid FROM {schema}.sleepers s
        WHERE s.queue >= '=' AND s.queue < '>'
            AND NOT EXISTS (SELECT FROM {schema}.messages m WHERE m.id = substr(s.queue, 2) AND m.state <> 3)
            AND NOT EXISTS (SELECT FROM {schema}.batches b WHERE b.id = substr(s.queue, 2) AND b.ended_at IS NULL)
        ORDER BY s.queue FOR UPDATE SKIP LOCKED));
    FOREACH kind IN ARRAY '{calls, ended, uniques, done, starts, records, results, batches}'::text[] LOOP
        EXECUTE format(
            'DELETE FROM {schema}.%1$I WHERE ctid = ANY (ARRAY(
                SELECT x.ctid FROM {schema}.%1$I x WHERE x.until <= $1 ORDER BY x.until LIMIT $2
                FOR UPDATE SKIP LOCKED))', kind) USING now, most;
        GET DIAGNOSTICS found_now = ROW_COUNT;
        most_found := greatest(most_found, found_now);
    END LOOP;
    RETURN most_found;
END $$;
