-- Where the first leases are, a row for each fetch and priority; see `take_leases` in fetch.sql. Sweeps and reaps
-- remove rows that have none left. If one is deleted by hand, its leases are never reaped.
CREATE TABLE IF NOT EXISTS {schema}.fetches (
    queue text COLLATE "C" NOT NULL,
    until bigint NOT NULL,                    -- when its first leases end
    holder bigint NOT NULL,
    priority smallint NOT NULL,
    low bigint NOT NULL,                      -- they are those of its holder among these sequence numbers
    high bigint NOT NULL,
    PRIMARY KEY (queue, until, holder, priority)
) WITH ({keeps_short});

-- A fresh message may have a holder now. Not validated: nothing that an older program has written can be wrong. Adding
-- the column, which a new table has, does not rewrite an old one.
ALTER TABLE {schema}.messages
    ADD COLUMN IF NOT EXISTS first_until bigint,
    DROP CONSTRAINT IF EXISTS messages_check,
    DROP CONSTRAINT IF EXISTS messages_holder,
    ADD CONSTRAINT messages_holder CHECK (
        state <> 2 AND holder IS NULL OR holder IS NOT NULL AND (state = 2 OR state = 0 AND fresh)) NOT VALID
;

-- Builds before the release have made a version 7 without this column, and a function that does not return it.
ALTER TABLE {schema}.batches ADD COLUMN IF NOT EXISTS stopped boolean NOT NULL DEFAULT false;
DROP FUNCTION IF EXISTS {schema}.find_batch(text);

-- Each fetch and count uses the new table: the users of `messages` get the same rights on it.
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT a.privilege_type AS what, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS whom
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = '{schema}.messages'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT %s ON {schema}.fetches TO %s', one.what, one.whom);
    END LOOP;
END $$
