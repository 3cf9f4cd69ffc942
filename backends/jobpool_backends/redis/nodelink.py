"""A link to one node of a cluster, and waiting for bells on several of them at once.

BLPOP serves one slot. So a wait for queues in several slots sends one BLPOP for each slot, on connections of their own,
and sleeps in one `poll`. When a bell has rung, the other commands are called off, because they would take bells that
nobody hears. That is done by CLIENT UNBLOCK, or by closing the connection, for a user without that right. A bell that
they took in that moment is remembered for the next wait.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import AskError, RedisError

from jobpool.errors import JobpoolError
from jobpool_backends.redis.errors import Explained
from jobpool_backends.redis.link import SHORTEST_WAIT, ServerLink, Stale, first_error
from jobpool_backends.redis.wire import Endpoint, Wire, Word

Groups = Sequence[tuple["NodeLink", Sequence[str]]]
"""Keys slot by slot, each slot with the node that holds it."""

Begun = dict[int, tuple["NodeLink", Wire]]
"""Waits that go on, by the number of their file."""


class NodeLink(ServerLink):
    """Connections to one node. Raises redis-py's `MovedError` and `AskError` as they are, besides what links raise."""

    def __init__(self, node: Endpoint) -> None:
        super().__init__(node)
        self.host = node.host
        self.patience = node.timeout  # seconds for an answer

    def ask_importing(self, words: Sequence[Word]) -> Any:
        """Run one command on the node that a slot is moving to, before all of it has arrived."""
        return self._use(lambda wire: first_error(wire.ask_many([("ASKING",), words])))[1]

    def begin_wait(self, keys: Sequence[str], seconds: float) -> Wire:
        """Start to wait for a bell of one slot. The wire must be ended, or dropped."""
        try:
            wire = self._idle_listeners.pop()
        except IndexError:
            wire = self._open()
        try:
            self._announce(wire)
            wire.ident = wire.ident or wire.ask(("CLIENT", "ID"))
            wire.send(("BLPOP", *keys, max(seconds, SHORTEST_WAIT)))
        except RedisError as error:
            self._fail(wire, error)
            raise
        except BaseException:
            self.drop_wait(wire)
            raise
        return wire

    def end_wait(self, wire: Wire, limit: float) -> str | None:
        """Return the key that rang, or None. Blocks for up to `limit` seconds."""
        try:
            answer = wire.receive(limit)
        except RedisError as error:
            self._fail(wire, error)
            raise
        self._forget(wire)
        self._keep(wire, self._idle_listeners)
        return None if answer is None else answer[0].decode()

    def drop_wait(self, wire: Wire) -> None:
        """Give up a wait that was begun, and its connection."""
        self._forget(wire)
        wire.close()

    def _fail(self, wire: Wire, error: RedisError) -> None:
        self._forget(wire)
        self._judge(wire, error, self._idle_listeners)

    def _explain(self, error: RedisError) -> Explained:
        return Explained(None, sound=True) if isinstance(error, AskError) else super()._explain(error)


class ManyBells:
    """The wait for bells on several nodes; any number of threads at once."""

    def __init__(self) -> None:
        self._heard: set[str] = set()  # and not yet told

    def wait(self, groups: Groups, timeout: float) -> str | None:
        """Wait as `Link.wait_bell`. Raises as that, and `MovedError` or `AskError` of a node."""
        give_up = time.monotonic() + timeout
        for _ in groups:  # each may find once that the server had closed its connection
            with suppress(Stale):
                return self._remembered(groups) or self._wait(groups, give_up)
        return self._wait(groups, give_up)

    def _remembered(self, groups: Groups) -> str | None:
        for _, keys in groups:
            for key in keys:
                if key in self._heard:
                    self._heard.discard(key)
                    return key
        return None

    def _wait(self, groups: Groups, give_up: float) -> str | None:
        begun: Begun = {}
        try:
            for node, keys in groups:
                wire = node.begin_wait(keys, give_up - time.monotonic())
                begun[wire.fileno()] = node, wire
            heard = self._listen(begun, give_up)
            with suppress(JobpoolError, RedisError, Stale):  # a failing node is met again; report the bell that rang
                self._call_off(begun)
            return heard
        finally:
            for node, wire in begun.values():
                node.drop_wait(wire)

    def _listen(self, begun: Begun, give_up: float) -> str | None:
        """Return the first bell that rings; None if all waits ended without one. Ended waits leave `begun`."""
        poll = select.poll()
        for number in begun:
            poll.register(number, select.POLLIN)
        heard: list[str] = []
        while begun and not heard:
            patience = max(node.patience for node, _ in begun.values())
            limit = max(give_up + patience - time.monotonic(), SHORTEST_WAIT)
            for number, _ in poll.poll(limit * 1000.0) or [(next(iter(begun)), 0)]:  # silence: ask one for its error
                poll.unregister(number)
                heard += self._end(begun, number, limit)
        self._heard.update(heard[1:])
        return heard[0] if heard else None

    def _call_off(self, begun: Begun) -> None:
        for node in {node for node, _ in begun.values()}:
            node.call_many([("CLIENT", "UNBLOCK", wire.ident) for owner, wire in begun.values() if owner is node])
        while begun:
            number = next(iter(begun))
            self._heard.update(self._end(begun, number, begun[number][0].patience))

    def _end(self, begun: Begun, number: int, limit: float) -> list[str]:
        node, wire = begun.pop(number)
        key = node.end_wait(wire, limit)
        return [] if key is None else [key]
