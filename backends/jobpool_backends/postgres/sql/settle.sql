-- End leases: first acks, which take one statement together, then others one by one. One letter an answer, acks first:
-- o OK, n NOT_IN_FLIGHT, e EXPIRED, w NOT_OWNER. A call that was answered within the last minute gets the same again,
-- with a, ALREADY, for o. Nothing here waits for a message that was locked before. One that is locked in the same
-- instant has one owner only, so pools make no dead-locks.
-- `verbs`: a ack, n nack, b abandon, x abandon after a failed attempt, r release, s release of a begun one, f forfeit,
-- m move. `delays`: microseconds, below 0 for a message that does not come back.
-- `keys`: of an ack, to be marked done for `keeps` microseconds, which is also how long a unique key stays known.
-- `starts`: of a release, the names of rates, a line each, that get this start back.
CREATE OR REPLACE FUNCTION {schema}.settle(
    call text, ack_queues text[], ack_seqs bigint[], ack_holders bigint[],
    queues text[] DEFAULT '{}', seqs bigint[] DEFAULT '{}', holders bigint[] DEFAULT '{}', verbs text DEFAULT '',
    delays bigint[] DEFAULT '{}', reasons text[] DEFAULT '{}', errors text[] DEFAULT '{}', causes text[] DEFAULT '{}',
    keys text[] DEFAULT '{}', keeps bigint[] DEFAULT '{}', starts text[] DEFAULT '{}'
) RETURNS text LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    give_up timestamptz := clock_timestamp() + interval '{row_lock_timeout}';
    known_as text := 'settle:' || call;
    answers text := (SELECT CASE WHEN c.until > now THEN c.answer END FROM {schema}.calls c WHERE c.id = known_as);
    acks record;
    one text[];
    ends text[];
    ready text[] := '{}';
BEGIN
    IF answers IS NOT NULL THEN
        RETURN translate(answers, 'o', 'a');
    END IF;
    acks := {schema}.settle_acks(ack_queues, ack_seqs, ack_holders, now, give_up);
    answers := acks.answers;
    ends := acks.ends;
    FOR number IN 1 .. cardinality(seqs) LOOP
        one := {schema}.settle_one(
            queues[number], seqs[number], holders[number], substr(verbs, number, 1), delays[number], reasons[number],
            errors[number], causes[number], keys[number], keeps[number], starts[number], now, give_up);
        answers := answers || one[1];
        IF cardinality(one) > 1 THEN
            ends := ends || ARRAY[one[2:]];
        END IF;
        IF one[1] = 'o' AND delays[number] >= 0 THEN
            ready := ready || queues[number];
        END IF;
    END LOOP;
    IF ends IS NOT NULL THEN
        PERFORM {schema}.end_members(ends);
    END IF;
    PERFORM {schema}.remember(known_as, answers, now);
    IF cardinality(ready) > 0 THEN
        PERFORM {schema}.ring(ARRAY(SELECT DISTINCT unnest(ready)));
    END IF;
    RETURN answers;
END $$;

