-- What version 2 has made of version 1, for the tests of migrations: all that was there before claims.
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

-- Functions that no test calls, without their bodies: a migration must replace or drop them all the same.
CREATE FUNCTION {schema}.bring(ids text[], given boolean[], queues text[], handlers text[], priorities smallint[], dues
    bigint[], bodies bytea[], unique_keys text[], attempts integer[], crashes integer[], deliveries bigint[], errors
    text[], causes text[], eager boolean DEFAULT false) RETURNS TABLE (asked text, known text) {left_out};
CREATE FUNCTION {schema}.claim(scope text, wanted_key text, ident text, is_given boolean, now bigint, OUT known text,
    OUT claimed boolean) {left_out};
CREATE FUNCTION {schema}.is_known(ident text, is_given boolean, now bigint) RETURNS boolean {left_out};
CREATE FUNCTION {schema}.drop_claims(ids text[], queues text[], unique_keys text[]) RETURNS void {left_out};
CREATE FUNCTION {schema}.end_claims(places tid[], known_until bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.resume(places tid[], seqs bigint[]) RETURNS integer {left_out};
CREATE FUNCTION {schema}.evict(name text, kept bigint, age bigint, most integer) RETURNS integer {left_out};
CREATE FUNCTION {schema}.evicted(name text) RETURNS bigint {left_out};
CREATE FUNCTION {schema}.take_turns(scopes text[], names text[]) RETURNS void {left_out};
CREATE FUNCTION {schema}.begin_leases(queues text[], seqs bigint[], holders bigint[], wants text[], scopes text[], names
    text[], fulls integer[], rate_scopes text[], rate_names text[], rate_fulls integer[], rate_lengths bigint[])
    RETURNS TABLE (answer text, refused text, after bigint) {left_out};
CREATE FUNCTION {schema}.begin_lease(scope text, number bigint, owner bigint, want jsonb, now bigint, crowded text[],
    hurried text[], OUT answer text, OUT refused text, OUT after bigint) {left_out};
CREATE FUNCTION {schema}.first_run(scope text, wanted_key text, length bigint) RETURNS boolean {left_out};
CREATE FUNCTION {schema}.forget(scope text, wanted_key text) RETURNS boolean {left_out};
CREATE FUNCTION {schema}.mark_done(scope text, done_key text, known_until bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.count_places(scope text, place text, number bigint, most integer) RETURNS bigint {left_out};
CREATE FUNCTION {schema}.crowded_names(scopes text[], names text[], fulls integer[]) RETURNS text[] {left_out};
CREATE FUNCTION {schema}.leave_places(scopes text[], places text[], seqs bigint[], holders bigint[])
    RETURNS void {left_out};
CREATE FUNCTION {schema}.free_places(scope text, place text, now bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.is_being_settled(scope text, number bigint, owner bigint) RETURNS boolean {left_out};
CREATE FUNCTION {schema}.take_place(scope text, place text, number bigint, owner bigint, deadline bigint)
    RETURNS void {left_out};
CREATE FUNCTION {schema}.holders(scope text, place text) RETURNS text[] {left_out};
CREATE FUNCTION {schema}.sweep_holds(most integer, now bigint) RETURNS integer {left_out};
CREATE FUNCTION {schema}.take_start(scope text, rate text, most integer, length bigint, start text)
    RETURNS bigint {left_out};
CREATE FUNCTION {schema}.time_to_start(scope text, rate text, most integer, length bigint, start text, now bigint)
    RETURNS bigint {left_out};
CREATE FUNCTION {schema}.count_starts(scope text, rate text, since bigint, most integer) RETURNS bigint {left_out};
CREATE FUNCTION {schema}.note_start(scope text, rate text, start text, length bigint, now bigint)
    RETURNS void {left_out};
CREATE FUNCTION {schema}.give_back_starts(scope text, rates text[], number bigint, owner bigint)
    RETURNS void {left_out};
CREATE FUNCTION {schema}.token_of(number bigint, owner bigint) RETURNS text {left_out};
CREATE FUNCTION {schema}.put_records(into_space text, keys text[], contents bytea[], length bigint)
    RETURNS void {left_out};
CREATE FUNCTION {schema}.get_record(of_space text, wanted text) RETURNS bytea {left_out};
CREATE FUNCTION {schema}.list_records(of_space text, beginning text, behind text, most integer)
    RETURNS TABLE (key text, value bytea) {left_out};
CREATE FUNCTION {schema}.delete_records(of_space text, keys text[]) RETURNS void {left_out};
CREATE FUNCTION {schema}.append_log(into_space text, names text[], lines bytea[], keep integer) RETURNS void {left_out};
CREATE FUNCTION {schema}.read_log(of_space text, wanted text, most integer) RETURNS SETOF bytea {left_out};
CREATE FUNCTION {schema}.list_logs(of_space text, most integer) RETURNS text[] {left_out};

INSERT INTO {schema}.migrations (version) VALUES (2);
