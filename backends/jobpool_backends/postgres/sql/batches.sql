-- Members of a batch are counted in its row. A step counts as late as it can, and batches in the order of their ids.
-- The row is locked from there to the end of the transaction, in which others wait for it. Deadlocks that a caller's
-- own transaction or nested batches may bring are found by the server, and the step is tried again.

-- Add an open batch, and count it as a member of its parent; one whose id is known is left as it is.
-- `messages`: its callbacks, as `end_batch` reads them.
CREATE OR REPLACE FUNCTION {schema}.open_batch(ident text, of_parent text, messages text)
RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    DELETE FROM {schema}.batches b WHERE b.id = ident AND b.until <= now;
    INSERT INTO {schema}.batches (id, parent, created_at, callbacks) VALUES (ident, of_parent, now, messages::jsonb)
    ON CONFLICT (id) DO NOTHING;
    IF FOUND AND of_parent IS NOT NULL AND (of_parent = ident OR NOT {schema}.count_joined(of_parent, 1, false)) THEN
        PERFORM {schema}.refuse_member(of_parent);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.close_batch(ident text, stop boolean)
RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    UPDATE {schema}.batches b SET open = false, stopped = b.stopped OR stop
    WHERE b.id = ident AND b.ended_at IS NULL AND (b.open OR stop);
END $$;

CREATE OR REPLACE FUNCTION {schema}.find_batch(ident text)
RETURNS TABLE (
    id text, open boolean, total bigint, succeeded bigint, failed bigint, cancelled bigint, failed_ids text[],
    created_at bigint, ended_at bigint, parent text, nested text[], stopped boolean
) LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    RETURN QUERY
    SELECT b.id, b.open, b.total, b.succeeded, b.failed, b.cancelled, b.failed_ids, b.created_at, b.ended_at, b.parent,
        ARRAY(SELECT n.id FROM {schema}.batches n WHERE n.parent = b.id ORDER BY n.parent, n.created_at, n.id),
        b.stopped
    FROM {schema}.batches b WHERE b.id = ident AND (b.until IS NULL OR b.until > now);
END $$;

CREATE OR REPLACE FUNCTION {schema}.list_members(ident text, most integer)
RETURNS SETOF text LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    RETURN QUERY SELECT m.id FROM {schema}.messages m WHERE m.batch = ident ORDER BY m.batch, m.seq LIMIT most;
END $$;

