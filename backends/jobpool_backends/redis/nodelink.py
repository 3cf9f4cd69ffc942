"""A link to one node of a cluster, and waiting for bells on several of them at once.

BLPOP serves one slot. So who waits for queues in several slots sends one BLPOP a slot, each on a connection of its own,
and sleeps in one `poll` over all of them: a bell is heard as soon as with one server, and nothing turns meanwhile. When
one has rung, the other commands are called off (CLIENT UNBLOCK), for they would take bells that nobody listens to; a
bell that they took in that moment is remembered for the next wait.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from redis.exceptions import AskError, RedisError

from jobpool_backends.redis.link import SHORTEST_WAIT, ServerLink, Stale, first_error
from jobpool_backends.redis.trouble import Meaning
from jobpool_backends.redis.wire import Wire, Word


class NodeLink(ServerLink):
    """Connections to one node. Raises redis-py's `MovedError` and `AskError` as they are, besides what links raise."""

    def ask_importing(self, words: Sequence[Word]) -> Any:
        """One command to the node that a slot is moving to, before all of it has arrived."""
        return self._use(lambda wire: first_error(wire.ask_many([("ASKING",), words])))[1]

    def begin_wait(self, keys: Sequence[str], seconds: float) -> Wire:
        """Start to wait for a bell of one slot. What is begun is to be ended, or dropped."""
        wire = self._idle_listeners.pop() if self._idle_listeners else self._open()
        try:
            with self._changing:
                self._check_usable()
                self._listening.add(wire)
            wire.ident = wire.ident or wire.ask(("CLIENT", "ID"))
            wire.send(("BLPOP", *keys, max(seconds, SHORTEST_WAIT)))
        except RedisError as error:
            self._end(wire, error)
            raise
        except BaseException:
            self.drop_wait(wire)
            raise
        return wire

    def end_wait(self, wire: Wire, limit: float) -> str | None:
        """The key that rang, or None. Blocks for up to `limit` seconds."""
        try:
            answer = wire.receive(limit)
        except RedisError as error:
            self._end(wire, error)
            raise
        self._forget(wire)
        self._keep(wire, self._idle_listeners)
        return None if answer is None else answer[0].decode()

    def drop_wait(self, wire: Wire) -> None:
        """Give up a wait that was begun, and its connection."""
        self._forget(wire)
        wire.close()

    def call_off(self, wires: Sequence[Wire]) -> list[str]:
        """End waits that were begun, now; the bells that they still heard."""
        self.call_many([("CLIENT", "UNBLOCK", wire.ident) for wire in wires])
        heard = [self.end_wait(wire, self._door.timeout) for wire in wires]
        return [key for key in heard if key is not None]

    def _end(self, wire: Wire, error: RedisError) -> None:
        self._forget(wire)
        self._judge(wire, error, self._idle_listeners)

    def _forget(self, wire: Wire) -> None:
        with self._changing:
            self._listening.discard(wire)

    def _explain(self, error: RedisError) -> Meaning:
        return Meaning(None, sound=True) if isinstance(error, AskError) else super()._explain(error)


class ManyBells:
    """Waits for bells on several nodes; any number of threads at once."""

    def __init__(self) -> None:
        self._heard: deque[str] = deque()

    def wait(self, groups: Sequence[tuple[NodeLink, Sequence[str]]], timeout: float) -> str | None:
        """`Link.wait_bell`; `groups` are the keys, slot by slot, each with the node that holds them."""
        known = {key for _, keys in groups for key in keys}
        give_up = time.monotonic() + timeout
        for _ in groups:  # each may find its kept connection closed by the server, once
            try:
                return self._remembered(known) or self._wait(groups, give_up)
            except Stale:
                pass
        return self._wait(groups, give_up)
