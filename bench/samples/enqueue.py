"""Enqueue one by one and a thousand at a time, by turns with a bare client that sends the very same commands.

jobpool's commands are recorded beforehand and then forgotten by the server, so that the bare client's commands do their
full work: each is sent once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from bench.contestants import KEY
from bench.programs import answer
from bench.samples import replay_postgres, replay_redis
from jobpool.client.jobs import BATCH, Jobs
from jobpool.message.definition import JobDefinition

QUEUE = "bench"

BARE = {"redis": replay_redis.replay, "postgresql": replay_postgres.replay}

Send = Callable[[], object]


def run(url: str, blocks: int, single: int, bulk: int) -> dict[str, list[float]]:
    """Return jobs a second in each block, of jobpool and of the bare client: `single` jobs, and `bulk` thousands."""
    replay = BARE[url.partition(":")[0]]
    ready = _definitions()
    with ExitStack() as stack:
        one = stack.enter_context(replay(url, _one, blocks * single, KEY))
        many = stack.enter_context(replay(url, lambda jobs: _many(jobs, ready), blocks * bulk, KEY))
        jobs = stack.enter_context(Jobs(url, signing_key=KEY))
        _one(jobs)
        contestants: list[tuple[str, Send, int]] = [
            ("single", lambda: _one(jobs), single),
            ("bare single", one, single),
            ("bulk", lambda: _many(jobs, ready), bulk),
            ("bare bulk", many, bulk),
            ("bulk, defined", lambda: _many(jobs, _definitions()), bulk),
        ]
        rates: dict[str, list[float]] = {name: [] for name, _, _ in contestants}
        for _ in range(blocks):
            for name, send, calls in contestants:
                rates[name].append(_calls_a_second(send, calls) * (1 if "single" in name else BATCH))
    return rates


def _one(jobs: Jobs) -> None:
    jobs.define("noop", {}).queue(QUEUE).dispatch()


def _many(jobs: Jobs, definitions: list[JobDefinition]) -> None:
    jobs.enqueue_many(definitions)


def _definitions() -> list[JobDefinition]:
    return [JobDefinition("noop", {}, queue=QUEUE) for _ in range(BATCH)]


def _calls_a_second(send: Send, calls: int) -> float:
    begun = time.monotonic()
    for _ in range(calls):
        send()
    return calls / (time.monotonic() - begun)


if __name__ == "__main__":
    answer(run)
