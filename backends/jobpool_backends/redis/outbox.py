"""Messages on their way from one slot of a cluster to another.

A settlement writes messages for other queues, follow-ups or the message itself, into the outbox of its own queue, in
the same step that ends the lease. They are brought to their queues right afterwards; after a crash, by the next reap of
that queue. They are first added, then removed. So one may be added twice, which changes nothing: an added id is known
until ten minutes after its end.
"""

from __future__ import annotations

from collections.abc import Collection

from jobpool_backends.redis.connections import Link, Script
from jobpool_backends.redis.enqueue import Enqueuer
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.records import read_entry

ENTRIES_PER_SCRIPT = 100
"""Entries that are read at once, or fewer when they are large."""

_BYTES_PER_SCRIPT = 4 * 1048576

PEEK = Script(
    "peek",
    """-- The first entries of an outbox. ARGV: how many at most; after how many bytes to end
local entries, bytes = redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1), 0
for number, entry in ipairs(entries) do
    bytes = bytes + #entry
    if bytes > tonumber(ARGV[2]) then
        return {unpack(entries, 1, number)}
    end
end
return entries
""",
)

DROP = Script(
    "drop",
    """-- Remove the first entries. ARGV: how the first one begins; how many
-- If it begins otherwise, somebody else has removed it, and with it those behind.
local first = redis.call('LINDEX', KEYS[1], 0)
if first and string.sub(first, 1, #ARGV[1]) == ARGV[1] then
    redis.call('LTRIM', KEYS[1], ARGV[2], -1)
end
""",
)


class Outbox:
    """The outboxes of all queues."""

    def __init__(self, link: Link, keys: KeyNames, enqueuer: Enqueuer) -> None:
        self._link = link
        self._keys = keys
        self._enqueuer = enqueuer

    def relay(self, queues: Collection[str]) -> None:
        """Bring what stands in the outboxes of these queues on its way. Any number of relays may work at once.

        Raises:
            BackendUnavailable: A node does not answer; what is left stays where it is.
        """
        for queue in queues:
            while self._relay_piece(self._keys.one(queue, "outbox")):
                pass

    def _relay_piece(self, key: str) -> bool:
        """Return whether there was anything."""
        entries: list[bytes] = self._link.run(PEEK, [key], [ENTRIES_PER_SCRIPT, _BYTES_PER_SCRIPT])
        if entries:
            self._enqueuer.add([read_entry(entry) for entry in entries])
            head = entries[0].partition(b"\n")[0] + b"\n"  # which names the message
            self._link.run(DROP, [key], [head, len(entries)])
        return bool(entries)
