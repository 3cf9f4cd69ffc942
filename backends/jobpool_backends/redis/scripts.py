"""The Lua scripts, one a verb, each put together from the pieces in `lua/`.

What stands first in KEYS (`lead`) belongs to the call; then come the keys of each queue that a script works on, always
the same names in the same order. The header that is written here turns them into names, so that the Lua says `q.ready`
and never counts. Only the keys of `beside.lua` are not declared: they are in the slot of those that are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jobpool_backends.redis.keys import Keys
from jobpool_backends.redis.link import Script

_FOLDER = files("jobpool_backends.redis") / "lua"


@dataclass(frozen=True, slots=True)
class Verb:
    """A script, and the keys of a queue that it wants."""

    script: Script
    names: tuple[str, ...]

    def keys(self, keys: Keys, queues: Sequence[str], *lead: str) -> list[str]:
        """KEYS for these queues, `lead` before them."""
        found = list(lead)
        for queue in queues:
            found += keys.of(queue, self.names)
        return found


def _verb(name: str, pieces: str, names: str, lead: str = "") -> Verb:
    wanted, first = tuple(names.split()), lead.split()
    parts = [_header(first, wanted), *(_read(piece) for piece in ("base", *pieces.split(), name))]
    return Verb(Script(name, "\n".join(parts)), wanted)


def _header(lead: Sequence[str], names: Sequence[str]) -> str:
    """Lua that names the keys: LEAD, the number of queues, and the keys of the nth queue."""
    leading = ", ".join(f"{name} = KEYS[{place}]" for place, name in enumerate(lead, 1))
    fields = ", ".join(f"{name} = KEYS[at + {place}]" for place, name in enumerate(names, 1))
    return (
        f"local LEAD = {{{leading}}}\n"
        f"local COUNT = (#KEYS - {len(lead)}) / {max(1, len(names))}\n"
        "local function keys_of(number)\n"
        f"    local at = {len(lead)} + (number - 1) * {len(names)}\n"
        f"    return {{{fields}}}\n"
        "end\n"
    )


def _read(piece: str) -> str:
    return (_FOLDER / f"{piece}.lua").read_text("utf-8")


_ENQUEUED = "ids ended queues ready delayed later record body bell"

ENQUEUE = _verb("enqueue", "clock bell remember beside unique add", _ENQUEUED, "last")
FETCH = _verb("fetch", "clock promote judge remember", "ready delayed later leased record body bell", "memory")
SETTLE = _verb(
    "settle",
    "clock judge remember bell beside unique places rates letgo add notes erase bury",
    "leased record body notes ids ended queues ready delayed later dead buried evicted bell outbox",
    "memory last",
)
RENEW = _verb("renew", "clock judge", "leased record")
REAP = _verb(
    "reap",
    "clock remember bell beside unique notes erase bury",
    "leased record body notes ids ended ready delayed later dead buried evicted bell",
)
LOOK = _verb("look", "", "ready delayed")
STATS = _verb("stats", "", "ready delayed leased dead record")
WALK = _verb("walk", "clock promote", "ready delayed later buried")
READ = _verb("read", "clock", "record body notes leased delayed dead")
CHANGE = _verb(
    "change",
    "clock remember bell beside unique notes erase",
    "record body notes ids ended ready delayed later dead buried bell",
)

BEGIN = _verb("begin", "clock judge remember beside places rates", "leased record")
HOLDERS = _verb("holders", "clock judge places", "leased record", "places")
FIRST_RUN = _verb("firstrun", "clock remember", "", "done")
FORGET = _verb("forget", "clock remember", "", "done")
TAKE = _verb("take", "clock rates", "", "rate")

_RECORDS = "values names ends"

PUT = _verb("put", "clock", "", _RECORDS)
GET = _verb("get", "clock", "", _RECORDS)
LIST = _verb("list", "clock", "", _RECORDS)
DROP = _verb("drop", "", "", _RECORDS)
APPEND = _verb("append", "", "log", "logs")
