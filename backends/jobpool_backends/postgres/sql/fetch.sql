-- Lease up to `most` messages for `length` microseconds. A call that was answered within the last minute gets those of
-- its leases that are still held. The rows are in no order; their first columns give the order. A body that is too
-- large is NULL, and stays where it is. `may_stay`: a fresh message may stay among the fresh ones, in a first lease.
--
-- A first lease changes nothing that an index holds, so the row's new version needs no entry in any (a HOT update).
-- For a job that is acked before its first renewal the log has 5 records, not 8. The state stays 0, and the holder
-- tells it from waiting ones. `reap` and lists find first leases by `fetches`, which has a row for each of their
-- priorities. A renewal makes it an ordinary lease, and after any end but an ack the message is not fresh. A message or
-- two get none. Nor do those with many numbers of others between them: the others may come later, and then each look
-- for the leases passes over them. Only a fetch that has its queue's turn gives some. So the migration to 8 may come
-- while a fetch of an older program waits. That one looks by the new `take_fresh`, which leaves out first leases. Then
-- it has either the turn or locks on the messages that it takes, and no fetch gives first leases on these.
CREATE OR REPLACE FUNCTION {schema}.take_leases(
    name text, most integer, length bigint, call text, new_holder bigint, may_stay boolean
) RETURNS TABLE (
    priority smallint, seq bigint, id text, body bytea, attempts integer, crashes integer, deliveries bigint,
    enqueued_at bigint, begun boolean, holder bigint, remaining bigint
) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    may_step boolean := pg_current_xact_id_if_assigned() IS NULL;
    now bigint := {schema}.moment();
    known_as text := 'fetch:' || name || ':' || call;
    earlier text;
    known {schema}.heads[];
    unknown boolean;
    due boolean;
    again boolean;
    alone boolean;
    places tid[];
    mine xid;
BEGIN
    -- One statement for all that there may be: nearly always there is nothing but fresh messages of known priorities.
    SELECT
        (SELECT CASE WHEN c.until > now THEN c.answer END FROM {schema}.calls c WHERE c.id = known_as),
        ARRAY(SELECT h FROM {schema}.heads h WHERE h.queue = name AND h.priority >= 0 ORDER BY h.queue, h.priority),
        (SELECT true FROM {schema}.messages m
            WHERE m.queue = name AND {fresh} AND m.priority < coalesce((
                SELECT h.priority FROM {schema}.heads h WHERE h.queue = name AND h.priority >= 0
                ORDER BY h.queue, h.priority LIMIT 1), 256)
            ORDER BY m.priority, m.seq LIMIT 1),
        (SELECT m.available_at <= now FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 1 ORDER BY m.available_at LIMIT 1),
        (SELECT true FROM {schema}.messages m WHERE m.queue = name AND m.state = 0 AND NOT m.fresh
            ORDER BY m.priority, m.seq LIMIT 1)
    INTO earlier, known, unknown, due, again;
    IF earlier IS NOT NULL THEN
        RETURN QUERY
        SELECT m.priority, m.seq, m.id, {body}, m.attempts, m.crashes,
            m.deliveries, m.enqueued_at, m.begun, m.holder, m.deadline - now
        FROM {schema}.messages m
        WHERE m.queue = name AND m.state = 2 AND m.deadline > now AND m.holder = earlier::bigint
        UNION ALL
        SELECT m.priority, m.seq, m.id, {body}, m.attempts, m.crashes,
            m.deliveries, m.enqueued_at, m.begun, m.holder, m.first_until - now
        FROM {schema}.fetches f, LATERAL (SELECT m.* FROM {schema}.messages m WHERE {of_fetch}) m
        WHERE f.queue = name AND f.holder = earlier::bigint AND m.first_until > now;
        RETURN;
    END IF;
    -- One fetch of a queue at a time has its turn. It takes untouched messages without a lock of their own: a record
    -- less in the log for each. A fetch without the turn, or that meets others' locks, locks as it looks.
    alone := {schema}.have_turn(name)
        OR may_stay AND most >= {first_leases_from} AND {schema}.await_turn(name);
    LOOP
        places := {schema}.take_fresh(name, most, known, unknown, alone, may_step);
        IF due OR again THEN
            places := {schema}.take_others(name, most, places, due, now);
        END IF;
        EXIT WHEN cardinality(places) = 0;
        mine := pg_current_xact_id_if_assigned()::xid;
        may_stay := may_stay AND alone AND cardinality(places) >= {first_leases_from};
        -- Messages that another fetch has locked since the look are left to it. One that it locks in
        -- the very instant is waited for; state and queue tell its fate.
        RETURN QUERY
        WITH noted AS (
            INSERT INTO {schema}.fetches (queue, until, holder, priority, low, high)
            SELECT name, now + length, new_holder, m.priority, min(m.seq), max(m.seq)
            FROM {schema}.messages m WHERE may_stay AND m.ctid = ANY (places) AND m.fresh
            GROUP BY m.priority HAVING max(m.seq) - min(m.seq) <= {first_leases_range}
            RETURNING fetches.priority)
        UPDATE {schema}.messages m
        SET state = CASE WHEN {stays} THEN 0 ELSE 2 END, fresh = {stays}, holder = new_holder,
            first_until = CASE WHEN {stays} THEN now + length END,
            deadline = CASE WHEN NOT {stays} THEN now + length END, ttl = length,
            deliveries = least(m.deliveries, {max_bigint}) + 1
        WHERE m.ctid = ANY (places) AND (NOT alone OR m.xmax = 0 OR m.xmax = mine)
            AND m.state + 0 = 0 AND m.holder IS NULL AND m.queue || '' = name  -- + 0, || '': by no index
        RETURNING m.priority, m.seq, m.id, {body}, m.attempts, m.crashes,
            m.deliveries, m.enqueued_at, m.begun, m.holder, length;
        IF FOUND THEN
            PERFORM {schema}.remember(known_as, new_holder::text, now);
            RETURN;
        END IF;
        EXIT WHEN NOT alone;
        alone := false;  -- others have taken them all
    END LOOP;
    -- A message may have been made to wait by hand, as if it were fresh. A floor would hide it forever.
    UPDATE {schema}.heads h SET floor = 0, candidate = NULL, settled_before = NULL, reset_at = now
    WHERE h.queue = name AND h.floor > 0 AND h.reset_at <= now - {floor_reset};
