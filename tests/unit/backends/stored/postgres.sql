CREATE TABLE {schema}.turned (
    moment bigint NOT NULL
);
CREATE TABLE {schema}.heads (
    queue text NOT NULL COLLATE pg_catalog."C",
    priority smallint NOT NULL,
    floor bigint DEFAULT 0 NOT NULL,
    candidate bigint,
    settled_before xid8,
    reset_at bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='50', vacuum_truncate=off);
CREATE TABLE {schema}.calls (
    id text NOT NULL COLLATE pg_catalog."C",
    until bigint NOT NULL,
    answer text NOT NULL COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_cost_limit='2000', autovacuum_analyze_scale_factor='0.2', autovacuum_analyze_threshold='50000', vacuum_truncate=off);
CREATE TABLE {schema}.claims (
    queue text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    ttl bigint NOT NULL,
    grace bigint NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,
    states smallint[] NOT NULL,
    seqs bigint[] NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_limit='2000', vacuum_truncate=off);
CREATE TABLE {schema}.done (
    queue text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    until bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_limit='2000', vacuum_truncate=off);
CREATE TABLE {schema}.ended (
    id text NOT NULL COLLATE pg_catalog."C",
    until bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_cost_limit='2000', autovacuum_analyze_scale_factor='0.2', autovacuum_analyze_threshold='50000', vacuum_truncate=off);
CREATE TABLE {schema}.evictions (
    queue text NOT NULL COLLATE pg_catalog."C",
    count bigint NOT NULL
)
WITH (fillfactor='50', vacuum_truncate=off);
CREATE TABLE {schema}.expiries (
    queue text NOT NULL COLLATE pg_catalog."C",
    count bigint NOT NULL
)
WITH (fillfactor='50', vacuum_truncate=off);
CREATE TABLE {schema}.holds (
    queue text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    holder bigint NOT NULL,
    until bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_limit='2000', vacuum_truncate=off);
CREATE TABLE {schema}.logs (
    space text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    line bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_limit='2000', vacuum_truncate=off);
