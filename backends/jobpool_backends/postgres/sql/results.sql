-- Keep results in the step of the settlements whose `answers` these are; return the answers. `places`: from 1, in their
-- order. A refused or repeated settlement keeps nothing.
CREATE OR REPLACE FUNCTION {schema}.keep_results(
    answers text, places integer[], ids text[], lasts bigint[], records bytea[]
) RETURNS text LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    INSERT INTO {schema}.results AS r (id, until, record)
    SELECT k.id, now + k.lasts, k.record FROM unnest(places, ids, lasts, records) AS k (place, id, lasts, record)
    WHERE substr(answers, k.place, 1) = 'o'
    ON CONFLICT (id) DO UPDATE SET until = excluded.until, record = excluded.record;
    IF strpos(answers, 'o') > 0 THEN
        PERFORM {schema}.ring_ends(ids);
    END IF;
    RETURN answers;
END $$;

-- Wake the waiters for the ends of these jobs, if there are any: they sleep as waiters for a queue do.
CREATE OR REPLACE FUNCTION {schema}.ring_ends(ids text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    awaited text[] := ARRAY(
        SELECT s.queue FROM {schema}.sleepers s WHERE s.queue = ANY (ARRAY(SELECT '=' || ident FROM unnest(ids) ident)));
BEGIN
    IF cardinality(awaited) > 0 THEN
        PERFORM {schema}.ring(awaited);
    END IF;
END $$;

-- Note a sleeper for the ends of these jobs or batches; return whether one has ended already. Waits for no disk: after
-- a crash of the server nobody sleeps.
CREATE OR REPLACE FUNCTION {schema}.await_ends(ids text[]) RETURNS boolean LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO {schema}.sleepers (queue) SELECT '=' || ident FROM unnest(ids) ident ON CONFLICT DO NOTHING;
    RETURN (
        (SELECT count(*) FROM {schema}.messages m WHERE m.id = ANY (ids) AND m.state <> 3)
        + (SELECT count(*) FROM {schema}.batches b WHERE b.id = ANY (ids) AND b.ended_at IS NULL)) < cardinality(ids);
END $$;

-- Remove the sleeper. Others that wait for the same add it anew with their next look.
CREATE OR REPLACE FUNCTION {schema}.await_no_more(ids text[]) RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM {schema}.sleepers WHERE ctid = ANY (ARRAY(
        SELECT s.ctid FROM {schema}.sleepers s WHERE s.queue = ANY (ARRAY(SELECT '=' || ident FROM unnest(ids) ident))
        FOR UPDATE SKIP LOCKED));
END $$;

CREATE OR REPLACE FUNCTION {schema}.find_results(ids text[])
RETURNS TABLE (id text, record bytea) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    -- `+ 0`, so that only the index of ids can be read: that of ends would bring all results.
    RETURN QUERY SELECT r.id, r.record FROM {schema}.results r WHERE r.id = ANY (ids) AND r.until + 0 > now;
END $$;
