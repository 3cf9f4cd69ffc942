"""One verb over many messages: in batches, or slowly, at a rate; and when it is cut short, it says how far it came.

Only messages that were there at the start are touched. A dead letter that is retried and dies again waits for the next
command. So a job that fails at once never takes the turn of the others.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from jobpool.cli.failures import INTERRUPTED
from jobpool.cli.output import note, plural
from jobpool.errors import JobpoolError

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.broker.values import MessageFilter, Verb

CAP = 100_000
"""Counting stops here, so that a look costs little however long the queue is."""

BATCH = 1000

TICK = 0.25
"""Seconds between two calls when a rate is asked for that is above one message in this time."""


@dataclass(slots=True)
class Sweep:
    """`verb` for the messages that `where` matched when this was made, the oldest first, but for the newest `keep`.

    `rate`: messages a minute, > 0; None = as quickly as it goes.
    """

    backend: QueueBackend
    where: MessageFilter
    verb: Verb
    rate: float | None = None
    keep: int = 0
    done: int = 0
    begun: float = field(default_factory=time.monotonic)

    def count(self) -> int:
        """Count the matching messages; `CAP` = at least that number."""
        return max(0, self.backend.count(self._still_there(), cap=CAP + self.keep) - self.keep)

    def run(self, count: int, word: str) -> int:
        """Do it to all of them, `count` by the last look; how many it changed. Blocks for as long as the rate says.

        Raises:
            JobpoolError: The broker is away. The number of those done is told.
            click.exceptions.Exit: Ctrl-C; the same.
        """
        try:
            with contextlib.ExitStack() as stack:
                tell = stack.enter_context(_bar(count)).update if self._is_watched(count) else _nobody
                while self._round(count, tell) and count >= CAP:
                    count = self.count()
        except KeyboardInterrupt:
            note(f"\ninterrupted: {self._so_far(word)}")
            raise click.exceptions.Exit(INTERRUPTED) from None
        except JobpoolError:
            if self.done:
                note(self._so_far(word))
            raise
        return self.done

    def _round(self, most: int, tell: Callable[[int], None]) -> bool:
        """Do up to `most` messages, and return True if there were that many."""
        size = BATCH if self.rate is None else max(1, int(self.rate / 60 * TICK))
        left = most
        while left > 0:
            begun = time.monotonic()
            asked = min(size, left)
            changed = self.backend.bulk(self._still_there(), self.verb, limit=asked)
            self.done += changed
            left -= changed
            tell(changed)
            if changed < asked:
                return False
            if self.rate is not None and left > 0:
                time.sleep(max(0.0, begun + asked * 60 / self.rate - time.monotonic()))
        return True

    def _still_there(self) -> MessageFilter:
        """Return the filter, less messages that came since the start: ages are taken as they were then."""
        passed = time.monotonic() - self.begun
        older = (self.where.older_than or 0.0) + passed
        newer = None if self.where.newer_than is None else self.where.newer_than + passed
        return replace(self.where, older_than=older, newer_than=newer)

    def _is_watched(self, count: int) -> bool:
        return sys.stderr.isatty() and (self.rate is not None or count > BATCH)

    def _so_far(self, word: str) -> str:
        return f"{plural(self.done, 'message')} {word} so far; the same command goes on with the rest"


@dataclass(slots=True)
class WholeQueues(Sweep):
    """Deletes all that is in some states of `queues`, where a broker can pick out no less; as many as were counted.

    Attributes:
        counted: A line a queue, since `count` was called.
        is_capped: There may be more than was counted: then all goes, and what comes meanwhile too.
    """

    queues: Sequence[str] = ()
    counted: list[str] = field(default_factory=list)
    is_capped: bool = False

    def count(self) -> int:
        """Count the messages, or the least number. Blocks for a round trip a queue."""
        self.counted, total = [], 0
        for queue in self.queues:
            stats = self.backend.stats(queue)
            numbers = {state.value: getattr(stats, state.value) for state in self.where.states}
            capped = {state for state, number in numbers.items() if stats.cap and number >= stats.cap}
            told = [f"{number:,}{'+' * (state in capped)} {state}" for state, number in numbers.items()]
            self.counted.append(f"{queue}: {', '.join(told)}")
            self.is_capped |= bool(capped)
            total += sum(numbers.values())
        return total

    def _round(self, most: int, tell: Callable[[int], None]) -> bool:
        """Carry out all in one round: there is no other after it."""
        for queue in self.queues:
            whole = self._whole(queue)
            while changed := self.backend.bulk(whole, self.verb, limit=self._batch(most)):
                self.done += changed
                tell(changed)
                if self.done >= most and not self.is_capped:
                    return False
        return False

    def _batch(self, most: int) -> int:
        return BATCH if self.is_capped else min(BATCH, most - self.done)

    def _whole(self, queue: str) -> MessageFilter:
        """Return the filter of a queue; to purge every state, it names none."""
        from jobpool.broker.values import MessageFilter, State

        purged = {State.WAITING, State.DELAYED, State.DEAD}
        return MessageFilter(queue=queue, states=() if purged <= set(self.where.states) else self.where.states)


def _bar(count: int) -> contextlib.AbstractContextManager[Any]:
    return click.progressbar(length=count, file=sys.stderr)


def _nobody(_: int) -> None:
    """Ignore the progress: without a terminal nobody watches a bar."""
