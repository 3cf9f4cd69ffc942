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

CREATE OR REPLACE FUNCTION {schema}.settle(call text, ack_queues text[], ack_seqs bigint[], ack_holders bigint[],
    queues text[] DEFAULT '{}', seqs bigint[] DEFAULT '{}', holders bigint[] DEFAULT '{}', verbs text DEFAULT '',
    delays bigint[] DEFAULT '{}', reasons text[] DEFAULT '{}', errors text[] DEFAULT '{}', causes text[] DEFAULT '{}',
    keys text[] DEFAULT '{}', keeps bigint[] DEFAULT '{}', starts text[] DEFAULT '{}') RETURNS text {left_out};
CREATE OR REPLACE FUNCTION {schema}.settle_acks(queues text[], seqs bigint[], holders bigint[], now bigint, give_up
    timestamptz) RETURNS text {left_out};
CREATE OR REPLACE FUNCTION {schema}.settle_one(name text, number bigint, owner bigint, verb text, delay bigint, why
    text, error text, new_cause text, done_key text, keep bigint, rates text, now bigint, give_up timestamptz) RETURNS
    text {left_out};
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
