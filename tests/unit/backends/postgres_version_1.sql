-- The schema as version 1 had it, for the tests of migrations: all that jobpool 0.1 could have left behind.
CREATE TABLE {schema}.messages (
    seq bigint GENERATED ALWAYS AS IDENTITY,  -- its CACHE stays 1: the order, and the floors, stand on it
    enqueued_at bigint NOT NULL,
    available_at bigint NOT NULL,
    holder bigint,                            -- first half of the owner token; the second is seq in hex
    deadline bigint,
    ttl bigint,                               -- so that deadline - ttl is when it was taken or renewed
    died_at bigint,
    last_crash bigint,
    deliveries bigint NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    state smallint NOT NULL,                  -- 0 waiting, 1 delayed, 2 leased, 3 dead
    given boolean NOT NULL,                   -- its producer chose the id
    fresh boolean NOT NULL,                   -- waiting since its enqueue
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    handler text COLLATE "C" NOT NULL,
    forfeited text,                           -- the cause, when the lease was forfeited
    cause text,                               -- of the last crash
    reason text COLLATE "C",                  -- of a dead letter
    last_error text,
    body bytea NOT NULL,
    CHECK ((state = 2) = (holder IS NOT NULL)),
    CHECK ((state = 3) = (died_at IS NOT NULL))
) WITH (
    fillfactor = 50,                          -- the row that a lease makes goes beside the old one: a fifth less WAL
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 50000,
    vacuum_truncate = off,                    -- to give pages back to the disk takes a lock that stops everybody
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_cost_limit = 2000,
    toast.vacuum_truncate = off
);
-- A body that is too long for the row goes out of it as it is, once: no update copies it, and nobody compresses it.
ALTER TABLE {schema}.messages ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE UNIQUE INDEX messages_listed ON {schema}.messages (queue, state, seq);
CREATE INDEX messages_fresh ON {schema}.messages (queue, priority, seq) WHERE state = 0 AND fresh;
CREATE INDEX messages_again ON {schema}.messages (queue, priority, seq) WHERE state = 0 AND NOT fresh;
CREATE INDEX messages_due ON {schema}.messages (queue, available_at) WHERE state = 1;
CREATE INDEX messages_held ON {schema}.messages (queue, deadline) WHERE state = 2;

CREATE TABLE {schema}.heads (
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    floor bigint NOT NULL DEFAULT 0,
    candidate bigint,
    settled_before xid8,
    reset_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, priority)
) WITH (fillfactor = 50, vacuum_truncate = off);

CREATE TABLE {schema}.calls (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    until bigint NOT NULL,
    answer text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_limit = 2000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000, vacuum_truncate = off
);
CREATE INDEX calls_until ON {schema}.calls (until);

CREATE TABLE {schema}.ended (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    until bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_limit = 2000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000, vacuum_truncate = off
);
CREATE INDEX ended_until ON {schema}.ended (until);

