"""The workload of a run: a mix of jobs that behave, fail, crash, hang and leave things behind; and their producer.

The same seed and the same parameters give the same jobs, in spite of all faults. Each job has a number, and draws
from a random generator of its own: so it is the same job in a longer run. On a broker that can do less, only the
impossible kinds are missing.

The producer repeats every job until the broker has answered. A job whose enqueue was interrupted between the ledger's
`try` and `enq` counts neither as lost nor as out of nowhere.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import jobpool
from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Capabilities
from jobpool.errors import BackendUnavailable, InvalidJob
from jobpool.message.definition import JobDefinition
from jobpool_torture.ledger import Line, append

APP = "jobpool_torture.handlers"
HANG_TIMEOUT_S = 1.0
BIG_BYTES = 100_000
MIN_BIG_BYTES = 1000
"""Sizes of a big payload: the first that is tried, and the least."""

DEATHS = ("SIGSEGV", "SIGKILL", "SIGABRT", "exit")
HANGS = ("sleep", "swallow", "in C")
GRANDCHILDREN = ("child", "new session", "double fork")
KEYS = 3
KEY_SPAN_JOBS = 300  # of this many jobs in a row, those that have a key have one of `KEYS`: about four share one
KEYED = ("idempotency_key", "name")  # options that are names shared by jobs of one run, and by no others on the broker
RESULT_TTL_S = 3 * 3600.0  # seconds for which the results of jobs are kept that have one
MAX_BATCH_JOBS = 50  # jobs in one call, at most, where one call is all or none and may be repeated
RETRY_PAUSE_S = 0.2  # also between two looks at the fate of a cancel


@dataclass(frozen=True, slots=True)
class Item:
    """One job to enqueue."""

    number: int
    at: float  # seconds after the beginning at which it is enqueued
    kind: str  # one of `KINDS`
    handler: str
    payload: dict[str, Any]
    delay: float = 0.0  # seconds from its enqueue until it may run; 0 = at once
    options: dict[str, Any] = field(default_factory=dict)  # other fields of its definition
    cancel_after: float | None = None  # seconds from its enqueue until it is cancelled
    members: tuple[Item, ...] = ()  # it is the callback of a batch of these

    def definition(self, queue: str, ident: str, now: datetime | None = None) -> JobDefinition:
        """Return the job, under this id. `now`: the time that a delay counts from; None = now."""
        due = (now or datetime.now(UTC)) + timedelta(seconds=self.delay) if self.delay else None
        keyed: dict[str, Any] = {
            name: f"{queue}/{value}" if name in KEYED else value for name, value in self.options.items()
        }
        return JobDefinition(self.handler, self.payload, queue=queue, identifier=ident, scheduled_at=due, **keyed)


def smaller(item: Item) -> Item:
    """Halve its payload, if that is big: some brokers take no message of `BIG_BYTES`."""
    size = item.payload.get("size", 0) // 2
    if size < MIN_BIG_BYTES:
        return item
    return replace(item, payload={"filling": item.payload["filling"][:size], "size": size})


def workload(seed: int, *, seconds: float, rate: float, ttl: float, capabilities: Capabilities) -> list[Item]:
    """Return the jobs of a run, in the order in which they are enqueued: `rate` a second, at random moments.

    Some of them run for longer than `ttl`, a lease. Only kinds that the broker can have are used.
    """
    usable = _usable(capabilities)
    items = []
    for number, at in enumerate(_arrivals(seed, seconds, rate)):
        dice = Dice(seed, number, ttl)
        items.append(_item(dice, at, _choose(dice, usable)))
    return items


def warm_up_jobs(seed: int, *, ttl: float, capabilities: Capabilities, times: int = 1) -> list[Item]:
    """Return `times` jobs of each short kind, to be run before the faults; numbered downwards from -1."""
    usable = [name for name in _usable(capabilities) if name not in SLOW]
    return [_item(Dice(seed, -place, ttl), 0.0, name) for place, name in enumerate(usable * times, start=1)]


def _usable(capabilities: Capabilities) -> list[str]:
    return [name for name, kind in KINDS.items() if all(getattr(capabilities, need) for need in kind.needs)]


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


def _item(dice: Dice, at: float, name: str) -> Item:
    drawn = KINDS[name].draw(dice)
    told = {field: drawn.pop(field) for field in TOLD if field in drawn}
    return Item(dice.number, at, name, **told, options=drawn)


class Dice(random.Random):
    """The random generator of one job, by whose number and lease it is drawn."""

    def __init__(self, seed: int, number: int, ttl: float) -> None:
        super().__init__(f"{seed}:{number}")
        self.number = number
        self.ttl = ttl

    def __new__(cls, *_: object) -> Dice:
        return super().__new__(cls)


Make = Callable[[Dice], dict[str, Any]]  # returns payload, options, and other fields of the item
TOLD = ("handler", "payload", "delay", "cancel_after", "members")  # fields of its item; all others are options


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job. `share`: how often it comes, in relation to the others'. `needs`: capabilities, by name."""

    share: float
    handler: str
    make: Make
    needs: tuple[str, ...] = ()

    def draw(self, dice: Dice) -> dict[str, Any]:
        return {"handler": self.handler, **self.make(dice)}


