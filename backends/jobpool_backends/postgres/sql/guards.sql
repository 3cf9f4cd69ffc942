-- A decision about counts under names takes a turn: until its transaction ends, no other decides about the same names.
-- There are {turns} turns for all names, so that no call needs more locks than the server has. They are taken in
-- order, so that no two wait for each other. Later reads must be newer than the turn, which is so only under
-- READ COMMITTED.
CREATE OR REPLACE FUNCTION {schema}.take_turns(scopes text[], names text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    turn integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'jobpool decides about keys, places and rates under READ COMMITTED only'
            USING ERRCODE = '{wrong_isolation}';
    END IF;
    FOREACH turn IN ARRAY ARRAY(
        SELECT DISTINCT hashtext(n.scope || ' ' || n.name) & ({turns} - 1) FROM unnest(scopes, names) AS n (scope, name)
        ORDER BY 1)
    LOOP
        PERFORM pg_advisory_xact_lock(hashtext('jobpool turns of {schema}'), turn);
    END LOOP;
END $$;

-- Grant to leases the guards that they want, to each all or none. Returns for each, in order, a letter, the name
-- that refused, and the microseconds until a rate has room. Letters: g GRANTED, d DONE, h HELD, l LIMITED, x LOST.
--
-- * wants: JSON each, {"key": k, "holds": [[name, most], …], "rates": [[name, most, microseconds], …]}, or part of it.
-- * scopes, names: the queue and name of each wanted guard, once. A key k has the name key:k.
-- * fulls: how many places must be taken now for it to become full in this call. 0 or less: the call alone can fill it.
--   NULL: it is a rate only. Under a name that cannot become full nothing is counted lease by lease.
-- * rate_…: the same of each rate's starts, with the longest of its windows.
CREATE OR REPLACE FUNCTION {schema}.begin_leases(
    queues text[], seqs bigint[], holders bigint[], wants text[], scopes text[], names text[], fulls integer[],
    rate_scopes text[], rate_names text[], rate_fulls integer[], rate_lengths bigint[]
) RETURNS TABLE (answer text, refused text, after bigint) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint;
    crowded text[];
    hurried text[];
    asked record;
BEGIN
    PERFORM {schema}.take_turns(scopes, names);
    now := {schema}.moment();
    -- Some places may be held by leases that have ended. These are freed before any look at done keys. A lease that
    -- ended by an ack has its key done in the same transaction, and so nothing comes between the two.
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
    wanted_key text := want ->> 'key';
    start text := {schema}.token_of(number, owner);
    deadline bigint;
    held boolean;
    one record;
BEGIN
    refused := '';
    after := 0;
    SELECT l.ends INTO deadline FROM {leased}, LATERAL (
        SELECT {deadline} AS ends FROM {schema}.messages m
        WHERE m.queue = scope AND m.state = k.state AND m.seq = number AND m.holder = owner AND {deadline} > now
        OFFSET 0) l;
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

-- Mark a key done for `length` microseconds; return whether it was not done before.
CREATE OR REPLACE FUNCTION {schema}.first_run(scope text, wanted_key text, length bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    INSERT INTO {schema}.done AS d (queue, key, until) VALUES (scope, wanted_key, now + length)
    ON CONFLICT (queue, key) DO UPDATE SET until = excluded.until WHERE d.until <= now;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION {schema}.forget(scope text, wanted_key text)
RETURNS boolean LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    DELETE FROM {schema}.done d WHERE d.queue = scope AND d.key = wanted_key AND d.until > now;
    RETURN FOUND;
END $$;
