"""The workload of a run: a mix of jobs that behave, fail, crash, hang and leave things behind. Pure.

The same seed and the same parameters give the same jobs, whatever happens to them. Each job has a number, and draws
from a random generator of its own: so it is the same job in a longer run. On a broker that can do less, only the
impossible kinds are missing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from jobpool.broker.values import Capabilities
from jobpool.message.definition import JobDefinition

APP = "jobpool_torture.handlers"

HANG_TIMEOUT_S = 1.0
"""Seconds that a job which hangs is given."""

BIG_BYTES = 100_000
"""Bytes of a big payload."""

MIN_BIG_BYTES = 1000
"""Bytes that a big payload has at least."""

DEATHS = ("SIGSEGV", "SIGKILL", "SIGABRT", "exit")
HANGS = ("sleep", "swallow", "in C")
GRANDCHILDREN = ("child", "new session", "double fork")

KEYS = 3
KEY_SPAN_JOBS = 300
"""Of this many jobs in a row, those that have a key have one of `KEYS`: about four share one."""


@dataclass(frozen=True, slots=True)
class Item:
    """One job to enqueue.

    Attributes:
        number: Its place in the workload.
        at: Seconds after the beginning at which it is enqueued.
        kind: One of `KINDS`.
        handler, payload: As in a definition.
        delay: Seconds from its enqueue until it may run; 0 = at once.
        options: Other fields of its definition.
    """

    number: int
    at: float
    kind: str
    handler: str
    payload: dict[str, Any]
    delay: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def definition(self, queue: str, ident: str, now: datetime | None = None) -> JobDefinition:
        """Return the job, under this id. `now`: the time that a delay counts from; None = now."""
        due = (now or datetime.now(UTC)) + timedelta(seconds=self.delay) if self.delay else None
        keyed: dict[str, Any] = {
            name: f"{queue}/{value}" if name in KEYED else value for name, value in self.options.items()
        }
        return JobDefinition(self.handler, self.payload, queue=queue, identifier=ident, scheduled_at=due, **keyed)


def smaller(item: Item) -> Item:
    """Halve its payload, if that is big: some brokers take no message of `BIG_BYTES` bytes."""
    size = item.payload.get("size", 0) // 2
    if size < MIN_BIG_BYTES:
        return item
    return replace(item, payload={"filling": item.payload["filling"][:size], "size": size})


KEYED = ("idempotency_key", "name")
"""Options that are names shared by jobs of one run, and by no others on the broker."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job. `share`: how often it comes, in relation to the others'. `needs`: capabilities, by name."""

    share: float
    make: Callable[[random.Random, int, float], dict[str, Any]]
    needs: tuple[str, ...] = ()

    def fits(self, capabilities: Capabilities) -> bool:
        return all(getattr(capabilities, name) for name in self.needs)


def workload(seed: int, *, seconds: float, rate: float, ttl: float, capabilities: Capabilities) -> list[Item]:
    """Return the jobs of a run, in the order in which they are enqueued.

    Args:
        seconds: For how long jobs arrive, > 0.
        rate: Jobs a second on average, > 0; they come at random moments.
        ttl: Seconds that a lease lasts: some jobs run for longer.
        capabilities: Of the broker: only possible kinds are used.
    """
    usable = [name for name, kind in KINDS.items() if kind.fits(capabilities)]
    items = []
    for number, at in enumerate(_arrivals(seed, seconds, rate)):
        rng = _rng(seed, number)
        items.append(_item(rng, number, at, _choose(rng, usable), ttl))
    return items


def taste(seed: int, *, ttl: float, capabilities: Capabilities, times: int = 1) -> list[Item]:
    """Return `times` jobs of each short kind, to be run before the faults; numbered downwards from -1."""
    usable = [name for name, kind in KINDS.items() if kind.fits(capabilities) and name not in SLOW]
    return [_item(_rng(seed, -place), -place, 0.0, name, ttl) for place, name in enumerate(usable * times, start=1)]


def _rng(seed: int, number: int) -> random.Random:
    return random.Random(f"{seed}:{number}")


def _arrivals(seed: int, seconds: float, rate: float) -> Iterator[float]:
    rng = random.Random(f"{seed}:arrivals")
    at = rng.expovariate(rate)
    while at < seconds:
        yield round(at, 3)
        at += rng.expovariate(rate)


def _choose(rng: random.Random, usable: list[str]) -> str:
    """Return the kind of a job: by one number in [0, 1), of all kinds; one that cannot be had is plain work."""
    place = rng.random() * sum(kind.share for kind in KINDS.values())
    for name, kind in KINDS.items():
        place -= kind.share
        if place < 0:
            return name if name in usable else "work"
    return "work"


def _item(rng: random.Random, number: int, at: float, name: str, ttl: float) -> Item:
    made = KINDS[name].make(rng, number, ttl)
    handler, payload, delay = made.pop("handler"), made.pop("payload", {}), made.pop("delay", 0.0)
    return Item(number, at, name, handler, payload, delay, made)