CREATE TABLE {schema}.sleepers (
    queue text COLLATE "C" NOT NULL PRIMARY KEY
) WITH (fillfactor = 50, vacuum_truncate = off);
-- The time, in microseconds of Unix time: each call of a verb reads it once, and everything in the call agrees.
CREATE OR REPLACE FUNCTION {schema}.moment() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Wake those who sleep until something is in these queues, if anybody does. At the commit NOTIFY takes a lock that is
-- the same for the whole server, so that commits wait for each other's disk: it must be rare. Who sleeps lies down
-- anew, and is rung for once. A row that another transaction rings for just now is left to that one; `eager` is for a
-- transaction of which nobody knows when it ends: it rings whoever else has rung, and leaves the row.
CREATE OR REPLACE FUNCTION {schema}.ring(queues text[], eager boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
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

-- Remember the answer to a call. Somebody else's who had the same call at the same time is in the way: then this
-- transaction must be undone, and when it is tried again it finds the other's answer.
CREATE OR REPLACE FUNCTION {schema}.remember(call text, answer text, now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.calls AS c (id, until, answer) VALUES (call, now + 60000000, remember.answer)
    ON CONFLICT (id) DO UPDATE SET until = excluded.until, answer = excluded.answer WHERE c.until <= now;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'call % is being answered at the same time', call USING ERRCODE = 'serialization_failure';
    END IF;
END $$;

-- Remember the ids of messages that have come to their end.
CREATE OR REPLACE FUNCTION {schema}.remember_ended(ids text[], now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.ended (id, until) SELECT ident, now + 600000000 FROM unnest(ids) AS ident
    ON CONFLICT (id) DO UPDATE SET until = excluded.until;
END $$;

-- Forget up to `most` calls and ids that need not be remembered any longer; how many of either kind it was.
CREATE OR REPLACE FUNCTION {schema}.sweep(most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    calls integer;
    ids integer;
BEGIN
    DELETE FROM {schema}.calls WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM {schema}.calls c WHERE c.until <= now ORDER BY c.until LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS calls = ROW_COUNT;
    DELETE FROM {schema}.ended WHERE ctid = ANY (ARRAY(
        SELECT e.ctid FROM {schema}.ended e WHERE e.until <= now ORDER BY e.until LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS ids = ROW_COUNT;
    RETURN greatest(calls, ids);
END $$;
-- Called before messages are added: the time. The transaction must have its number before it draws the first sequence
-- number from `messages.seq`; see `step_floor`.
CREATE OR REPLACE FUNCTION {schema}.begin_enqueue() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_current_xact_id();
    RETURN {schema}.moment();
END $$;

-- Called when messages have been added: takes away those whose ids, chosen by their producers, are remembered (how
-- many), and rings for the queues that have something to fetch. It is done afterwards because an id may have come to
-- its end just now: then the unique index has made us wait for that, and only a later look sees it.
CREATE OR REPLACE FUNCTION {schema}.finish_enqueue(chosen text[], ready text[], now bigint, eager boolean DEFAULT false)
RETURNS integer LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    known integer := 0;
BEGIN
    IF cardinality(chosen) > 0 THEN
        DELETE FROM {schema}.messages WHERE id = ANY (ARRAY(
            SELECT e.id FROM unnest(chosen) AS ident, LATERAL (
                SELECT x.id, x.until FROM {schema}.ended x WHERE x.id = ident OFFSET 0) e WHERE e.until > now));
        GET DIAGNOSTICS known = ROW_COUNT;
    END IF;
    IF cardinality(ready) > 0 THEN
        PERFORM {schema}.ring(ready, eager);
    END IF;
    RETURN known;
END $$;

-- Add messages in this order, except those whose id is known. `dues`: microseconds of Unix time, NULL = now.
CREATE OR REPLACE FUNCTION {schema}.enqueue(
    ids text[], given boolean[], queues text[], handlers text[], priorities smallint[], dues bigint[], bodies bytea[],
    eager boolean DEFAULT false
) RETURNS void LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.begin_enqueue();
    chosen text[];
    ready text[];
BEGIN
    WITH added AS (
        INSERT INTO {schema}.messages AS m
            (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body)
        SELECT now, greatest(n.due, now), n.priority, CASE WHEN n.due > now THEN 1 ELSE 0 END, n.given,
            n.due IS NULL OR n.due <= now, n.id, n.queue, n.handler, n.body
        FROM unnest(ids, given, queues, handlers, priorities, dues, bodies) WITH ORDINALITY
            AS n (id, given, queue, handler, priority, due, body, place)
        ORDER BY n.place
        ON CONFLICT (id) DO NOTHING
        RETURNING m.id, m.given, m.queue, m.fresh)
    SELECT array_agg(a.id) FILTER (WHERE a.given), array_agg(DISTINCT a.queue) FILTER (WHERE a.fresh)
    INTO chosen, ready FROM added a;
    PERFORM {schema}.finish_enqueue(chosen, ready, now, eager);
END $$;

-- The same for one message, at two thirds of the cost.
CREATE OR REPLACE FUNCTION {schema}.enqueue_one(
    id text, given boolean, queue text, handler text, priority smallint, due bigint, body bytea
) RETURNS void LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.begin_enqueue();
    later boolean := coalesce(due > now, false);
    asleep boolean;
BEGIN
    INSERT INTO {schema}.messages (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body)
    VALUES (now, greatest(enqueue_one.due, now), enqueue_one.priority, later::integer, enqueue_one.given, NOT later,
        enqueue_one.id, enqueue_one.queue, enqueue_one.handler, enqueue_one.body)
    ON CONFLICT ON CONSTRAINT messages_pkey DO NOTHING;
    IF FOUND THEN
        asleep := NOT later AND EXISTS (SELECT FROM {schema}.sleepers s WHERE s.queue = enqueue_one.queue);
        IF enqueue_one.given OR asleep THEN
            PERFORM {schema}.finish_enqueue(
                CASE WHEN enqueue_one.given THEN ARRAY[enqueue_one.id] END,
                CASE WHEN asleep THEN ARRAY[enqueue_one.queue] END, now);
        END IF;
    END IF;
END $$;
-- Lease up to `most` messages for `length` microseconds; or, when this call was answered within the last minute, return
-- those of its leases that are still held. The rows are in no order; they begin with what orders them.
CREATE OR REPLACE FUNCTION {schema}.fetch(name text, most integer, length bigint, call text, new_holder bigint)
RETURNS TABLE (
    priority smallint, seq bigint, id text, body bytea, attempts integer, crashes integer, deliveries bigint,
    enqueued_at bigint, holder bigint, remaining bigint
) LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    may_step boolean := pg_current_xact_id_if_assigned() IS NULL;
    now bigint := {schema}.moment();
    known_as text := 'fetch:' || name || ':' || call;
    earlier text := (SELECT CASE WHEN c.until > now THEN c.answer END FROM {schema}.calls c WHERE c.id = known_as);
    places tid[];
    returned tid[];
BEGIN
    IF earlier IS NOT NULL THEN
        RETURN QUERY
        SELECT m.priority, m.seq, m.id, m.body, m.attempts, m.crashes, m.deliveries, m.enqueued_at, m.holder,
            m.deadline - now
        FROM {schema}.messages m
        WHERE m.queue = name AND m.state = 2 AND m.deadline > now AND m.holder = earlier::bigint;
        RETURN;
    END IF;
    places := {schema}.take_fresh(name, most, may_step);
    PERFORM {schema}.promote(name, now);
    returned := ARRAY(
        SELECT m.ctid FROM {schema}.messages m WHERE m.queue = name AND m.state = 0 AND NOT m.fresh
        ORDER BY m.priority, m.seq LIMIT most FOR UPDATE SKIP LOCKED);
    IF cardinality(returned) > 0 THEN
        places := ARRAY(
            SELECT m.ctid FROM {schema}.messages m WHERE m.ctid = ANY (places || returned)
            ORDER BY m.priority, m.seq LIMIT most);
    ELSIF cardinality(places) = 0 THEN
        -- Somebody may have made a message wait by hand, as if it were fresh. A floor would hide that for ever.
        UPDATE {schema}.heads h SET floor = 0, candidate = NULL, settled_before = NULL, reset_at = now
        WHERE h.queue = name AND h.floor > 0 AND h.reset_at <= now - 60000000;
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE {schema}.messages m
    SET state = 2, fresh = false, holder = new_holder, deadline = now + length, ttl = length,
        deliveries = m.deliveries + 1
    WHERE m.ctid = ANY (places)
    RETURNING m.priority, m.seq, m.id, m.body, m.attempts, m.crashes, m.deliveries, m.enqueued_at, m.holder, length;
    PERFORM {schema}.remember(known_as, new_holder::text, now);
END $$;

-- Let delayed messages that have fallen due join those that wait, the earliest first.
CREATE OR REPLACE FUNCTION {schema}.promote(name text, now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (SELECT m.available_at <= now FROM {schema}.messages m
        WHERE m.queue = name AND m.state = 1 ORDER BY m.available_at LIMIT 1)
    THEN
        UPDATE {schema}.messages SET state = 0 WHERE ctid = ANY (ARRAY(
            SELECT m.ctid FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at <= now
            ORDER BY m.available_at LIMIT 1000 FOR UPDATE SKIP LOCKED));
    END IF;
END $$;

-- Up to `most` fresh messages of one queue in their order, locked: for each priority from its floor on, and between the
-- priorities that are known those that are not known yet.
CREATE OR REPLACE FUNCTION {schema}.take_fresh(name text, most integer, may_step boolean)
RETURNS tid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    known {schema}.heads[] := ARRAY(
        SELECT h FROM {schema}.heads h WHERE h.queue = name ORDER BY h.queue, h.priority);
    head {schema}.heads;
    below smallint := -1;
    taken tid[] := '{}';
    part tid[];
    top bigint;
BEGIN
    FOR number IN 1 .. cardinality(known) + 1 LOOP
        head := known[number];
        IF coalesce(head.priority, 256) > below + 1 THEN
            taken := taken || {schema}.take_unknown(name, below, head.priority, most - cardinality(taken));
        END IF;
        EXIT WHEN head.priority IS NULL OR cardinality(taken) >= most;
        SELECT array_agg(x.place), max(x.seq) INTO part, top FROM (
            SELECT m.ctid AS place, m.seq FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 0 AND m.fresh
                AND (m.priority, m.seq) >= (head.priority, head.floor) AND m.priority <= head.priority
            ORDER BY m.priority, m.seq LIMIT most - cardinality(taken) FOR UPDATE SKIP LOCKED) x;
        taken := taken || part;
        IF may_step AND top IS NOT NULL THEN
            PERFORM {schema}.step_floor(head, top);
        END IF;
        EXIT WHEN cardinality(taken) >= most;
        below := head.priority;
    END LOOP;
    RETURN taken;
END $$;

-- The same for the priorities between two that are known; those that are found are known from now on.
CREATE OR REPLACE FUNCTION {schema}.take_unknown(name text, below smallint, above smallint, most integer)
RETURNS tid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    taken tid[] := ARRAY(
        SELECT m.ctid FROM {schema}.messages m
        WHERE m.queue = name AND m.state = 0 AND m.fresh AND m.priority > below AND m.priority < coalesce(above, 256)
        ORDER BY m.priority, m.seq LIMIT most FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(taken) > 0 THEN
        INSERT INTO {schema}.heads (queue, priority)
        SELECT DISTINCT name, m.priority FROM {schema}.messages m WHERE m.ctid = ANY (taken)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN taken;
END $$;

-- A row that has moved on leaves its index entry behind until a vacuum, and a vacuum leaves it while any transaction,
-- a backup's say, might still look at it. Without more, a fetch would walk over all of them, more with each message.
-- So `heads` keeps a floor for each queue and priority: no fresh message has a lower sequence number, now or ever.
-- This moves it a step, when it is time. `head` was read before this transaction had a number; `top` is a message that
-- was just taken. In turn:
-- 1. A message that was taken far above the floor becomes the candidate for the new one.
-- 2. A later transaction writes its own number beside it. Whoever has drawn a lower sequence number than the candidate
--    had drawn a transaction number before that, hence one below this.
-- 3. When all transactions below that number have ended, every message below the candidate that will ever be there can
--    be seen. The floor goes up to the first of them that is still fresh, or to the candidate.
CREATE OR REPLACE FUNCTION {schema}.step_floor(head {schema}.heads, top bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    place tid;
BEGIN
    IF head.candidate IS NULL AND top < head.floor + 1000
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
        UPDATE {schema}.heads SET candidate = NULL, settled_before = NULL, floor = coalesce((
            SELECT m.seq FROM {schema}.messages m
            WHERE m.queue = head.queue AND m.state = 0 AND m.fresh AND m.priority = head.priority
                AND m.seq >= head.floor AND m.seq < head.candidate
            ORDER BY m.seq LIMIT 1), head.candidate)
        WHERE ctid = place;
    END IF;
END $$;

-- Whether a fetch would find something: a waiting message, or a delayed one that has fallen due.
CREATE OR REPLACE FUNCTION {schema}.is_ready(name text, now bigint DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
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
    known := ARRAY(SELECT h FROM {schema}.heads h WHERE h.queue = name ORDER BY h.queue, h.priority);
    FOR number IN 1 .. cardinality(known) + 1 LOOP
        head := known[number];
        IF (SELECT true FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 0 AND m.fresh
                AND m.priority > below AND m.priority < coalesce(head.priority, 256)
            ORDER BY m.priority, m.seq LIMIT 1)
            OR (SELECT true FROM {schema}.messages m
                WHERE m.queue = name AND m.state = 0 AND m.fresh
                    AND (m.priority, m.seq) >= (head.priority, head.floor) AND m.priority <= head.priority
                ORDER BY m.priority, m.seq LIMIT 1)
        THEN
            RETURN true;
        END IF;
        below := head.priority;
    END LOOP;
    RETURN false;
END $$;
-- End leases: first acks, which take one statement together, then others one by one. One letter an answer, acks first:
-- o OK, n NOT_IN_FLIGHT, e EXPIRED, w NOT_OWNER; when this call was answered within the last minute, the same again
-- with a, ALREADY, for o. `verbs`: a letter each, a ack, n nack, b abandon, r release, f forfeit. `delays`:
-- microseconds, below 0 for what does not come back. Nothing here waits for a row, so there are no dead-locks.
CREATE OR REPLACE FUNCTION {schema}.settle(
    call text, ack_queues text[], ack_seqs bigint[], ack_holders bigint[],
    queues text[] DEFAULT '{}', seqs bigint[] DEFAULT '{}', holders bigint[] DEFAULT '{}', verbs text DEFAULT '',
    delays bigint[] DEFAULT '{}', reasons text[] DEFAULT '{}', errors text[] DEFAULT '{}'
) RETURNS text LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    give_up timestamptz := clock_timestamp() + interval '500 milliseconds';
    known_as text := 'settle:' || call;
    answers text := (SELECT CASE WHEN c.until > now THEN c.answer END FROM {schema}.calls c WHERE c.id = known_as);
    answer text;
    ready text[] := '{}';
BEGIN
    IF answers IS NOT NULL THEN
        RETURN translate(answers, 'o', 'a');
    END IF;
    answers := {schema}.settle_acks(ack_queues, ack_seqs, ack_holders, now, give_up);
    FOR number IN 1 .. cardinality(seqs) LOOP
        answer := {schema}.settle_one(
            queues[number], seqs[number], holders[number], substr(verbs, number, 1), delays[number], reasons[number],
            errors[number], now, give_up);
        answers := answers || answer;
        IF answer = 'o' AND delays[number] >= 0 THEN
            ready := ready || queues[number];
        END IF;
    END LOOP;
    PERFORM {schema}.remember(known_as, answers, now);
    IF cardinality(ready) > 0 THEN
        PERFORM {schema}.ring(ARRAY(SELECT DISTINCT unnest(ready)));
    END IF;
    RETURN answers;
END $$;

CREATE OR REPLACE FUNCTION {schema}.settle_acks(
    queues text[], seqs bigint[], holders bigint[], now bigint, give_up timestamptz
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    leased smallint := 2;  -- as a number it would invite the planner to use another index
    answers text;
    places tid[];
    ended text[];
BEGIN
    SELECT string_agg(j.answer, '' ORDER BY j.place), array_agg(j.ctid) FILTER (WHERE j.answer = 'o'),
        array_agg(j.id) FILTER (WHERE j.answer = 'o' AND j.given)
    INTO answers, places, ended FROM (
        SELECT w.place, l.ctid, l.id, l.given, CASE
            WHEN l.ctid IS NULL THEN '?' WHEN l.deadline <= now THEN 'e' WHEN l.holder <> w.holder THEN 'w' ELSE 'o'
            END AS answer
        FROM unnest(queues, seqs, holders) WITH ORDINALITY AS w (queue, seq, holder, place)
        LEFT JOIN LATERAL (
            SELECT m.ctid, m.deadline, m.holder, m.id, m.given FROM {schema}.messages m
            WHERE m.queue = w.queue AND m.state = leased AND m.seq = w.seq FOR UPDATE SKIP LOCKED) l ON true) j;
    DELETE FROM {schema}.messages WHERE ctid = ANY (places);
    IF ended IS NOT NULL THEN
        PERFORM {schema}.remember_ended(ended, now);
    END IF;
    FOR number IN 1 .. cardinality(seqs) LOOP
        EXIT WHEN strpos(answers, '?') = 0;
        IF substr(answers, number, 1) = '?' THEN
            answers := overlay(answers PLACING {schema}.settle_one(
                queues[number], seqs[number], holders[number], 'a', -1, NULL, NULL, now, give_up) FROM number FOR 1);
        END IF;
    END LOOP;
    RETURN coalesce(answers, '');
END $$;

CREATE OR REPLACE FUNCTION {schema}.settle_one(
    name text, number bigint, owner bigint, verb text, delay bigint, why text, error text, now bigint,
    give_up timestamptz
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    leased smallint := 2;
    lease record;
    ours boolean;
BEGIN
    LOOP
        SELECT m.ctid AS place, m.id, m.given INTO lease FROM {schema}.messages m
        WHERE m.queue = name AND m.state = leased AND m.seq = number AND m.deadline > now AND m.holder = owner
        FOR UPDATE SKIP LOCKED;
        EXIT WHEN FOUND;
        -- A refusal changes nothing, and needs no lock.
        SELECT CASE WHEN m.deadline <= now THEN 'e' WHEN m.holder <> owner THEN 'w' END AS refusal INTO lease
        FROM {schema}.messages m WHERE m.queue = name AND m.state = leased AND m.seq = number;
        IF NOT FOUND THEN
            RETURN 'n';
        ELSIF lease.refusal IS NOT NULL THEN
            RETURN lease.refusal;
        ELSIF clock_timestamp() >= give_up THEN
            RETURN 'w';  -- a transaction that hangs has it, such as that of a handler that was killed
        END IF;
        PERFORM pg_sleep(0.002);  -- it is being renewed, or settled by an earlier try of this call
    END LOOP;
    CASE verb
        WHEN 'a' THEN
            DELETE FROM {schema}.messages WHERE ctid = lease.place;
            IF lease.given THEN
                PERFORM {schema}.remember_ended(ARRAY[lease.id], now);
            END IF;
        WHEN 'n' THEN
            UPDATE {schema}.messages SET state = (delay > 0)::integer, available_at = now + delay,
                attempts = attempts + 1, last_error = coalesce(error, last_error), holder = NULL, deadline = NULL, ttl = NULL, forfeited = NULL
            WHERE ctid = lease.place;
        WHEN 'r' THEN
            UPDATE {schema}.messages SET state = (delay > 0)::integer, available_at = now + delay, holder = NULL, deadline = NULL, ttl = NULL, forfeited = NULL
            WHERE ctid = lease.place;
        WHEN 'b' THEN
            UPDATE {schema}.messages SET state = 3, died_at = now, reason = why,
                last_error = coalesce(error, last_error), holder = NULL, deadline = NULL, ttl = NULL, forfeited = NULL
            WHERE ctid = lease.place;
        WHEN 'f' THEN
            UPDATE {schema}.messages SET deadline = now, forfeited = why WHERE ctid = lease.place;
    END CASE;
    RETURN 'o';
END $$;

-- Hold these leases for `length` microseconds from now. A letter each: r renewed, k kept: another transaction has the
-- row, such as a handler's own that has acked but not committed; it is not waited for, and the old deadline stands;
-- l lost.
CREATE OR REPLACE FUNCTION {schema}.renew(queues text[], seqs bigint[], holders bigint[], length bigint)
RETURNS text LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    leased smallint := 2;
    held tid[];
    renewed bigint[];
    answers text;
BEGIN
    SELECT array_agg(l.ctid), array_agg(w.place) INTO held, renewed
    FROM unnest(queues, seqs, holders) WITH ORDINALITY AS w (queue, seq, holder, place),
    LATERAL (
        SELECT m.ctid FROM {schema}.messages m
        WHERE m.queue = w.queue AND m.state = leased AND m.seq = w.seq AND m.holder = w.holder AND m.deadline > now
        FOR UPDATE SKIP LOCKED) l;
    UPDATE {schema}.messages SET deadline = now + length, ttl = length WHERE ctid = ANY (held);
    IF cardinality(renewed) = cardinality(seqs) THEN
        RETURN repeat('r', cardinality(seqs));
    END IF;
    SELECT string_agg(CASE WHEN w.place = ANY (renewed) THEN 'r' WHEN l.ours THEN 'k' ELSE 'l' END, '' ORDER BY w.place)
    INTO answers
    FROM unnest(queues, seqs, holders) WITH ORDINALITY AS w (queue, seq, holder, place)
    LEFT JOIN LATERAL (
        SELECT true AS ours FROM {schema}.messages m
        WHERE m.queue = w.queue AND m.state = leased AND m.seq = w.seq AND m.holder = w.holder AND m.deadline > now
        OFFSET 0) l ON true;
    RETURN answers;
END $$;
-- Take back up to `most` messages whose lease has expired or, with `visible`, was taken or renewed so many microseconds
-- ago. `back_off` and `cap` are seconds, `crash_window` microseconds. A row that somebody else has locked, to reap it,
-- settle it or renew it, is left alone.
CREATE OR REPLACE FUNCTION {schema}.reap(
    name text, max_crashes integer, crash_window bigint, back_off double precision, cap double precision,
    visible bigint, most integer
) RETURNS TABLE (id text, crashes integer, cause text, dead boolean) LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    expired tid[];
BEGIN
    IF visible IS NULL THEN
        expired := ARRAY(
            SELECT m.ctid FROM {schema}.messages m WHERE m.queue = name AND m.state = 2 AND m.deadline <= now
            ORDER BY m.deadline LIMIT most FOR UPDATE SKIP LOCKED);
    ELSE  -- a person's call, not the pool's: it walks over all leases of the queue
        expired := ARRAY(
            SELECT m.ctid FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 2 AND (m.deadline <= now OR m.deadline - m.ttl <= now - visible)
            ORDER BY m.deadline LIMIT most FOR UPDATE SKIP LOCKED);
    END IF;
    IF cardinality(expired) = 0 THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH charged AS MATERIALIZED (
        SELECT m.ctid AS place, m.deadline, m.seq, c.crashes,
            coalesce(nullif(m.forfeited, ''), 'lease expired') AS cause,
            max_crashes > 0 AND c.crashes > max_crashes AS dead,
            CASE WHEN c.crashes <= 1 THEN 0 ELSE round(
                random() * 1e6 * least(cap, back_off * 2::double precision ^ least(c.crashes - 2, 60)))::bigint
            END AS delay
        FROM {schema}.messages m,
        LATERAL (SELECT CASE WHEN now - m.last_crash > crash_window THEN 1 ELSE m.crashes + 1 END AS crashes OFFSET 0) c
        WHERE m.ctid = ANY (expired)
    ), changed AS (
        UPDATE {schema}.messages m
        SET state = CASE WHEN c.dead THEN 3 WHEN c.delay > 0 THEN 1 ELSE 0 END,
            available_at = CASE WHEN c.dead THEN m.available_at ELSE now + c.delay END,
            died_at = CASE WHEN c.dead THEN now END, reason = CASE WHEN c.dead THEN 'crash-limit' ELSE m.reason END,
            crashes = c.crashes, last_crash = now, cause = c.cause, holder = NULL, deadline = NULL, ttl = NULL, forfeited = NULL
        FROM charged c WHERE m.ctid = c.place
        RETURNING m.id, c.crashes, c.cause, c.dead, c.deadline, c.seq)
    SELECT d.id, d.crashes, d.cause, d.dead FROM changed d ORDER BY d.deadline, d.seq;
    PERFORM {schema}.ring(ARRAY[name]);
END $$;
-- The names of all queues that hold a message, sorted; from one to the next, however many messages there are of each.
CREATE OR REPLACE FUNCTION {schema}.queue_names() RETURNS text[] LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
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

-- Counts of one queue, each up to `most`: waiting, fallen due while nobody fetched, delayed, leased, dead; and the
-- microseconds since the enqueue of the oldest message that waits or has fallen due. All of one moment.
CREATE OR REPLACE FUNCTION {schema}.stats(name text, most integer)
RETURNS TABLE (waiting bigint, due bigint, delayed bigint, leased bigint, dead bigint, age bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    states smallint[] := '{0, 1, 2, 3}';  -- a number in the statement would invite the planner to use another index
BEGIN
    RETURN QUERY
    SELECT counts.waiting, fallen.due, counts.delayed, counts.leased, counts.dead, now - (
        SELECT m.enqueued_at FROM {schema}.messages m
        WHERE m.queue = name AND m.seq = least(fallen.oldest, counts.oldest) AND m.state = ANY (states[1:2]))
    FROM (
        SELECT count(*) AS due, min(x.seq) AS oldest FROM (
            SELECT m.seq FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at <= now
            ORDER BY m.available_at LIMIT most) x
    ) fallen, LATERAL (
        SELECT
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = states[1] LIMIT most) x) AS waiting,
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = 1 AND m.available_at > now
                ORDER BY m.available_at LIMIT most) x) AS delayed,
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = states[3] LIMIT most) x) AS leased,
            (SELECT count(*) FROM (
                SELECT FROM {schema}.messages m WHERE m.queue = name AND m.state = states[4] LIMIT most) x) AS dead,
            (SELECT m.seq FROM {schema}.messages m WHERE m.queue = name AND m.state = states[1]
                ORDER BY m.seq LIMIT 1) AS oldest
    ) counts;
END $$;

-- Messages in enqueue order, from the one behind number `behind` on: up to `most` of those that the filter wants, all
-- of one moment. The last row has nothing but a number: go on behind it; NULL: that was all.
--
-- A range is one state of one queue. Up to `share` messages are looked at in each, from `behind` on, and fewer where
-- there are many ranges. Beyond the end of the shortest of those that go on, the order is not known yet.
--
-- names: of queues, NULL = all. kinds: states as they are stored. due: also those delayed ones that have fallen due.
-- later: none of those. older, newer: microseconds. bodies: with the bodies.
CREATE OR REPLACE FUNCTION {schema}.look_through(
    names text[], kinds smallint[], due boolean, later boolean, wanted_handler text, wanted_reason text, older bigint,
    newer bigint, behind bigint, most integer, bodies boolean, share integer
) RETURNS TABLE (seq bigint, id text, queue text, state smallint, handler text, priority smallint, attempts integer, crashes integer, deliveries bigint, enqueued_at bigint, available_at bigint, body bytea, reason text, last_error text, cause text, forfeited text, died_at bigint, deadline bigint, place text) LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    names := coalesce(names, {schema}.queue_names());
    share := greatest(1, least(share, 20000 / greatest(1, cardinality(names) * cardinality(kinds))));
    RETURN QUERY
    WITH examined AS MATERIALIZED (
        SELECT x.* FROM unnest(names) AS n (queue), unnest(kinds) AS k (state), LATERAL (
            SELECT m.ctid AS place, m.seq, m.queue, m.state, m.available_at, m.enqueued_at, m.died_at, m.handler,
                m.reason
            FROM {schema}.messages m WHERE m.queue = n.queue AND m.state = k.state AND m.seq > behind
            ORDER BY m.seq LIMIT share) x
    ), unfinished AS (
        SELECT min(r.last) AS horizon FROM (
            SELECT max(e.seq) AS last FROM examined e GROUP BY e.queue, e.state HAVING count(*) >= share) r
    ), wanted AS (
        SELECT m.place, m.seq FROM examined m
        WHERE (wanted_handler IS NULL OR m.handler = wanted_handler) AND (wanted_reason IS NULL OR m.reason = wanted_reason) AND (older IS NULL OR coalesce(m.died_at, m.enqueued_at) <= now - older) AND (newer IS NULL OR coalesce(m.died_at, m.enqueued_at) >= now - newer) AND NOT (later AND m.state = 1 AND m.available_at <= now)
        UNION ALL
        SELECT x.place, x.seq FROM unnest(CASE WHEN due THEN names END) AS n (queue), LATERAL (
            SELECT m.place, m.seq FROM (
                SELECT d.ctid AS place, d.seq, d.enqueued_at, d.died_at, d.handler, d.reason FROM {schema}.messages d
                WHERE d.queue = n.queue AND d.state = 1 AND d.available_at <= now ORDER BY d.available_at OFFSET 0) m
            WHERE m.seq > behind AND (wanted_handler IS NULL OR m.handler = wanted_handler) AND (wanted_reason IS NULL OR m.reason = wanted_reason) AND (older IS NULL OR coalesce(m.died_at, m.enqueued_at) <= now - older) AND (newer IS NULL OR coalesce(m.died_at, m.enqueued_at) >= now - newer) ORDER BY m.seq LIMIT most) x
    ), first AS MATERIALIZED (
        SELECT w.place, w.seq FROM wanted w, unfinished u WHERE w.seq <= coalesce(u.horizon, w.seq)
        ORDER BY w.seq LIMIT most
    ), page AS (
        SELECT f.place, f.seq FROM first f
        UNION ALL
        SELECT NULL, CASE WHEN count(*) >= most THEN max(f.seq) ELSE (SELECT u.horizon FROM unfinished u) END
        FROM first f)
    SELECT p.seq, m.id, m.queue, CASE WHEN m.state = 1 AND m.available_at <= now THEN 0::smallint ELSE m.state END, m.handler, m.priority, m.attempts, m.crashes, m.deliveries, m.enqueued_at, m.available_at, CASE WHEN bodies THEN m.body END, m.reason, m.last_error, m.cause, m.forfeited, m.died_at, m.deadline, m.ctid::text FROM page p
    LEFT JOIN LATERAL (SELECT x.ctid, x.* FROM {schema}.messages x WHERE x.ctid = p.place) m ON true
    ORDER BY m.seq NULLS LAST;
END $$;

-- The same among the messages with these ids, all at once.
CREATE OR REPLACE FUNCTION {schema}.look_up(
    ids text[], names text[], kinds smallint[], due boolean, later boolean, wanted_handler text, wanted_reason text,
    older bigint, newer bigint, behind bigint, most integer, bodies boolean
) RETURNS TABLE (seq bigint, id text, queue text, state smallint, handler text, priority smallint, attempts integer, crashes integer, deliveries bigint, enqueued_at bigint, available_at bigint, body bytea, reason text, last_error text, cause text, forfeited text, died_at bigint, deadline bigint, place text) LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    RETURN QUERY
    SELECT m.seq, m.id, m.queue, CASE WHEN m.state = 1 AND m.available_at <= now THEN 0::smallint ELSE m.state END, m.handler, m.priority, m.attempts, m.crashes, m.deliveries, m.enqueued_at, m.available_at, CASE WHEN bodies THEN m.body END, m.reason, m.last_error, m.cause, m.forfeited, m.died_at, m.deadline, m.ctid::text FROM (SELECT DISTINCT unnest(ids)) AS i (id), LATERAL (
        SELECT x.ctid, x.* FROM {schema}.messages x WHERE x.id = i.id OFFSET 0) m
    WHERE (names IS NULL OR m.queue = ANY (names)) AND m.seq > behind AND (wanted_handler IS NULL OR m.handler = wanted_handler) AND (wanted_reason IS NULL OR m.reason = wanted_reason) AND (older IS NULL OR coalesce(m.died_at, m.enqueued_at) <= now - older) AND (newer IS NULL OR coalesce(m.died_at, m.enqueued_at) >= now - newer)
        AND (m.state = ANY (kinds) OR due AND m.state = 1 AND m.available_at <= now)
        AND NOT (later AND m.state = 1 AND m.available_at <= now)
    ORDER BY m.seq LIMIT most;
END $$;
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
RETURNS integer LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
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
RETURNS integer LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
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
