-- How many messages other than `number` have a place under a name, counted up to `most`. Places of ended leases count
-- too, until `free_places` takes them away.
CREATE OR REPLACE FUNCTION {schema}.count_places(scope text, place text, number bigint, most integer)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
        SELECT FROM {schema}.holds h
        WHERE h.queue = scope AND h.name = place AND h.seq IS DISTINCT FROM number LIMIT most) x);
END $$;

-- Return those of the names with enough places taken that they could become full.
CREATE OR REPLACE FUNCTION {schema}.crowded_names(scopes text[], names text[], fulls integer[])
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(
        SELECT n.scope || ' ' || n.name FROM unnest(scopes, names, fulls) AS n (scope, name, full_from)
        WHERE n.full_from < 1 OR {schema}.count_places(n.scope, n.name, NULL, n.full_from) >= n.full_from);
END $$;

-- Take away places whose leases were settled: they do not count any more, and are only in the way. Places that others
-- have locked are left to the sweep.
CREATE OR REPLACE FUNCTION {schema}.leave_places(scopes text[], places text[], seqs bigint[], holders bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    DELETE FROM {schema}.holds WHERE ctid = ANY (ARRAY(
        SELECT h.ctid FROM unnest(scopes, places, seqs, holders) AS l (scope, place, number, owner)
        JOIN {schema}.holds h ON h.queue = l.scope AND h.name = l.place AND h.seq = l.number AND h.holder = l.owner
        FOR UPDATE OF h SKIP LOCKED));
END $$;

-- Take away the places of leases that have ended.
CREATE OR REPLACE FUNCTION {schema}.free_places(scope text, place text, now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM {schema}.holds WHERE ctid = ANY (ARRAY(
        SELECT h.ctid FROM {schema}.holds h WHERE h.queue = scope AND h.name = place AND CASE WHEN (
            SELECT l.held FROM {leased}, LATERAL (
                SELECT {deadline} > now AS held FROM {schema}.messages m
                WHERE m.queue = h.queue AND m.state = k.state AND m.seq = h.seq AND m.holder = h.holder OFFSET 0) l)
        THEN false ELSE NOT {schema}.is_being_settled(h.queue, h.seq, h.holder) END));
END $$;

-- Return whether a lease past its deadline may yet turn out to have been renewed or settled in time. Then a transaction
-- that began before the deadline, perhaps a handler's own, has the row. As in `reap`, that one comes first.
CREATE OR REPLACE FUNCTION {schema}.is_being_settled(scope text, number bigint, owner bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM {leased}, LATERAL (
        SELECT FROM {schema}.messages m
        WHERE m.queue = scope AND m.state = k.state AND m.seq = number AND m.holder = owner OFFSET 0) l;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM {leased}, LATERAL (
        SELECT FROM {schema}.messages m
        WHERE m.queue = scope AND m.state = k.state AND m.seq = number AND m.holder = owner
        FOR KEY SHARE SKIP LOCKED) l;
    RETURN NOT FOUND;
END $$;

CREATE OR REPLACE FUNCTION {schema}.take_place(scope text, place text, number bigint, owner bigint, deadline bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.holds (queue, name, seq, holder, until) VALUES (scope, place, number, owner, deadline)
    ON CONFLICT (queue, name, seq) DO UPDATE SET holder = excluded.holder, until = excluded.until;
END $$;

-- The ids of the messages that have a place under a name.
CREATE OR REPLACE FUNCTION {schema}.holders(scope text, place text)
RETURNS text[] LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    RETURN ARRAY(
        SELECT x.id FROM {schema}.holds h, {leased}, LATERAL (
            SELECT m.id FROM {schema}.messages m
            WHERE m.queue = h.queue AND m.state = k.state AND m.seq = h.seq AND m.holder = h.holder AND {deadline} > now
            OFFSET 0) x
        WHERE h.queue = scope AND h.name = place);
END $$;

-- Forget up to `most` places of leases that have ended. A place that was taken again meanwhile has a later time to look
-- at it, and is left. So is the place of a lease that is not reaped yet.
CREATE OR REPLACE FUNCTION {schema}.sweep_holds(most integer, now bigint)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    due tid[] := ARRAY(
        SELECT h.ctid FROM {schema}.holds h WHERE h.until <= now ORDER BY h.until LIMIT most FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(due) > 0 THEN
        UPDATE {schema}.holds h SET until = now + {look_again} WHERE h.ctid = ANY (due) AND (
            SELECT true FROM {leased}, LATERAL (
                SELECT FROM {schema}.messages m
                WHERE m.queue = h.queue AND m.state = k.state AND m.seq = h.seq AND m.holder = h.holder OFFSET 0) l);
        DELETE FROM {schema}.holds h WHERE h.ctid = ANY (due) AND h.until <= now;
    END IF;
    RETURN cardinality(due);
END $$;
