"""Points at which a master kills or stops itself, so that a test knows exactly which calls were made.

`after-fetch:3`, `before-settle/nack:2`, `before-settle/ack:1=stop`: a point, the verb that a settle call must hold
(optional), the number of that call, and the action: `kill`, unless it says `stop`. Several are parted by commas.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jobpool.errors import ConfigurationError

POINTS = tuple(f"{when}-{what}" for what in ("fetch", "settle", "renew", "reap") for when in ("before", "after"))
"""After a fetch or a reap: one that brought something. Before it, or at a renewal: every one."""

VERBS = ("ack", "nack", "abandon", "release", "forfeit", "move")

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

_FORM = re.compile(r"(?P<point>[a-z-]+)(/(?P<verb>[a-z]+))?(:(?P<number>[1-9][0-9]*))?(=(?P<action>kill|stop))?")


@dataclass(frozen=True, slots=True)
class FailPoint:
    """The `number`-th call (>= 1) at `point`; `verb` "" = whatever it settles. `action`: `kill` or `stop`."""

    point: str
    verb: str = ""
    number: int = 1
    action: str = "kill"

    @classmethod
    def parse(cls, text: str) -> FailPoint:
        """Read `point[/verb][:number][=action]`. Raises `ConfigurationError`."""
        found = _FORM.fullmatch(text.strip())
        if found is None or found["point"] not in POINTS:
            raise ConfigurationError(
                f"{text!r} is no fail-point POINT[/VERB][:NUMBER][=stop]; points: {', '.join(POINTS)}"
            )
        verb = found["verb"] or ""
        if verb and (verb not in VERBS or not found["point"].endswith("settle")):
            raise ConfigurationError(f"{text!r}: a verb belongs to a settle call, and is one of {', '.join(VERBS)}")
        return cls(found["point"], verb, int(found["number"] or 1), found["action"] or "kill")


def parse_points(text: str) -> list[FailPoint]:
    """Read a list with commas; "" = none. Raises `ConfigurationError`."""
    return [FailPoint.parse(part) for part in text.split(",") if part.strip()]


class FailPoints:
    """Counts calls, in any thread, and kills or stops the process at each point that is reached."""

    def __init__(self, points: Sequence[FailPoint] = ()) -> None:
        self._left = {point: point.number for point in points}
        self._lock = threading.Lock()

    def at(self, point: str, verbs: Collection[str] = ()) -> None:
        """Act if the program is to end at `point`, with these verbs in the call."""
        for action in self._reached(point, verbs) if self._left else ():
            signal.pthread_kill(
                threading.get_ident(), _SIGNALS[action]
            )  # sent to the process, it may hit this thread late

    def _reached(self, point: str, verbs: Collection[str]) -> list[str]:
        """Return the actions that are due now."""
        with self._lock:
            here = [found for found in self._left if found.point == point and (not found.verb or found.verb in verbs)]
            for found in here:
                self._left[found] -= 1
            return [found.action for found in here if self._left[found] == 0]
