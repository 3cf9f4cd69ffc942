-- Take back up to `most` messages whose lease has expired or, with `visible`, was taken or renewed that many
-- microseconds ago. `back_off` and `cap` are seconds, `crash_window` microseconds. A row that others have locked, to
-- reap it, settle it or renew it, is left alone. Messages of ended claims are freed: they count toward `most`, but not
-- as crashes, and are not returned. Posted messages whose life has ended are removed. First leases are found by
-- `fetches`. They are locked before a fetch is forgotten, and all that are locked end here.
CREATE OR REPLACE FUNCTION {schema}.reap(
    name text, max_crashes integer, crash_window bigint, back_off double precision, cap double precision,
    visible bigint, most integer
) RETURNS TABLE (id text, crashes integer, cause text, dead boolean) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    expired tid[];
    over tid[];
    one record;
    ends text[];
    claims boolean := true;
    lives boolean := true;
BEGIN
    IF visible IS NULL THEN
        -- A statement for all that there may be: nearly always there is nothing.
        SELECT
            ARRAY(
                SELECT m.ctid FROM {schema}.messages m
                WHERE m.queue = name AND m.state = 2 AND m.deadline <= now AND m.claim IS NULL
                ORDER BY m.deadline LIMIT most FOR UPDATE SKIP LOCKED),
            ARRAY(
                SELECT f.ctid FROM {schema}.fetches f WHERE f.queue = name AND f.until <= now
                ORDER BY f.until LIMIT {tidy_limit}),
            (SELECT true FROM {schema}.claims c WHERE c.queue = name AND c.until <= now ORDER BY c.until LIMIT 1),
            (SELECT true FROM {schema}.messages m WHERE m.queue = name AND m.state > 3 AND m.ends_at <= now
                ORDER BY m.ends_at LIMIT 1)
        INTO expired, over, claims, lives;
    ELSE  -- a person's call, not the pool's: it walks over all leases of the queue
        expired := ARRAY(
            SELECT m.ctid FROM {schema}.messages m
            WHERE m.queue = name AND m.state = 2 AND (m.deadline <= now OR m.deadline - m.ttl <= now - visible)
                AND m.claim IS NULL
            ORDER BY m.deadline LIMIT most FOR UPDATE SKIP LOCKED);
        over := ARRAY(SELECT f.ctid FROM {schema}.fetches f WHERE f.queue = name);
    END IF;
    IF cardinality(over) > 0 THEN
        expired := expired || ARRAY(
            SELECT x.ctid FROM {schema}.fetches f, LATERAL (
                SELECT m.ctid FROM {schema}.messages m
                WHERE (m.first_until <= now OR m.first_until - m.ttl <= now - visible) AND {of_fetch}
                FOR UPDATE SKIP LOCKED) x
            WHERE f.ctid = ANY (over) LIMIT greatest(0, most - cardinality(expired)));
        PERFORM {schema}.forget_fetches(over, expired);
    END IF;
    IF claims AND cardinality(expired) < most THEN
        PERFORM {schema}.free_ended(name, now, most - cardinality(expired));
    END IF;
    IF lives THEN
        PERFORM {schema}.remove_ended(name, now);
    END IF;
    IF cardinality(expired) = 0 THEN
        RETURN;
    END IF;
    FOR one IN
    WITH charged AS MATERIALIZED (
        SELECT m.ctid AS place, {deadline} AS deadline, m.seq, m.batch, c.crashes,
            coalesce(nullif(m.forfeited, ''), '{unknown_cause}') AS cause,
            max_crashes > 0 AND c.crashes > max_crashes AS dead,
            CASE WHEN c.crashes <= 1 THEN 0 ELSE round(
                random() * 1e6 * least(cap, back_off * 2::double precision ^ least(c.crashes - 2, 60)))::bigint
            END AS delay
        FROM {schema}.messages m,
        LATERAL (
            SELECT CASE WHEN m.last_crash < now - crash_window THEN 1
                ELSE least(m.crashes, {max_integer}) + 1 END AS crashes OFFSET 0) c
        WHERE m.ctid = ANY (expired)
    ), changed AS (
        UPDATE {schema}.messages m
        SET state = CASE WHEN c.dead THEN 3 WHEN c.delay > 0 THEN 1 ELSE 0 END,
            available_at = CASE WHEN c.dead THEN m.available_at ELSE now + c.delay END,
            died_at = CASE WHEN c.dead THEN now END, reason = CASE WHEN c.dead THEN 'crash-limit' ELSE m.reason END,
            batch = CASE WHEN NOT c.dead THEN m.batch END, crashes = c.crashes, last_crash = now, cause = c.cause,
            {no_lease}
        FROM charged c WHERE m.ctid = c.place
        RETURNING m.id, c.crashes, c.cause, c.dead, c.deadline, c.seq, c.batch)
    SELECT d.id, d.crashes, d.cause, d.dead, d.batch FROM changed d ORDER BY d.deadline, d.seq
    LOOP
        RETURN QUERY SELECT one.id, one.crashes, one.cause, one.dead;
        IF one.dead AND one.batch IS NOT NULL THEN
            ends := ends || ARRAY[ARRAY[one.batch, one.id, 'f']];
        END IF;
    END LOOP;
    PERFORM {schema}.end_members(ends);
    PERFORM {schema}.ring(ARRAY[name]);
END $$;

-- Forget fetches that have no first lease left but those at `ending`, which this transaction ends; return how many. One
-- that another transaction has locked to forget it is left to that one.
CREATE OR REPLACE FUNCTION {schema}.forget_fetches(known tid[], ending tid[])
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM {schema}.fetches WHERE ctid = ANY (ARRAY(
        SELECT f.ctid FROM {schema}.fetches f WHERE f.ctid = ANY (known) AND NOT EXISTS (
            SELECT FROM {schema}.messages m WHERE m.ctid <> ALL (ending) AND {of_fetch} LIMIT 1)
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;
