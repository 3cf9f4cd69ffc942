"""What Postgres did for a call: the plans of all its statements, those within our functions too, and what they touched.

`auto_explain` tells them, as notices on the connection that made the call.

What is dead is passed over at no cost once a first look has found that nobody can need it any more; until then each
look reads it again. So a call begins when no other transaction runs, such as an analysis by the autovacuum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from postgres_rig import Rig
from psycopg import Connection
from psycopg.errors import Diagnostic
from psycopg.rows import TupleRow
from support.waiting import wait_until

from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres.connection import Connection as Link

_EXPLAIN = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
}


_OTHERS = """
SELECT FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND coalesce(backend_xmin, backend_xid) IS NOT NULL
"""


@dataclass
class Explained:
    """One backend, and the plans of what its one connection did last. `watch`: sees who else is at work."""

    backend: PostgresBackend
    watch: Connection[TupleRow]
    plans: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend.ping()
        self.backend._database.next_sweep = math.inf  # it comes after a call, now and then: its plan would be the last
        [link] = self.backend._database._idle
        link.add_notice_handler(self._note)

    def _note(self, notice: Diagnostic) -> None:
        _, told, plan = (notice.message_primary or "").partition("plan:\n")
        if told:
            self.plans.append(json.loads(plan))

    def pages(self, work: Callable[[], object], *, alone: bool = True) -> int:
        """How many pages `work`, one call, touches. `alone`: it begins when nobody else is at work on the server."""
        if alone:
            wait_until(lambda: not self.watch.execute(_OTHERS).fetchall(), 60.0, "nobody else is at work on the server")
        self.plans.clear()
        work()
        whole = self.plans[-1]["Plan"]  # what is within a function ends before it
        pages: int = whole["Shared Hit Blocks"] + whole["Shared Read Blocks"]
        return pages

    def nodes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each node of each plan, with its statement."""
        for plan in self.plans:
            waiting = [plan["Plan"]]
            while waiting:
                node = waiting.pop()
                yield plan["Query Text"], node
                waiting += node.get("Plans", ())


def explained(rig: Rig) -> Explained:
    options = " ".join(f"-c {name}={value}" for name, value in _EXPLAIN.items())
    return Explained(rig.open(timeout=60, options=options), rig.connect(autocommit=True))


def check_plans(found: Explained, name: str) -> None:
    """Nothing but indexes, and rows by their place; sorted is only what a list or a lock has picked."""
    for statement, node in found.nodes():
        kind = node["Node Type"]
        if "Relation Name" in node:
            assert kind in ("Index Scan", "Index Only Scan", "Tid Scan", "ModifyTable"), (name, statement, node)
        assert "Hash Join" not in kind, (name, statement)
        assert "Merge Join" not in kind, (name, statement)


Costs = Callable[[Explained], dict[str, int]]


def prepared(rig: Rig, tables: Iterable[str], costs: Costs, fill: Callable[[], object]) -> Explained:
    """Its connection has made its plans while these tables were known to be empty. They are filled without indexes."""
    rig.open().prepare()
    for table in ("messages", "calls", "ended", "heads", "sleepers", "evictions", *tables):
        rig.ask(f"ALTER TABLE {{schema}}.{table} SET (autovacuum_enabled = off)")
        rig.ask(f"VACUUM ANALYZE {{schema}}.{table}")
    found = explained(rig)
    costs(found)
    rig.ask(f"TRUNCATE {', '.join(f'{{schema}}.{table}' for table in tables)}")
    sql = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = %s AND tablename = ANY (%s)"
    indexes = rig.ask(sql, rig.schema, list(tables))
    for table, name, _ in indexes:
        of = f"ALTER TABLE {{schema}}.{table} DROP CONSTRAINT" if name.endswith("_pkey") else "DROP INDEX {schema}."
        rig.ask(f"{of} {name}" if name.endswith("_pkey") else f"{of}{name}")
    fill()
    for table, name, definition in indexes:
        rig.ask(definition)
        if name.endswith("_pkey"):
            rig.ask(f"ALTER TABLE {{schema}}.{table} ADD PRIMARY KEY USING INDEX {name}")
    return found


def compare_costs(
    costs: Costs,
    few: Explained,
    many: tuple[Rig, Explained],
    tables: Iterable[str],
    factor: float = 1.7,
    spare: int = 25,
) -> None:
    """By plans from when the tables were empty, by those of a server that knows nothing, and of one that knows all.

    An index of a million entries is two or three levels deeper than one of a thousand, and a sweep reads seven.
    """
    rig, early = many
    expected = costs(few)

    def compare(found: Explained) -> None:
        told = costs(found)
        grown = {name: (expected[name], told[name]) for name in told if told[name] > expected[name] * factor + spare}
        assert not grown

    compare(early)
    compare(explained(rig))
    for table in tables:
        rig.ask(f"ANALYZE {{schema}}.{table}")
    compare(early)
    compare(explained(rig))


def trips(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """How often `work` waits for the server."""
    waits = 0
    wait = Link.wait

    def count(link: Link, *arguments: Any, **named: Any) -> Any:
        nonlocal waits
        waits += 1
        return wait(link, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Link, "wait", count)
        work()
    return waits
