"""The names of jobpool's keys in Redis, their values, and the Lua scripts that work on them.

A message is known by its *member*: 19 digits, its priority (3) and its sequence (16), such as `0051763719200123456`.
The sequence is the microsecond of its enqueue, or one more than the last, so it is never used twice. Members of equal
score are ordered by their bytes. So a sorted set of score 0 is in the order (priority, sequence), that of a queue.

Keys of a queue, `jobpool:{reports}:…`; the braces make all of them one slot of a cluster. From `posts` on they are
those of claims and posted messages. A posted message stands in `record` and `body` like a job, and a dead one in `dead`
and `buried`, but in no other set before. From `done` on they are those of the key store; `…` is a chosen name:

| key | type | what it holds |
| --- | --- | --- |
| `ready` | sorted set | members of the messages that wait to be fetched, score 0 |
| `delayed` | sorted set | members that are not due, or have not been looked for since; score: when, Unix time in µs |
| `later` | sorted set | the same members, score 0: for lists in enqueue order |
| `leased` | sorted set | members that a pool holds; score: the deadline, Unix time in µs |
| `dead` | sorted set | members of the dead letters; score: when they died, Unix time in µs |
| `buried` | sorted set | the same members, score 0: for lists in enqueue order |
| `record` | hash | by member: all fields but the body and the notes; see below |
| `body` | hash | by member: the wire bytes, exactly as they were signed, or as posted |
| `notes` | hash | by member, of those that failed: JSON with `error`, `reason`, `cause`, `forfeited`, `crashed` (µs) |
| `bell` | list | one element at most; there when something may be ready, or soon is (then empty): waiters block on it |
| `evicted` | string | how many dead letters the caps `dead_max` and `dead_max_age` have removed |
| `call:…` | string | the answer of a fetch or an edit, and its end; expires by itself after a minute |
| `outbox` | list | on a cluster: messages that settlements bring to other queues, on their way there |
| `posts` | sorted set | members of posted messages that are free, score 0 |
| `postsdelayed` | sorted set | members of posted messages that are not due; score: when, Unix time in µs |
| `postslater` | sorted set | the same members, score 0: for lists in enqueue order |
| `postsclaimed` | sorted set | members of posted messages that claims hold, score 0 |
| `lives` | sorted set | members of posted messages with an end, dead ones left out; score: when, Unix time in µs |
| `claimed` | sorted set | members of the jobs that claims hold, score 0 |
| `checkouts` | hash | by id of a claim: its end, ttl, grace and time of making or renewal, in µs; then its members |
| `claims` | sorted set | ids of claims; score: when they end, Unix time in µs |
| `claimids` | sorted set | the same ids, score 0: for lists in their order |
| `expired` | string | how many posted messages have ended with their lives |
| `done:…` | string | until when an idempotency key is done, and the call that said so; expires by itself then |
| `runs:…` | hash | the message that runs under an idempotency key: its member, and its holder |
| `hold:…` | hash | places held under a name: by member, the holder. They count only while the lease lives |
| `guarded` | sorted set | member, holder and guards of leases that hold something; score: when to look at them, µs |
| `rate:…` | sorted set | owner tokens of starts that are counted; score: when, µs. Ends a minute after its window |
| `unique:…` | string | the id of the message that has a unique key, and until when; expires after that one's end |
| `keyed` | hash | by member, of live and dead messages that have one: their unique key |
| `batched` | hash | by member, of live messages that are members of batches: the id, a space, its batch |
| `awaited` | string | there while a job's end is waited for; expires by itself, as the next two do |
| `await:…` | set | tokens of the waiters for the end of the job with this id |
| `told:…` | list | ids of jobs that have ended, for the waiter with this token, which blocks on it |

Keys of a space, `jobpool:{history}:…`:

| key | type | what it holds |
| --- | --- | --- |
| `values` | hash | the records of the space, by their keys |
| `names` | sorted set | the keys of the records, score 0: for lists in their order |
| `ends` | sorted set | the keys of the records; score: when each ends, µs. All three expire with the last |
| `log:…` | list | the lines of a log, the newest first |
| `logs` | sorted set | the names of the logs, score 0 |

Keys of the namespace, `jobpool:…`; on a cluster each queue has its own instead, `jobpool:{reports}:…`:

| key | type | what it holds |
| --- | --- | --- |
| `ids` | hash | by id of every live or dead message: its member, a space, its queue |
| `ended` | sorted set | ids that producers gave, of messages that are gone; score: until when they are remembered, µs |
| `last` | string | the last sequence that was given |
| `queues` | set | names of queues; also of some without a message. On a cluster there is one for all, too |
| `call:…` | string | the answer of a settle call, and its end; expires by itself after a minute |
| `result:…` | string | the result of a job that is done, by its id; expires by itself |
| `batch:…` | hash | a batch, by its id: its counts, its parent, if it was stopped, and until its end its callbacks |
| `members:…` | sorted set | ids of the messages that are its members and have not ended; score: their sequence |
| `nested:…` | list | ids of the batches that are its members. All three expire seven days after its end |

A record is `deliveries attempts crashes available enqueued gID HANDLER`. First come three counters. Then come Unix
times in µs, with `-` for a message that was available from its enqueue on. A `+` before the time means that it does not
expire any more. Then a run of it was begun, or it was raised from the dead letters. `g` stands before an id that its
producer gave, `m` before a minted one; with a unique key these are `w` and `u`. A posted message has no handler, and
`q` or `p` for `g` or `m`. While the message is leased, `HOLDER TTL ` stands before it. That is the first half of the
owner token (the second is the sequence), and the length of the lease in µs, 14 digits. The record of a message that was
claimed, or has a life, is followed by a line `CLAIMS LIFE CLAIM`. It says how often the message was claimed, when its
life ends, in µs, and the claim that holds it (`-` for none).

There is one script for each verb, put together from the pieces in `lua/`. Plain acks and a single plain message, which
are most calls, have shorter ones. The first KEYS (`lead`) belong to the call.
Then come the keys of each queue, always the same names in the same order. A header turns them into names, so that the
Lua says `q.ready` and never counts; the keys that it names are passed to it. Only the keys of `named_keys.lua` are not
declared: they are in the slot of declared ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Link, Script
from jobpool_backends.redis.records import places_by

Item = TypeVar("Item")

_FOLDER = files("jobpool_backends.redis") / "lua"
# Kept once for the namespace, so that an id is unique and the order of enqueue holds over all queues.
SHARED = frozenset({"ids", "ended", "last", "queues"})
_NAMED = re.compile(r"q\.(\w+)")  # a key of a queue, in Lua
_MAX_KNOWN_LISTS = 10_000  # for programs that make up queues as they go


class KeyNames:
    """The names of the keys in one namespace. `spread`: queues have no key in common, as on a cluster."""

    def __init__(self, prefix: str, *, spread: bool = False) -> None:
        self.prefix = prefix
        self.spread = spread
        self.queues = f"{prefix}:queues"
        self._known: dict[tuple[str, Sequence[str]], tuple[str, ...]] = {}

    def of(self, queue: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys of `queue` with these names, in order; remembered: every call asks for the same few."""
        known = self._known.get((queue, names))
        if known is None:
            if len(self._known) >= _MAX_KNOWN_LISTS:
                self._known.clear()
            known = self._known[queue, names] = tuple(self.one(queue, name) for name in names)
        return known

    def one(self, queue: str, name: str) -> str:
        """Return one key of `queue`, or of the namespace where that holds it."""
        return self.shared(queue, name) if name in SHARED else f"{self.prefix}:{{{queue}}}:{name}"

    def shared(self, queue: str, name: str) -> str:
        """Return a key of the namespace; of `queue` where keys are spread."""
        return f"{self.prefix}:{{{queue}}}:{name}" if self.spread else f"{self.prefix}:{name}"


