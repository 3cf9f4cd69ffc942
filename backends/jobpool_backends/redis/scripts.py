"""The Lua scripts, one for each verb, put together from the pieces in `lua/`.

The first KEYS (`lead`) belong to the call. Then come the keys of each queue, always the same names in the same order.
A header turns them into names, so that the Lua says `q.ready` and never counts. Only the keys of `beside.lua` are not
declared: they are in the slot of declared ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Link, Script
from jobpool_backends.redis.key_names import KeyNames

_FOLDER = files("jobpool_backends.redis") / "lua"


class QueueScript(Script):
    """A script, and the names of the keys that it wants of each queue, or of the one space or queue that it is for."""

    def __init__(self, source: str, names: tuple[str, ...]) -> None:
        super().__init__(source)
        self.names = names


class Keyspace(KeyNames):
    """The names of the keys in one namespace, and the link to their server."""

    def __init__(self, link: Link, prefix: str, *, spread: bool) -> None:
        super().__init__(prefix, spread=spread)
        self.link = link

    def run(self, script: QueueScript, queues: Sequence[str], words: Sequence[Word], *lead: str) -> Any:
        """Run a script on these queues; `lead`: the keys of the call. Returns and raises as `Link.run`."""
        keys = list(lead)
        for queue in queues:
            keys += self.of(queue, script.names)
        return self.link.run(script, keys, words)


def _script(name: str, pieces: str, names: str, lead: str = "") -> QueueScript:
    wanted, first = tuple(names.split()), lead.split()
    files = ("base", *pieces.split(), name)
    parts = [_header(first, wanted), *((_FOLDER / f"{file}.lua").read_text("utf-8") for file in files)]
    return QueueScript("\n".join(parts), wanted or tuple(first))


def _header(lead: Sequence[str], names: Sequence[str]) -> str:
    """Return Lua that names the keys: LEAD, the number of queues, and the keys of the nth queue."""
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


_SWEEPING = "remember bell beside unique erase promote tail bodies claims"
_SWEPT = (
    "record body notes ids ended ready delayed later bell"
    " posts postsdelayed postslater postsclaimed claimed lives claims claimids checkouts expired"
)
"""The pieces, and the keys, of scripts that free what ended claims hold, and remove posts that have ended."""

_ENQUEUED = "ids ended queues ready delayed later record body bell"

ENQUEUE = _script("enqueue", "clock bell remember beside unique add", _ENQUEUED, "last")
OUTBOX_PEEK = _script("outboxpeek", "", "", "outbox")
OUTBOX_DROP = _script("outboxdrop", "", "", "outbox")
FETCH = _script("fetch", "clock promote judge remember bodies", "ready delayed later leased record body bell", "memory")
SETTLE = _script(
    "settle",
    "clock judge remember bell beside unique places rates letgo add notes erase bury",
    "leased record body notes ids ended queues ready delayed later dead buried evicted bell outbox",
    "memory last",
)
RENEW = _script("renew", "clock judge", "leased record")
REAP = _script("reap", f"clock {_SWEEPING} notes bury", f"{_SWEPT} leased dead buried evicted")
LOOK = _script("look", "", "ready delayed")
STATS = _script("stats", f"clock {_SWEEPING}", f"{_SWEPT} leased dead")
WALK = _script("walk", f"clock {_SWEEPING}", f"{_SWEPT} buried")
READ = _script("read", f"clock {_SWEEPING}", "record body notes leased delayed dead postsdelayed checkouts")
CHANGE = _script(
    "change",
    "clock remember bell beside unique notes erase tail",
    "record body notes ids ended ready delayed later dead buried bell"
    " posts postsdelayed postslater postsclaimed claimed lives",
)

POST = _script("post", f"clock {_SWEEPING} add", f"{_SWEPT} queues", "last")
CLAIM = _script("claim", f"clock {_SWEEPING} notes bury prolong choose", f"{_SWEPT} dead buried evicted")
CLAIM_SHOW = _script("claimshow", f"clock {_SWEEPING}", "record body checkouts")
CLAIM_RENEW = _script("claimrenew", f"clock {_SWEEPING} prolong", "record body claims lives checkouts")
CLAIM_RELEASE = _script(
    "claimrelease", f"clock {_SWEEPING}", "record ready bell posts postsclaimed claimed claims claimids checkouts"
)
CLAIM_DELETE = _script("claimdelete", f"clock {_SWEEPING}", f"{_SWEPT} leased dead")
CLAIM_POP = _script("claimpop", f"clock {_SWEEPING} choose", _SWEPT)
CLAIM_LIST = _script("claimlist", f"clock {_SWEEPING}", "claimids checkouts")

BEGIN = _script("begin", "clock judge remember beside places rates", "leased record")
HOLDERS = _script("holders", "clock judge places", "leased record", "places")
FIRST_RUN = _script("firstrun", "clock remember", "", "done")
FORGET = _script("forget", "clock remember", "", "done")
TAKE = _script("take", "clock rates", "")

_RECORDS = "values names ends"
PUT = _script("put", "clock", "", _RECORDS)
GET = _script("get", "clock", "", _RECORDS)
LIST = _script("list", "clock", "", _RECORDS)
DROP = _script("drop", "", "", _RECORDS)
APPEND = _script("append", "", "log", "logs")
