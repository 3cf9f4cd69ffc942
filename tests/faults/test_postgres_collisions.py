"""What a Postgres can do to its clients: end a transaction for the sake of another one (row 27).

Calls of jobpool wait for no message that somebody else has locked, so pools alone never dead-lock. Two producers that
send the same ids in opposite orders do: each waits for what the other adds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import quote

import pytest
from support.faultmoves import Figure, end_unharmed, start_pools
from support.outages import NO_ANSWER
from support.poolrig import LIMIT, Rig
from support.poolrig_brokers import PostgresBroker

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition

SERIALIZABLE = "-c default_transaction_isolation=serializable"
"""Of the pools' sessions: any two that touch what the other has read collide."""

IMPATIENT = "-c deadlock_timeout=10ms"
"""Of the producers'."""

TOGETHER = 300
"""Jobs of one enqueue: the more, the likelier the two meet."""


@pytest.mark.row(27)
@pytest.mark.on("postgres")
def test_serialization_failures_and_dead_locks_are_tried_again(
    broker: PostgresBroker, rig: Rig, figure: Figure
) -> None:
    said = broker.server.log.stat().st_size
    pools = start_pools(rig, 2, workers=4, url=with_options(broker, SERIALIZABLE))

    def collisions() -> dict[str, int]:
        text = broker.server.log.read_bytes()[said:]
        kinds = {"serialization failures": b"could not serialize access", "dead-locks": b"deadlock detected"}
        return {name: text.count(words) for name, words in kinds.items()}

    producers = [open_backend(with_options(broker, IMPATIENT)) for _ in range(2)]
    with closing(producers[0]), closing(producers[1]):
        rounds, give_up = 0, time.monotonic() + 2 * LIMIT
        while not all(collisions().values()):
            assert time.monotonic() < give_up, collisions()
            rounds += 1
            enqueue_crosswise(producers, [f"{rounds}-{number}" for number in range(TOGETHER)], rig)
    end_unharmed(rig, pools)
    for kind, times in collisions().items():
        figure(kind, times, "")
    assert len(rig.ends()) == rounds * TOGETHER
    assert not any(pool.log(NO_ANSWER) for pool in pools)


def with_options(broker: PostgresBroker, options: str) -> str:
    return f"{broker.url}&options={quote(options)}"


def enqueue_crosswise(producers: Sequence[QueueBackend], ids: list[str], rig: Rig) -> None:
    """Both at the same time, one from the last to the first."""
    jobs = [JobDefinition("work", {}, identifier=ident) for ident in ids]
    answers: list[list[str]] = []
    begin = threading.Barrier(2)

    def enqueue(backend: QueueBackend, step: int) -> None:
        begin.wait(LIMIT)
        answers.append(backend.enqueue_many(jobs[::step]))

    threads = [threading.Thread(target=enqueue, args=pair) for pair in zip(producers, (1, -1), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(sorted, answers)) == [sorted(ids)] * 2
    rig.enqueued.update(ids)
