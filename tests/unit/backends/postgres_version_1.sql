-- The schema as version 1 had it, for the tests of migrations: all that jobpool 0.1 could have left behind.
CREATE SCHEMA {schema};
CREATE TABLE {schema}.migrations (
    version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO {schema}.migrations (version) VALUES (1);

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

-- Functions that no test calls, without their bodies: a migration must replace or drop them all the same.
CREATE FUNCTION {schema}.ring(queues text[], eager boolean DEFAULT false) RETURNS void {left_out};
CREATE FUNCTION {schema}.remember_ended(ids text[], now bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.sweep(most integer) RETURNS integer {left_out};
CREATE FUNCTION {schema}.enqueue(ids text[], given boolean[], queues text[], handlers text[], priorities smallint[],
    dues bigint[], bodies bytea[], eager boolean DEFAULT false) RETURNS void {left_out};
CREATE FUNCTION {schema}.step_floor(head {schema}.heads, top bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.is_ready(name text, now bigint DEFAULT NULL) RETURNS boolean {left_out};
CREATE FUNCTION {schema}.renew(queues text[], seqs bigint[], holders bigint[], length bigint) RETURNS text {left_out};
CREATE FUNCTION {schema}.reap(name text, max_crashes integer, crash_window bigint, back_off double precision, cap double
    precision, visible bigint, most integer)
    RETURNS TABLE (id text, crashes integer, cause text, dead boolean) {left_out};
CREATE FUNCTION {schema}.queue_names() RETURNS text[] {left_out};
CREATE FUNCTION {schema}.stats(name text, most integer)
    RETURNS TABLE (waiting bigint, due bigint, delayed bigint, leased bigint, dead bigint, age bigint) {left_out};
CREATE FUNCTION {schema}.look_through(names text[], kinds smallint[], due boolean, later boolean, wanted_handler text,
    wanted_reason text, older bigint, newer bigint, behind bigint, most integer, bodies boolean, share integer)
    RETURNS TABLE (seq bigint, id text, queue text, state smallint, handler text, priority smallint, attempts integer,
        crashes integer, deliveries bigint, enqueued_at bigint, available_at bigint, body bytea, reason text, last_error
        text, cause text, forfeited text, died_at bigint, deadline bigint, place text) {left_out};
CREATE FUNCTION {schema}.look_up(ids text[], names text[], kinds smallint[], due boolean, later boolean, wanted_handler
    text, wanted_reason text, older bigint, newer bigint, behind bigint, most integer, bodies boolean)
    RETURNS TABLE (seq bigint, id text, queue text, state smallint, handler text, priority smallint, attempts integer,
        crashes integer, deliveries bigint, enqueued_at bigint, available_at bigint, body bytea, reason text, last_error
        text, cause text, forfeited text, died_at bigint, deadline bigint, place text) {left_out};
CREATE FUNCTION {schema}.lock_seen(places tid[], seqs bigint[]) RETURNS tid[] {left_out};
CREATE FUNCTION {schema}.discard(places tid[], seqs bigint[]) RETURNS integer {left_out};
CREATE FUNCTION {schema}.retry(places tid[], seqs bigint[]) RETURNS integer {left_out};