END $$;

-- The same, as programs of versions before 8 ask for it: they look for leases by state 2 alone.
CREATE OR REPLACE FUNCTION {schema}.lease(name text, most integer, length bigint, call text, new_holder bigint)
RETURNS TABLE (
    priority smallint, seq bigint, id text, body bytea, attempts integer, crashes integer, deliveries bigint,
    enqueued_at bigint, begun boolean, holder bigint, remaining bigint
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY SELECT l.* FROM {schema}.take_leases(name, most, length, call, new_holder, false) l;
END $$;

-- Where the first leases of one queue are, as of the same moment as the statement that asks.
CREATE OR REPLACE FUNCTION {schema}.first_leases(name text) RETURNS SETOF tid LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT x.ctid FROM {schema}.fetches f, LATERAL (SELECT m.ctid FROM {schema}.messages m WHERE {of_fetch}) x
    WHERE f.queue = name;
END $$;

-- Let delayed messages that have fallen due join those that wait, the earliest first.
CREATE OR REPLACE FUNCTION {schema}.promote(name text, now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (SELECT m.available_at <= now FROM {schema}.messages m
        WHERE m.queue = name AND m.state = 1 ORDER BY m.available_at LIMIT 1)
    THEN
        UPDATE {schema}.messages SET state = 0 WHERE ctid = ANY (ARRAY(
            SELECT m.ctid FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at <= now
            ORDER BY m.available_at LIMIT {promote_limit} FOR UPDATE SKIP LOCKED));
    END IF;
END $$;

-- `places`, and waiting messages that are not fresh, with `due` those due now too: up to `most` in order, these locked.
CREATE OR REPLACE FUNCTION {schema}.take_others(name text, most integer, places tid[], due boolean, now bigint)
RETURNS tid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    returned tid[];
BEGIN
    IF due THEN
        PERFORM {schema}.promote(name, now);
    END IF;
    returned := ARRAY(
        SELECT m.ctid FROM {schema}.messages m WHERE m.queue = name AND m.state = 0 AND NOT m.fresh
        ORDER BY m.priority, m.seq LIMIT most FOR UPDATE SKIP LOCKED);
    IF cardinality(returned) = 0 THEN
        RETURN places;
    END IF;
    RETURN ARRAY(
        SELECT m.ctid FROM {schema}.messages m WHERE m.ctid = ANY (places || returned)
        ORDER BY m.priority, m.seq LIMIT most);
END $$;

-- Up to `most` fresh messages of one queue in their order. For each known priority it begins at the floor, and ends
-- before the next that is known. `unknown`: there are some before the first, and these are locked. So are the others,
-- unless this fetch is `alone` and they are untouched.
CREATE OR REPLACE FUNCTION {schema}.take_fresh(
    name text, most integer, known {schema}.heads[], unknown boolean, alone boolean, may_step boolean
) RETURNS tid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    head {schema}.heads;
    above smallint;
    taken tid[] := '{}';
    part tid[];
    top bigint;
    last smallint;
    untouched boolean;
BEGIN
    IF unknown THEN
        taken := ARRAY(
            SELECT m.ctid FROM {schema}.messages m
            WHERE m.queue = name AND {fresh} AND m.priority < coalesce(known[1].priority, 256)
            ORDER BY m.priority, m.seq LIMIT most FOR UPDATE SKIP LOCKED);
        IF cardinality(taken) > 0 THEN
            PERFORM {schema}.know(name, taken);
        END IF;
    END IF;
    FOR number IN 1 .. cardinality(known) LOOP
        EXIT WHEN cardinality(taken) >= most;
        head := known[number];
        above := coalesce(known[number + 1].priority, 256);
        untouched := alone;
        IF alone THEN
            SELECT array_agg(x.place), max(x.seq) FILTER (WHERE x.priority = head.priority), max(x.priority),
                coalesce(bool_and(x.untouched), true)
            INTO part, top, last, untouched FROM (
                SELECT m.ctid AS place, m.seq, m.priority, m.xmax = 0 AS untouched FROM {schema}.messages m
                WHERE m.queue = name AND {fresh}
                    AND (m.priority, m.seq) >= (head.priority, head.floor) AND m.priority < above
                ORDER BY m.priority, m.seq LIMIT most - cardinality(taken)) x;
        END IF;
        IF NOT untouched THEN
            SELECT array_agg(x.place), max(x.seq) FILTER (WHERE x.priority = head.priority), max(x.priority)
            INTO part, top, last FROM (
                SELECT m.ctid AS place, m.seq, m.priority FROM {schema}.messages m
                WHERE m.queue = name AND {fresh}
                    AND (m.priority, m.seq) >= (head.priority, head.floor) AND m.priority < above
                ORDER BY m.priority, m.seq LIMIT most - cardinality(taken) FOR UPDATE SKIP LOCKED) x;
        END IF;
        taken := taken || part;
        IF last > head.priority THEN
            PERFORM {schema}.know(name, part);
        END IF;
        IF may_step AND top IS NOT NULL THEN
            PERFORM {schema}.step_floor(head, top);
        END IF;
    END LOOP;
    RETURN taken;
END $$;

-- Take the one turn of this queue, until the end of this transaction; return whether it has it. Never waits.
CREATE OR REPLACE FUNCTION {schema}.have_turn(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN pg_try_advisory_xact_lock(hashtext('jobpool fetch of {schema}'), hashtext(name));
END $$;

-- Wait for that turn, for as long as a few fetches take; return whether it has come.
CREATE OR REPLACE FUNCTION {schema}.await_turn(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET lock_timeout = '{turn_timeout}' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('jobpool fetch of {schema}'), hashtext(name));
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Make the priorities of these messages known, if this transaction has the turn. Two that added the same one would wait
-- for each other, and perhaps for messages that the other has locked.
CREATE OR REPLACE FUNCTION {schema}.know(name text, places tid[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF {schema}.have_turn(name) THEN
        INSERT INTO {schema}.heads (queue, priority)
        SELECT DISTINCT name, m.priority FROM {schema}.messages m
        WHERE m.ctid = ANY (places) AND NOT EXISTS (  -- the insert would wait for a fetch that changes what is there
            SELECT FROM {schema}.heads h WHERE h.queue = name AND h.priority = m.priority)
        ON CONFLICT DO NOTHING;
    END IF;
END $$;

-- A row that has moved on leaves its index entry behind until a vacuum. A vacuum leaves it while any transaction, such
-- as a backup's, might still look at it. Without more, a fetch would walk over all of them, more with each message.
-- So `heads` keeps a floor for each queue and priority: no fresh message has a lower sequence number, now or ever.
-- This moves it a step, when it is time. `head` was read before this transaction had a number; `top` is a message that
-- was just taken. In turn:
-- 1. A message that was taken far above the floor becomes the candidate for the new one.
-- 2. A later transaction writes its own number beside it. Each transaction that drew a lower sequence number than the
--    candidate had drawn a transaction number before that, hence one below this.
-- 3. When all transactions below that number have ended, every message below the candidate that will ever be there can
--    be seen. The floor goes up to the first of them that is still fresh, or to the candidate.
-- Posted messages that were never claimed have one too, under priority -1; see `take_posts`.
CREATE OR REPLACE FUNCTION {schema}.step_floor(head {schema}.heads, top bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    posted smallint := 4;
    place tid;
BEGIN
    IF head.candidate IS NULL AND top < head.floor + {floor_step}
        OR head.settled_before > pg_snapshot_xmin(pg_current_snapshot())
    THEN
        RETURN;
    END IF;
    SELECT h.ctid INTO place FROM {schema}.heads h
    WHERE h.queue = head.queue AND h.priority = head.priority AND h = head FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;  -- another fetch is moving it, or has
    ELSIF head.candidate IS NULL THEN
        UPDATE {schema}.heads SET candidate = top WHERE ctid = place;
    ELSIF head.settled_before IS NULL THEN
        UPDATE {schema}.heads SET settled_before = pg_current_xact_id() WHERE ctid = place;
    ELSE
        UPDATE {schema}.heads SET candidate = NULL, settled_before = NULL, floor = coalesce(
            CASE WHEN head.priority < 0 THEN (
                SELECT m.seq FROM {schema}.messages m
                WHERE m.queue = head.queue AND m.state = posted AND m.seq >= head.floor AND m.seq < head.candidate
                ORDER BY m.seq LIMIT 1)
            ELSE (
                SELECT m.seq FROM {schema}.messages m
                WHERE m.queue = head.queue AND {fresh} AND m.priority = head.priority
                    AND m.seq >= head.floor AND m.seq < head.candidate
                ORDER BY m.seq LIMIT 1) END, head.candidate)
        WHERE ctid = place;
    END IF;
END $$;

-- Return whether a fetch would find something: a waiting message, or a delayed one that has fallen due.
CREATE OR REPLACE FUNCTION {schema}.is_ready(name text, now bigint DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    known {schema}.heads[];
    head {schema}.heads;
    below smallint := -1;
BEGIN
    IF (SELECT true FROM {schema}.messages m WHERE m.queue = name AND m.state = 0 AND NOT m.fresh
        ORDER BY m.priority, m.seq LIMIT 1)
        OR (SELECT m.available_at <= coalesce(is_ready.now, {schema}.moment()) FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 1 ORDER BY m.available_at LIMIT 1)
    THEN
        RETURN true;
    END IF;
    known := ARRAY(
        SELECT h FROM {schema}.heads h WHERE h.queue = name AND h.priority >= 0 ORDER BY h.queue, h.priority);
    FOR number IN 1 .. cardinality(known) + 1 LOOP
        head := known[number];
        IF (SELECT true FROM {schema}.messages m
            WHERE m.queue = name AND {fresh}
                AND m.priority > below AND m.priority < coalesce(head.priority, 256)
            ORDER BY m.priority, m.seq LIMIT 1)
            OR (SELECT true FROM {schema}.messages m
                WHERE m.queue = name AND {fresh}
                    AND (m.priority, m.seq) >= (head.priority, head.floor) AND m.priority <= head.priority
                ORDER BY m.priority, m.seq LIMIT 1)
        THEN
            RETURN true;
        END IF;
        below := head.priority;
    END LOOP;
    RETURN false;
END $$;
