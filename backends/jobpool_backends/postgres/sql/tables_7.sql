-- Adding the column does not rewrite the table.
ALTER TABLE {schema}.messages ADD COLUMN IF NOT EXISTS batch text COLLATE "C";
CREATE INDEX IF NOT EXISTS messages_batch ON {schema}.messages (batch, seq) WHERE batch IS NOT NULL;

-- One row a batch, in which the transactions that add and end its members count them; see batches.sql. A constraint
-- trigger ends it, and adds its callbacks, at the commit after which none is left.
CREATE TABLE IF NOT EXISTS {schema}.batches (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    parent text COLLATE "C",                  -- the batch of which it is a member
    open boolean NOT NULL DEFAULT true,
    created_at bigint NOT NULL,
    ended_at bigint,
    until bigint,                             -- NULL before its end
    total bigint NOT NULL DEFAULT 0,          -- members so far; a batch may be one
    succeeded bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    failed_ids text[] NOT NULL DEFAULT '{}',
    stopped boolean NOT NULL DEFAULT false,   -- cancelled as a whole
    callbacks jsonb NOT NULL                  -- messages, their bodies in hex; only_success
) WITH (
    fillfactor = 50,
    toast_tuple_target = 128,                 -- the callbacks go out of the row, so that no count copies them
    {keeps_short}
);
ALTER TABLE {schema}.batches ALTER COLUMN callbacks SET STORAGE EXTERNAL;
CREATE INDEX IF NOT EXISTS batches_until ON {schema}.batches (until) WHERE until IS NOT NULL;
CREATE INDEX IF NOT EXISTS batches_nested ON {schema}.batches (parent, created_at, id) WHERE parent IS NOT NULL;

-- Their parameters have changed. The successor of the first understands the calls of older programs.
DROP FUNCTION IF EXISTS {schema}.bring(
    text[], boolean[], text[], text[], smallint[], bigint[], bytea[], text[], integer[], integer[], bigint[], text[],
    text[], boolean);
DROP FUNCTION IF EXISTS {schema}.settle_acks(text[], bigint[], bigint[], bigint, timestamptz);
DROP FUNCTION IF EXISTS {schema}.settle_one(
    text, bigint, bigint, text, bigint, text, text, text, text, bigint, text, bigint, timestamptz)