# --- the kinds: a random generator, the job's number, the lease's seconds → handler, payload, options -----------------


def _work(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.work", "payload": {"seconds": round(rng.uniform(0.0, 0.05), 4)}}


def _spin(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.spin", "payload": {"seconds": round(rng.uniform(0.0, 0.03), 4)}}


def _long(rng: random.Random, _number: int, ttl: float) -> dict[str, Any]:
    return {"handler": "torture.work", "payload": {"seconds": round(ttl * rng.uniform(1.5, 3.0), 2)}}


def _asleep(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.asleep", "payload": {"seconds": round(rng.uniform(0.0, 0.05), 4)}}


def _delayed(rng: random.Random, number: int, ttl: float) -> dict[str, Any]:
    return {**_work(rng, number, ttl), "delay": round(rng.uniform(0.1, 2.0), 3)}


def _ranked(rng: random.Random, number: int, ttl: float) -> dict[str, Any]:
    return {**_work(rng, number, ttl), "priority": rng.choice((0, 3, 9, 255))}


def _flaky(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.fail", "payload": {"times": rng.randint(1, 3)}, "max_retries": 5}


def _doomed(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.fail", "payload": {"times": 1000}, "max_retries": rng.randint(0, 2)}


def _asking(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.ask", "payload": {"what": rng.choice(("retry", "snooze"))}, "max_retries": 5}


def _unrecoverable(_rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.ask", "payload": {"what": "unrecoverable"}, "max_retries": 5}


def _crash(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.crash", "payload": {"how": rng.choice(DEATHS), "times": 1}}


def _poison(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.crash", "payload": {"how": rng.choice(DEATHS), "times": 1000}}


def _hang(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    how = rng.choice(HANGS)
    return {
        "handler": "torture.hang",
        "payload": {"how": how},
        "max_retries": rng.randint(0, 1),
        "timeout": HANG_TIMEOUT_S,
    }


def _leave(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.leave", "payload": {"how": rng.choice(GRANDCHILDREN)}}


def _follow(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.follow", "payload": {"jobs": rng.randint(1, 3)}}


def _keyed(rng: random.Random, number: int, ttl: float) -> dict[str, Any]:
    """Draw a keyed job. One in three crashes in its first run: if its key was done by then, nobody would ever do it."""
    made = _crash if rng.random() < 1 / 3 else _work
    return {
        **made(rng, number, ttl),
        "idempotency_key": f"key-{rng.randrange(1 << 20) % KEYS}-{number // KEY_SPAN_JOBS}",
    }


def _unique(rng: random.Random, number: int, ttl: float) -> dict[str, Any]:
    key = f"unique-{rng.randrange(1 << 20) % KEYS}-{number // KEY_SPAN_JOBS}"
    return {**_work(rng, number, ttl), "idempotency_key": key, "unique": True}


def _single(rng: random.Random, number: int, ttl: float) -> dict[str, Any]:
    return {**_work(rng, number, ttl), "name": f"single-{rng.randrange(2)}", "single_instance": True}


def _big(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.weigh", "payload": {"filling": rng.randbytes(BIG_BYTES // 2).hex(), "size": BIG_BYTES}}


def _loud(rng: random.Random, _number: int, _ttl: float) -> dict[str, Any]:
    return {"handler": "torture.shout", "payload": {"kilobytes": rng.choice((10, 100, 1000))}}


KINDS: dict[str, Kind] = {
    "work": Kind(40, _work),
    "spin": Kind(6, _spin),
    "asleep": Kind(5, _asleep),
    "delayed": Kind(6, _delayed),
    "ranked": Kind(6, _ranked, ("priorities",)),
    "flaky": Kind(7, _flaky),
    "doomed": Kind(2, _doomed),
    "asking": Kind(4, _asking),
    "unrecoverable": Kind(1, _unrecoverable),
    "crash": Kind(4, _crash),
    "poison": Kind(0.4, _poison),
    "hang": Kind(1.5, _hang),
    "leave": Kind(2, _leave),
    "follow": Kind(4, _follow),
    "keyed": Kind(4, _keyed, ("key_store",)),
    "unique": Kind(3, _unique, ("key_store",)),
    "single": Kind(2, _single, ("key_store",)),
    "big": Kind(1.5, _big),
    "loud": Kind(1.5, _loud),
    "long": Kind(0.6, _long),
}
"""The kinds of jobs: 40 of a hundred only sleep for up to 50 ms."""

SLOW = ("long", "poison")
"""Kinds that take longer than a warm-up should."""

DIES_OF = {"doomed": "failed", "hang": "timeout", "unrecoverable": "unrecoverable"}
"""Kinds that become dead letters, when their retries are spent → the reason. Any job may die of too many crashes."""