-- Nearly all acks are of messages that no other has touched since the fetch. These go at once, without a lock of their
-- own: in one statement, and a second if not all were first leases. The rest, marked by ?, goes one by one.
CREATE OR REPLACE FUNCTION {schema}.settle_acks(
    queues text[], seqs bigint[], holders bigint[], now bigint, give_up timestamptz, OUT answers text, OUT ends text[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    kinds smallint[] := '{0, 2}';  -- as numbers they would invite the planner to use other indexes
    leased smallint;
    gone bigint[] := '{}';
    part record;
    one text[];
BEGIN
    answers := '';
    IF cardinality(seqs) = 0 THEN
        RETURN;
    END IF;
    FOREACH leased IN ARRAY kinds LOOP
        WITH gone AS (
            DELETE FROM {schema}.messages m
            WHERE m.ctid = ANY (ARRAY(  -- a join would begin with all that is leased, if planned while that is nothing
                    SELECT l.ctid FROM unnest(queues, seqs, holders) AS w (queue, seq, holder), LATERAL (
                        SELECT x.ctid FROM {schema}.messages x
                        WHERE x.queue = w.queue AND x.state = leased AND x.seq = w.seq AND x.holder = w.holder
                        OFFSET 0) l))
                -- By no index, and true of a row that another transaction changes meanwhile, as it is then.
                AND m.state + 0 = leased AND m.holder = ANY (holders) AND {deadline} > now
                AND (m.xmax = m.xmin OR m.xmax = 0)  -- only the fetch or the renewal that wrote it has locked it
            RETURNING m.seq, m.id, m.given, m.queue, m.unique_key, m.batch
        ), freed AS (
            UPDATE {schema}.uniques u SET until = now + {unique_memory} FROM gone g
            WHERE g.unique_key IS NOT NULL AND u.queue = g.queue AND u.key = g.unique_key AND u.id = g.id)
        SELECT array_agg(g.seq) AS seqs, array_agg(g.id) FILTER (WHERE g.given) AS ended,
            array_agg(ARRAY[g.batch, g.id, 's']) FILTER (WHERE g.batch IS NOT NULL) AS ends
        INTO part FROM gone g;
        gone := gone || part.seqs;
        ends := ends || part.ends;
        IF part.ended IS NOT NULL THEN
            PERFORM {schema}.remember_ended(part.ended, now);
        END IF;
        IF cardinality(gone) = cardinality(seqs) THEN
            answers := repeat('o', cardinality(seqs));
            RETURN;
        END IF;
    END LOOP;
    answers := (
        SELECT string_agg(CASE WHEN seqs[number] = ANY (gone) THEN 'o' ELSE '?' END, '' ORDER BY number)
        FROM generate_series(1, cardinality(seqs)) AS number);
    FOR number IN 1 .. cardinality(seqs) LOOP
        IF substr(answers, number, 1) = '?' THEN
            one := {schema}.settle_one(
                queues[number], seqs[number], holders[number], 'a', -1, NULL, NULL, NULL, NULL, NULL, NULL, now,
                give_up);
            answers := overlay(answers PLACING one[1] FROM number FOR 1);
            IF cardinality(one) > 1 THEN
                ends := ends || ARRAY[one[2:]];
            END IF;
        END IF;
    END LOOP;
END $$;

-- Returns one letter. After that of a batch's member that has ended, its row for `end_members` follows.
CREATE OR REPLACE FUNCTION {schema}.settle_one(
    name text, number bigint, owner bigint, verb text, delay bigint, why text, error text, new_cause text,
    done_key text, keep bigint, rates text, now bigint, give_up timestamptz
) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lease record;
BEGIN
    LOOP
        SELECT l.* INTO lease FROM {leased}, LATERAL (
            SELECT m.ctid AS place, m.id, m.given, m.unique_key, m.batch FROM {schema}.messages m
            WHERE m.queue = name AND m.state = k.state AND m.seq = number AND {deadline} > now AND m.holder = owner
            FOR UPDATE SKIP LOCKED) l;
        EXIT WHEN FOUND;
        -- A refusal changes nothing, and needs no lock.
        SELECT l.* INTO lease FROM {leased}, LATERAL (
            SELECT CASE WHEN {deadline} <= now THEN 'e' WHEN m.holder <> owner THEN 'w' END AS refusal
            FROM {schema}.messages m
            WHERE m.queue = name AND m.state = k.state AND m.seq = number AND m.holder IS NOT NULL OFFSET 0) l;
        IF NOT FOUND THEN
            RETURN ARRAY['n'];
        ELSIF lease.refusal IS NOT NULL THEN
            RETURN ARRAY[lease.refusal];
        ELSIF clock_timestamp() >= give_up THEN
            RETURN ARRAY['w'];  -- a transaction that hangs has it, such as that of a handler that was killed
        END IF;
        PERFORM pg_sleep(0.002);  -- it is being renewed, or settled by an earlier try of this call
    END LOOP;
    CASE verb
        WHEN 'a' THEN
            IF lease.unique_key IS NOT NULL THEN
                PERFORM {schema}.end_claims(ARRAY[lease.place], now + coalesce(keep, {unique_memory}));
            END IF;
            IF done_key IS NOT NULL THEN
                INSERT INTO {schema}.done (queue, key, until) VALUES (name, done_key, now + keep)
                ON CONFLICT (queue, key) DO UPDATE SET until = excluded.until;
            END IF;
            DELETE FROM {schema}.messages WHERE ctid = lease.place;
            IF lease.given THEN
                PERFORM {schema}.remember_ended(ARRAY[lease.id], now);
            END IF;
        WHEN 'n' THEN
            UPDATE {schema}.messages SET state = (delay > 0)::integer, available_at = now + delay,
                attempts = least(attempts, {max_integer}) + 1, last_error = coalesce(error, last_error),
                cause = coalesce(new_cause, cause), {no_lease}
            WHERE ctid = lease.place;
        WHEN 'r', 's' THEN
            UPDATE {schema}.messages SET state = (delay > 0)::integer, available_at = now + delay,
                begun = begun OR verb = 's', {no_lease}
            WHERE ctid = lease.place;
            IF rates IS NOT NULL THEN
                PERFORM {schema}.give_back_starts(name, string_to_array(rates, E'\n'), number, owner);
            END IF;
        WHEN 'b', 'x' THEN
            UPDATE {schema}.messages SET state = 3, died_at = now, reason = why, batch = NULL,
                attempts = least(attempts, {max_integer}) + (verb = 'x')::integer,
                last_error = coalesce(error, last_error), cause = coalesce(new_cause, cause), {no_lease}
            WHERE ctid = lease.place;
        WHEN 'f' THEN
            UPDATE {schema}.messages SET {kept_lease}, deadline = now, forfeited = why WHERE ctid = lease.place;
        WHEN 'm' THEN  -- it is added there in this transaction: not its end
            IF lease.unique_key IS NOT NULL THEN
                PERFORM {schema}.end_claims(ARRAY[lease.place], NULL);
            END IF;
            DELETE FROM {schema}.messages WHERE ctid = lease.place;
    END CASE;
    IF lease.batch IS NULL OR verb NOT IN ('a', 'b', 'x', 'm') THEN
        RETURN ARRAY['o'];
    END IF;
    RETURN ARRAY['o', lease.batch, lease.id, CASE
        WHEN verb = 'a' THEN 's' WHEN verb = 'm' THEN 'm' WHEN why = 'cancelled' THEN 'c' ELSE 'f' END];
END $$;

-- Hold these leases for `length` microseconds from now. A letter each: r renewed, k kept, l lost. Kept means that
-- another transaction has the row, such as a handler's own that has acked but not committed. It is not waited for, and
-- the old deadline stands.
CREATE OR REPLACE FUNCTION {schema}.renew(queues text[], seqs bigint[], holders bigint[], length bigint)
RETURNS text LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    held tid[];
    renewed bigint[];
    answers text;
BEGIN
    SELECT array_agg(l.ctid), array_agg(w.place) INTO held, renewed
    FROM unnest(queues, seqs, holders) WITH ORDINALITY AS w (queue, seq, holder, place), {leased},
    LATERAL (
        SELECT m.ctid FROM {schema}.messages m
        WHERE m.queue = w.queue AND m.state = k.state AND m.seq = w.seq AND m.holder = w.holder AND {deadline} > now
        FOR UPDATE SKIP LOCKED) l;
    UPDATE {schema}.messages SET {kept_lease}, deadline = now + length, ttl = length WHERE ctid = ANY (held);
    IF cardinality(renewed) = cardinality(seqs) THEN
        RETURN repeat('r', cardinality(seqs));
    END IF;
    SELECT string_agg(CASE WHEN w.place = ANY (renewed) THEN 'r' WHEN l.ours THEN 'k' ELSE 'l' END, '' ORDER BY w.place)
    INTO answers
    FROM unnest(queues, seqs, holders) WITH ORDINALITY AS w (queue, seq, holder, place)
    LEFT JOIN LATERAL (
        SELECT true AS ours FROM {leased}, LATERAL (
            SELECT FROM {schema}.messages m
            WHERE m.queue = w.queue AND m.state = k.state AND m.seq = w.seq AND m.holder = w.holder AND {deadline} > now
            OFFSET 0) x) l ON true;
    RETURN answers;
END $$;