class Keyspace(KeyNames):
    """The names of the keys in one namespace, and the link to their server."""

    def __init__(self, link: Link, prefix: str, *, spread: bool) -> None:
        super().__init__(prefix, spread=spread)
        self.link = link

    def run(
        self, script: Script, queues: Sequence[str], words: Sequence[Word], *lead: str, repeatable: bool = True
    ) -> Any:
        """Run a script on these queues; `lead`: the keys of the call. Returns and raises as `Link.run`."""
        keys = list(lead)
        for queue in queues:
            keys += self.of(queue, script.names)
        return self.link.run(script, keys, words, repeatable=repeatable)

    def groups(self, items: Sequence[Item], queue_of: Callable[[Item], str]) -> Iterable[Sequence[int]]:
        """Return the places of items that one script may do: of all, or where keys are spread, queue by queue."""
        return places_by(map(queue_of, items)).values() if self.spread else [range(len(items))]


def _script(name: str, pieces: str, lead: str = "", more: str = "") -> Script:
    """Return a script of pieces. Of each queue it wants the keys that its Lua names, and `more`; or only its `lead`."""
    body = "\n".join(map(_read, dict.fromkeys(("common", *pieces.split(), name))))
    wanted, first = tuple(dict.fromkeys([*_NAMED.findall(body), *more.split()])), lead.split()
    return Script(f"{_header(first, wanted)}{body}", wanted or tuple(first))


