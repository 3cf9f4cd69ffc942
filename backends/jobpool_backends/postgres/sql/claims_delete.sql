-- Delete messages that are held by this claim, or with NULL those that are free or delayed. A letter each: d done, f
-- forbidden, ? locked by others (ask again). NULL: the claim has ended. With a claim it waits for locked messages, as
-- it deletes all or none. Without one it waits for none, for it has locked others' messages too, as in `find_free`.
CREATE OR REPLACE FUNCTION {schema}.delete_messages(name text, ids text[], ident text)
RETURNS text LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    give_up timestamptz := clock_timestamp() + interval '{row_lock_timeout}';
    free smallint[] := '{0, 1, 4, 5, 7}';
    held smallint[] := '{2, 6}';
    ends bigint;
    places tid[];
    keyed boolean;
    answers text;
BEGIN
    IF ident IS NOT NULL THEN
        SELECT c.until INTO ends FROM {schema}.claims c WHERE c.queue = name AND c.id = ident FOR UPDATE;
        IF ends IS NULL OR ends <= now THEN
            RETURN NULL;
        END IF;
    END IF;
    LOOP
        SELECT array_agg(l.ctid), count(l.unique_key) > 0 INTO places, keyed
        FROM (SELECT DISTINCT unnest(ids)) AS w (id), LATERAL (
            SELECT m.ctid, m.unique_key FROM {schema}.messages m
            WHERE m.id = w.id AND m.queue = name AND CASE
                WHEN ident IS NULL THEN
                    m.state = ANY (free) AND m.holder IS NULL AND (m.ends_at IS NULL OR m.ends_at > now)
                ELSE m.state = ANY (held) AND m.claim = ident END
            FOR UPDATE SKIP LOCKED) l;
        IF places IS NOT NULL THEN
            PERFORM {schema}.remove(places, keyed, now);
        END IF;
        -- The rest is held by others, or locked, or its claim has ended.
        SELECT coalesce(string_agg(coalesce(l.answer, 'd'), '' ORDER BY w.place), '') INTO answers
        FROM unnest(ids) WITH ORDINALITY AS w (id, place) LEFT JOIN LATERAL (
            SELECT CASE
                WHEN m.state = 3 OR m.ends_at <= now THEN 'd'
                WHEN ident IS NOT NULL THEN CASE WHEN m.state = ANY (held) AND m.claim = ident THEN '?' ELSE 'f' END
                WHEN {kind} = ANY (held) AND (m.claim IS NULL OR m.deadline > now) THEN 'f' ELSE '?' END AS answer
            FROM {schema}.messages m WHERE m.id = w.id AND m.queue = name OFFSET 0) l ON true;
        EXIT WHEN strpos(answers, '?') = 0;
        IF ident IS NULL THEN
            PERFORM {schema}.tidy(name, now);
            EXIT;
        ELSIF clock_timestamp() >= give_up THEN
            RAISE EXCEPTION 'somebody has locked messages of claim %', ident USING ERRCODE = 'lock_not_available';
        END IF;
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN answers;
END $$;

-- Remove messages that have been locked, as a person does: unique keys are free at once. `keyed`: there may be some.
CREATE OR REPLACE FUNCTION {schema}.remove(places tid[], keyed boolean, now bigint)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ended text[];
    gone integer;
    ends text[];
BEGIN
    IF keyed THEN
        PERFORM {schema}.end_claims(places, NULL);
    END IF;
    WITH deleted AS (DELETE FROM {schema}.messages m WHERE m.ctid = ANY (places) RETURNING m.id, m.given, m.batch)
    SELECT count(*), array_agg(d.id) FILTER (WHERE d.given),
        array_agg(ARRAY[d.batch, d.id, 'c']) FILTER (WHERE d.batch IS NOT NULL)
    INTO gone, ended, ends FROM deleted d;
    IF ended IS NOT NULL THEN
        PERFORM {schema}.remember_ended(ended, now);
    END IF;
    IF ends IS NOT NULL THEN
        PERFORM {schema}.end_members(ends);
    END IF;
    RETURN gone;
END $$;
