-- A claim's row in `claims` says whether it lives. A change of what it holds locks that row first, and then the
-- messages, so that a renewal and the end never both happen. Only a transaction without locks waits for a claim's row.
-- With the row it looks again for a while, if others have locked its messages; with those it never waits. So
-- dead-locks cannot happen.

-- A claim that lives, with the messages that are still in it, as `check_out` returns them; nothing when there is none.
CREATE OR REPLACE FUNCTION {schema}.held_by(name text, ident text, now bigint)
RETURNS TABLE ({held_columns}) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY
    SELECT c.ttl, c.grace, c.since, now, l.*
    FROM (SELECT y.* FROM {schema}.claims y WHERE y.queue = name AND y.id = ident OFFSET 0) c LEFT JOIN LATERAL (
        SELECT x.* FROM unnest(c.states, c.seqs) AS s (state, seq), LATERAL (
            SELECT m.seq, m.id, {body} AS body, m.handler, m.priority, m.enqueued_at, m.claims, m.ends_at
            FROM {schema}.messages m
            WHERE m.queue = name AND m.state = s.state AND m.seq = s.seq AND m.claim = ident OFFSET 0) x) l ON true
    WHERE c.until > now;
END $$;

CREATE OR REPLACE FUNCTION {schema}.show_claim(name text, ident text)
RETURNS TABLE ({held_columns}) LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    RETURN QUERY SELECT * FROM {schema}.held_by(name, ident, {schema}.moment());
END $$;

-- Hold what is still in a claim for `length` microseconds from now. A job whose row others have for long keeps
-- its deadline there, but only the claim's own counts. A posted message is not to end before its time: then nothing is
-- renewed.
CREATE OR REPLACE FUNCTION {schema}.prolong_claim(name text, ident text, length bigint, new_grace bigint)
RETURNS TABLE ({held_columns}) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    known record;
    places tid[];
BEGIN
    SELECT c.ctid AS place, c.states, c.seqs, c.until, coalesce(new_grace, c.grace) AS grace INTO known
    FROM {schema}.claims c WHERE c.queue = name AND c.id = ident FOR UPDATE;
    IF known.until IS NULL OR known.until <= now THEN
        RETURN;
    END IF;
    new_grace := known.grace;
    UPDATE {schema}.claims SET ttl = length, grace = new_grace, since = now, until = now + length
    WHERE ctid = known.place;
    places := {schema}.lock_held(name, ident, known.states, known.seqs);
    IF cardinality(places) < cardinality(known.seqs)
        AND {schema}.count_held(name, ident, known.states, known.seqs, 6::smallint, places) > 0
    THEN
        RAISE EXCEPTION 'somebody has locked messages of claim %', ident USING ERRCODE = 'lock_not_available';
    END IF;
    UPDATE {schema}.messages m SET deadline = now + length, ttl = length, ends_at = {prolonged}
    WHERE m.ctid = ANY (places);
    RETURN QUERY SELECT * FROM {schema}.held_by(name, ident, now);
END $$;

-- Lock the messages still in a claim whose row the caller has. A search for free messages that saw one of these
-- before it was claimed locks it for a moment, and so is waited for.
CREATE OR REPLACE FUNCTION {schema}.lock_held(name text, ident text, held smallint[], numbers bigint[])
RETURNS tid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    give_up timestamptz := clock_timestamp() + interval '{row_lock_timeout}';
    places tid[];
BEGIN
    LOOP
        places := ARRAY(
            SELECT l.ctid FROM unnest(held, numbers) AS s (state, seq), LATERAL (
                SELECT m.ctid FROM {schema}.messages m
                WHERE m.queue = name AND m.state = s.state AND m.seq = s.seq AND m.claim = ident
                FOR UPDATE SKIP LOCKED) l);
        EXIT WHEN cardinality(places) = cardinality(numbers) OR clock_timestamp() >= give_up
            OR {schema}.count_held(name, ident, held, numbers, NULL, places) = 0;
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN places;
END $$;