@cache  # the same few pieces are in most scripts. All are read at once: an upgrade may put others in their place
def _read(file: str) -> str:
    return (_FOLDER / f"{file}.lua").read_text("utf-8")


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


# The pieces of scripts that do these things:
_FREEING = "clock call_memory wake named_keys unique_keys"  # free messages, or their unique keys
_ADDING = f"{_FREEING} line known_ids batches add"
_ENDING = f"{_ADDING} end_batches erase erase_recorded"  # end messages, and with them batches
_SWEEPING = f"{_FREEING} erase erase_recorded record_tail checkouts claims posts sweep_claims"
_FAILURES = "failures dead_letters"  # note failures, and bury what has failed too often

ENQUEUE = _script("enqueue", _ADDING, "last")
ENQUEUE_ONE = _script("enqueue_one", "clock wake", "last")
OUTBOX_PEEK = _script("outbox_peek", "", "outbox")
OUTBOX_DROP = _script("outbox_drop", "", "outbox")
FETCH = _script("fetch", "clock wake promote check_holder call_memory bodies record_parts", "memory")
SETTLE = _script(
    "settle",
    f"{_ENDING} check_holder places release_guards record_parts {_FAILURES} notify_ended",
    "memory last",
    "outbox",
)
ACK = _script("ack", "clock check_holder call_memory named_keys erase", "memory")
RENEW = _script("renew", "clock check_holder")
REAP = _script("reap", f"{_SWEEPING} {_ENDING} record_parts {_FAILURES}")
AWAIT_ENDED = _script("await_ended", "named_keys", more="record")
FIRST_READY = _script("first_ready", "clock")
STATS = _script("stats", f"{_SWEEPING} priorities")
MESSAGE_LIST = _script("message_list", f"{_SWEEPING} promote priorities")
MESSAGE_READ = _script("message_read", "clock record_tail checkouts")
BULK = _script("bulk", f"{_ENDING} record_tail record_parts {_FAILURES}")
EDIT = _script("edit", f"{_SWEEPING} line", "memory", "queues")

POST = _script("post", f"{_SWEEPING} line known_ids", "last")
CLAIM = _script("claim", f"{_SWEEPING} {_ENDING} {_FAILURES} promote bodies shown check_out select_free")
CLAIM_SHOW = _script("claim_show", "clock checkouts bodies shown")
CLAIM_RENEW = _script("claim_renew", "clock record_tail checkouts bodies check_out")
CLAIM_RELEASE = _script("claim_release", "clock wake record_tail checkouts claims")
CLAIM_DELETE = _script("claim_delete", f"{_ENDING} record_tail checkouts posts")
CLAIM_POP = _script("claim_pop", f"{_SWEEPING} {_ENDING} promote bodies select_free")
CLAIM_LIST = _script("claim_list", "clock checkouts")

BATCH_OPEN = _script("batch_open", "clock batches")
BATCH_CLOSE = _script("batch_close", f"{_ADDING} end_batches")

ACQUIRE_GUARDS = _script("acquire_guards", "clock check_holder call_memory named_keys places rates")
PLACE_HOLDERS = _script("place_holders", "clock check_holder places", "places")
FIRST_RUN = _script("first_run", "clock call_memory", "done")
FORGET_RUN = _script("forget_run", "clock call_memory", "done")
TAKE_STARTS = _script("take_starts", "clock rates")

_RECORDS = "values names ends"
RECORDS_PUT = _script("records_put", "clock", _RECORDS)
RECORDS_GET = _script("records_get", "clock", _RECORDS)
RECORDS_LIST = _script("records_list", "clock", _RECORDS)
RECORDS_DELETE = _script("records_delete", "", _RECORDS)
LOG_APPEND = _script("log_append", "", "logs", "log")
