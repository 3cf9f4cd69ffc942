-- End leases: first acks, which take one statement together, then others one by one. One letter an answer, acks first:
-- o OK, n NOT_IN_FLIGHT, e EXPIRED, w NOT_OWNER; when this call was answered within the last minute, the same again
-- with a, ALREADY, for o. `verbs`: a letter each, a ack, n nack, b abandon, x the same after a failed attempt, r release,
-- s the same of what was begun, f forfeit, m moved elsewhere.
-- `delays`: microseconds, below 0 for what does not come back. Nothing here waits for a message, so there are no
-- dead-locks.
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
        PERFORM {schema}.end_claims(places, now + {unique_memory});
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
                PERFORM {schema}.end_claims(ARRAY[lease.place], now + coalesce(keep, {unique_memory}));
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
            UPDATE {schema}.messages SET state = 3, died_at = now, reason = why,
                attempts = attempts + (verb = 'x')::integer, last_error = coalesce(error, last_error), cause = coalesce(new_cause, cause), {no_lease}
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
RETURNS text LANGUAGE plpgsql VOLATILE {planner} AS $$
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
