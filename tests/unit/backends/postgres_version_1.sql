-- The schema as version 1 had it, for the tests of migrations: all that jobpool 0.1 could have left behind.
CREATE SCHEMA {schema};
CREATE TABLE {schema}.migrations (
    version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO {schema}.migrations (version) VALUES (1);

CREATE TABLE {schema}.messages (
    seq bigint GENERATED ALWAYS AS IDENTITY,  -- its CACHE stays 1: the order, and the floors, stand on it
    enqueued_at bigint NOT NULL,
    available_at bigint NOT NULL,
    holder bigint,                            -- first half of the owner token; the second is seq in hex
    deadline bigint,
    ttl bigint,                               -- so that deadline - ttl is when it was taken or renewed
    died_at bigint,
    last_crash bigint,
    deliveries bigint NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    state smallint NOT NULL,                  -- 0 waiting, 1 delayed, 2 leased, 3 dead
    given boolean NOT NULL,                   -- its producer chose the id
    fresh boolean NOT NULL,                   -- waiting since its enqueue
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    handler text COLLATE "C" NOT NULL,
    forfeited text,                           -- the cause, when the lease was forfeited
    cause text,                               -- of the last crash
    reason text COLLATE "C",                  -- of a dead letter
    last_error text,
    body bytea NOT NULL,
    CHECK ((state = 2) = (holder IS NOT NULL)),
    CHECK ((state = 3) = (died_at IS NOT NULL))
) WITH (
    fillfactor = 50,                          -- the row that a lease makes goes beside the old one: a fifth less WAL
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 50000,
    vacuum_truncate = off,                    -- to give pages back to the disk takes a lock that stops everybody
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_cost_limit = 2000,
    toast.vacuum_truncate = off
);
-- A body that is too long for the row goes out of it as it is, once: no update copies it, and nobody compresses it.
ALTER TABLE {schema}.messages ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE UNIQUE INDEX messages_listed ON {schema}.messages (queue, state, seq);
CREATE INDEX messages_fresh ON {schema}.messages (queue, priority, seq) WHERE state = 0 AND fresh;
CREATE INDEX messages_again ON {schema}.messages (queue, priority, seq) WHERE state = 0 AND NOT fresh;
CREATE INDEX messages_due ON {schema}.messages (queue, available_at) WHERE state = 1;
CREATE INDEX messages_held ON {schema}.messages (queue, deadline) WHERE state = 2;

CREATE TABLE {schema}.heads (
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    floor bigint NOT NULL DEFAULT 0,
    candidate bigint,
    settled_before xid8,
    reset_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, priority)
) WITH (fillfactor = 50, vacuum_truncate = off);

CREATE TABLE {schema}.calls (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    until bigint NOT NULL,
    answer text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_limit = 2000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000, vacuum_truncate = off
);
CREATE INDEX calls_until ON {schema}.calls (until);

CREATE TABLE {schema}.ended (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    until bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_limit = 2000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000, vacuum_truncate = off
);
CREATE INDEX ended_until ON {schema}.ended (until);

CREATE TABLE {schema}.sleepers (
    queue text COLLATE "C" NOT NULL PRIMARY KEY
) WITH (fillfactor = 50, vacuum_truncate = off);

