"""One run: pools on a queue of its own, faults while jobs arrive, then rest, and a count of what became of each job."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend, scheme_of
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool_backends import PLACES
from jobpool_torture import judge, leftovers
from jobpool_torture.baseline import Open, difference, grown
from jobpool_torture.environment import Environment
from jobpool_torture.fleet import last_line
from jobpool_torture.judge import Window
from jobpool_torture.ledger import Ledger
from jobpool_torture.nemesis import Nemesis
from jobpool_torture.result import Result
from jobpool_torture.schedule import Fault
from jobpool_torture.stall_detector import DrainStall
from jobpool_torture.workload import Producer, warm_up_jobs, workload

START_LIMIT_S = 90.0
WARM_UP_LIMIT_S = 90.0
STOP_LIMIT_S = 60.0
"""Seconds for these phases, or for a part of them."""

REST_LIMIT_S = 30.0
"""Seconds for pools without a job to have all their children, and for what their masters have open to be closed."""

STALL_LIMIT_S = 60.0  # time, and six leases at least, within which fewer jobs must be left than ever before
INTERRUPTED_LIMIT_S = 15.0  # time for a drain that a person waits for
CALM_LOOKS = 3  # looks in a row that must find nothing to do: a follow-up may be on its way
POOLS_LOOK_S = 0.25
ORPHANS_LIMIT_S = 1.0
ANSWER_LIMIT_S = 30.0  # seconds in which a broker may come back that is asked for what it has
EMPTY_LIMIT_S = 10.0  # seconds, beyond a lease, for the leases of pools that were killed to end
LOCKING = ("master.stop", "group.stop")
"""Faults that hold up every pool on SQLite: one stopped in the middle of a write keeps the lock."""

Answered = TypeVar("Answered")
TURN_S = 0.05
REPORT_EVERY_S = 0.5
SHOWN_SENTENCES = 5  # of the nemesis: the last ones


class Run:
    """One run in an environment. `interrupt` may be called at any time, by a signal handler too."""

    def __init__(
        self,
        environment: Environment,
        faults: Sequence[Fault],
        tell: Callable[[Phases], None],
        broker: Sequence[str] = (),
    ) -> None:
        self.result = Result(planned=len(faults))
        self.options = environment.options
        self._folder = environment.folder
        self._environment = environment
        self._fleet = environment.fleet
        self.faults = faults
        self.broker = broker  # its own facts: its version, if it tells, and settings that can lose jobs
        self._interrupted_at = 0.0
        self._ledger = Ledger(environment.ledger)
        self._phases = Phases(environment.nemesis, self._ledger, self.result, tell)

    def interrupt(self) -> None:
        """Strike no more faults: heal, drain for a short time, and count."""
        self._interrupted_at = time.monotonic()
        self.result.interrupted = True

    def go(self) -> Result:
        """Run all phases: the schedule's seconds and about half a minute more, or as long as a drain takes.

        Raises `JobpoolError`: the pools did not come up, or the torture's own parts failed. No process is left.
        """
        with ExitStack() as stack:
            stack.callback(self._environment.close)
            timeout = 10.0 if scheme_of(self.options.backend) in PLACES else None  # past all networks
            backend = open_backend(self.options.backend, signer=self._environment.signer, timeout=timeout)
            stack.callback(backend.close)
            own = self._environment
            producer = Producer(own.connect, self.options.queue, own.prefix, own.ledger)
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

    def _start(self) -> None:
        with self._phases.enter("start", START_LIMIT_S):
            fleet = self._fleet
            fleet.start()
            self._phases.wait(lambda: bool(fleet.ends) or not fleet.wait_ready(0.0), START_LIMIT_S)
            if missing := [end.pool for end in fleet.ends] or fleet.wait_ready(0.0):
                raise JobpoolError(f"{' and '.join(missing)} did not come up: {self._log_end(missing[0])}")

    def _warm_up(self, backend: QueueBackend, producer: Producer) -> Open | None:
        """Open every connection, by a job of each kind for each pool; return the descriptors of each master, if any."""
        options, can = self.options, self._environment.capabilities
        with self._phases.enter("warm up", None):
            producer.start(warm_up_jobs(options.seed, ttl=options.ttl, capabilities=can, times=options.pools))
            self._phases.wait(lambda: not producer.is_busy or self.result.interrupted, WARM_UP_LIMIT_S)
            was_answered = producer.finish(INTERRUPTED_LIMIT_S)
            if producer.error is not None:
                raise JobpoolError(f"no job could be enqueued: {producer.error}") from producer.error
            if (was_answered and self._is_drained(backend)) or self.result.interrupted:
                return self._descriptors_at_rest()
            raise JobpoolError(
                f"the pools did not do {self._phases.pending} jobs without any fault: see {self._folder}"
            )

    def _strike(self, producer: Producer) -> None:
        if self.result.interrupted:
            return
        options, can = self.options, self._environment.capabilities
        with self._phases.enter("faults", options.seconds):
            length = {"seconds": options.seconds, "rate": options.rate, "ttl": options.ttl}
            items = workload(options.seed, capabilities=can, **length)
            begun, self._phases.pending = time.monotonic(), None
            producer.start(items)
            self._environment.disturb_producer()
            waiting = list(self.faults)
            passed = 0.0
            # No faults without jobs.
            while passed < options.seconds and not (self.result.interrupted or producer.error):
                self._phases.turn()
                passed = time.monotonic() - begun
                while waiting and waiting[0].at <= passed:
                    self._hit(waiting.pop(0))

    def _hit(self, fault: Fault) -> None:
        if fault.kind in self.result.left_out:
            self.result.missed += 1
            return
        blow = self._environment.nemesis.strike(fault)
        self._phases.note([blow.said])
        if blow.missed:
            self.result.missed += 1
        else:
            self.result.struck[fault.kind] += 1

    def _heal(self, producer: Producer) -> None:
        with self._phases.enter("heal", 2 * START_LIMIT_S):
            self._environment.disturb_producer(share=0.0)
            self._phases.note(self._environment.nemesis.heal())
            self._environment.hang_up()
            self._phases.wait(lambda: not self._fleet.wait_ready(0.0), START_LIMIT_S)
            missing = self._fleet.wait_ready(0.0)
            self.result.add("DIED", [f"{name} did not come up again: {self._log_end(name)}" for name in missing])
            producer.finish(INTERRUPTED_LIMIT_S)
            if producer.error is not None:
                self.result.problems.append(f"the producer has ended, and with it the faults: {producer.error}")

    def _drain(self, backend: QueueBackend) -> None:
        with self._phases.enter("drain", None):
            if self._is_drained(backend):
                return
            if self.result.interrupted:
                self.result.left = self._phases.pending or 0
            else:
                self.result.add("STUCK", self._ask(lambda: leftovers.stuck(backend, self.options.queue)) or ())

    def _idle(self, before: Open | None) -> None:
        """Compare descriptors once nothing runs; an interrupted run may have jobs under way."""
        if before is None or self.result.interrupted:
            return

        def is_as_before() -> bool:
            if self._incomplete():
                return False
            self.result.descriptors = difference(before, self._fleet.descriptors())
            return not grown(self.result.descriptors, self._environment.connections)

        with self._phases.enter("idle", REST_LIMIT_S):
            if not self._phases.wait(is_as_before, REST_LIMIT_S) and not self._note_incomplete():
                self.result.add("FD", grown(self.result.descriptors, self._environment.connections))

    def _descriptors_at_rest(self) -> Open | None:
        """Count the descriptors of each master, within `REST_LIMIT_S`. None: a pool lacks children, or an interrupt."""
        self._phases.wait(lambda: self.result.interrupted or not self._incomplete(), REST_LIMIT_S)
        return None if self.result.interrupted or self._note_incomplete() else self._fleet.descriptors()

    def _incomplete(self) -> list[str]:
        """Return pools that lack children, or have more: each of them costs its master some descriptors."""
        return [pool.name for pool in self._fleet.pools if not pool.is_full(self.options.workers)]

    def _note_incomplete(self) -> bool:
        """Return whether there are such pools, which is a problem of the result then."""
        if names := self._incomplete():
            self.result.problems.append(
                f"descriptors were not compared: after {REST_LIMIT_S:g} s without a job {' and '.join(names)} had more"
                f" or fewer than {self.options.workers} ready children"
            )
        return bool(names)

    def _stop(self) -> None:
        with self._phases.enter("stop", STOP_LIMIT_S):
            statuses = self._fleet.stop_all(STOP_LIMIT_S)
            told = {code: "had to be killed" if code is None else f"status {code}" for code in statuses.values()}
            self.result.add("EXIT", [f"{name}: {told[code]}" for name, code in statuses.items() if code != 0])
            give_up = time.monotonic() + ORPHANS_LIMIT_S
            while (left := self._fleet.processes()) and time.monotonic() < give_up:
                time.sleep(TURN_S)
            self.result.add("ORPHANS", [f"pid {pid}: {command}" for pid, command in left.items()])
            self.result.add("DIED", [f"{end.why}: {end.said}" for end in self._fleet.unexpected])
            self.result.add("STALLED", self._environment.nemesis.stalled)
            self._environment.remove_user()

    def _count(self, backend: QueueBackend, producer: Producer) -> None:
        with self._phases.enter("count", None):
            self.result.tally.follow(self._ledger)
            problems = Counter(self._environment.nemesis.problems)
            self.result.problems += [f"{text}{f', {n} times' if n > 1 else ''}" for text, n in problems.items()]
            lines, can = self._ledger.read(), backend.capabilities
            kept = self._ask(lambda: leftovers.kept(backend, self.options.queue))
            results = self._ask(lambda: leftovers.results(backend, producer.items))
            if kept is not None and results is not None:
                leftovers.dump(kept, self._folder / "left.jsonl")
                judge.fill_in(self.result, lines, kept, producer.items, self._disturbed(), can, results)
        if not self.options.keep:
            self._empty(backend, leftovers.own_ids(lines))

    def _disturbed(self) -> list[Window]:
        """Return when faults held up which pools."""
        found, is_one_file = self._environment.nemesis.windows, scheme_of(self.options.backend) == "sqlite"
        return [replace(one, pool="") if is_one_file and one.kind in LOCKING else one for one in found]

    def _empty(self, backend: QueueBackend, ours: set[str]) -> None:
        """Empty the queue. The counts are reported even if the broker ends now."""
        queue, limit = self.options.queue, self.options.ttl + EMPTY_LIMIT_S
        with self._phases.enter("empty", limit):
            try:
                left = leftovers.empty(backend, queue, ours, self._phases.rest, limit)
            except JobpoolError as error:
                left = f"queue {queue} was not emptied: {error}; `jobpool purge -Q {queue}` does so"
        self.result.problems += [left] if left else []

    def _is_drained(self, backend: QueueBackend) -> bool:
        """Wait until everything is done; False: the jobs left make no progress, or a person has ended the wait."""
        begun = time.monotonic()
        stall = DrainStall(max(STALL_LIMIT_S, 6 * self.options.ttl), begun)
        calm = 0
        while calm < CALM_LOOKS:
            stats = None
            with suppress(BackendUnavailable):
                stats = backend.stats(self.options.queue)
            self._phases.pending = None if stats is None else stats.pending
            calm = calm + 1 if self._phases.pending == 0 else 0
            now = time.monotonic()
            is_hurried = self.result.interrupted and now - max(begun, self._interrupted_at) > INTERRUPTED_LIMIT_S
            lines = self.result.tally.follow(self._ledger).written
            if calm == 0 and (stall.is_over(now, stats, lines) or is_hurried):
                return False
            self._phases.rest(POOLS_LOOK_S)
        return True

    def _ask(self, call: Callable[[], Answered]) -> Answered | None:
        """Return the answer of the call, repeated for about `ANSWER_LIMIT_S`; None, and a count, if there is none."""
        give_up = time.monotonic() + ANSWER_LIMIT_S
        while True:
            try:
                return call()
            except BackendUnavailable as error:
                if time.monotonic() > give_up:
                    self.result.add("STUCK", [f"no job could be counted: {error}"])
                    return None
            self._phases.rest(POOLS_LOOK_S)

    def _log_end(self, name: str) -> str:
        log = self._folder / f"{name}.log"
        return f"{last_line(log)} ({log})"


class Phases:
    """The phases of one run, in one thread; `tell` is called with them now and then."""

    def __init__(self, nemesis: Nemesis, ledger: Ledger, result: Result, tell: Callable[[Phases], None]) -> None:
        self._nemesis = nemesis
        self._ledger = ledger
        self._tell = tell
        self._until: float | None = None
        self._told = 0.0
        self.result = result
        self.phase = ""
        self.last: deque[str] = deque(maxlen=SHOWN_SENTENCES)  # faults struck or undone last, as sentences
        self.pending: int | None = None
        """Jobs that are not done yet, when the caller last asked; None = not asked yet, or not answered."""

    @property
    def left(self) -> float | None:
        """Seconds until the phase ends; None = not known."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    @contextmanager
    def enter(self, name: str, seconds: float | None) -> Iterator[None]:
        """Run the block as this phase; its seconds go into the result. `seconds`: its limit, None = not known."""
        begun = time.monotonic()
        self.phase, self._until = name, None if seconds is None else begun + seconds
        self._say()
        yield
        self.result.seconds[name] = time.monotonic() - begun

    def note(self, said: Iterable[str]) -> None:
        self.last.extend(said)

    def turn(self) -> None:
        """Undo expired faults, record ended pools, report progress; block for `TURN_S` seconds."""
        self.note(self._nemesis.due())
        if time.monotonic() - self._told >= REPORT_EVERY_S:
            self._say()
        time.sleep(TURN_S)

    def wait(self, is_so: Callable[[], bool], limit: float) -> bool:
        """Turn until it is so; False: it was not within `limit` seconds."""
        give_up = time.monotonic() + limit
        while not is_so():
            if time.monotonic() > give_up:
                return False
            self.turn()
        return True

    def rest(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def _say(self) -> None:
        self._told = time.monotonic()
        self.result.tally.follow(self._ledger)
        self._tell(self)
