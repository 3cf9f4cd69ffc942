-- The names of all queues that hold a message, sorted; from one to the next, however many messages there are of each.
-- Where the first is a posted one all are, and the one that lives longest says whether there are any.
CREATE OR REPLACE FUNCTION {schema}.queue_names() RETURNS text[] LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    name text := '';
    kind smallint;
    names text[] := '{}';
BEGIN
    LOOP
        SELECT m.queue, m.state INTO name, kind FROM {schema}.messages m WHERE m.queue > name
        ORDER BY m.queue, m.state, m.seq LIMIT 1;
        EXIT WHEN name IS NULL;
        IF kind <= 3 OR (
            SELECT m.ends_at IS NULL OR m.ends_at > now FROM {schema}.messages m WHERE m.queue = name AND m.state > 3
            ORDER BY m.ends_at DESC NULLS FIRST LIMIT 1)
        THEN
            names := names || name;
        END IF;
    END LOOP;
    RETURN names;
END $$;

-- Counts of one queue, each up to `most`: waiting, fallen due and not fetched since, delayed, leased, dead. Also the
-- microseconds since the enqueue of the oldest message that waits or has fallen due. All of one moment.
CREATE OR REPLACE FUNCTION {schema}.stats(name text, most integer)
RETURNS TABLE (waiting bigint, due bigint, delayed bigint, leased bigint, dead bigint, age bigint)
LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    states smallint[] := '{0, 1, 2, 3}';  -- a number in the statement would invite the planner to use another index
BEGIN
    RETURN QUERY
    SELECT counts.waiting, fallen.due, counts.delayed, counts.leased, counts.dead, now - (
        SELECT greatest(m.enqueued_at, 0) FROM {schema}.messages m
        WHERE m.queue = name AND m.seq = least(fallen.oldest, counts.oldest) AND m.state = ANY (states[1:2]))
    FROM (
        SELECT count(*) AS due, min(x.seq) AS oldest FROM (
            SELECT m.seq FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at <= now
            ORDER BY m.available_at LIMIT most) x
    ) fallen, LATERAL (
        SELECT
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m
                WHERE m.queue = name AND m.state = states[1] AND m.holder IS NULL LIMIT most) x) AS waiting,
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at > now
                ORDER BY m.available_at LIMIT most) x) AS delayed,
            (SELECT least(most, count(*)) FROM (
                (SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = states[3] LIMIT most)
                UNION ALL SELECT FROM {schema}.first_leases(name)) x) AS leased,
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = states[4] LIMIT most) x) AS dead,
            (SELECT m.seq FROM {schema}.messages m
                WHERE m.queue = name AND m.state = states[1] AND m.holder IS NULL ORDER BY m.seq LIMIT 1) AS oldest
    ) counts;
END $$;

-- Messages in enqueue order, from the one after number `behind` on: up to `most` that the filter wants, all of one
-- moment. The last row has only a number: continue after it; NULL: that was all.
--
-- A range is one state of one queue. Up to `share` messages are looked at in each, from `behind` on, and fewer where
-- there are many ranges. But 16 at least: each statement begins all ranges anew. Beyond the end of the shortest of
-- those that go on, the order is not known yet.
--
-- names: of queues, NULL = all. kinds: states as they are stored; 2 brings first leases too. due: also delayed ones
-- that have fallen due. later: none of those. older, newer: microseconds. bodies: with the bodies.
CREATE OR REPLACE FUNCTION {schema}.look_through(
    names text[], kinds smallint[], due boolean, later boolean, wanted_handler text, wanted_reason text, older bigint,
    newer bigint, behind bigint, most integer, bodies boolean, share integer
) RETURNS TABLE ({shown_columns}) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    names := coalesce(names, {schema}.queue_names());
    share := least(share, greatest(16, {window} / greatest(1, cardinality(names) * cardinality(kinds))));
    RETURN QUERY
    WITH examined AS MATERIALIZED (
        SELECT x.* FROM unnest(names) AS n (queue), unnest(kinds) AS k (state), LATERAL (
            SELECT m.ctid AS place, m.seq, m.queue, m.state, m.available_at, m.enqueued_at, m.died_at, m.ends_at,
                m.handler, m.reason
            FROM {schema}.messages m
            WHERE m.queue = n.queue AND m.state = k.state AND {kind} = k.state AND m.seq > behind
            ORDER BY m.seq LIMIT share) x
    ), unfinished AS (
        SELECT min(r.last) AS horizon FROM (
            SELECT max(e.seq) AS last FROM examined e GROUP BY e.queue, e.state HAVING count(*) >= share) r
    ), wanted AS (
        SELECT m.place, m.seq FROM examined m
        WHERE {wanted} AND NOT (later AND m.state IN (1, 5) AND m.available_at <= now)
        UNION ALL
        SELECT x.place, x.seq FROM unnest(CASE WHEN due THEN names END) AS n (queue), LATERAL (
            SELECT m.ctid AS place, m.seq FROM (
                (SELECT d.ctid, d.* FROM {schema}.messages d
                WHERE d.queue = n.queue AND d.state = 1 AND d.available_at <= now ORDER BY d.available_at OFFSET 0)
                UNION ALL
                (SELECT d.ctid, d.* FROM {schema}.messages d
                WHERE d.queue = n.queue AND d.state = 5 AND d.available_at <= now ORDER BY d.available_at OFFSET 0)) m
            WHERE m.seq > behind AND {wanted} ORDER BY m.seq LIMIT most) x
        UNION ALL
        SELECT x.place, x.seq FROM unnest(CASE WHEN 2 = ANY (kinds) THEN names END) AS n (queue), LATERAL (
            SELECT m.ctid AS place, m.seq FROM {schema}.first_leases(n.queue) AS l (place), LATERAL (
                SELECT d.ctid, d.* FROM {schema}.messages d WHERE d.ctid = l.place OFFSET 0) m
            WHERE m.seq > behind AND {wanted} ORDER BY m.seq LIMIT most) x
    ), first AS MATERIALIZED (
        SELECT w.place, w.seq FROM wanted w, unfinished u WHERE w.seq <= coalesce(u.horizon, w.seq)
        ORDER BY w.seq LIMIT most
    ), page AS (
        SELECT f.place, f.seq FROM first f
        UNION ALL
        SELECT NULL, CASE WHEN count(*) >= most THEN max(f.seq) ELSE (SELECT u.horizon FROM unfinished u) END
        FROM first f)
    SELECT p.seq, {shown} FROM page p
    LEFT JOIN LATERAL (SELECT x.ctid, x.* FROM {schema}.messages x WHERE x.ctid = p.place) m ON true
    ORDER BY m.seq NULLS LAST;
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
    SELECT m.seq, {shown} FROM (SELECT DISTINCT unnest(ids)) AS i (id), LATERAL (
        SELECT x.ctid, x.* FROM {schema}.messages x WHERE x.id = i.id OFFSET 0) m
    WHERE (names IS NULL OR m.queue = ANY (names)) AND m.seq > behind AND {wanted}
        AND ({kind} = ANY (kinds) OR due AND m.state IN (1, 5) AND m.available_at <= now)
        AND NOT (later AND m.state IN (1, 5) AND m.available_at <= now)
    ORDER BY m.seq LIMIT most;
END $$;