-- How many messages are still in a claim, besides those at these places; of one state, if it is named.
CREATE OR REPLACE FUNCTION {schema}.count_held(
    name text, ident text, held smallint[], numbers bigint[], kind smallint, places tid[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM unnest(held, numbers) AS s (state, seq), LATERAL (
            SELECT m.ctid AS place FROM {schema}.messages m
            WHERE m.queue = name AND m.state = s.state AND m.seq = s.seq AND m.claim = ident OFFSET 0) x
        WHERE (kind IS NULL OR s.state = kind) AND x.place <> ALL (places));
END $$;

-- Free the messages still in a live claim, and end it; return how many.
CREATE OR REPLACE FUNCTION {schema}.release_claim(name text, ident text)
RETURNS integer LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    known record;
BEGIN
    SELECT c.ctid AS place, c.states, c.seqs, c.until INTO known
    FROM {schema}.claims c WHERE c.queue = name AND c.id = ident FOR UPDATE;
    IF known.until IS NULL OR known.until <= now THEN
        RETURN 0;
    END IF;
    PERFORM {schema}.lock_held(name, ident, known.states, known.seqs);
    UPDATE {schema}.claims SET until = now WHERE ctid = known.place;
    RETURN {schema}.end_claim(name, ident, now);
END $$;

-- Free the messages of a claim that has ended, and forget it; return how many. A live one is left alone: since the
-- caller saw that it had ended, another of the same id may have been made.
CREATE OR REPLACE FUNCTION {schema}.end_claim(name text, ident text, now bigint)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN {schema}.free_claims(ARRAY(
        SELECT l.ctid FROM {schema}.claims l WHERE l.queue = name AND l.id = ident FOR UPDATE),
        name, now, {tidy_limit});
END $$;

-- The same of all claims of a queue that have ended, up to `most` messages.
CREATE OR REPLACE FUNCTION {schema}.free_ended(name text, now bigint, most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN {schema}.free_claims(ARRAY(
        SELECT c.ctid FROM {schema}.claims c WHERE c.queue = name AND c.until <= now ORDER BY c.until
        LIMIT {tidy_limit} FOR UPDATE SKIP LOCKED), name, now, most);
END $$;

-- The same of claims that have been locked, where they have ended. A claim that still has a message, beyond `most` or
-- locked by others, is kept for the next call.
CREATE OR REPLACE FUNCTION {schema}.free_claims(ended tid[], name text, now bigint, most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    places tid[] := ARRAY(
        SELECT l.ctid FROM {schema}.claims c, unnest(c.states, c.seqs) AS s (state, seq), LATERAL (
            SELECT m.ctid FROM {schema}.messages m
            WHERE m.queue = name AND m.state = s.state AND m.seq = s.seq AND m.claim = c.id
            FOR UPDATE SKIP LOCKED) l
        WHERE c.ctid = ANY (ended) AND c.until <= now LIMIT most);
    freed_jobs boolean;
BEGIN
    WITH freed AS (
        UPDATE {schema}.messages m
        SET state = CASE m.state WHEN 2 THEN 0 ELSE 7 END, available_at = now, claim = NULL, {no_lease}
        WHERE m.ctid = ANY (places) RETURNING m.state)
    SELECT bool_or(f.state = 0) INTO freed_jobs FROM freed f;
    DELETE FROM {schema}.claims c WHERE c.ctid = ANY (ended) AND c.until <= now AND NOT EXISTS (
        SELECT FROM unnest(c.states, c.seqs) AS s (state, seq), LATERAL (
            SELECT true FROM {schema}.messages m
            WHERE m.queue = name AND m.state = s.state AND m.seq = s.seq AND m.claim = c.id OFFSET 0) x);
    IF freed_jobs THEN
        PERFORM {schema}.ring(ARRAY[name]);
    END IF;
    RETURN cardinality(places);
END $$;
