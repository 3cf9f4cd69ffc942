-- The results of acked messages, kept for a while.
CREATE TABLE IF NOT EXISTS {schema}.results (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    until bigint NOT NULL,
    record bytea NOT NULL
) WITH ({keeps_short});
ALTER TABLE {schema}.results ALTER COLUMN record SET STORAGE EXTERNAL;
CREATE INDEX IF NOT EXISTS results_until ON {schema}.results (until);
