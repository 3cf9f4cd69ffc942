CREATE TABLE {schema}.messages (
    seq bigint GENERATED ALWAYS AS IDENTITY,  -- its CACHE stays 1: the order, and the floors, stand on it
    enqueued_at bigint NOT NULL,
    available_at bigint NOT NULL,
    holder bigint,                            -- first half of the owner token; the second is seq in hex
    deadline bigint,
    first_until bigint,                       -- here, as an update's log holds what is between the columns it changes
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
    {keeps_many},
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_cost_limit = 2000,
    toast.vacuum_truncate = off
);
-- A body too long for the row goes out of it as it is, once: no update copies it, and it is not compressed.
ALTER TABLE {schema}.messages ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE UNIQUE INDEX messages_listed ON {schema}.messages (queue, state, seq);
CREATE INDEX messages_fresh ON {schema}.messages (queue, priority, seq) WHERE state = 0 AND fresh;
CREATE INDEX messages_again ON {schema}.messages (queue, priority, seq) WHERE state = 0 AND NOT fresh;
CREATE INDEX messages_due ON {schema}.messages (queue, available_at) WHERE state = 1;
CREATE INDEX messages_held ON {schema}.messages (queue, deadline) WHERE state = 2;

-- A row for each queue and priority that was ever fetched: where fetch begins to read `messages_fresh`. See
-- `step_floor` in fetch.sql. Priority -1: where a claim begins to read never claimed posts. All rows
-- may be deleted at any time.
CREATE TABLE {schema}.heads (
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    floor bigint NOT NULL DEFAULT 0,          -- no fresh message that waits has a lower seq
    candidate bigint,                         -- how the floor gets there, with the next two
    settled_before xid8,
    reset_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, priority)
) WITH (fillfactor = 50, vacuum_truncate = off);

-- The answers of fetches and settlements for 60 s, one row a call.
CREATE TABLE {schema}.calls (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    until bigint NOT NULL,
    answer text COLLATE "C" NOT NULL
) WITH ({keeps_many});
CREATE INDEX calls_until ON {schema}.calls (until);

-- Ids that producers gave, for 600 s after their end.
CREATE TABLE {schema}.ended (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    until bigint NOT NULL
) WITH ({keeps_many});
CREATE INDEX ended_until ON {schema}.ended (until);

-- Queues for whose messages pools sleep. A statement that makes one fetchable deletes the row and rings: NOTIFY on
-- channel `jobpool:<schema>`, payload = the queue. Waiters for the end of a job sleep in the same way, as `=` and its
-- id.
CREATE TABLE {schema}.sleepers (
    queue text COLLATE "C" NOT NULL PRIMARY KEY
) WITH (fillfactor = 50, vacuum_truncate = off);
