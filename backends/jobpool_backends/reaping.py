"""Reaping where the broker frees expired leases itself: backends charge a crash when they meet its message next."""

from __future__ import annotations

import threading
from collections import defaultdict, deque

from jobpool.broker.values import REAP_LIMIT, Reaped, ReapPolicy

MOST_REMEMBERED = 10_000  # charges a queue until somebody asks for them; when nobody reaps, the oldest are forgotten


class NativeReaping:
    """The policy of each queue, and the charges that nobody has asked for yet; any number of threads at once."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._policies: dict[str, ReapPolicy] = {}
        self._charged: defaultdict[str, deque[Reaped]] = defaultdict(lambda: deque(maxlen=MOST_REMEMBERED))

    def policy(self, queue: str) -> ReapPolicy:
        """Return the policy of the last `reap` of this queue; the default before."""
        return self._policies.get(queue) or ReapPolicy()

    def add(self, reaped: Reaped) -> None:
        """Record a charge: the next reap of its queue reports it."""
        with self._changing:
            self._charged[reaped.queue].append(reaped)

    def reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None = None) -> list[Reaped]:
        """Apply this policy from now on; return the charges since the last call, `REAP_LIMIT` at most."""
        del visibility_timeout  # the broker has given overdue leases back
        with self._changing:
            self._policies[queue] = policy
            charged = self._charged[queue]
            return [charged.popleft() for _ in range(min(len(charged), REAP_LIMIT))]
