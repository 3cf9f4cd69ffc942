-- The names of all queues that hold a message, sorted; from one to the next, however many messages there are of each.
CREATE OR REPLACE FUNCTION {schema}.queue_names() RETURNS text[] LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    name text := (SELECT m.queue FROM {schema}.messages m ORDER BY m.queue LIMIT 1);
    names text[] := '{}';
BEGIN
    WHILE name IS NOT NULL LOOP
        names := names || name;
        name := (SELECT m.queue FROM {schema}.messages m WHERE m.queue > name ORDER BY m.queue LIMIT 1);
    END LOOP;
    RETURN names;
END $$;

-- Counts of one queue, each up to `most`: waiting now, fallen due while nobody fetched, delayed, leased, dead; and the
-- microseconds since the enqueue of the oldest message that waits or has fallen due.
CREATE OR REPLACE FUNCTION {schema}.stats(name text, most integer)
RETURNS TABLE (waiting bigint, due bigint, delayed bigint, leased bigint, dead bigint, age bigint)
LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    oldest bigint;
BEGIN
    SELECT count(*), min(x.seq) INTO due, oldest FROM (
        SELECT m.seq FROM {schema}.messages m
        WHERE m.queue = name AND m.state = 1 AND m.available_at <= now
        ORDER BY m.available_at LIMIT most) x;
    delayed := (SELECT count(*) FROM (
        SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at > now
        ORDER BY m.available_at LIMIT most) x);
    waiting := {schema}.count_state(name, 0::smallint, most);
    leased := {schema}.count_state(name, 2::smallint, most);
    dead := {schema}.count_state(name, 3::smallint, most);
    oldest := least(oldest, {schema}.first_waiting(name));
    age := now - (SELECT m.enqueued_at FROM {schema}.messages m WHERE m.queue = name AND m.seq = oldest
        AND m.state = ANY ('{0,1}'));
    RETURN NEXT;
END $$;

CREATE OR REPLACE FUNCTION {schema}.count_state(name text, kind smallint, most integer)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
        SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = kind LIMIT most) x);
END $$;

CREATE OR REPLACE FUNCTION {schema}.first_waiting(name text, kind smallint DEFAULT 0)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT m.seq FROM {schema}.messages m WHERE m.queue = name AND m.state = kind ORDER BY m.seq LIMIT 1);
END $$;

-- Messages in enqueue order, from the one behind number `behind` on: up to `most` of those that the filter wants. The
-- last row has nothing but a number: go on behind it; NULL: that was all.
--
-- A range is one state of one queue. Up to `share` messages are looked at in each, from `behind` on, and fewer where
-- there are many ranges. Beyond the end of the shortest of those that go on, the order is not known yet.
--
-- names: of queues, NULL = all. kinds: states as they are stored. due: also those delayed ones that have fallen due.
-- later: none of those. older, newer: microseconds. bodies: with the bodies.
CREATE OR REPLACE FUNCTION {schema}.look_through(
    names text[], kinds smallint[], due boolean, later boolean, wanted_handler text, wanted_reason text, older bigint,
    newer bigint, behind bigint, most integer, bodies boolean, share integer
) RETURNS TABLE ({shown_columns}) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    found integer;
    horizon bigint;
    places tid[];
    last bigint;
BEGIN
    names := coalesce(names, {schema}.queue_names());
    share := greatest(1, least(share, {window} / greatest(1, cardinality(names) * cardinality(kinds))));
    WITH examined AS MATERIALIZED (
        SELECT x.* FROM unnest(names) AS n (queue), unnest(kinds) AS k (state), LATERAL (
            SELECT m.ctid AS place, m.seq, m.queue, m.state, m.available_at, m.enqueued_at, m.died_at, m.handler, m.reason
            FROM {schema}.messages m WHERE m.queue = n.queue AND m.state = k.state AND m.seq > behind
            ORDER BY m.seq LIMIT share) x
    ), unfinished AS (
        SELECT min(r.last) AS horizon FROM (
            SELECT max(e.seq) AS last FROM examined e GROUP BY e.queue, e.state HAVING count(*) >= share) r
    ), wanted AS (
        SELECT m.place, m.seq FROM examined m
        WHERE {wanted} AND NOT (later AND m.state = 1 AND m.available_at <= now)
        UNION ALL
        SELECT x.place, x.seq FROM unnest(CASE WHEN due THEN names END) AS n (queue), LATERAL (
            SELECT m.place, m.seq FROM (
                SELECT d.ctid AS place, d.seq, d.enqueued_at, d.died_at, d.handler, d.reason FROM {schema}.messages d
                WHERE d.queue = n.queue AND d.state = 1 AND d.available_at <= now ORDER BY d.available_at OFFSET 0) m
            WHERE m.seq > behind AND {wanted} ORDER BY m.seq LIMIT most) x
    ), first AS (
        SELECT w.place, w.seq FROM wanted w, unfinished u WHERE w.seq <= coalesce(u.horizon, w.seq)
        ORDER BY w.seq LIMIT most)
    SELECT array_agg(f.place), count(*), max(f.seq), (SELECT u.horizon FROM unfinished u)
    INTO places, found, last, horizon FROM first f;
    RETURN QUERY
    SELECT {shown} FROM {schema}.messages m WHERE m.ctid = ANY (places) ORDER BY m.seq;
    seq := CASE WHEN found >= most THEN last ELSE horizon END;
    RETURN NEXT;
END $$;

-- The same among the messages with these ids, all at once.
CREATE OR REPLACE FUNCTION {schema}.look_up(
    ids text[], names text[], kinds smallint[], due boolean, later boolean, wanted_handler text, wanted_reason text,
    older bigint, newer bigint, behind bigint, most integer, bodies boolean
) RETURNS TABLE ({shown_columns}) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    RETURN QUERY
    SELECT {shown} FROM (SELECT DISTINCT unnest(ids)) AS i (id), LATERAL (
        SELECT x.ctid, x.* FROM {schema}.messages x WHERE x.id = i.id OFFSET 0) m
    WHERE (names IS NULL OR m.queue = ANY (names)) AND m.seq > behind AND {wanted}
        AND (m.state = ANY (kinds) OR due AND m.state = 1 AND m.available_at <= now)
        AND NOT (later AND m.state = 1 AND m.available_at <= now)
    ORDER BY m.seq LIMIT most;
END $$;
