-- Messages of one queue in enqueue order, from the one after number `behind` on. These are the free ones, and with
-- `claimed` also those that are leased or claimed. Up to `most`, and fewer when their bodies are long.
CREATE OR REPLACE FUNCTION {schema}.list_free(name text, claimed boolean, behind bigint, most integer)
RETURNS TABLE (
    seq bigint, id text, body bytea, handler text, priority smallint, enqueued_at bigint, claims integer,
    ends_at bigint, claim text
) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    states smallint[] := CASE WHEN claimed THEN '{0, 2, 4, 6, 7}' ELSE '{0, 4, 7}' END;
    many integer := 0;
    bytes bigint := 0;
    one record;
BEGIN
    PERFORM {schema}.tidy(name, {schema}.moment());
    WHILE behind IS NOT NULL AND many < most AND bytes < {page_bytes} LOOP
        FOR one IN
            SELECT * FROM {schema}.look_through(
                ARRAY[name], states, true, false, NULL, NULL, NULL, NULL, behind, most - many, true, most)
        LOOP
            behind := one.seq;
            CONTINUE WHEN one.id IS NULL;
            bytes := bytes + octet_length(one.body);
            EXIT WHEN many > 0 AND bytes >= {page_bytes};
            many := many + 1;
            RETURN QUERY SELECT one.seq, one.id, one.body, one.handler, one.priority, one.enqueued_at, one.claims,
                one.ends_at, one.claim;
        END LOOP;
    END LOOP;
END $$;

-- The claims of a queue that live, from the one after `after` on, and how many messages each holds.
CREATE OR REPLACE FUNCTION {schema}.list_claims(name text, after text, most integer)
RETURNS TABLE (id text, ttl bigint, grace bigint, since bigint, seen_at bigint, held bigint)
LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    RETURN QUERY
    SELECT c.id, c.ttl, c.grace, c.since, now, (
        SELECT count(*) FROM unnest(c.states, c.seqs) AS s (state, seq), LATERAL (
            SELECT true FROM {schema}.messages m
            WHERE m.queue = name AND m.state = s.state AND m.seq = s.seq AND m.claim = c.id OFFSET 0) x)
    FROM {schema}.claims c WHERE c.queue = name AND c.id > after AND c.until > now ORDER BY c.id LIMIT most;
END $$;

-- Counts of one queue, each up to `most`: leased or claimed, free, delayed; and how many posted messages have ended.
CREATE OR REPLACE FUNCTION {schema}.claim_stats(name text, most integer)
RETURNS TABLE (claimed bigint, free bigint, delayed bigint, expired bigint)
LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    PERFORM {schema}.tidy(name, now);
    RETURN QUERY
    WITH counted AS MATERIALIZED (
        SELECT k.state, (
            SELECT count(*) FROM (
                SELECT FROM {schema}.messages m
                WHERE m.queue = name AND m.state = k.state AND {kind} = k.state LIMIT most) x) AS many
        FROM unnest('{0, 2, 4, 6, 7}'::smallint[]) AS k (state)
        UNION ALL SELECT 2, (SELECT count(*) FROM {schema}.first_leases(name))
    ), later AS MATERIALIZED (
        SELECT
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at <= now
                ORDER BY m.available_at LIMIT most) x) AS due,
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at > now
                ORDER BY m.available_at LIMIT most) x) AS not_due,
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = 5
                ORDER BY m.available_at LIMIT most) x) AS posted
    ), gone AS MATERIALIZED (  -- ended, and too many to be removed just now
        SELECT x.state, count(*) AS many FROM (
            SELECT m.state FROM {schema}.messages m WHERE m.queue = name AND m.state > 3 AND m.ends_at <= now
            ORDER BY m.ends_at LIMIT most) x GROUP BY x.state
    ), alive AS MATERIALIZED (
        SELECT c.state, greatest(0, c.many - coalesce((SELECT o.many FROM gone o WHERE o.state = c.state), 0)) AS many
        FROM (SELECT c.state, c.many FROM counted c UNION ALL SELECT 5, l.posted FROM later l) c)
    SELECT
        least(most, (SELECT sum(a.many) FROM alive a WHERE a.state IN (2, 6)))::bigint,
        least(most, l.due + (SELECT sum(a.many) FROM alive a WHERE a.state IN (0, 4, 7)))::bigint,
        least(most, l.not_due + (SELECT a.many FROM alive a WHERE a.state = 5))::bigint,
        (SELECT coalesce(sum(e.count), 0) FROM (
            SELECT y.count FROM {schema}.expiries y WHERE y.queue = name ORDER BY y.queue) e)::bigint
    FROM later l;
END $$;

-- How many posted messages a queue has, dead ones left out, counted up to `most`.
CREATE OR REPLACE FUNCTION {schema}.count_posted(name text, most integer)
RETURNS bigint LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    RETURN least(most, (
        SELECT count(*) FROM (
            SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state > 3 AND m.ends_at > now
            ORDER BY m.ends_at LIMIT most) x) + (
        SELECT count(*) FROM (
            SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state > 3 AND m.ends_at IS NULL
            LIMIT most) x));
END $$;