-- Count messages that were added as members of the batches that they name. `brought`: by a settlement, which nothing
-- may hold up: a message that is too late stays without a batch. Else the step is undone.
CREATE OR REPLACE FUNCTION {schema}.join_batches(ids text[], brought boolean)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT m.batch, count(*) AS many, array_agg(m.id) AS ids FROM {schema}.messages m
        WHERE m.id = ANY (join_batches.ids) GROUP BY m.batch ORDER BY m.batch
    LOOP
        CONTINUE WHEN {schema}.count_joined(one.batch, one.many, brought);
        IF NOT brought THEN
            PERFORM {schema}.refuse_member(one.batch);
        END IF;
        UPDATE {schema}.messages m SET batch = NULL WHERE m.id = ANY (one.ids);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION {schema}.count_joined(ident text, many bigint, brought boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE {schema}.batches b SET total = b.total + many
    WHERE b.id = ident AND (b.open OR brought) AND b.ended_at IS NULL;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION {schema}.refuse_member(ident text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION '%', ident USING ERRCODE = '{batch_not_open}';
END $$;

-- Count ends of members. Each is a batch, an id, and a letter: s succeeded, f failed, c cancelled; m moved: it joins
-- again in this transaction.
CREATE OR REPLACE FUNCTION {schema}.end_members(ends text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT e.batch, count(*) FILTER (WHERE e.how = 's') AS succeeded, count(*) FILTER (WHERE e.how = 'f') AS failed,
            count(*) FILTER (WHERE e.how = 'c') AS cancelled, count(*) FILTER (WHERE e.how = 'm') AS moved,
            array_agg(e.id ORDER BY e.place) FILTER (WHERE e.how = 'f') AS failed_ids
        FROM (
            SELECT ends[n][1] COLLATE "C" AS batch, ends[n][2] AS id, ends[n][3] AS how, n AS place
            FROM generate_subscripts(ends, 1) AS n) e
        GROUP BY e.batch ORDER BY e.batch
    LOOP
        UPDATE {schema}.batches b
        SET total = b.total - one.moved, succeeded = b.succeeded + one.succeeded, failed = b.failed + one.failed,
            cancelled = b.cancelled + one.cancelled, failed_ids = CASE
                WHEN one.failed_ids IS NULL OR cardinality(b.failed_ids) >= {max_failed_ids} THEN b.failed_ids
                ELSE (b.failed_ids || one.failed_ids)[1:{max_failed_ids}] END
        WHERE b.id = one.batch;
    END LOOP;
END $$;

-- The ends of those members that are among messages about to be cancelled or to die together.
CREATE OR REPLACE FUNCTION {schema}.members_at(places tid[], how text) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT array_agg(ARRAY[m.batch, m.id, how]) FILTER (WHERE m.batch IS NOT NULL) FROM {schema}.messages m
        WHERE m.ctid = ANY (places));
END $$;

-- End a batch, and add its callbacks: at the end of each transaction in which all members of a closed one may have
-- ended. Messages that were brought in the same transaction have joined by then.
CREATE OR REPLACE FUNCTION {schema}.end_batch() RETURNS trigger LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
    ended {schema}.batches;
    is_failed boolean;
    told bytea;
BEGIN
    UPDATE {schema}.batches b SET ended_at = now, until = now + {batch_memory}
    WHERE b.id = NEW.id AND NOT b.open AND b.ended_at IS NULL AND b.total = b.succeeded + b.failed + b.cancelled
    RETURNING b.* INTO ended;
    IF NOT FOUND THEN
        RETURN NULL;  -- others have joined, or it was ended by an earlier change of this transaction
    END IF;
    is_failed := ended.stopped OR ended.succeeded < ended.total;
    told := convert_to(',"ended":' || json_build_object(
        'id', ended.id, 'total', ended.total, 'succeeded', ended.succeeded, 'failed', ended.failed,
        'cancelled', ended.cancelled, 'failed_ids', ended.failed_ids) || '}', 'UTF8');
    PERFORM {schema}.bring(
        x.ids, x.given, x.queues, x.handlers, x.priorities, x.dues, x.bodies, x.unique_keys, x.zeros, x.zeros,
        x.zeros::bigint[], '{}', '{}', batches => x.batches, brought => true)
    FROM (
        SELECT array_agg(c.id) AS ids, array_agg(c.given) AS given, array_agg(c.queue) AS queues,
            array_agg(c.handler) AS handlers, array_agg(c.priority) AS priorities, array_agg(c.due) AS dues,
            array_agg(substring(c.body FROM 1 FOR octet_length(c.body) - 1) || told) AS bodies,
            array_agg(c.unique_key) AS unique_keys, array_agg(0) AS zeros, array_agg(c.batch) AS batches
        FROM jsonb_to_recordset(ended.callbacks) AS c (
            id text, given boolean, queue text, handler text, priority smallint, due bigint, body bytea,
            unique_key text, batch text, only_success boolean)
        WHERE NOT (c.only_success AND is_failed)) x
    WHERE x.ids IS NOT NULL;
    IF ended.parent IS NOT NULL THEN
        PERFORM {schema}.end_members(ARRAY[ARRAY[
            ended.parent, ended.id, CASE WHEN ended.stopped THEN 'c' WHEN is_failed THEN 'f' ELSE 's' END]]);
    END IF;
    PERFORM {schema}.ring_ends(ARRAY[ended.id]);
    RETURN NULL;
END $$;

-- Only where it is missing: a migration that locked `batches` too would wait for a transaction that waits for it.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{schema}.batches'::regclass AND tgname = 'end_batch') THEN
        CREATE CONSTRAINT TRIGGER end_batch AFTER UPDATE ON {schema}.batches DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
        WHEN (NOT NEW.open AND NEW.ended_at IS NULL AND NEW.total = NEW.succeeded + NEW.failed + NEW.cancelled)
        EXECUTE FUNCTION {schema}.end_batch();
    END IF;
END $$
