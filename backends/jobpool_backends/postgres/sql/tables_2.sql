ALTER TABLE {schema}.messages ADD COLUMN unique_key text COLLATE "C";
CREATE INDEX messages_dead ON {schema}.messages (queue, died_at, seq) WHERE state = 3;

-- Unique keys of queues: known `until` then.
CREATE TABLE {schema}.uniques (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,             -- of the message that has the key
    until bigint,                             -- NULL while that message is there
    PRIMARY KEY (queue, key)
) WITH ({keeps_short});
CREATE INDEX uniques_until ON {schema}.uniques (until) WHERE until IS NOT NULL;

-- Idempotency keys that are done, and for how long.
CREATE TABLE {schema}.done (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (queue, key)
) WITH ({keeps_short});
CREATE INDEX done_until ON {schema}.done (until);

-- The places that leases have under names; an idempotency key k is the one place under `key:k`. A place counts while
-- message `seq` is leased by `holder` and its deadline is not reached; it is never renewed. Past the deadline it counts
-- as long as a transaction that began in time has the message's row.
CREATE TABLE {schema}.holds (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    holder bigint NOT NULL,
    until bigint NOT NULL,                    -- when to look whether it can go; nothing else goes by it
    PRIMARY KEY (queue, name, seq)
) WITH ({keeps_short});
CREATE INDEX holds_until ON {schema}.holds (until);

-- Starts that rates count, in sliding windows.
CREATE TABLE {schema}.starts (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,           -- the lease's owner token, or the caller's own
    at bigint NOT NULL,
    until bigint NOT NULL,                    -- a minute after it has left the longest window that counts it
    PRIMARY KEY (queue, name, token)
) WITH ({keeps_short});
CREATE INDEX starts_at ON {schema}.starts (queue, name, at);
CREATE INDEX starts_until ON {schema}.starts (until);

-- Small values that pools keep for a while.
CREATE TABLE {schema}.records (
    space text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (space, key)
) WITH ({keeps_short});
CREATE INDEX records_until ON {schema}.records (until);

-- Lines that pools keep.
CREATE TABLE {schema}.logs (
    space text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,                   -- without gaps
    line bytea NOT NULL,
    PRIMARY KEY (space, name, number)
) WITH ({keeps_short});

-- How many dead letters of a queue its caps have removed.
CREATE TABLE {schema}.evictions (
    queue text COLLATE "C" NOT NULL PRIMARY KEY,
    count bigint NOT NULL
) WITH (fillfactor = 50, vacuum_truncate = off);

-- Their parameters have changed. Their successors understand the calls of older programs.
DROP FUNCTION IF EXISTS {schema}.settle(
    text, text[], bigint[], bigint[], text[], bigint[], bigint[], text, bigint[], text[], text[]);
DROP FUNCTION IF EXISTS {schema}.settle_one(
    text, bigint, bigint, text, bigint, text, text, bigint, timestamptz);
