-- Do something to messages that were looked at just now, where a row still is what it was: any change, even one of its
-- state, has put another in its place. How many it was.
CREATE OR REPLACE FUNCTION {schema}.lock_seen(places tid[], seqs bigint[])
RETURNS tid[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(
        SELECT l.ctid FROM unnest(places, seqs) AS w (place, seq), LATERAL (
            SELECT m.ctid FROM {schema}.messages m WHERE m.ctid = w.place AND m.seq = w.seq AND m.state <> 2
            FOR UPDATE SKIP LOCKED) l);
END $$;

CREATE OR REPLACE FUNCTION {schema}.discard(places tid[], seqs bigint[])
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    locked tid[] := {schema}.lock_seen(places, seqs);
    ended text[];
    gone integer;
BEGIN
    WITH deleted AS (DELETE FROM {schema}.messages m WHERE m.ctid = ANY (locked) RETURNING m.id, m.given)
    SELECT count(*), array_agg(d.id) FILTER (WHERE d.given) INTO gone, ended FROM deleted d;
    IF ended IS NOT NULL THEN
        PERFORM {schema}.remember_ended(ended, {schema}.moment());
    END IF;
    RETURN gone;
END $$;

CREATE OR REPLACE FUNCTION {schema}.retry(places tid[], seqs bigint[])
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    locked tid[] := {schema}.lock_seen(places, seqs);
    now bigint := {schema}.moment();
    queues text[];
    back integer;
BEGIN
    WITH changed AS (
        UPDATE {schema}.messages m
        SET state = 0, available_at = now, attempts = 0, crashes = 0, last_error = NULL, reason = NULL, cause = NULL,
            died_at = NULL, last_crash = NULL
        WHERE m.ctid = ANY (locked) AND m.died_at IS NOT NULL RETURNING m.queue)
    SELECT count(*), array_agg(DISTINCT c.queue) INTO back, queues FROM changed c;
    IF back > 0 THEN
        PERFORM {schema}.ring(queues);
    END IF;
    RETURN back;
END $$;
