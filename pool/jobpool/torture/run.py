"""One run: pools on a queue of its own, faults while jobs arrive, then rest, and a count of what became of each job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from jobpool.backend import QueueBackend
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.opening import open_backend
from jobpool.signing import EnvelopeSigner
from jobpool.torture import remains, verdict
from jobpool.torture.fleet import End
from jobpool.torture.judge import Window
from jobpool.torture.ledger import Ledger
from jobpool.torture.options import Options
from jobpool.torture.pace import TURN, Moment, Pace
from jobpool.torture.place import Place
from jobpool.torture.producer import Producer
from jobpool.torture.result import Result
from jobpool.torture.schedule import Fault
from jobpool.torture.tally import Tallier
from jobpool.torture.workload import taste, workload

START_LIMIT = 90.0
WARM_UP_LIMIT = 90.0
STOP_LIMIT = 60.0
IDLE_LIMIT = 15.0
DRAIN_LIMIT = 600.0
"""Seconds for these phases; a drain in which nothing happens is given up sooner."""

PATIENCE = 60.0
"""Seconds, and six leases at least, in which something must happen while there is something to do."""

INTERRUPTED_LIMIT = 15.0
"""Seconds for a drain that a person waits for."""

CALM = 3
"""Looks in a row that must find nothing to do: a follow-up may be on its way."""

BETWEEN_LOOKS = 0.25
ORPHANS_LIMIT = 1.0
ANSWER_LIMIT = 30.0
"""Seconds in which a broker may come back that is asked for what it has."""

T = TypeVar("T")

LINE = 500
"""Characters of a log's last line that are shown."""

MISSED = ": missed: "
"""In what the nemesis says of a fault that found nothing to strike."""


