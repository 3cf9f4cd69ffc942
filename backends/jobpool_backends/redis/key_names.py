"""The names of jobpool's keys in Redis, and their values.

A message is known by its *member*: 19 digits, its priority (3) and its sequence (16), such as `0051763719200123456`.
The sequence is the microsecond of its enqueue, or one more than the last, so it is never used twice. Members of equal
score are ordered by their bytes, so a sorted set of score 0 is in the order (priority, sequence): the order of a queue.

Keys of a queue, `jobpool:{reports}:…`; the braces make all of them one slot of a cluster. From `posts` on they are
those of claims and posted messages. A posted message stands in `record` and `body` like a job, and when it is dead in
`dead` and `buried`, but in no other set before. From `done` on they are those of the key store; `…` is a chosen name:

| key | type | what it holds |
| --- | --- | --- |
| `ready` | sorted set | members of the messages that wait to be fetched, score 0 |
| `delayed` | sorted set | members that are not due, or have not been looked for since; score: when, Unix time in µs |
| `later` | sorted set | the same members, score 0: for lists in enqueue order |
| `leased` | sorted set | members that a pool holds; score: the deadline, Unix time in µs |
| `dead` | sorted set | members of the dead letters; score: when they died, Unix time in µs |
| `buried` | sorted set | the same members, score 0: for lists in enqueue order |
| `record` | hash | by member: what changes, and the small rest; see below |
| `body` | hash | by member: the wire bytes, exactly as they were signed, or what was posted |
| `notes` | hash | by member, of those that failed: JSON with `error`, `reason`, `cause`, `forfeited`, `crashed` (µs) |
| `bell` | list | one element at most; there when something may be ready: waiters block on it |
| `evicted` | string | how many dead letters the caps `dead_max` and `dead_max_age` have removed |
| `call:…` | string | the answer of a fetch, and its end; expires by itself after a minute |
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
| `done:…` | string | an idempotency key that is done, and until when; expires by itself then |
| `runs:…` | hash | the message that runs under an idempotency key: its member, and its holder |
| `hold:…` | hash | places held under a name: by member, the holder. They count only while the lease lives |
| `guarded` | sorted set | member, holder and guards of leases that hold something; score: when to look at them, µs |
| `rate:…` | sorted set | owner tokens of starts that are counted; score: when, µs. Ends a minute after its window |
| `unique:…` | string | the id of the message that has a unique key, and until when; expires after that one's end |
| `keyed` | hash | by member, of live and dead messages that have one: their unique key |

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

A record is `deliveries attempts crashes available enqueued gID HANDLER`. First come three counters. Then come Unix
times in µs, with `-` for a message that was available from its enqueue on. A `+` before the time means that it does not
expire any more: a run of it was begun, or it was raised from the dead letters. `g` stands before an id that its
producer gave, `m` before a minted one; with a unique key these are `w` and `u`. A posted message has no handler, and
`q` or `p` for `g` or `m`. While the message is leased, `HOLDER TTL ` stands before it. That is the first half of the
owner token (the second is the sequence), and the length of the lease in µs, 14 digits. The record of a message that was
claimed, or has a life, is followed by a line `CLAIMS LIFE CLAIM`. It says how often the message was claimed, when its
life ends, in µs, and the claim that holds it (`-` for none).
"""

from __future__ import annotations

from collections.abc import Sequence

# Kept once for the namespace, so that an id is unique and the order of enqueue holds over all queues.
SHARED = frozenset({"ids", "ended", "last", "queues"})
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
        if name in SHARED and not self.spread:
            return f"{self.prefix}:{name}"
        return f"{self.prefix}:{{{queue}}}:{name}"

    def settle_call(self, queue: str, call_id: str) -> str:
        """Return the key that remembers a settle call."""
        place = f"{self.prefix}:{{{queue}}}" if self.spread else self.prefix
        return f"{place}:call:settle:{call_id}"
