"""One run: pools on a queue of its own, faults while jobs arrive, then rest, and a count of what became of each job."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from jobpool.backend import Message, QueueBackend
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.opening import open_backend
from jobpool.signing import EnvelopeSigner
from jobpool.torture import judge, oracle, remains
from jobpool.torture.fleet import End
from jobpool.torture.ledger import Ledger
from jobpool.torture.options import Options
from jobpool.torture.place import Place
from jobpool.torture.producer import Producer
from jobpool.torture.result import Result
from jobpool.torture.schedule import Fault
from jobpool.torture.tally import Tallier, Tally
from jobpool.torture.workload import Item, taste, workload

TURN = 0.05
"""Seconds between two looks at the nemesis and the clock."""

LOOK = 0.5
"""Seconds between two looks at the broker, and between two words to who watches."""

START_LIMIT = 90.0
WARM_UP_LIMIT = 90.0
STOP_LIMIT = 60.0
IDLE_LIMIT = 15.0
DRAIN_LIMIT = 600.0
"""Seconds for these phases; a drain that moves is given that long, and one that does not, `patience`."""

INTERRUPTED_LIMIT = 15.0
"""Seconds for a drain that a person waits for."""

ORPHANS_LIMIT = 1.0

LINE = 500
"""Characters of a log's last line that are shown."""

MISSED = ": missed: "
"""In what the nemesis says of a fault that found nothing to strike."""

MAX_CRASHES = 5


@dataclass(frozen=True, slots=True)
class Moment:
    """What who watches is shown.

    Attributes:
        phase: What is being done.
        left: Seconds until the phase ends; None = not known.
        tally: What has happened so far.
        pending: Jobs that are not done yet, when last asked; None = not asked yet, or not answered.
        faults: Struck so far.
        last: What was struck or undone last, newest last.
    """

    phase: str
    left: float | None
    tally: Tally
    pending: int | None
    faults: int
    last: tuple[str, ...] = ()