class Run:
    """Runs once. `interrupt` may be called at any time, by a signal handler too.

    Args:
        options: With a queue that is named.
        folder: An empty directory, for everything that is written.
        place: Pools, networks, clocks and nemesis.
        faults: The schedule.
        tell: Called with each new `Moment`, about twice a second.
    """

    def __init__(
        self, options: Options, folder: Path, place: Place, faults: Sequence[Fault], tell: Callable[[Moment], None]
    ) -> None:
        self.result = Result()
        self._options = options
        self._folder = folder
        self._place = place
        self._fleet = place.fleet
        self._faults = faults
        self._windows: list[Window] = []
        self._ledger = Ledger(place.ledger)
        self._tallier = Tallier(self._ledger)
        self._pace = Pace(place.nemesis, self._tallier, self.result, tell)

    def interrupt(self) -> None:
        """No more faults: heal, drain for a short time, and count."""
        self.result.interrupted = True

    def go(self) -> Result:
        """All phases. Blocks for the schedule's seconds and about half a minute more, or for as long as a drain takes.

        Raises:
            JobpoolError: The pools did not come up, or the torture's own parts failed. No process is left.
        """
        with ExitStack() as stack:
            stack.callback(self._place.close)
            backend = stack.enter_context(_opened(self._options, self._place.signer))
            producer = Producer(self._place.connect, self._options.queue, self._place.mark[:8], self._place.ledger)
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
        with self._pace.phase("start", START_LIMIT):
            fleet = self._fleet
            fleet.start()
            self._pace.wait(lambda: bool(fleet.ends) or not fleet.wait_ready(0.0), START_LIMIT)
            if missing := [end.pool for end in fleet.ends] or fleet.wait_ready(0.0):
                raise JobpoolError(f"{' and '.join(missing)} did not come up: {self._log_end(missing[0])}")

    def _warm_up(self, backend: QueueBackend, producer: Producer) -> dict[str, Counter[str]]:
        """Of every kind one a pool, so that every connection is open; the descriptors of each master then."""
        options, can = self._options, self._place.capabilities
        with self._pace.phase("warm up", WARM_UP_LIMIT):
            producer.start(taste(options.seed, ttl=options.ttl, capabilities=can, times=options.pools))
            self._pace.wait(lambda: not producer.is_busy, WARM_UP_LIMIT)
            if not producer.finish(WARM_UP_LIMIT) or not self._is_drained(backend, WARM_UP_LIMIT):
                left = self._pace.pending
                raise JobpoolError(f"the pools did not do {left} jobs without any fault: see {self._folder}")
            self._pace.rest(1.0)
            return self._fleet.descriptors()

    def _strike(self, producer: Producer) -> None:
        options, can = self._options, self._place.capabilities
        with self._pace.phase("faults", options.seconds):
            items = workload(
                options.seed, seconds=options.seconds, rate=options.rate, ttl=options.ttl, capabilities=can
            )
            begun, self._pace.pending = time.monotonic(), None
            producer.start(items)
            self._place.disturb_producer()
            waiting = list(self._faults)
            while (passed := time.monotonic() - begun) < options.seconds and not self.result.interrupted:
                while waiting and waiting[0].at <= passed:
                    self._hit(waiting.pop(0))
                self._pace.turn()

    def _hit(self, fault: Fault) -> None:
        begun = time.monotonic()
        if fault.kind in self.result.left_out:
            self.result.missed += 1
            return
        said = self._place.nemesis.strike(fault)
        self._pace.note([said])
        if MISSED in said:
            self.result.missed += 1
            return
        struck = self.result.struck
        struck[fault.kind] = struck.get(fault.kind, 0) + 1
        pool = "" if fault.kind == "broker.restart" else self._fleet.pools[fault.pool].name
        self._windows.append(Window(pool, fault.kind, begun, time.monotonic() + fault.seconds))

    def _heal(self, producer: Producer) -> None:
        with self._pace.phase("heal", 2 * START_LIMIT):
            self._place.soothe_producer()
            self._pace.note(self._place.nemesis.heal())
            begun = time.monotonic()
            self._place.hang_up()
            self._windows.append(Window("", "net.cut", begun, time.monotonic()))
            self._pace.wait(lambda: not self._fleet.wait_ready(0.0), START_LIMIT)
            missing = self._fleet.wait_ready(0.0)
            self.result.add("DIED", [f"{name} did not come up again: {self._log_end(name)}" for name in missing])
            producer.finish(INTERRUPTED_LIMIT)

    def _drain(self, backend: QueueBackend) -> None:
        with self._pace.phase("drain", DRAIN_LIMIT):
            if self._is_drained(backend, DRAIN_LIMIT):
                return
            if self.result.interrupted:
                self.result.left = self._pace.pending or 0
            else:
                self.result.add("STUCK", self._ask(lambda: remains.stuck(backend, self._options.queue)) or ())

    def _idle(self, before: dict[str, Counter[str]]) -> None:
        """Descriptors are compared once nothing runs; children that were replaced last need a moment."""

        def grown() -> list[str]:
            self.result.descriptors = remains.difference(before, self._fleet.descriptors())
            return remains.grown(self.result.descriptors)

        with self._pace.phase("idle", IDLE_LIMIT):
            self._pace.wait(lambda: not grown(), IDLE_LIMIT)
            self.result.add("FD", remains.grown(self.result.descriptors))

    def _stop(self) -> None:
        with self._pace.phase("stop", STOP_LIMIT):
            statuses = self._fleet.stop_all(STOP_LIMIT)
            self.result.add("EXIT", [f"{name}: {_status(code)}" for name, code in statuses.items() if code != 0])
            give_up = time.monotonic() + ORPHANS_LIMIT
            while (left := self._fleet.processes()) and time.monotonic() < give_up:
                time.sleep(TURN)
            self.result.add("ORPHANS", [f"pid {pid}: {command}" for pid, command in left.items()])
            self.result.add("DIED", map(_told_of, self._fleet.unexpected))

    def _count(self, backend: QueueBackend, producer: Producer) -> None:
        with self._pace.phase("count", None):
            self.result.tally = self._tallier.look()
            self.result.problems += self._place.nemesis.problems
            kept = self._ask(lambda: remains.kept(backend, self._options.queue))
            if kept is None:
                return
            verdict.dump(kept, self._folder / "left.jsonl")
            lines, can, grace = self._ledger.read(), backend.capabilities, self._place.kill_grace
            restarts = [Window("", "broker.restart", *when) for when in self._place.nemesis.restarts]
            verdict.reach(self.result, lines, kept, producer.items, [*self._windows, *restarts], can, grace)
            if not self._options.keep:
                self._purge(backend)

    def _purge(self, backend: QueueBackend) -> None:
        """What was counted is told even if the broker ends now."""
        try:
            remains.purge(backend, self._options.queue)
        except BackendUnavailable as error:
            self.result.problems.append(f"queue {self._options.queue} was not emptied: {error}")

    # --- what they share ------------------------------------------------------------------------------

    def _is_drained(self, backend: QueueBackend, limit: float) -> bool:
        """Wait until everything is done; False: it is not, after `limit` seconds or when nothing happens any more."""
        begun = moved = time.monotonic()
        calm, written = 0, -1
        while calm < CALM:
            self._pace.pending = _pending(backend, self._options.queue)
            calm = calm + 1 if self._pace.pending == 0 else 0
            now, lines = time.monotonic(), self._tallier.look().written
            if lines != written:
                written, moved = lines, now
            longest = min(limit, INTERRUPTED_LIMIT) if self.result.interrupted else limit
            if calm == 0 and (now - begun > longest or now - moved > max(PATIENCE, 6 * self._options.ttl)):
                return False
            self._pace.rest(BETWEEN_LOOKS)
        return True

    def _ask(self, call: Callable[[], T]) -> T | None:
        """What the call returns, which is repeated while the broker does not answer; blocks for about `ANSWER_LIMIT` s.

        None: it did not answer. Nobody can say what has become of the jobs then, which is a count of its own.
        """
        give_up = time.monotonic() + ANSWER_LIMIT
        while True:
            try:
                return call()
            except BackendUnavailable as error:
                if time.monotonic() > give_up:
                    self.result.add("STUCK", [f"no job could be counted: {error}"])
                    return None
            self._pace.rest(BETWEEN_LOOKS)

    def _log_end(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        with suppress(OSError):
            return f"{_last_line(path.read_text(errors='replace'))} ({path})"
        return f"it has no log ({path})"


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
