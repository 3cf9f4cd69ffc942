"""The thread that keeps the pool's record at the broker."""

from __future__ import annotations

from jobpool.broker import control
from jobpool.master.inbox import Inbox
from jobpool.master.threads import ControlThread
from jobpool_backends.memory import MemoryBackend


def test_the_record_is_written_again_once_when_all_children_are_ready(inbox: Inbox) -> None:
    backend = MemoryBackend()
    ready = [0]

    def describe() -> control.PoolRecord:
        facts = {"name": "night", "host": "far", "pid": 7, "version": "1", "state": "running", "queues": ["a"]}
        return control.PoolRecord(id="0a1b", children=ready[-1], busy=0, lease_margin=None, started=1.0, **facts)  # type: ignore[arg-type]

    thread = ControlThread(backend, describe, lambda: 2, inbox)
    told = []
    for count in (0, 1, 2, 1, 2, 3):
        ready.append(count)
        thread._look()
        [record] = control.pools(backend)
        told.append(record.children)
    assert told == [0, 0, 2, 2, 2, 2]
