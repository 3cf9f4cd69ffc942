-- None of these rewrites the table: the default is kept beside it.
ALTER TABLE {schema}.messages
    ADD COLUMN claim text COLLATE "C",        -- that holds it; ended or not
    ADD COLUMN claims integer NOT NULL DEFAULT 0,
    ADD COLUMN ends_at bigint;                -- of a posted message with a life
CREATE INDEX messages_posted ON {schema}.messages (queue, ends_at) WHERE state > 3;
CREATE INDEX messages_later ON {schema}.messages (queue, available_at) WHERE state = 5;

-- One row a claim, until a call notices that it has ended. A change of what a claim holds locks the row first; see
-- claims_held.sql. Messages name their claim.
CREATE TABLE {schema}.claims (
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    ttl bigint NOT NULL,
    grace bigint NOT NULL,
    since bigint NOT NULL,                    -- when it was made or renewed
    until bigint NOT NULL,                    -- when it ends: nothing else says so
    states smallint[] NOT NULL,               -- of the messages that it took: 2 or 6, while it holds them
    seqs bigint[] NOT NULL,                   -- of the same, in order; some may be gone
    PRIMARY KEY (queue, id)
) WITH ({keeps_short});
CREATE INDEX claims_until ON {schema}.claims (queue, until);

-- How many posted messages of a queue have ended with their lives.
CREATE TABLE {schema}.expiries (
    queue text COLLATE "C" NOT NULL,
    count bigint NOT NULL                     -- several rows where several counted at once: together
) WITH (fillfactor = 50, vacuum_truncate = off);
CREATE INDEX expiries_queue ON {schema}.expiries (queue);

-- They return more columns now, which older programs do not ask for.
DROP FUNCTION IF EXISTS {schema}.look_through(
    text[], smallint[], boolean, boolean, text, text, bigint, bigint, bigint, integer, boolean, integer);
DROP FUNCTION IF EXISTS {schema}.look_up(
    text[], text[], smallint[], boolean, boolean, text, text, bigint, bigint, bigint, integer, boolean)
