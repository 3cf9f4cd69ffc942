-- Starts that are counted in windows that slide. `length`: of the window, in microseconds.

-- Count a start of the caller's own under each rate, one by one; return the microseconds to wait, 0 when counted.
CREATE OR REPLACE FUNCTION {schema}.take_starts(
    scope text, rates text[], mosts integer[], lengths bigint[], start text
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint;
    rest bigint;
    rests bigint[] := '{}';
BEGIN
    PERFORM {schema}.take_turns(array_fill(scope, ARRAY[cardinality(rates)]), rates);
    now := {schema}.moment();
    FOR number IN 1 .. cardinality(rates) LOOP
        rest := {schema}.time_to_start(scope, rates[number], mosts[number], lengths[number], start, now);
        IF rest = 0 THEN
            PERFORM {schema}.note_start(scope, rates[number], start, lengths[number], now);
        END IF;
        rests := rests || rest;
    END LOOP;
    RETURN rests;
END $$;

-- Microseconds until a rate has room for one more start; 0: there is, or this start has been counted. A clock that was
-- set back leaves starts in the future: do not wait for those further off than a window.
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
-- answer was lost is known for one. Where several windows share a name, it is longer than the longest of them.
CREATE OR REPLACE FUNCTION {schema}.note_start(scope text, rate text, start text, length bigint, now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    known_for bigint := length + {remember_calls};
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
