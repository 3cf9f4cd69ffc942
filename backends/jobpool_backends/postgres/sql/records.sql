-- Write records, each in place of an older one; they end `length` microseconds from now.
CREATE OR REPLACE FUNCTION {schema}.put_records(into_space text, keys text[], contents bytea[], length bigint)
RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    ends bigint := {schema}.moment() + length;
BEGIN
    INSERT INTO {schema}.records (space, key, until, value)
    SELECT into_space, n.key, ends, n.value FROM unnest(keys, contents) AS n (key, value)
    ORDER BY n.key COLLATE "C"  -- one order for all, so that no two wait for each other
    ON CONFLICT (space, key) DO UPDATE SET until = excluded.until, value = excluded.value;
END $$;

CREATE OR REPLACE FUNCTION {schema}.get_record(of_space text, wanted text)
RETURNS bytea LANGUAGE plpgsql VOLATILE {planner} AS $$
DECLARE
    now bigint := {schema}.moment();
BEGIN
    RETURN (SELECT r.value FROM {schema}.records r WHERE r.space = of_space AND r.key = wanted AND r.until > now);
END $$;

CREATE OR REPLACE FUNCTION {schema}.list_records(of_space text, beginning text, behind text, most integer)
RETURNS TABLE (key text, value bytea) LANGUAGE plpgsql VOLATILE {planner} AS $$
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
RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    DELETE FROM {schema}.records WHERE ctid = ANY (ARRAY(
        SELECT x.place FROM (SELECT n.key FROM unnest(keys) AS n (key) ORDER BY n.key COLLATE "C") n, LATERAL (
            SELECT r.ctid AS place FROM {schema}.records r WHERE r.space = of_space AND r.key = n.key FOR UPDATE) x));
END $$;

-- Add lines to the logs of these names, in order; the newest `keep` of each stay.
CREATE OR REPLACE FUNCTION {schema}.append_log(into_space text, names text[], lines bytea[], keep integer)
RETURNS void LANGUAGE plpgsql VOLATILE {planner} AS $$
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
RETURNS SETOF bytea LANGUAGE plpgsql VOLATILE {planner} AS $$
BEGIN
    RETURN QUERY
    SELECT l.line FROM {schema}.logs l WHERE l.space = of_space AND l.name = wanted ORDER BY l.number DESC LIMIT most;
END $$;

-- The names of a space's logs, sorted; from one to the next, however many lines there are of each.
CREATE OR REPLACE FUNCTION {schema}.list_logs(of_space text, most integer)
RETURNS text[] LANGUAGE plpgsql VOLATILE {planner} AS $$
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
