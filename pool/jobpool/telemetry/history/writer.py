"""The thread between a pool and where its history is kept. It may be slow; jobs never wait for it.

Twice a second it asks the loop for what was gathered, makes rows of it, masks them and writes them. A place that cannot
be written is tried again with the next visit; until then rows are kept, up to a bound.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Generic, TypeVar

from jobpool.errors import JobpoolError
from jobpool.message.masking import Masker
from jobpool.telemetry.history.places import Line, Place
from jobpool.telemetry.history.row import AttemptRow, encode, log_name, row_of

VISIT_PAUSE_S = 0.5  # seconds between two visits
MAX_LINES_A_CALL = 500
MAX_BYTES_A_CALL = 1024 * 1024
"""Lines, and bytes but for the last line, in one call: it holds up nobody else at the broker for long."""

MAX_LEFT_LINES = 10_000
MAX_LEFT_BYTES = 16 * 1024 * 1024
"""Lines, and bytes, that are kept while a place cannot be written; the oldest go first."""

log = logging.getLogger("jobpool.history")

Row = TypeVar("Row")


@dataclass(slots=True)
class Feed(Generic[Row]):
    """The newest `keep` items of each name, gathered by the pool's loop between two visits. Only its thread comes here.

    Items pushed out by newer ones of the same name would not have been kept anyway, and are not counted. Items that
    find no room (`max_items`, `max_bytes`) are dropped, and counted in `dropped`.
    """

    keep: int
    max_items: int = 20_000
    max_bytes: int = 64 * 1024 * 1024
    dropped: int = 0
    items: int = 0
    bytes: int = 0
    _names: dict[str, deque[tuple[Row, int]]] = field(default_factory=dict)

    def add(self, name: str, item: Row, size: int) -> None:
        """Keep an item of about `size` bytes, if there is room. Once a job, so short."""
        mine = self._names.get(name)
        if mine is not None and len(mine) >= self.keep:
            self.bytes -= mine.popleft()[1]
            self.items -= 1
        if self.items >= self.max_items or self.bytes + size > self.max_bytes:
            self.dropped += 1
            return
        if mine is None:
            mine = self._names[name] = deque()
        mine.append((item, size))
        self.items += 1
        self.bytes += size

    def take(self) -> list[Row]:
        """Take everything, in order within each name."""
        names, self._names = self._names, {}
        self.items = self.bytes = 0
        return [item for mine in names.values() for item, _ in mine]


class Writer(threading.Thread):
    """The writer, as the module describes it. `dropped`: rows left out, because `place` could not be written.

    From this thread it calls `waiting` (has the loop gathered anything? cheap) and `take`, which takes that and may
    block for a moment; None: the loop does not answer.
    """

    def __init__(
        self, place: Place, masker: Masker, waiting: Callable[[], bool], take: Callable[[], Sequence[AttemptRow] | None]
    ) -> None:
        super().__init__(name="history", daemon=True)
        self._place = place
        self._masker = masker
        self._waiting = waiting
        self._take = take
        self._end = threading.Event()
        self._left: list[Line] = []
        self._rest: Sequence[AttemptRow] = ()
        self._failing = False
        self.dropped = 0

    def run(self) -> None:
        """Write until the end. No error ends the thread before, because the pool has no other that would write."""
        is_over = False
        while not is_over:
            is_over = self._end.wait(VISIT_PAUSE_S)
            try:
                if is_over or self._left or self._waiting():
                    self.write((self._rest if is_over else self._take()) or ())
            except Exception as error:  # noqa: BLE001 - it is told, and the next visit is another try
                self._failed(error)

    def stop(self) -> None:
        """End soon. Returns at once."""
        self._end.set()

    def finish(self, rest: Sequence[AttemptRow], limit: float) -> None:
        """Write what is left and end. Blocks for at most `limit` seconds. Lost rows are logged."""
        self._rest = rest
        self.stop()
        self.join(limit)
        lost = len(self._left) + (len(rest) if self.is_alive() else 0)
        if lost:
            log.warning("history is cut short: its place cannot be written", extra={"rows": lost})

    def write(self, attempts: Sequence[AttemptRow]) -> None:
        """Write rows of these attempts, and what was left. An error is logged once, and tried again with the next."""
        self._left += [line for attempt in attempts if (line := self._line(attempt)) is not None]
        while self._left:
            sizes = accumulate(len(line) for _, line in self._left[:MAX_LINES_A_CALL])
            some = self._left[:MAX_LINES_A_CALL][: 1 + sum(size < MAX_BYTES_A_CALL for size in sizes)]
            try:
                self._place.append(some)
            except (OSError, JobpoolError) as error:
                self._failed(error)
                return
            del self._left[: len(some)]
            if self._failing:
                log.warning("history is written again", extra={"dropped": self.dropped})
            self._failing = False

    def _line(self, attempt: AttemptRow) -> Line | None:
        """Return the row's line; None, logged, if it cannot be made."""
        try:
            return log_name(attempt.name), encode(row_of(attempt, self._masker))
        except Exception:
            self.dropped += 1
            log.exception("a row of history could not be made", extra={"id": attempt.id, "limit": "history row"})
            return None

    def _failed(self, error: Exception) -> None:
        sizes = accumulate(len(line) for _, line in reversed(self._left[-MAX_LEFT_LINES:]))
        over = len(self._left) - sum(size <= MAX_LEFT_BYTES for size in sizes)
        del self._left[:over]
        self.dropped += over
        if not self._failing:
            log.error("history cannot be written; trying again", extra={"error": str(error) or repr(error)})
        self._failing = True
