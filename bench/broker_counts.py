"""A broker's own counts: requests, bytes, connections, and how often and how long it worked for a verb."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql
from redis import Redis

from bench.servers import RedisServer, Server
from jobpool_backends.redis import keyspace

LONGEST_LOG = 1_000_000
SCRIPTS: dict[str, str] = {keyspace.RENEW.sha: "renew", keyspace.REAP.sha: "reap"}
VERBS = tuple(SCRIPTS.values())

COUNTED = """
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0',
    (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()),
    coalesce(pg_total_relation_size(to_regclass('jobpool.messages')), 0)
"""
CALLED = "SELECT calls, total_time FROM pg_stat_user_functions WHERE schemaname = 'jobpool' AND funcname = %s"


@dataclass(frozen=True, slots=True)
class BrokerCounts:
    """The counts of a server at one moment.

    Attributes:
        requests: On Redis commands of clients; on Postgres transactions that wrote.
        traffic: On Redis bytes received and sent; on Postgres bytes of its log.
        connections: Of clients, this question's left out.
        stored: Bytes of all keys on Redis, of the messages' table and its indexes on Postgres.
    """

    requests: int
    traffic: int
    connections: int
    stored: int


@dataclass(slots=True)
class Verb:
    """The calls of one verb, and the milliseconds that the server took for all of them."""

    calls: int = 0
    took: float = 0.0


def read_counts(server: Server, url: str) -> BrokerCounts:
    """Return the counts of a place in a server."""
    if not isinstance(server, RedisServer):
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(COUNTED).fetchone() or ()
        return BrokerCounts(*map(int, row))
    with Redis.from_url(url) as client:
        info = client.info("everything")
    traffic = info["total_net_input_bytes"] + info["total_net_output_bytes"]
    return BrokerCounts(info["total_reads_processed"], traffic, info["connected_clients"] - 1, info["used_memory"])


@contextmanager
def timed_verbs(server: Server, url: str) -> Iterator[dict[str, Verb]]:
    """Count renewals and reaps meanwhile. The answer is there when the context has ended."""
    found = {verb: Verb() for verb in VERBS}
    if isinstance(server, RedisServer):
        with _logged(url, found):
            yield found
        return
    before = _called(url)
    yield found
    for verb, after in _called(url).items():
        found[verb].calls, found[verb].took = after.calls - before[verb].calls, after.took - before[verb].took


def track_verbs(server: Server, url: str) -> None:
    """Let sessions that begin from now on count the calls of functions; a Redis can always tell."""
    if not isinstance(server, RedisServer):
        name = sql.Identifier(url.rpartition("/")[2])
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER DATABASE {} SET track_functions = 'pl'").format(name))


@contextmanager
def _logged(url: str, found: dict[str, Verb]) -> Iterator[None]:
    with Redis.from_url(url) as client, contextlib.ExitStack() as undo:
        client.config_set("slowlog-max-len", LONGEST_LOG)
        client.slowlog_reset()
        undo.callback(client.config_set, "slowlog-log-slower-than", -1)
        client.config_set("slowlog-log-slower-than", 0)  # all commands, in microseconds
        yield
        for entry in client.slowlog_get(-1):
            words = entry["command"].decode(errors="replace").split()
            if words[0] == "EVALSHA" and (verb := SCRIPTS.get(words[1])):
                found[verb].calls += 1
                found[verb].took += entry["duration"] / 1000


def _called(url: str) -> dict[str, Verb]:
    with psycopg.connect(url, autocommit=True) as connection:
        rows = {verb: connection.execute(CALLED, [verb]).fetchone() for verb in VERBS}
    return {verb: Verb(*row) if row else Verb() for verb, row in rows.items()}
