-- Edit jobs that wait or are delayed, each if its queue and priority are those that were seen. A letter each: e edited.
-- c: changed meanwhile, or locked by others. d: the queue that it goes to knows its unique key. A call that was
-- answered within the last minute gets the same again. `dues` and `bodies`: NULL = as it is.
-- None is fresh any more: its number may be below the floor of its new place (`heads`).
CREATE OR REPLACE FUNCTION {schema}.edit(
    call text, seqs bigint[], ids text[], old_queues text[], old_priorities smallint[], queues text[],
    priorities smallint[], dues bigint[], bodies bytea[]
) RETURNS text LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    known_as text := 'edit:' || call;
    answers text := (SELECT CASE WHEN c.until > now THEN c.answer END FROM {schema}.calls c WHERE c.id = known_as);
    seen record;
    ready text[] := '{}';
    later smallint;
BEGIN
    IF answers IS NOT NULL THEN
        RETURN answers;
    END IF;
    answers := '';
    FOR number IN 1 .. cardinality(seqs) LOOP
        SELECT m.ctid AS place, m.state, m.available_at, m.unique_key INTO seen FROM {schema}.messages m
        WHERE m.id = ids[number] AND m.seq = seqs[number] AND m.queue = old_queues[number]
            AND m.priority = old_priorities[number] AND m.state IN (0, 1) AND m.holder IS NULL AND m.handler <> ''
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            answers := answers || 'c';
            CONTINUE;
        ELSIF seen.unique_key IS NOT NULL AND queues[number] <> old_queues[number] THEN
            IF NOT (SELECT c.claimed FROM {schema}.claim(queues[number], seen.unique_key, ids[number], NULL, now) c) THEN
                answers := answers || 'd';
                CONTINUE;
            END IF;
            PERFORM {schema}.end_claims(ARRAY[seen.place], NULL);
        END IF;
        later := CASE WHEN dues[number] IS NULL THEN seen.state WHEN dues[number] > now THEN 1 ELSE 0 END;
        UPDATE {schema}.messages m
        SET queue = queues[number], priority = priorities[number], state = later, fresh = false,
            available_at = CASE WHEN dues[number] IS NULL THEN seen.available_at ELSE greatest(dues[number], now) END,
            body = coalesce(bodies[number], m.body)
        WHERE m.ctid = seen.place;
        answers := answers || 'e';
        IF later = 0 THEN
            ready := ready || queues[number];
        END IF;
    END LOOP;
    PERFORM {schema}.remember(known_as, answers, now);
    IF cardinality(ready) > 0 THEN
        PERFORM {schema}.ring(ARRAY(SELECT DISTINCT unnest(ready)));
    END IF;
    RETURN answers;
END $$;