CREATE TABLE {schema}.messages (
    seq bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    available_at bigint NOT NULL,
    holder bigint,
    deadline bigint,
    ttl bigint,
    died_at bigint,
    last_crash bigint,
    deliveries bigint DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    priority smallint NOT NULL,
    state smallint NOT NULL,
    given boolean NOT NULL,
    fresh boolean NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C",
    handler text NOT NULL COLLATE pg_catalog."C",
    forfeited text,
    cause text,
    reason text COLLATE pg_catalog."C",
    last_error text,
    body bytea NOT NULL,
    unique_key text COLLATE pg_catalog."C",
    claim text COLLATE pg_catalog."C",
    claims integer DEFAULT 0 NOT NULL,
    ends_at bigint,
    CONSTRAINT messages_check CHECK (((state = 2) = (holder IS NOT NULL))),
    CONSTRAINT messages_check1 CHECK (((state = 3) = (died_at IS NOT NULL)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_cost_limit='2000', autovacuum_analyze_scale_factor='0.2', autovacuum_analyze_threshold='50000', vacuum_truncate=off, toast.autovacuum_vacuum_scale_factor='0.02', toast.autovacuum_vacuum_threshold='10000', toast.autovacuum_vacuum_cost_limit='2000', toast.vacuum_truncate=off);
ALTER TABLE ONLY {schema}.messages ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {schema}.messages ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME {schema}.messages_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE {schema}.migrations (
    version integer NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE {schema}.records (
    space text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    until bigint NOT NULL,
    value bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_limit='2000', vacuum_truncate=off);
CREATE TABLE {schema}.sleepers (
    queue text NOT NULL COLLATE pg_catalog."C"
)
WITH (fillfactor='50', vacuum_truncate=off);
CREATE TABLE {schema}.starts (
    queue text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    token text NOT NULL COLLATE pg_catalog."C",
    at bigint NOT NULL,
    until bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_limit='2000', vacuum_truncate=off);
CREATE TABLE {schema}.uniques (
    queue text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    until bigint
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_limit='2000', vacuum_truncate=off);
INSERT INTO {schema}.calls VALUES
	('fetch:reports:ba9139ebdedefb15', 1800000060000000, '3040546200723790284'),
	('settle:cb7cf3e4485fc231', 1800000060000000, 'o'),
	('fetch:reports:c657d561750ef64d', 1800000060000000, '7220393121883591256'),
	('settle:006949f71d8ef8b5', 1800000060000000, 'o'),
	('fetch:reports:8e5ea6cf8774abea', 1800000060000000, '8847324608695879765'),
	('settle:forfeit:7ac802db41e3c8550000000000000003', 1800000060000000, 'o'),
	('fetch:reports:d51be92a4d285fcd', 1800000060000000, '2101978372743564560'),
	('settle:c28f65cd876ddbba', 1800000060000000, 'o'),
	('fetch:reports:9f30ec4805985fa7', 1800000060000000, '7432438564558001871'),
	('settle:stored-call', 1800000060000000, 'o'),
	('fetch:reports:8c4527c3b41f2658', 1800000060000000, '3317919391011969712'),
	('fetch:reports:4ef045640bd85656', 1800000060000000, '4990749171719717544'),
	('fetch:reports:stored-fetch', 1800000060000000, '342770568777384720'),
	('fetch:reports:f646699d572638eb', 1800000060000000, '7939859975149573798');
INSERT INTO {schema}.claims VALUES
	('posts', '0123456789abcdef0123456789abcdef', 600000000, 600000000, 1800000000000000, 1800000600000000, '{2,6}', '{13,14}');
INSERT INTO {schema}.done VALUES
	('reports', 'seen', 1800003600000000);
INSERT INTO {schema}.ended VALUES
	('acked', 1800000600000000),
	('answered', 1800000600000000);
INSERT INTO {schema}.heads VALUES
	('reports', 5, 0, NULL, NULL, 0),
	('reports', 200, 0, NULL, NULL, 0),
	('posts', 5, 0, NULL, NULL, 0),
	('posts', -1, 0, NULL, NULL, 0);
INSERT INTO {schema}.holds VALUES
	('reports', 'key:order-3', 8, 3317919391011969712, 1800000600000000),
	('reports', 'printer', 8, 3317919391011969712, 1800000600000000);
INSERT INTO {schema}.logs VALUES
	('pool', 'log', 1, '\x6669727374'),
	('pool', 'log', 2, '\x7365636f6e64');
INSERT INTO {schema}.messages OVERRIDING SYSTEM VALUE VALUES
	(1, 1800000000000000, 1800000000000000, NULL, NULL, NULL, 1800000000000000, NULL, 1, 0, 0, 5, 3, true, false, 'dead', 'reports', 'report', NULL, 'exit status 3', 'failed', 'boom', '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b226e616d65223a2264656164227d2c227175657565223a227265706f727473222c227072696f72697479223a352c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a2264656164222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c225f736967223a22227d', NULL, NULL, 0, NULL),
	(2, 1800000000000000, 1800000005000000, NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 5, 1, true, false, 'retried', 'reports', 'report', NULL, NULL, NULL, 'not yet', '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b226e616d65223a2272657472696564227d2c227175657565223a227265706f727473222c227072696f72697479223a352c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a2272657472696564222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c225f736967223a22227d', NULL, NULL, 0, NULL),
	(3, 1800000000000000, 1800000000000000, NULL, NULL, NULL, NULL, 1800000000000000, 1, 0, 1, 200, 0, true, false, 'crashed', 'reports', 'report', NULL, 'signal 11', NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b226e616d65223a2263726173686564227d2c227175657565223a227265706f727473222c227072696f72697479223a3230302c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a2263726173686564222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c225f736967223a22227d', NULL, NULL, 0, NULL),
	(4, 1800000000000000, 1800000000000000, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 9, 0, true, true, 'waiting', 'reports', 'report', NULL, NULL, NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b2274657874223a224772c3bcc39f65227d2c227175657565223a227265706f727473222c227072696f72697479223a392c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a2277616974696e67222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c226d657461223a7b227472616365223a22616263227d2c225f736967223a22227d', NULL, NULL, 0, NULL),
	(5, 1800000000000000, 1800000060000000, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 5, 1, true, false, 'delayed', 'reports', 'report', NULL, NULL, NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b7d2c227175657565223a227265706f727473222c227072696f72697479223a352c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a2264656c61796564222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a22323032372d30312d31355430383a30313a30305a222c225f736967223a22227d', NULL, NULL, 0, NULL),
	(8, 1800000000000000, 1800000000000000, 3317919391011969712, 1800000600000000, 600000000, NULL, NULL, 1, 0, 0, 5, 2, true, false, 'guarded', 'reports', 'report', NULL, NULL, NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b226e616d65223a2267756172646564227d2c227175657565223a227265706f727473222c227072696f72697479223a352c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a2267756172646564222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c225f736967223a22227d', NULL, NULL, 0, NULL),
	(9, 1800000000000000, 1800000000000000, 4990749171719717544, 1800000600000000, 600000000, NULL, NULL, 1, 0, 0, 5, 2, true, false, 'leased', 'reports', 'report', NULL, NULL, NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b226e616d65223a226c6561736564227d2c227175657565223a227265706f727473222c227072696f72697479223a352c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a226c6561736564222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c225f736967223a22227d', NULL, NULL, 0, NULL),
	(10, 1800000000000000, 1800000000000000, 342770568777384720, 1800000600000000, 600000000, NULL, NULL, 1, 0, 0, 5, 2, true, false, 'refetched', 'reports', 'report', NULL, NULL, NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b226e616d65223a22726566657463686564227d2c227175657565223a227265706f727473222c227072696f72697479223a352c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a22726566657463686564222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c225f736967223a22227d', NULL, NULL, 0, NULL),
	(11, 1800000000000000, 1800000000000000, 7939859975149573798, 1800000010000000, 10000000, NULL, NULL, 1, 0, 0, 5, 2, true, false, 'lost', 'reports', 'report', NULL, NULL, NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b226e616d65223a226c6f7374227d2c227175657565223a227265706f727473222c227072696f72697479223a352c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a226c6f7374222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c225f736967223a22227d', NULL, NULL, 0, NULL),
	(12, 1800000000000000, 1800000000000000, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 10, 0, true, true, 'unique', 'reports', 'report', NULL, NULL, NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b7d2c227175657565223a227265706f727473222c227072696f72697479223a31302c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a22756e69717565222c226964656d706f74656e63794b6579223a226f726465722d32222c227363686564756c65223a6e756c6c2c225f736967223a22227d', 'order-2', NULL, 0, NULL),
	(13, 1800000000000000, 1800000000000000, 4923965734967435540, 1800000600000000, 600000000, NULL, NULL, 1, 0, 0, 5, 2, true, false, 'claimed-job', 'posts', 'report', NULL, NULL, NULL, NULL, '\x7b226a6f62223a227265706f7274222c227061796c6f6164223a7b7d2c227175657565223a22706f737473222c227072696f72697479223a352c226d617852657472696573223a6e756c6c2c22617474656d707473223a302c226e616d65223a6e756c6c2c226964656e746966696572223a22636c61696d65642d6a6f62222c226964656d706f74656e63794b6579223a6e756c6c2c227363686564756c65223a6e756c6c2c225f736967223a22227d', NULL, '0123456789abcdef0123456789abcdef', 1, NULL),
	(14, 1800000000000000, 1800000000000000, NULL, 1800000600000000, 600000000, NULL, NULL, 1, 0, 0, 5, 6, true, false, 'claimed-post', 'posts', '', NULL, NULL, NULL, NULL, '\x636c61696d6564', NULL, '0123456789abcdef0123456789abcdef', 1, NULL),
	(15, 1800000000000000, 1800000000000000, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 5, 4, true, false, 'free', 'posts', '', NULL, NULL, NULL, NULL, '\x0066726565', NULL, NULL, 0, NULL),
	(16, 1800000000000000, 1800000060000000, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 5, 5, true, false, 'later', 'posts', '', NULL, NULL, NULL, NULL, '\x6c61746572', NULL, NULL, 0, NULL),
	(17, 1800000000000000, 1800000000000000, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 5, 4, true, false, 'ending', 'posts', '', NULL, NULL, NULL, NULL, '\x656e64696e67', NULL, NULL, 0, 1800000120000000);
INSERT INTO {schema}.migrations VALUES
	(1, '2026-11-22 19:25:12.116056+00'),
	(2, '2026-11-22 19:25:12.150875+00'),
	(3, '2026-11-22 19:25:12.164008+00'),
	(4, '2026-11-22 19:25:12.246743+00');
INSERT INTO {schema}.records VALUES
	('pool', 'bytes', 1800003600000000, '\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff'),
	('pool', 'one', 1800003600000000, '\x31');
INSERT INTO {schema}.starts VALUES
	('reports', 'mail', '2e0b9e1b66a61ab00000000000000008', 1800000000000000, 1800000120000000);
INSERT INTO {schema}.turned VALUES
	(1800000000000000);
INSERT INTO {schema}.uniques VALUES
	('reports', 'order-1', 'acked', 1800086400000000),
	('reports', 'order-2', 'unique', NULL);
SELECT pg_catalog.setval('{schema}.messages_seq_seq', 17, true);
ALTER TABLE ONLY {schema}.calls
    ADD CONSTRAINT calls_pkey PRIMARY KEY (id);
ALTER TABLE ONLY {schema}.claims
    ADD CONSTRAINT claims_pkey PRIMARY KEY (queue, id);
ALTER TABLE ONLY {schema}.done
    ADD CONSTRAINT done_pkey PRIMARY KEY (queue, key);
ALTER TABLE ONLY {schema}.ended
    ADD CONSTRAINT ended_pkey PRIMARY KEY (id);
ALTER TABLE ONLY {schema}.evictions
    ADD CONSTRAINT evictions_pkey PRIMARY KEY (queue);
ALTER TABLE ONLY {schema}.heads
    ADD CONSTRAINT heads_pkey PRIMARY KEY (queue, priority);
ALTER TABLE ONLY {schema}.holds
    ADD CONSTRAINT holds_pkey PRIMARY KEY (queue, name, seq);
ALTER TABLE ONLY {schema}.logs
    ADD CONSTRAINT logs_pkey PRIMARY KEY (space, name, number);
ALTER TABLE ONLY {schema}.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (id);
ALTER TABLE ONLY {schema}.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY {schema}.records
    ADD CONSTRAINT records_pkey PRIMARY KEY (space, key);
ALTER TABLE ONLY {schema}.sleepers
    ADD CONSTRAINT sleepers_pkey PRIMARY KEY (queue);
ALTER TABLE ONLY {schema}.starts
    ADD CONSTRAINT starts_pkey PRIMARY KEY (queue, name, token);
ALTER TABLE ONLY {schema}.uniques
    ADD CONSTRAINT uniques_pkey PRIMARY KEY (queue, key);
CREATE INDEX calls_until ON {schema}.calls USING btree (until);
CREATE INDEX claims_until ON {schema}.claims USING btree (queue, until);
CREATE INDEX done_until ON {schema}.done USING btree (until);
CREATE INDEX ended_until ON {schema}.ended USING btree (until);
CREATE INDEX expiries_queue ON {schema}.expiries USING btree (queue);
CREATE INDEX holds_until ON {schema}.holds USING btree (until);
CREATE INDEX messages_again ON {schema}.messages USING btree (queue, priority, seq) WHERE ((state = 0) AND (NOT fresh));
CREATE INDEX messages_dead ON {schema}.messages USING btree (queue, died_at, seq) WHERE (state = 3);
CREATE INDEX messages_due ON {schema}.messages USING btree (queue, available_at) WHERE (state = 1);
CREATE INDEX messages_fresh ON {schema}.messages USING btree (queue, priority, seq) WHERE ((state = 0) AND fresh);
CREATE INDEX messages_held ON {schema}.messages USING btree (queue, deadline) WHERE (state = 2);
CREATE INDEX messages_later ON {schema}.messages USING btree (queue, available_at) WHERE (state = 5);
CREATE UNIQUE INDEX messages_listed ON {schema}.messages USING btree (queue, state, seq);
CREATE INDEX messages_posted ON {schema}.messages USING btree (queue, ends_at) WHERE (state > 3);
CREATE INDEX records_until ON {schema}.records USING btree (until);
CREATE INDEX starts_at ON {schema}.starts USING btree (queue, name, at);
CREATE INDEX starts_until ON {schema}.starts USING btree (until);
CREATE INDEX uniques_until ON {schema}.uniques USING btree (until) WHERE (until IS NOT NULL);