-- Functions without their bodies: a migration must replace or drop them all the same.
CREATE FUNCTION {schema}.moment() RETURNS bigint {left_out};
CREATE FUNCTION {schema}.remember(call text, answer text, now bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.begin_enqueue() RETURNS bigint {left_out};
CREATE FUNCTION {schema}.finish_enqueue(chosen text[], ready text[], now bigint, eager boolean DEFAULT false) RETURNS
    integer {left_out};
CREATE FUNCTION {schema}.enqueue_one(id text, given boolean, queue text, handler text, priority smallint, due bigint,
    body bytea) RETURNS void {left_out};
CREATE FUNCTION {schema}.fetch(name text, most integer, length bigint, call text, new_holder bigint) RETURNS TABLE
    (priority smallint, seq bigint, id text, body bytea, attempts integer, crashes integer, deliveries bigint,
    enqueued_at bigint, holder bigint, remaining bigint) {left_out};
CREATE FUNCTION {schema}.promote(name text, now bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.take_fresh(name text, most integer, may_step boolean) RETURNS tid[] {left_out};
CREATE FUNCTION {schema}.take_unknown(name text, below smallint, above smallint, most integer) RETURNS tid[]
    {left_out};
CREATE FUNCTION {schema}.settle(call text, ack_queues text[], ack_seqs bigint[], ack_holders bigint[], queues text[]
    DEFAULT '{}', seqs bigint[] DEFAULT '{}', holders bigint[] DEFAULT '{}', verbs text DEFAULT '', delays bigint[]
    DEFAULT '{}', reasons text[] DEFAULT '{}', errors text[] DEFAULT '{}') RETURNS text {left_out};
CREATE FUNCTION {schema}.settle_acks(queues text[], seqs bigint[], holders bigint[], now bigint, give_up timestamptz)
    RETURNS text {left_out};
CREATE FUNCTION {schema}.settle_one(name text, number bigint, owner bigint, verb text, delay bigint, why text, error
    text, now bigint, give_up timestamptz) RETURNS text {left_out};
CREATE FUNCTION {schema}.ring(queues text[], eager boolean DEFAULT false) RETURNS void {left_out};
CREATE FUNCTION {schema}.remember_ended(ids text[], now bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.sweep(most integer) RETURNS integer {left_out};
CREATE FUNCTION {schema}.enqueue(ids text[], given boolean[], queues text[], handlers text[], priorities smallint[],
    dues bigint[], bodies bytea[], eager boolean DEFAULT false) RETURNS void {left_out};
CREATE FUNCTION {schema}.step_floor(head {schema}.heads, top bigint) RETURNS void {left_out};
CREATE FUNCTION {schema}.is_ready(name text, now bigint DEFAULT NULL) RETURNS boolean {left_out};
CREATE FUNCTION {schema}.renew(queues text[], seqs bigint[], holders bigint[], length bigint) RETURNS text {left_out};
CREATE FUNCTION {schema}.reap(name text, max_crashes integer, crash_window bigint, back_off double precision, cap double
    precision, visible bigint, most integer)
    RETURNS TABLE (id text, crashes integer, cause text, dead boolean) {left_out};
CREATE FUNCTION {schema}.queue_names() RETURNS text[] {left_out};
CREATE FUNCTION {schema}.stats(name text, most integer)
    RETURNS TABLE (waiting bigint, due bigint, delayed bigint, leased bigint, dead bigint, age bigint) {left_out};
CREATE FUNCTION {schema}.look_through(names text[], kinds smallint[], due boolean, later boolean, wanted_handler text,
    wanted_reason text, older bigint, newer bigint, behind bigint, most integer, bodies boolean, share integer)
    RETURNS TABLE (seq bigint, id text, queue text, state smallint, handler text, priority smallint, attempts integer,
        crashes integer, deliveries bigint, enqueued_at bigint, available_at bigint, body bytea, reason text, last_error
        text, cause text, forfeited text, died_at bigint, deadline bigint, place text) {left_out};
CREATE FUNCTION {schema}.look_up(ids text[], names text[], kinds smallint[], due boolean, later boolean, wanted_handler
    text, wanted_reason text, older bigint, newer bigint, behind bigint, most integer, bodies boolean)
    RETURNS TABLE (seq bigint, id text, queue text, state smallint, handler text, priority smallint, attempts integer,
        crashes integer, deliveries bigint, enqueued_at bigint, available_at bigint, body bytea, reason text, last_error
        text, cause text, forfeited text, died_at bigint, deadline bigint, place text) {left_out};
CREATE FUNCTION {schema}.lock_seen(places tid[], seqs bigint[]) RETURNS tid[] {left_out};
CREATE FUNCTION {schema}.discard(places tid[], seqs bigint[]) RETURNS integer {left_out};
CREATE FUNCTION {schema}.retry(places tid[], seqs bigint[]) RETURNS integer {left_out};