@dataclass(slots=True)
class Run:
    """Runs once. `interrupt` may be called at any time, by a signal handler too.

    Attributes:
        options: With a queue that is named.
        folder: An empty directory, for everything that is written.
        faults: The schedule.
        tell: Called with each new `Moment`, about twice a second.
        place: Pools, networks, clocks and nemesis.
    """

    options: Options
    folder: Path
    place: Place
    faults: Sequence[Fault]
    tell: Callable[[Moment], None]
    result: Result = field(default_factory=Result)
    _windows: list[judge.Window] = field(default_factory=list)
    _last: list[str] = field(default_factory=list)
    _phase: str = ""
    _until: float | None = None
    _told: float = 0.0
    _pending: int | None = None
    _interrupted: bool = False
    _ledger: Ledger = field(init=False)
    _tallier: Tallier = field(init=False)

    def __post_init__(self) -> None:
        self._ledger = Ledger(self.place.ledger)
        self._tallier = Tallier(self._ledger)

    def interrupt(self) -> None:
        """No more faults: heal, drain for a short time, and count."""
        self._interrupted = self.result.interrupted = True

    def go(self) -> Result:
        """All phases. Blocks for the schedule's seconds and about half a minute more, or for as long as a drain takes.

        Raises:
            JobpoolError: The pools did not come up, or the torture's own parts failed. No process is left.
        """
        with ExitStack() as stack:
            stack.callback(self.place.close)
            backend = stack.enter_context(_opened(self.options, self.place.signer))
            producer = Producer(self.place.connect, self.options.queue, self._prefix, self.place.ledger)
            stack.callback(producer.close)
            self._start()
            before = self._warm_up(backend, producer)
            self._strike(producer)
            self._heal(producer)
            self._drain(backend)
            self._idle(before)
            self._stop()
            self._count(backend, producer)
        return self.result

    # --- the phases -----------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._in_phase("start", START_LIMIT):
            fleet = self.place.fleet
            fleet.start()
            self._wait(lambda: bool(fleet.ends) or not fleet.wait_ready(0.0), START_LIMIT)
            if missing := [end.pool for end in fleet.ends] or fleet.wait_ready(0.0):
                raise JobpoolError(f"{' and '.join(missing)} did not come up: {self._log_end(missing[0])}")

    def _warm_up(self, backend: QueueBackend, producer: Producer) -> dict[str, Counter[str]]:
        """A taste of every kind, so that every connection is open; the descriptors of each master then."""
        with self._in_phase("warm up", WARM_UP_LIMIT):
            producer.start(self._tasted())
            self._wait(lambda: not producer.is_busy)
            if not producer.finish(WARM_UP_LIMIT) or not self._wait_drained(backend, WARM_UP_LIMIT):
                raise JobpoolError(f"the pools did not do {self._pending} jobs without any fault: see {self.folder}")
            self._wait(lambda: False, limit=1.0)
            return self.place.fleet.descriptors()

    def _strike(self, producer: Producer) -> None:
        options = self.options
        with self._in_phase("faults", options.seconds):
            begun, self._pending = time.monotonic(), None
            producer.start(self._items())
            self.place.disturb_producer()
            waiting = list(self.faults)
            while (passed := time.monotonic() - begun) < options.seconds and not self._interrupted:
                while waiting and waiting[0].at <= passed:
                    self._hit(waiting.pop(0))
                self._turn()

    def _hit(self, fault: Fault) -> None:
        begun = time.monotonic()
        if fault.kind in self.result.left_out:
            self.result.missed += 1
            return
        said = self.place.nemesis.strike(fault)
        self._note(said)
        if MISSED in said:
            self.result.missed += 1
            return
        struck = self.result.struck
        struck[fault.kind] = struck.get(fault.kind, 0) + 1
        pool = "" if fault.kind == "broker.restart" else self.place.fleet.pools[fault.pool].name
        self._windows.append(judge.Window(pool, fault.kind, begun, time.monotonic() + fault.seconds))

    def _heal(self, producer: Producer) -> None:
        with self._in_phase("heal", 2 * START_LIMIT):
            self.place.soothe_producer()
            for said in self.place.nemesis.heal():
                self._note(said)
            self.place.hang_up()
            missing = self._wait_ready(START_LIMIT)
            if missing:
                self.result.add("DIED", [f"{name} did not come up again: {self._log_end(name)}" for name in missing])
            producer.finish(INTERRUPTED_LIMIT)

    def _drain(self, backend: QueueBackend) -> None:
        with self._in_phase("drain", INTERRUPTED_LIMIT if self._interrupted else DRAIN_LIMIT):
            limit = INTERRUPTED_LIMIT if self._interrupted else DRAIN_LIMIT
            if self._wait_drained(backend, limit):
                return
            if self._interrupted:
                self.result.left = self._pending or 0
            else:
                self.result.add("STUCK", remains.stuck(backend, self.options.queue))

    def _idle(self, before: dict[str, Counter[str]]) -> None:
        """Descriptors are compared once nothing runs; children that were replaced last need a moment."""
        with self._in_phase("idle", IDLE_LIMIT):
            self._wait(lambda: not self._grown(before), limit=IDLE_LIMIT)
            self.result.add("FD", self._grown(before))

    def _grown(self, before: dict[str, Counter[str]]) -> list[str]:
        return remains.grown(before, self.place.fleet.descriptors())

    def _stop(self) -> None:
        with self._in_phase("stop", STOP_LIMIT):
            statuses = self.place.fleet.stop_all(STOP_LIMIT)
            self.result.add("EXIT", [f"{name}: {_status(code)}" for name, code in statuses.items() if code != 0])
            give_up = time.monotonic() + ORPHANS_LIMIT
            while (left := self.place.fleet.processes()) and time.monotonic() < give_up:
                time.sleep(TURN)
            self.result.add("ORPHANS", [f"pid {pid}: {command}" for pid, command in left.items()])
            self.result.add("DIED", map(_told_of, self.place.fleet.unexpected))

    def _count(self, backend: QueueBackend, producer: Producer) -> None:
        with self._in_phase("count", None):
            kept = remains.kept(backend, self.options.queue)
            self._dump(kept)
            self.result.dead = remains.reasons(kept)
            lines = self._ledger.read()
            can = backend.capabilities
            copied = () if can.atomic_nack else judge.copied(lines, self._windows)
            self.result.take(oracle.count(lines, kept=kept, can=can, witnessed=True), copied)
            self._judge(producer.items, backend)
            self.result.tally = self._tallier.look()
            self.result.problems += self.place.nemesis.problems
            if not self.options.keep:
                remains.purge(backend, self.options.queue)

    def _judge(self, items: dict[str, Item], backend: QueueBackend) -> None:
        lines, can, result = self._ledger.read(), backend.capabilities, self.result
        late = judge.overruns(lines, items, self._windows)
        result.late = sorted(late.values())
        bound = self.place.kill_grace + judge.FAR_OUT
        result.add("LATE", [f"{ident}: {seconds:.1f} s" for ident, seconds in late.items() if seconds > bound])
        result.add("KEY", judge.broken_keys(lines, items))
        if can.exact_crashes and can.atomic_nack:
            result.add("POISON", judge.unpoisoned(lines, items, MAX_CRASHES))

    # --- what they share ------------------------------------------------------------------------------

    @property
    def _prefix(self) -> str:
        """Of ids: the queue's name with a mark of this run, for a queue may be used again."""
        return self.place.mark[:8]

    def _items(self) -> list[Item]:
        options = self.options
        return workload(
            options.seed,
            seconds=options.seconds,
            rate=options.rate,
            ttl=options.ttl,
            capabilities=self.place.capabilities,
        )

    def _tasted(self) -> list[Item]:
        """Of each kind one a pool."""
        options = self.options
        return taste(options.seed, ttl=options.ttl, capabilities=self.place.capabilities, times=options.pools)

    @contextmanager
    def _in_phase(self, name: str, seconds: float | None) -> Iterator[None]:
        begun = time.monotonic()
        self._phase, self._until = name, None if seconds is None else begun + seconds
        self._say()
        yield
        self.result.seconds[name] = time.monotonic() - begun

    def _turn(self) -> None:
        """One turn of every loop here: what is over is undone, who has ended is noted, who watches is told."""
        for said in self.place.nemesis.due():
            self._note(said)
        if time.monotonic() - self._told >= LOOK:
            self._say()
        time.sleep(TURN)

    def _say(self) -> None:
        self._told = time.monotonic()
        left = None if self._until is None else max(0.0, self._until - self._told)
        struck = sum(self.result.struck.values())
        moment = Moment(self._phase, left, self._tallier.look(), self._pending, struck, tuple(self._last[-5:]))
        self.tell(moment)

    def _note(self, said: str) -> None:
        self._last.append(said)

    def _wait(self, is_so: Callable[[], bool], limit: float | None = None) -> bool:
        give_up = None if limit is None else time.monotonic() + limit
        while not is_so():
            if give_up is not None and time.monotonic() > give_up:
                return False
            self._turn()
        return True

    def _wait_ready(self, limit: float) -> list[str]:
        """Those that are not ready after it."""
        self._wait(lambda: not self.place.fleet.wait_ready(0.0), limit)
        return self.place.fleet.wait_ready(0.0)

    def _wait_drained(self, backend: QueueBackend, limit: float) -> bool:
        """Whether everything is done, seen twice; False after `limit`, or when nothing has happened for `patience`."""
        give_up = time.monotonic() + limit
        calm, written, moved = 0, -1, time.monotonic()
        while calm < 3:
            self._pending = _pending(backend, self.options.queue)
            calm = calm + 1 if self._pending == 0 else 0
            now, lines = time.monotonic(), self._tallier.look().written
            if lines != written:
                written, moved = lines, now
            if now > give_up or now - moved > self._patience:
                return False
            self._wait(lambda: False, limit=LOOK / 2)
        return True

    @property
    def _patience(self) -> float:
        """Seconds in which something must happen while there is something to do: leases, cool-downs, a slow machine."""
        return max(60.0, 6 * self.options.ttl)

    def _log_end(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        with suppress(OSError):
            return f"{_last_line(path.read_text(errors='replace'))} ({path})"
        return f"it has no log ({path})"

    def _dump(self, kept: Sequence[Message]) -> None:
        """What the broker still has goes to the folder, for what is purged cannot be looked at."""
        with (self.folder / "left.jsonl").open("w") as file:
            for message in kept:
                file.write(json.dumps(remains.described(message)) + "\n")


@contextmanager
def _opened(options: Options, signer: EnvelopeSigner) -> Iterator[QueueBackend]:
    """Straight to the broker, past all networks."""
    backend = open_backend(options.backend, signer=signer, timeout=10.0)
    try:
        yield backend
    finally:
        backend.close()


def _pending(backend: QueueBackend, queue: str) -> int | None:
    with suppress(BackendUnavailable):
        return backend.stats(queue).pending
    return None


def _told_of(end: End) -> str:
    return f"{end.why}: {_last_line(end.log_end)}"


def _last_line(log: str) -> str:
    """Where a program says what it died of."""
    return (log.strip().splitlines() or ["its log is empty"])[-1][-LINE:]


def _status(code: int | None) -> str:
    return "had to be killed" if code is None else f"status {code}"
