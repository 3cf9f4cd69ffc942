-- The schema as version 2 had it, for the tests of migrations: all that jobpool could have left behind before claims.
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
ALTER TABLE {schema}.messages ADD COLUMN unique_key text COLLATE "C";
CREATE INDEX messages_dead ON {schema}.messages (queue, died_at, seq) WHERE state = 3;

CREATE TABLE {schema}.uniques (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,             -- of the message that has the key
    until bigint,                             -- NULL while that message is there
    PRIMARY KEY (queue, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off);
CREATE INDEX uniques_until ON {schema}.uniques (until) WHERE until IS NOT NULL;

CREATE TABLE {schema}.done (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off);
CREATE INDEX done_until ON {schema}.done (until);

CREATE TABLE {schema}.holds (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,                      -- of the message; it counts while that is leased by `holder`
    holder bigint NOT NULL,
    until bigint NOT NULL,                    -- when to look whether it can go; nothing else goes by it
    PRIMARY KEY (queue, name, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off);
CREATE INDEX holds_until ON {schema}.holds (until);

CREATE TABLE {schema}.starts (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (queue, name, token)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off);
CREATE INDEX starts_at ON {schema}.starts (queue, name, at);
CREATE INDEX starts_until ON {schema}.starts (until);

CREATE TABLE {schema}.records (
    space text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (space, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off);
CREATE INDEX records_until ON {schema}.records (until);

CREATE TABLE {schema}.logs (
    space text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,                   -- without gaps
    line bytea NOT NULL,
    PRIMARY KEY (space, name, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off);

CREATE TABLE {schema}.evictions (
    queue text COLLATE "C" NOT NULL PRIMARY KEY,
    count bigint NOT NULL
) WITH (fillfactor = 50, vacuum_truncate = off);

-- Their parameters have changed. What older programs say to them is understood by those that come in their place.
DROP FUNCTION IF EXISTS {schema}.settle(
    text, text[], bigint[], bigint[], text[], bigint[], bigint[], text, bigint[], text[], text[]);
DROP FUNCTION IF EXISTS {schema}.settle_one(
    text, bigint, bigint, text, bigint, text, text, bigint, timestamptz);
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

-- Forget up to `most` of each kind of what need not be remembered any longer; how many of the most frequent it was.
CREATE OR REPLACE FUNCTION {schema}.sweep(most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    most_found integer := {schema}.sweep_holds(most, now);
    kind text;
    found_now integer;
BEGIN
    FOREACH kind IN ARRAY '{calls, ended, uniques, done, starts, records}'::text[] LOOP
        EXECUTE format(
            'DELETE FROM {schema}.%1$I WHERE ctid = ANY (ARRAY(
                SELECT x.ctid FROM {schema}.%1$I x WHERE x.until <= $1 ORDER BY x.until LIMIT $2
                FOR UPDATE SKIP LOCKED))', kind) USING now, most;
        GET DIAGNOSTICS found_now = ROW_COUNT;
        most_found := greatest(most_found, found_now);
    END LOOP;
    RETURN most_found;
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
-- Add messages as `enqueue` does, which may claim unique keys, and may come from another queue with their counters.
-- Crashes that came with it count as if the last were of this moment. Returns, for each that is left out because its key
-- is known, its id and that of the message which has the key.
CREATE OR REPLACE FUNCTION {schema}.bring(
    ids text[], given boolean[], queues text[], handlers text[], priorities smallint[], dues bigint[], bodies bytea[],
    unique_keys text[], attempts integer[], crashes integer[], deliveries bigint[], errors text[], causes text[],
    eager boolean DEFAULT false
) RETURNS TABLE (asked text, known text) LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.begin_enqueue();
    left_out bigint[] := '{}';
    chosen text[];
    ready text[];
    one record;
    claim record;
    claimed_name text;  -- the last that was claimed in this call, and for whom; in this order, others are adjacent
    claimed_by text;
BEGIN
    FOR one IN  -- in one order for all, so that nobody waits for each other
        SELECT n.* FROM unnest(ids, given, queues, unique_keys) WITH ORDINALITY AS n (id, given, queue, key, place)
        WHERE n.key IS NOT NULL ORDER BY n.queue COLLATE "C", n.key COLLATE "C", n.place
    LOOP
        asked := one.id;
        IF claimed_name = one.queue || ' ' || one.key THEN
            known := claimed_by;
        ELSE
            SELECT c.known, c.claimed INTO claim FROM {schema}.claim(one.queue, one.key, one.id, one.given, now) c;
            known := claim.known;
            IF claim.claimed THEN
                claimed_name := one.queue || ' ' || one.key;
                claimed_by := one.id;
            END IF;
        END IF;
        IF known IS NOT NULL THEN
            left_out := left_out || one.place;
            RETURN NEXT;
        END IF;
    END LOOP;
    WITH added AS (
        INSERT INTO {schema}.messages AS m
            (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body, unique_key, attempts,
            crashes, deliveries, last_error, cause, last_crash)
        SELECT now, greatest(n.due, now), n.priority, CASE WHEN n.due > now THEN 1 ELSE 0 END, n.given,
            n.due IS NULL OR n.due <= now, n.id, n.queue, n.handler, n.body, n.key, n.attempts, n.crashes,
            n.deliveries, n.error, n.cause, CASE WHEN n.crashes > 0 THEN now END
        FROM unnest(ids, given, queues, handlers, priorities, dues, bodies, unique_keys, bring.attempts, bring.crashes,
            bring.deliveries, errors, causes) WITH ORDINALITY
            AS n (id, given, queue, handler, priority, due, body, key, attempts, crashes, deliveries, error, cause,
                place)
        WHERE n.place <> ALL (left_out) ORDER BY n.place
        ON CONFLICT (id) DO NOTHING
        RETURNING m.id, m.given, m.queue, m.fresh)
    SELECT array_agg(a.id) FILTER (WHERE a.given), array_agg(DISTINCT a.queue) FILTER (WHERE a.fresh)
    INTO chosen, ready FROM added a;
    PERFORM {schema}.finish_enqueue(chosen, ready, now, eager);
    PERFORM {schema}.drop_claims(ids, queues, unique_keys);
END $$;

-- Claim a unique key for a message that is about to be added; or the id of the message that has it, if there is one.
-- Somebody who has claimed it and not committed yet is waited for. A message that is known will not be added, and so
-- claims nothing. Nobody changes a claim that has ended, or whose message was deleted by hand; it can only be removed.
CREATE OR REPLACE FUNCTION {schema}.claim(
    scope text, wanted_key text, ident text, is_given boolean, now bigint, OUT known text, OUT claimed boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    earlier record;
BEGIN
    claimed := false;
    LOOP
        SELECT u.ctid AS place, u.id, CASE WHEN u.until IS NULL
            THEN EXISTS (SELECT FROM {schema}.messages m WHERE m.id = u.id) ELSE u.until > now END AS valid
        INTO earlier FROM {schema}.uniques u WHERE u.queue = scope AND u.key = wanted_key;
        IF earlier.valid THEN
            known := earlier.id;
            RETURN;
        ELSIF {schema}.is_known(ident, is_given, now) THEN
            RETURN;
        END IF;
        DELETE FROM {schema}.uniques WHERE ctid = earlier.place;
        INSERT INTO {schema}.uniques (queue, key, id) VALUES (scope, wanted_key, ident)
        ON CONFLICT (queue, key) DO NOTHING;
        claimed := FOUND;
        EXIT WHEN claimed;  -- else somebody was quicker: look again
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION {schema}.is_known(ident text, is_given boolean, now bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.messages m WHERE m.id = ident)
        OR is_given AND EXISTS (SELECT FROM {schema}.ended e WHERE e.id = ident AND e.until > now);
END $$;

-- Take back claims whose message was not added after all, because its id turned out to be known.
CREATE OR REPLACE FUNCTION {schema}.drop_claims(ids text[], queues text[], unique_keys text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    vain tid[] := ARRAY(
        SELECT u.place FROM unnest(ids, queues, unique_keys) AS n (id, queue, key), LATERAL (
            SELECT x.ctid AS place, x.id, x.until FROM {schema}.uniques x
            WHERE x.queue = n.queue AND x.key = n.key OFFSET 0) u
        WHERE n.key IS NOT NULL AND u.id = n.id AND u.until IS NULL AND (
            SELECT m.queue = n.queue AND m.unique_key = n.key FROM {schema}.messages m WHERE m.id = n.id) IS NOT TRUE);
BEGIN
    IF cardinality(vain) > 0 THEN
        DELETE FROM {schema}.uniques WHERE ctid = ANY (vain);
    END IF;
END $$;

-- End the claims of messages that are about to be removed: they are known until then; NULL: no longer.
CREATE OR REPLACE FUNCTION {schema}.end_claims(places tid[], known_until bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    claims tid[] := ARRAY(
        SELECT u.place FROM {schema}.messages m, LATERAL (
            SELECT x.ctid AS place, x.id FROM {schema}.uniques x WHERE x.queue = m.queue AND x.key = m.unique_key
            OFFSET 0) u
        WHERE m.ctid = ANY (places) AND m.unique_key IS NOT NULL AND u.id = m.id);
BEGIN
    IF known_until IS NULL THEN
        DELETE FROM {schema}.uniques WHERE ctid = ANY (claims);
    ELSE
        UPDATE {schema}.uniques SET until = known_until WHERE ctid = ANY (claims);
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
-- with a, ALREADY, for o. `verbs`: a letter each, a ack, n nack, b abandon, r release, f forfeit, m moved elsewhere.
-- `delays`: microseconds, below 0 for what does not come back. Nothing here waits for a message, so there are no
-- dead-locks.
-- `keys`: of an ack, to be marked done for `keeps` microseconds, which is also how long a unique key stays known.
-- `starts`: of a release, the names of rates, a line each, that get this start back.
CREATE OR REPLACE FUNCTION {schema}.settle(
    call text, ack_queues text[], ack_seqs bigint[], ack_holders bigint[],
    queues text[] DEFAULT '{}', seqs bigint[] DEFAULT '{}', holders bigint[] DEFAULT '{}', verbs text DEFAULT '',
    delays bigint[] DEFAULT '{}', reasons text[] DEFAULT '{}', errors text[] DEFAULT '{}', causes text[] DEFAULT '{}',
    keys text[] DEFAULT '{}', keeps bigint[] DEFAULT '{}', starts text[] DEFAULT '{}'
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
            errors[number], causes[number], keys[number], keeps[number], starts[number], now, give_up);
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
    claims boolean;
BEGIN
    SELECT string_agg(j.answer, '' ORDER BY j.place), array_agg(j.ctid) FILTER (WHERE j.answer = 'o'),
        array_agg(j.id) FILTER (WHERE j.answer = 'o' AND j.given), count(j.unique_key) > 0
    INTO answers, places, ended, claims FROM (
        SELECT w.place, l.ctid, l.id, l.given, l.unique_key, CASE
            WHEN l.ctid IS NULL THEN '?' WHEN l.deadline <= now THEN 'e' WHEN l.holder <> w.holder THEN 'w' ELSE 'o'
            END AS answer
        FROM unnest(queues, seqs, holders) WITH ORDINALITY AS w (queue, seq, holder, place)
        LEFT JOIN LATERAL (
            SELECT m.ctid, m.deadline, m.holder, m.id, m.given, m.unique_key FROM {schema}.messages m
            WHERE m.queue = w.queue AND m.state = leased AND m.seq = w.seq FOR UPDATE SKIP LOCKED) l ON true) j;
    IF claims THEN
        PERFORM {schema}.end_claims(places, now + 86400000000);
    END IF;
    DELETE FROM {schema}.messages WHERE ctid = ANY (places);
    IF ended IS NOT NULL THEN
        PERFORM {schema}.remember_ended(ended, now);
    END IF;
    FOR number IN 1 .. cardinality(seqs) LOOP
        EXIT WHEN strpos(answers, '?') = 0;
        IF substr(answers, number, 1) = '?' THEN
            answers := overlay(answers PLACING {schema}.settle_one(
                queues[number], seqs[number], holders[number], 'a', -1, NULL, NULL, NULL, NULL, NULL, NULL, now,
                give_up) FROM number FOR 1);
        END IF;
    END LOOP;
    RETURN coalesce(answers, '');
END $$;

CREATE OR REPLACE FUNCTION {schema}.settle_one(
    name text, number bigint, owner bigint, verb text, delay bigint, why text, error text, new_cause text,
    done_key text, keep bigint, rates text, now bigint, give_up timestamptz
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    leased smallint := 2;
    lease record;
    ours boolean;
BEGIN
    LOOP
        SELECT m.ctid AS place, m.id, m.given, m.unique_key INTO lease FROM {schema}.messages m
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
            IF lease.unique_key IS NOT NULL THEN
                PERFORM {schema}.end_claims(ARRAY[lease.place], now + coalesce(keep, 86400000000));
            END IF;
            IF done_key IS NOT NULL THEN
                PERFORM {schema}.mark_done(name, done_key, now + keep);
            END IF;
            DELETE FROM {schema}.messages WHERE ctid = lease.place;
            IF lease.given THEN
                PERFORM {schema}.remember_ended(ARRAY[lease.id], now);
            END IF;
        WHEN 'n' THEN
            UPDATE {schema}.messages SET state = (delay > 0)::integer, available_at = now + delay,
                attempts = attempts + 1, last_error = coalesce(error, last_error),
                cause = coalesce(new_cause, cause), holder = NULL, deadline = NULL, ttl = NULL, forfeited = NULL
            WHERE ctid = lease.place;
        WHEN 'r' THEN
            UPDATE {schema}.messages SET state = (delay > 0)::integer, available_at = now + delay, holder = NULL, deadline = NULL, ttl = NULL, forfeited = NULL
            WHERE ctid = lease.place;
            IF rates IS NOT NULL THEN
                PERFORM {schema}.give_back_starts(name, string_to_array(rates, E'\n'), number, owner);
            END IF;
        WHEN 'b' THEN
            UPDATE {schema}.messages SET state = 3, died_at = now, reason = why,
                last_error = coalesce(error, last_error), cause = coalesce(new_cause, cause), holder = NULL, deadline = NULL, ttl = NULL, forfeited = NULL
            WHERE ctid = lease.place;
        WHEN 'f' THEN
            UPDATE {schema}.messages SET deadline = now, forfeited = why WHERE ctid = lease.place;
        WHEN 'm' THEN  -- it is added there in this transaction: not its end
            IF lease.unique_key IS NOT NULL THEN
                PERFORM {schema}.end_claims(ARRAY[lease.place], NULL);
            END IF;
            DELETE FROM {schema}.messages WHERE ctid = lease.place;
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
    PERFORM {schema}.end_claims(locked, NULL);
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

-- The same, but attempts, crashes, the last error and the cause stay.
CREATE OR REPLACE FUNCTION {schema}.resume(places tid[], seqs bigint[])
RETURNS integer LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    locked tid[] := {schema}.lock_seen(places, seqs);
    now bigint := {schema}.moment();
    queues text[];
    back integer;
BEGIN
    WITH changed AS (
        UPDATE {schema}.messages m SET state = 0, available_at = now, reason = NULL, died_at = NULL
        WHERE m.ctid = ANY (locked) AND m.died_at IS NOT NULL RETURNING m.queue)
    SELECT count(*), array_agg(DISTINCT c.queue) INTO back, queues FROM changed c;
    IF back > 0 THEN
        PERFORM {schema}.ring(queues);
    END IF;
    RETURN back;
END $$;

-- Remove the dead letters of a queue that died `age` microseconds ago or before, and all but the newest `kept`; NULL: no
-- such cap. At most `most` of either; how many it was.
CREATE OR REPLACE FUNCTION {schema}.evict(name text, kept bigint, age bigint, most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    places tid[];
    seqs bigint[];
    newest record;
    gone integer := 0;
BEGIN
    IF age IS NOT NULL THEN
        SELECT array_agg(x.ctid), array_agg(x.seq) INTO places, seqs FROM (
            SELECT m.ctid, m.seq FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 3 AND m.died_at <= now - age ORDER BY m.died_at, m.seq LIMIT most) x;
        gone := {schema}.discard(places, seqs);
    END IF;
    IF kept IS NOT NULL THEN
        SELECT m.died_at, m.seq INTO newest FROM {schema}.messages m  -- of those that are to go, out of the index alone
        WHERE m.queue = name AND m.state = 3 ORDER BY m.died_at DESC, m.seq DESC OFFSET kept LIMIT 1;
        SELECT array_agg(x.ctid), array_agg(x.seq) INTO places, seqs FROM (
            SELECT m.ctid, m.seq FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 3 AND (m.died_at, m.seq) <= (newest.died_at, newest.seq)
            ORDER BY m.died_at, m.seq LIMIT most) x;
        gone := gone + {schema}.discard(places, seqs);
    END IF;
    IF gone > 0 THEN
        INSERT INTO {schema}.evictions AS e (queue, count) VALUES (name, gone)
        ON CONFLICT (queue) DO UPDATE SET count = e.count + excluded.count;
    END IF;
    RETURN gone;
END $$;

-- How many dead letters of a queue were evicted.
CREATE OR REPLACE FUNCTION {schema}.evicted(name text) RETURNS bigint LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN coalesce((SELECT e.count FROM {schema}.evictions e WHERE e.queue = name), 0);
END $$;
-- Who decides about what is counted under names takes a turn: until its transaction ends, nobody else decides about the
-- same. There are 256 turns for all names, so that no call needs more locks than the server has; they are taken in
-- order, so that nobody waits for each other. What is read afterwards must be newer than the turn, which is so under
-- READ COMMITTED only.
CREATE OR REPLACE FUNCTION {schema}.take_turns(scopes text[], names text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    turn integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'jobpool decides about keys, places and rates under READ COMMITTED only'
            USING ERRCODE = 'JP001';
    END IF;
    FOREACH turn IN ARRAY ARRAY(
        SELECT DISTINCT hashtext(n.scope || ' ' || n.name) & (256 - 1) FROM unnest(scopes, names) AS n (scope, name)
        ORDER BY 1)
    LOOP
        PERFORM pg_advisory_xact_lock(hashtext('jobpool turns of {schema}'), turn);
    END LOOP;
END $$;

-- Grant to leases what they want, to each all of it or nothing; an answer each, in order: g GRANTED, d DONE, h HELD,
-- l LIMITED, x LOST; the name that refused; the microseconds until a rate has room.
--
-- wants: JSON each: {"key": k, "holds": [[name, most], …], "rates": [[name, most, microseconds], …]}, without what is
-- not wanted. scopes, names: the queue and name of everything that is wanted, once each; a key k has the name key:k.
-- fulls: how many places must be taken under it now for it to become full within this call, 0 or less when the call
-- alone can fill it; NULL for what is a rate only. rate_…: the same of each rate's starts, with the longest of its windows. Under a name that cannot become full
-- nothing is counted lease by lease.
CREATE OR REPLACE FUNCTION {schema}.begin_leases(
    queues text[], seqs bigint[], holders bigint[], wants text[], scopes text[], names text[], fulls integer[],
    rate_scopes text[], rate_names text[], rate_fulls integer[], rate_lengths bigint[]
) RETURNS TABLE (answer text, refused text, after bigint) LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint;
    crowded text[];
    hurried text[];
    asked record;
BEGIN
    PERFORM {schema}.take_turns(scopes, names);
    now := {schema}.moment();
    -- Some of what is taken may be held by leases that have ended. This comes before any look at what is done: a lease
    -- that ended by an ack has its key done in the same transaction, and so nothing comes between the two.
    crowded := {schema}.crowded_names(scopes, names, fulls);
    IF cardinality(crowded) > 0 THEN
        PERFORM {schema}.free_places(n.scope, n.name, now) FROM unnest(scopes, names) AS n (scope, name)
        WHERE n.scope || ' ' || n.name = ANY (crowded);
        crowded := {schema}.crowded_names(scopes, names, fulls);
    END IF;
    hurried := ARRAY(
        SELECT r.scope || ' ' || r.name
        FROM unnest(rate_scopes, rate_names, rate_fulls, rate_lengths) AS r (scope, name, full_from, length)
        WHERE r.full_from < 1
            OR {schema}.count_starts(r.scope, r.name, now - r.length, r.full_from) >= r.full_from);
    FOR asked IN
        SELECT w.queue, w.seq, w.holder, w.want::jsonb AS want
        FROM unnest(queues, seqs, holders, wants) WITH ORDINALITY AS w (queue, seq, holder, want, place)
        ORDER BY w.place
    LOOP
        SELECT b.answer, b.refused, b.after INTO answer, refused, after
        FROM {schema}.begin_lease(asked.queue, asked.seq, asked.holder, asked.want, now, crowded, hurried) b;
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION {schema}.begin_lease(
    scope text, number bigint, owner bigint, want jsonb, now bigint, crowded text[], hurried text[],
    OUT answer text, OUT refused text, OUT after bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    leased smallint := 2;
    wanted_key text := want ->> 'key';
    start text := {schema}.token_of(number, owner);
    deadline bigint;
    held boolean;
    one record;
BEGIN
    refused := '';
    after := 0;
    SELECT m.deadline INTO deadline FROM {schema}.messages m
    WHERE m.queue = scope AND m.state = leased AND m.seq = number AND m.holder = owner AND m.deadline > now;
    IF NOT FOUND THEN
        answer := 'x';
        RETURN;
    END IF;
    IF wanted_key IS NOT NULL THEN
        refused := wanted_key;
        -- First, as in `begin_leases`.
        held := scope || ' key:' || wanted_key = ANY (crowded)
            AND {schema}.count_places(scope, 'key:' || wanted_key, number, 1) > 0;
        IF EXISTS (SELECT FROM {schema}.done d WHERE d.queue = scope AND d.key = wanted_key AND d.until > now) THEN
            answer := 'd';
            RETURN;
        ELSIF held THEN
            answer := 'h';
            RETURN;
        END IF;
    END IF;
    FOR one IN
        SELECT h ->> 0 AS name, (h ->> 1)::integer AS most FROM jsonb_array_elements(want -> 'holds') AS h
        WHERE scope || ' ' || (h ->> 0) = ANY (crowded)
    LOOP
        IF {schema}.count_places(scope, one.name, number, one.most) >= one.most THEN
            answer := 'h';
            refused := one.name;
            RETURN;
        END IF;
    END LOOP;
    FOR one IN
        SELECT r ->> 0 AS name, (r ->> 1)::integer AS most, (r ->> 2)::bigint AS length
        FROM jsonb_array_elements(want -> 'rates') AS r
        WHERE scope || ' ' || (r ->> 0) = ANY (hurried)
    LOOP
        after := {schema}.time_to_start(scope, one.name, one.most, one.length, start, now);
        IF after > 0 THEN
            answer := 'l';
            refused := one.name;
            RETURN;
        END IF;
    END LOOP;
    PERFORM {schema}.take_place(scope, 'key:' || wanted_key, number, owner, deadline) WHERE wanted_key IS NOT NULL;
    PERFORM {schema}.take_place(scope, h ->> 0, number, owner, deadline)
    FROM jsonb_array_elements(want -> 'holds') AS h;
    PERFORM {schema}.note_start(scope, r ->> 0, start, (r ->> 2)::bigint, now)
    FROM jsonb_array_elements(want -> 'rates') AS r;
    answer := 'g';
    refused := '';
END $$;

-- Mark a key done for `length` microseconds; whether it was not done before.
CREATE OR REPLACE FUNCTION {schema}.first_run(scope text, wanted_key text, length bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    INSERT INTO {schema}.done AS d (queue, key, until) VALUES (scope, wanted_key, now + length)
    ON CONFLICT (queue, key) DO UPDATE SET until = excluded.until WHERE d.until <= now;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION {schema}.forget(scope text, wanted_key text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    DELETE FROM {schema}.done d WHERE d.queue = scope AND d.key = wanted_key AND d.until > now;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION {schema}.mark_done(scope text, done_key text, known_until bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO {schema}.done (queue, key, until) VALUES (scope, done_key, known_until)
    ON CONFLICT (queue, key) DO UPDATE SET until = excluded.until;
END $$;
-- How many messages other than `number` have a place under a name, counted up to `most`: those whose lease has ended
-- too, until `free_places` has been there.
CREATE OR REPLACE FUNCTION {schema}.count_places(scope text, place text, number bigint, most integer)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
        SELECT FROM {schema}.holds h
        WHERE h.queue = scope AND h.name = place AND h.seq IS DISTINCT FROM number LIMIT most) x);
END $$;

-- Of these names those under which so many places are taken that they could become full.
CREATE OR REPLACE FUNCTION {schema}.crowded_names(scopes text[], names text[], fulls integer[])
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(
        SELECT n.scope || ' ' || n.name FROM unnest(scopes, names, fulls) AS n (scope, name, full_from)
        WHERE n.full_from < 1 OR {schema}.count_places(n.scope, n.name, NULL, n.full_from) >= n.full_from);
END $$;

-- Take away places whose leases were settled: they do not count any more, and are only in the way. Those that somebody
-- else has a hand on are left to the sweep.
CREATE OR REPLACE FUNCTION {schema}.leave_places(scopes text[], places text[], seqs bigint[], holders bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    DELETE FROM {schema}.holds WHERE ctid = ANY (ARRAY(
        SELECT h.ctid FROM unnest(scopes, places, seqs, holders) AS l (scope, place, number, owner)
        JOIN {schema}.holds h ON h.queue = l.scope AND h.name = l.place AND h.seq = l.number AND h.holder = l.owner
        FOR UPDATE OF h SKIP LOCKED));
END $$;

-- Take away the places of leases that have ended.
CREATE OR REPLACE FUNCTION {schema}.free_places(scope text, place text, now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    leased smallint := 2;
BEGIN
    DELETE FROM {schema}.holds WHERE ctid = ANY (ARRAY(
        SELECT h.ctid FROM {schema}.holds h WHERE h.queue = scope AND h.name = place AND CASE WHEN (
            SELECT m.deadline > now FROM {schema}.messages m
            WHERE m.queue = h.queue AND m.state = leased AND m.seq = h.seq AND m.holder = h.holder)
        THEN false ELSE NOT {schema}.is_being_settled(h.queue, h.seq, h.holder) END));
END $$;

-- Whether a lease whose deadline has passed may yet turn out to have been renewed or settled in time: a transaction
-- that began before the deadline, a handler's own perhaps, has the row. As in `reap`, that one comes first.
CREATE OR REPLACE FUNCTION {schema}.is_being_settled(scope text, number bigint, owner bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    leased smallint := 2;
BEGIN
    PERFORM FROM {schema}.messages m
    WHERE m.queue = scope AND m.state = leased AND m.seq = number AND m.holder = owner;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM {schema}.messages m
    WHERE m.queue = scope AND m.state = leased AND m.seq = number AND m.holder = owner FOR KEY SHARE SKIP LOCKED;
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
RETURNS text[] LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    leased smallint := 2;
BEGIN
    RETURN ARRAY(
        SELECT x.id FROM {schema}.holds h, LATERAL (
            SELECT m.id FROM {schema}.messages m
            WHERE m.queue = h.queue AND m.state = leased AND m.seq = h.seq AND m.holder = h.holder AND m.deadline > now
            OFFSET 0) x
        WHERE h.queue = scope AND h.name = place);
END $$;

-- Forget up to `most` places of leases that have ended. A place that was taken again meanwhile has a later time to look
-- at it, and is left; so is one of a lease that nobody has reaped.
CREATE OR REPLACE FUNCTION {schema}.sweep_holds(most integer, now bigint)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    leased smallint := 2;
    due tid[] := ARRAY(
        SELECT h.ctid FROM {schema}.holds h WHERE h.until <= now ORDER BY h.until LIMIT most FOR UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(due) > 0 THEN
        UPDATE {schema}.holds h SET until = now + 60000000 WHERE h.ctid = ANY (due) AND (
            SELECT true FROM {schema}.messages m
            WHERE m.queue = h.queue AND m.state = leased AND m.seq = h.seq AND m.holder = h.holder);
        DELETE FROM {schema}.holds h WHERE h.ctid = ANY (due) AND h.until <= now;
    END IF;
    RETURN cardinality(due);
END $$;
-- Starts that are counted in windows that slide. `length`: of the window, in microseconds.

-- Count a start of the caller's own; the microseconds to wait, 0 when it was counted.
CREATE OR REPLACE FUNCTION {schema}.take_start(scope text, rate text, most integer, length bigint, start text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint;
    rest bigint;
BEGIN
    PERFORM {schema}.take_turns(ARRAY[scope], ARRAY[rate]);
    now := {schema}.moment();
    rest := {schema}.time_to_start(scope, rate, most, length, start, now);
    IF rest = 0 THEN
        PERFORM {schema}.note_start(scope, rate, start, length, now);
    END IF;
    RETURN rest;
END $$;

-- Microseconds until a rate has room for one more start; 0: there is, or this start has been counted. A clock that was
-- set back leaves starts in the future: those further off than a window are no reason to wait.
CREATE OR REPLACE FUNCTION {schema}.time_to_start(
    scope text, rate text, most integer, length bigint, start text, now bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.starts s WHERE s.queue = scope AND s.name = rate AND s.token = start) THEN
        RETURN 0;
    END IF;
    RETURN coalesce((
        SELECT s.at + length - now FROM {schema}.starts s
        WHERE s.queue = scope AND s.name = rate AND s.at > now - length AND s.at < now + length
        ORDER BY s.at DESC OFFSET most - 1 LIMIT 1), 0);
END $$;

-- How many starts there are under a name after `since`, counted up to `most`.
CREATE OR REPLACE FUNCTION {schema}.count_starts(scope text, rate text, since bigint, most integer)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT count(*) FROM (
        SELECT FROM {schema}.starts s WHERE s.queue = scope AND s.name = rate AND s.at > since LIMIT most) x);
END $$;

-- Count a start, if it was not counted before. It stays known for longer than its window, so that a repeat whose first
-- answer was lost is known for one; and where several windows share a name, for longer than the longest of them.
CREATE OR REPLACE FUNCTION {schema}.note_start(scope text, rate text, start text, length bigint, now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    known_for bigint := length + 60000000;
BEGIN
    INSERT INTO {schema}.starts AS s (queue, name, token, at, until)
    VALUES (scope, rate, start, now, now + known_for)
    ON CONFLICT (queue, name, token) DO UPDATE SET until = s.at + known_for WHERE s.until < s.at + known_for;
END $$;

-- Forget that a lease has started.
CREATE OR REPLACE FUNCTION {schema}.give_back_starts(scope text, rates text[], number bigint, owner bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    start text := {schema}.token_of(number, owner);
    rate text;
BEGIN
    FOREACH rate IN ARRAY rates LOOP
        DELETE FROM {schema}.starts s WHERE s.queue = scope AND s.name = rate AND s.token = start;
    END LOOP;
END $$;

-- Under which token the starts of a lease are counted: its owner token.
CREATE OR REPLACE FUNCTION {schema}.token_of(number bigint, owner bigint)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT lpad(to_hex(owner), 16, '0') || lpad(to_hex(number), 16, '0')
$$;
-- Write records, each in place of an older one; they end `length` microseconds from now.
CREATE OR REPLACE FUNCTION {schema}.put_records(into_space text, keys text[], contents bytea[], length bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    ends bigint := {schema}.moment() + length;
BEGIN
    INSERT INTO {schema}.records (space, key, until, value)
    SELECT into_space, n.key, ends, n.value FROM unnest(keys, contents) AS n (key, value)
    ORDER BY n.key COLLATE "C"  -- one order for all, so that nobody waits for each other
    ON CONFLICT (space, key) DO UPDATE SET until = excluded.until, value = excluded.value;
END $$;

CREATE OR REPLACE FUNCTION {schema}.get_record(of_space text, wanted text)
RETURNS bytea LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    RETURN (SELECT r.value FROM {schema}.records r WHERE r.space = of_space AND r.key = wanted AND r.until > now);
END $$;

CREATE OR REPLACE FUNCTION {schema}.list_records(of_space text, beginning text, behind text, most integer)
RETURNS TABLE (key text, value bytea) LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now bigint := {schema}.moment();
    given integer := 0;
    one record;
BEGIN
    FOR one IN
        SELECT r.key, r.value, r.until FROM {schema}.records r
        WHERE r.space = of_space AND r.key >= greatest(beginning COLLATE "C", behind COLLATE "C") ORDER BY r.key
    LOOP
        EXIT WHEN given >= most OR NOT starts_with(one.key, beginning);
        CONTINUE WHEN one.until <= now OR one.key = behind;
        key := one.key;
        value := one.value;
        given := given + 1;
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION {schema}.delete_records(of_space text, keys text[])
RETURNS void LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    DELETE FROM {schema}.records WHERE ctid = ANY (ARRAY(
        SELECT x.place FROM (SELECT n.key FROM unnest(keys) AS n (key) ORDER BY n.key COLLATE "C") n, LATERAL (
            SELECT r.ctid AS place FROM {schema}.records r WHERE r.space = of_space AND r.key = n.key FOR UPDATE) x));
END $$;

-- Add lines to the logs of these names, in order; the newest `keep` of each stay.
CREATE OR REPLACE FUNCTION {schema}.append_log(into_space text, names text[], lines bytea[], keep integer)
RETURNS void LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    one record;
    last bigint;
BEGIN
    PERFORM {schema}.take_turns(array_fill('log ' || into_space, ARRAY[cardinality(names)]), names);
    FOR one IN
        SELECT n.name, array_agg(n.line ORDER BY n.place) AS lines
        FROM unnest(names, lines) WITH ORDINALITY AS n (name, line, place) GROUP BY n.name
    LOOP
        last := coalesce((
            SELECT l.number FROM {schema}.logs l WHERE l.space = into_space AND l.name = one.name
            ORDER BY l.number DESC LIMIT 1), 0);
        INSERT INTO {schema}.logs (space, name, number, line)
        SELECT into_space, one.name, last + n.place, n.line
        FROM unnest(one.lines) WITH ORDINALITY AS n (line, place);
        DELETE FROM {schema}.logs l
        WHERE l.space = into_space AND l.name = one.name AND l.number <= last + cardinality(one.lines) - keep;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION {schema}.read_log(of_space text, wanted text, most integer)
RETURNS SETOF bytea LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT l.line FROM {schema}.logs l WHERE l.space = of_space AND l.name = wanted ORDER BY l.number DESC LIMIT most;
END $$;

-- The names of a space's logs, sorted; from one to the next, however many lines there are of each.
CREATE OR REPLACE FUNCTION {schema}.list_logs(of_space text, most integer)
RETURNS text[] LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    names text[] := '{}';
    found_name text := (
        SELECT l.name FROM {schema}.logs l WHERE l.space = of_space ORDER BY l.space, l.name LIMIT 1);
BEGIN
    WHILE found_name IS NOT NULL AND cardinality(names) < most LOOP
        names := names || found_name;
        found_name := (
            SELECT l.name FROM {schema}.logs l WHERE l.space = of_space AND l.name > found_name
            ORDER BY l.space, l.name LIMIT 1);
    END LOOP;
    RETURN names;
END $$;
