"""Queues with messages in every state, written once by an older jobpool: what `test_stored_queues.py` opens.

The files in `stored/` were written by the code of commit dffae2e, the last before SQLite's schema 5 and Postgres's 6:

    git worktree add --detach OLD dffae2e && (cd OLD && scripts/setup)
    PYTHONPATH=OLD/tests OLD/.venv/bin/python tests/unit/backends/stored_jobs.py tests/unit/backends/stored

Write them anew with the last commit of a release, before the first change of a schema after it.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, cast
from unittest import mock

import msgspec
import psycopg
from support.harnesses.postgres import PostgresHarness
from support.harnesses.redis import RedisHarness
from support.jobs import QUEUE, a_job, at
from support.servers import BeanstalkServer, RedisServer, shared_postgres

from jobpool import JobLease, QueueBackend
from jobpool.broker.broker_time import BrokerTime
from jobpool.broker.claim_store import NewPost
from jobpool.broker.values import ReapPolicy
from jobpool.clock import ManualClock
from jobpool.message.guards import Guards, Hold, Rate
from jobpool.message.settlement import Abandon, Ack, Nack, Release
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.beanstalk import BeanstalkBackend
from jobpool_backends.redis import RedisBackend
from jobpool_backends.sqlite import SqliteBackend

POSTS = "posts"
CLAIM = "0123456789abcdef" * 2
CALL, FETCH = "stored-call", "stored-fetch"
GUARDS = Guards(key="order-3", keep=3600.0, holds=(Hold("printer", 1),), rates=(Rate("mail", 2, 60.0),))
START = ManualClock().wall()
BOOT = 7
"""The boot in which the SQLite file was written."""

SIGNER = EnvelopeSigner("secret-key")
RECORDS = {"one": b"1", "bytes": bytes(range(256))}


@contextmanager
def repeatable() -> Iterator[None]:
    """Draw 1, 2, 3, … in place of random numbers, and let jobs expire by the clock that stands: runs write the same."""
    count = itertools.count(1)
    with (
        mock.patch.object(secrets, "token_hex", lambda size: f"{next(count):0{2 * size}x}"),
        mock.patch.object(secrets, "randbelow", side_effect=count),
        mock.patch.object(secrets, "randbits", side_effect=count),
        mock.patch.object(BrokerTime, "now", return_value=START),
    ):
        yield


def fill(backend: QueueBackend) -> dict[str, JobLease]:
    """Bring messages into every state; return the leases that are still held (beanstalkd keeps none)."""

    def take(name: str, ttl: float = 600.0, **fields: Any) -> JobLease:
        backend.enqueue(a_job({"name": name}, identifier=name, **fields))
        [lease] = backend.fetch_many(QUEUE, limit=1, ttl=ttl, fetch_id=FETCH if name == "refetched" else None)
        assert lease.id == name
        return lease

    assert backend.settle_many([(take("dead"), Abandon("failed", "boom", "exit status 3"))]) != []
    backend.settle_many([(take("retried"), Nack(5.0, "not yet"))])
    backend.forfeit(take("crashed", priority=200), "signal 11")
    assert len(backend.reap(QUEUE, ReapPolicy(back_off=0.0))) == 1
    backend.enqueue(a_job({"text": "Grüße"}, identifier="waiting", priority=9, meta={"trace": "abc"}))
    backend.enqueue(a_job(identifier="delayed", scheduled_at=at(START + 60)))
    backend.settle_many([(take("begun", priority=8, expires_in=30.0), Release())])
    if not backend.capabilities.key_store:
        return {}
    backend.settle_many([(take("acked", unique=True, idempotency_key="order-1"), Ack())])
    held = {"answered": take("answered")}
    backend.settle_many([(held["answered"], Ack())], call_id=CALL)
    guarded = take("guarded").guarded(GUARDS)
    backend.keys.begin_many([(guarded, GUARDS)])
    held |= {"guarded": guarded, "leased": take("leased"), "refetched": take("refetched"), "lost": take("lost", 10.0)}
    whole = {"name": "the report", "max_retries": 3, "timeout": 60.5, "single_instance": True, "expires_in": 3600.0}
    backend.enqueue(a_job([{"y": 1.5, "x": None}], identifier="whole", priority=7, **whole, meta={"trace": "abc"}))
    backend.enqueue(a_job(identifier="unique", priority=10, unique=True, idempotency_key="order-2"))
    assert backend.keys.first_run(QUEUE, "seen", 3600.0)
    backend.keys.put_records("pool", RECORDS, 3600.0)
    backend.keys.append_log("pool", [("log", b"first"), ("log", b"second")], 10)
    backend.enqueue(a_job(identifier="claimed-job", queue=POSTS))
    backend.claims.post(POSTS, [NewPost("claimed-post", True, b"claimed")])
    assert backend.claims.claim(POSTS, limit=2, ttl=600, grace=600, claim_id=CLAIM) is not None
    posts = (NewPost("free", True, b"\0free"), NewPost("later", True, b"later", None, 60.0))
    backend.claims.post(POSTS, [*posts, NewPost("ending", True, b"ending", 120.0)])
    return held


def snapshot(backend: QueueBackend) -> dict[str, Any]:
    """Return all that a person can see of it, as JSON has it."""
    seen = {
        "queues": backend.queues(),
        "messages": {message.id: _plain(message) for message in backend.list_messages(limit=1000)},
        "stats": {queue: _plain(backend.stats(queue)) for queue in (QUEUE, POSTS)},
    }
    if backend.capabilities.key_store:
        seen |= _kept(backend)
    found: dict[str, Any] = json.loads(json.dumps(seen, default=_encoded))
    return found


def _kept(backend: QueueBackend) -> dict[str, Any]:
    keys, claims = backend.keys, backend.claims
    return {
        "claim": _plain(claims.get(POSTS, CLAIM)),
        "claims": [_plain(claim) for claim in claims.list_claims(POSTS)],
        "free": [_plain(message) for message in claims.list_free(POSTS, claimed=True)],
        "claim stats": _plain(claims.stats(POSTS)),
        "holders": keys.holders(QUEUE, "printer"),
        "records": keys.list_records("pool"),
        "log": keys.read_log("pool", "log"),
        "logs": keys.list_logs("pool"),
    }


def leases(stored: dict[str, Any]) -> dict[str, JobLease]:
    """Return the leases of `fill`, as a pool that was stopped meanwhile has them."""
    held = {name: JobLease(**{**lease, "body": base64.b64decode(lease["body"])}) for name, lease in stored.items()}
    return held | {"guarded": held["guarded"].guarded(GUARDS)}


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def _encoded(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else base64.b64encode(value).decode()


def _described(backend: QueueBackend) -> str:
    with repeatable():
        held = fill(backend)
    names = [name for name in JobLease.__struct_fields__ if name not in ("_envelope", "guards")]
    stored = {ident: {name: getattr(lease, name) for name in names} for ident, lease in held.items()}
    told = json.loads(json.dumps({"leases": stored, "seen": snapshot(backend)}, default=_encoded))
    return _a_thing_a_line(told) + "\n"


def _a_thing_a_line(told: Any) -> str:
    """Write JSON with each lease, message and claim in a line of its own."""
    if isinstance(told, list) and any(isinstance(each, dict) for each in told):
        return "[\n" + ",\n".join(map(_a_thing_a_line, told)) + "\n]"
    if isinstance(told, dict) and any(isinstance(each, dict) for each in told.values()):
        lines = (f"{json.dumps(name)}: {_a_thing_a_line(each)}" for name, each in told.items())
        return "{\n" + ",\n".join(lines) + "\n}"
    return json.dumps(told)


def _write_sqlite(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "jobs.db")
        with closing(SqliteBackend(str(path), clock=ManualClock(), boot=BOOT, signer=SIGNER)) as backend:
            found = _described(backend)
        (folder / "sqlite.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return found


def _a_row_a_line(rows: list[Any]) -> str:
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def functions(schema: str) -> list[list[str]]:
    """Return name, parameters and result of each function of a Postgres schema."""
    with psycopg.connect(shared_postgres().url()) as connection:
        found = connection.execute(
            "SELECT proname::text, pg_get_function_identity_arguments(oid), pg_get_function_result(oid) FROM pg_proc"
            " WHERE pronamespace = %s::regnamespace ORDER BY 1, 2",
            [schema],
        )
        return [[text.replace(schema, "{schema}") for text in row] for row in found]


def _write_postgres(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch, closing(PostgresHarness(Path(scratch))) as harness:
        found = _described(harness.open(signer=SIGNER))
        schema = harness._schema.name
        (folder / "postgres.functions.json").write_text(_a_row_a_line(functions(schema)))
        command = ["pg_dump", "--no-owner", "--no-privileges", "--rows-per-insert=100", "-t", f"{schema}.*"]
        dump = subprocess.run([*command, shared_postgres().url()], check=True, capture_output=True, text=True).stdout
    (folder / "postgres.sql").write_text("\n".join(_statements(dump.replace(schema, "{schema}"))) + "\n")
    return found


def _statements(dump: str) -> Iterator[str]:
    for line in dump.splitlines():
        if line and not line.startswith(("--", "\\", "SET ", "SELECT pg_catalog.set_config")):
            yield line


def _write_redis(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch, closing(RedisHarness(Path(scratch))) as harness:
        server = harness._server
        with closing(RedisBackend.from_url(server.url, clock=harness.clock, prefix="stored", signer=SIGNER)) as backend:
            found = _described(backend)
        ask = cast(RedisServer, server).ask
        keys = sorted(ask("KEYS", "*stored*"))
        rows = [[key.decode(), ask("PTTL", key), base64.b64encode(ask("DUMP", key)).decode()] for key in keys]
    (folder / "redis.json").write_text(_a_row_a_line(rows))
    return found


def _write_beanstalk(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        with BeanstalkServer(Path(scratch), turned=True, binlog=True) as server:
            with closing(BeanstalkBackend.from_url(server.url, clock=ManualClock(), signer=SIGNER)) as backend:
                found = _described(backend)
            server.kill()
        binlog = Path(scratch, "binlog", "binlog.1").read_bytes()
    (folder / "beanstalk.binlog.gz").write_bytes(gzip.compress(binlog, mtime=0))
    return found


WRITERS = {"sqlite": _write_sqlite, "postgres": _write_postgres, "redis": _write_redis, "beanstalk": _write_beanstalk}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for broker, write in WRITERS.items():
        (folder / f"{broker}.seen.json").write_text(write(folder))