def _seconds(most: float) -> Make:
    return lambda dice: {"payload": {"seconds": round(dice.uniform(0.0, most), 4)}}


_work = _seconds(0.05)


def _shared_key(dice: Dice) -> str:
    return f"{dice.randrange(1 << 20) % KEYS}-{dice.number // KEY_SPAN_JOBS}"


def _keyed(dice: Dice) -> dict[str, Any]:
    """Draw a keyed job. One in three crashes in its first run: if its key was done by then, it would never be done."""
    job = KINDS["crash" if dice.random() < 1 / 3 else "work"].draw(dice)
    return {**job, "idempotency_key": f"key-{_shared_key(dice)}"}


def _unique(dice: Dice) -> dict[str, Any]:
    key = f"unique-{_shared_key(dice)}"
    return {**_work(dice), "idempotency_key": key, "unique": True}


def _single(dice: Dice) -> dict[str, Any]:
    return {**_work(dice), "name": f"single-{dice.randrange(2)}", "single_instance": True}


def _big(dice: Dice) -> dict[str, Any]:
    return {"payload": {"filling": dice.randbytes(BIG_BYTES // 2).hex(), "size": BIG_BYTES}}


def _crashing(times: int) -> Make:
    return lambda dice: {"payload": {"how": dice.choice(DEATHS), "times": times}}


def _kept(dice: Dice) -> dict[str, Any]:
    return {**KINDS[dice.choice(("work", "flaky", "crash"))].draw(dice), "result_ttl": RESULT_TTL_S}


def _cancelled(dice: Dice) -> dict[str, Any]:
    """Draw a job that is cancelled while it waits, is delayed, runs or has failed; or when it is done."""
    job = KINDS[dice.choice(("delayed", "flaky", "work"))].draw(dice)
    job["cancel_after"] = round(dice.uniform(0.0, 2.0), 3)
    return job if job["handler"] != WORK else {**job, "payload": {"seconds": round(dice.uniform(0.0, 3.0), 2)}}


def _batch(dice: Dice) -> dict[str, Any]:
    kinds = [kind for kind in MEMBERS if dice.number >= 0 or kind not in SLOW]
    members = tuple(_item(dice, 0.0, dice.choice(kinds)) for _ in range(dice.randint(1, 5)))
    return {"payload": {}, "members": members}


def _hang(dice: Dice) -> dict[str, Any]:
    how = {"payload": {"how": dice.choice(HANGS)}}
    return {**how, "max_retries": dice.randint(0, 1), "timeout": HANG_TIMEOUT_S}


WORK = "torture.work"
FAIL = "torture.fail"
ASK = "torture.ask"
KINDS: dict[str, Kind] = {
    "work": Kind(45, WORK, _work),
    "spin": Kind(6, "torture.spin", _seconds(0.03)),
    "asleep": Kind(5, "torture.asleep", _seconds(0.05)),
    "delayed": Kind(6, WORK, lambda dice: {**_work(dice), "delay": round(dice.uniform(0.1, 2.0), 3)}),
    "ranked": Kind(6, WORK, lambda dice: {**_work(dice), "priority": dice.choice((0, 3, 9, 255))}, ("priorities",)),
    "flaky": Kind(7, FAIL, lambda dice: {"payload": {"times": dice.randint(1, 3)}, "max_retries": 5}),
    "doomed": Kind(2, FAIL, lambda dice: {"payload": {"times": 1000}, "max_retries": dice.randint(0, 2)}),
    "asking": Kind(4, ASK, lambda dice: {"payload": {"what": dice.choice(("retry", "snooze"))}, "max_retries": 5}),
    "unrecoverable": Kind(1, ASK, lambda _: {"payload": {"what": "unrecoverable"}, "max_retries": 5}),
    "crash": Kind(4, "torture.crash", _crashing(1)),
    "poison": Kind(0.4, "torture.crash", _crashing(1000)),
    "hang": Kind(1.5, "torture.hang", _hang),
    "leave": Kind(2, "torture.leave", lambda dice: {"payload": {"how": dice.choice(GRANDCHILDREN)}}),
    "follow": Kind(4, "torture.follow", lambda dice: {"payload": {"jobs": dice.randint(1, 3)}}),
    "keyed": Kind(4, WORK, _keyed, ("key_store",)),
    "unique": Kind(3, WORK, _unique, ("key_store",)),
    "single": Kind(2, WORK, _single, ("key_store",)),
    "big": Kind(1.5, "torture.weigh", _big),
    "loud": Kind(1.5, "torture.shout", lambda dice: {"payload": {"kilobytes": dice.choice((10, 100, 1000))}}),
    "kept": Kind(4, WORK, _kept, ("key_store",)),
    "cancelled": Kind(2, WORK, _cancelled, ("key_store", "lists_live")),
    "batch": Kind(1.5, "torture.tally", _batch, ("key_store", "lists_live", "atomic_across_queues")),
    "long": Kind(0.6, WORK, lambda dice: {"payload": {"seconds": round(dice.ttl * dice.uniform(1.5, 3.0), 2)}}),
}
"""The kinds of jobs: 40 of a hundred only sleep for up to 50 ms."""

SLOW = ("long", "poison")  # kinds that take longer than a warm-up should
MEMBERS = ("work", "work", "work", "flaky", "doomed", "unrecoverable", "crash", "poison", "follow", "cancelled")
"""Kinds of which a batch has members."""

DIES_OF = {"doomed": "failed", "hang": "timeout", "unrecoverable": "unrecoverable", "cancelled": "cancelled"}
"""Kinds that become dead letters, when their retries are spent → the reason. Any job may die of too many crashes."""


class Producer:
    """A producer of items at their moments, in a thread of its own. `close` when it is done.

    Args:
        connect: Opens the broker by the producer's own way; called in the thread.
        prefix: Of all ids, which no other run on the broker may have.
    """

    def __init__(self, connect: Callable[[], QueueBackend], queue: str, prefix: str, ledger: Path) -> None:
        self._connect = connect
        self._queue = queue
        self._prefix = prefix
        self._ledger = ledger
        self._backend: QueueBackend | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._give_up = float("inf")
        self._cancels: dict[str, float] = {}  # ids of jobs to cancel → when, on CLOCK_MONOTONIC
        self.items: dict[str, Item] = {}  # every id that was tried → what it was for
        self.error: Exception | None = None  # the error that ended the thread before it was told to

    def start(self, items: Sequence[Item]) -> None:
        """Begin: the items' times count from now. Not while another start is under way."""
        self._stop.clear()
        self._give_up = float("inf")
        self._thread = threading.Thread(target=self._run, args=(items,), name="torture-producer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def finish(self, limit: float) -> bool:
        """Enqueue nothing more except jobs tried already; return whether those were answered within `limit` seconds.

        Blocks for at most about `limit` seconds and one call's timeout.
        """
        self._give_up = time.monotonic() + limit
        self._stop.set()
        if self._thread is not None:
            self._thread.join(limit + 60.0)
        return not self.is_busy and self.error is None

    def close(self) -> None:
        """Let the thread end after the call that it is in, and close its connection. Safe at any time."""
        self._give_up = 0.0
        self._stop.set()
        if self._backend is not None:
            self._backend.close()

    def _run(self, items: Sequence[Item]) -> None:
        begun, place = time.monotonic(), 0
        try:
            while (place < len(items) or self._cancels) and not self._stop.is_set():
                self._cancel(time.monotonic())
                passed = time.monotonic() - begun
                due = [item for item in items[place : place + MAX_BATCH_JOBS] if item.at <= passed]
                if due:
                    place += self._send(due)
                else:
                    left = [*self._cancels.values(), *(begun + item.at for item in items[place : place + 1])]
                    self._stop.wait(max(0.0, min(left, default=0.0) - time.monotonic()))
        except Exception as error:  # noqa: BLE001 -- it belongs to the run, which looks for it
            self.error = error

    def _send(self, due: list[Item]) -> int:
        """Enqueue those that fit in one call, until it is answered; return how many. If refused, halve the big ones."""
        tried = 0
        while time.monotonic() < self._give_up:
            tried += 1
            try:
                backend = self._backend = self._backend or self._connect()
                return self._call(backend, due, tried)
            except BackendUnavailable:
                time.sleep(RETRY_PAUSE_S)
            except InvalidJob:
                if (fitting := list(map(smaller, due))) == due:
                    raise
                due = fitting
        return 0

    def _call(self, backend: QueueBackend, due: list[Item], tried: int) -> int:
        """Make one call. If a known id may not be tried again, each try has another one: it may be a second message."""
        can = backend.capabilities
        if due[0].members:
            return self._call_batch(backend, due[0])
        chosen = list(takewhile(lambda item: not item.members, due)) if can.keeps_records else due[:1]
        again = "" if tried == 1 or can.keeps_records else f"r{tried}"
        idents = [f"{self._prefix}-{_number(item)}{again}" for item in chosen]
        self._enqueue(backend.enqueue_many, self._tried(idents, chosen))
        return len(chosen)

    def _tried(self, idents: Sequence[str], items: Sequence[Item]) -> list[JobDefinition]:
        self.items.update(zip(idents, items, strict=True))
        jobs = [item.definition(self._queue, ident) for item, ident in zip(items, idents, strict=True)]
        self._note("try", idents, jobs)
        return jobs

    def _enqueue(self, send: Callable[[list[JobDefinition]], Sequence[str]], jobs: list[JobDefinition]) -> None:
        self._note("enq", list(map(str, send(jobs))), jobs)  # handles are more than the ids that the ledger holds
        now = time.monotonic()
        for job in jobs:
            if (after := self.items[str(job.identifier)].cancel_after) is not None:
                self._cancels[str(job.identifier)] = now + after

    def _call_batch(self, backend: QueueBackend, item: Item) -> int:
        """Open it, add its members and close it; each of the three may be repeated."""
        ident = f"{self._prefix}-{_number(item)}"
        callbacks = self._tried([success_of(ident), done_of(ident)], [item, item])
        batch = jobpool.Jobs(backend=backend).batch(*callbacks, identifier=ident)
        self._enqueue(batch.add_many, self._tried(member_ids(ident, item), item.members))
        batch.close()
        self._note("enq", [done_of(ident)], callbacks[1:])
        return 1

    def _cancel(self, now: float) -> None:
        """Cancel jobs that are due, or look again at their fate. Blocks for a few round trips each."""
        due = [ident for ident, at in self._cancels.items() if at <= now]
        answers: dict[str, control.Cancel] = {}
        with suppress(BackendUnavailable):
            answers = control.cancel(self._backend, due, wait=0.0) if due and self._backend else {}
        for ident in due:
            self._cancels[ident] = now + RETRY_PAUSE_S
            if (answer := answers.get(ident, control.Cancel.ASKED)) is not control.Cancel.ASKED:
                del self._cancels[ident]
                append(self._ledger, [Line("cancel", ident, at=time.monotonic(), since=now, answer=answer.value)])

    def _note(self, event: str, idents: Sequence[str], jobs: Sequence[JobDefinition]) -> None:
        at, wall = time.monotonic(), time.time()
        lines = [
            Line(event, ident, at=at, wall=wall, tag=str(job.identifier))
            for ident, job in zip(idents, jobs, strict=True)
        ]
        append(self._ledger, lines)


def done_of(batch: str) -> str:
    return f"{batch}:on_done"


def success_of(batch: str) -> str:
    return f"{batch}:on_success"


def member_ids(batch: str, item: Item) -> list[str]:
    """Return the ids of the members that the producer gives it, in their order."""
    return [f"{batch}m{place}" for place in range(len(item.members))]


def _number(item: Item) -> str:
    """Return `000123`; `w003` of a warm-up."""
    return f"{item.number:06d}" if item.number >= 0 else f"w{-item.number:03d}"
