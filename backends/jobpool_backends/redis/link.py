"""Links to the server: scripts and commands, each call on a connection of its own.

Connections are kept in a small stack and taken by one thread at a time, so no call waits for another. A connection that
fails is thrown away together with all idle ones, which will have broken too. Nothing is retried, with one exception: a
kept connection that the server had closed (it was restarted, or closes idle clients) is replaced at once, once. Calls
may be repeated safely, because they carry ids.

Blocks: a call takes `timeout` seconds at most for its answer, and `connect_timeout` before that when it has to connect.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol, TypeVar

from redis.exceptions import NoScriptError, RedisError, ResponseError

from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.redis.errors import Explained, Place, explain
from jobpool_backends.redis.wire import Wire, Word

T = TypeVar("T")

SHORTEST_WAIT = 0.01
"""Seconds; BLPOP takes 0 for "forever", and Redis 6.2 takes 0.001 for 0."""


class Script:
    """A Lua script. Its digest is known beforehand, so that a call sends forty characters instead of the source."""

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class Door(Place, Protocol):
    """The source of connections: one server, or the current master."""

    def open(self) -> Wire:
        """Return a new connection. Raises redis-py's errors, or ours."""


class Link(ABC):
    """A link to Redis of any kind; shared by any number of threads, never across a fork.

    Answers are bytes, integers, lists of them, or None. Errors of all methods:

    Raises:
        BackendUnavailable: Nothing is known; the text names cause and mend.
        ConfigurationError: The server refuses us, or lacks what we need.
        redis.exceptions.ResponseError: A script's own error, or a command that is wrong: a fault of ours.
    """

    is_cluster: ClassVar[bool] = False

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the server in error texts: with host and port, never a password."""

    @abstractmethod
    def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word]) -> Any:
        """Run a script on the server. One that it does not know (it was restarted, or flushed) is sent whole.

        On a cluster all keys are in one slot.
        """

    @abstractmethod
    def call(self, *words: Word) -> Any:
        """Run one plain command. On a cluster its first word is its key, unless it has none."""

    @abstractmethod
    def call_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Run several plain commands in one round trip; not atomic. The first error is raised when all were
        answered.
        """

    @abstractmethod
    def survey(self, commands: Sequence[Sequence[Word]]) -> list[tuple[str, list[Any]]]:
        """Ask every server there is: its title, and its answers, among which refusals are values."""

    @abstractmethod
    def wait_bell(self, keys: Sequence[str], timeout: float) -> str | None:
        """Wait until one of these lists has an element, and take it: the list's key; None after `timeout` seconds.

        On a connection kept for this. None comes up to 0.1 s late, because an idle server looks at its clock that
        often. A silent server is noticed the link's own timeout later. `close` in another thread ends the wait with
        `BackendUnavailable`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is idle and wake who waits; a call under way closes its connection when it is done. Safe twice."""


class ServerLink(Link):
    """Connections to one server at a time: to that which the door leads to."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._pid = os.getpid()
        self._idle: list[Wire] = []
        self._idle_listeners: list[Wire] = []
        self._listening: set[Wire] = set()
        self._changing = threading.Lock()
        self.closed = False

    @property
    def title(self) -> str:
        return self._door.title

    def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word]) -> Any:
        words = (len(keys), *keys, *args)
        try:
            return self._use(lambda wire: wire.ask(("EVALSHA", script.sha, *words)))
        except NoScriptError:
            return self._use(lambda wire: wire.ask(("EVAL", script.source, *words)))

    def call(self, *words: Word) -> Any:
        return self._use(lambda wire: wire.ask(words))

    def call_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        return self._use(lambda wire: first_error(wire.ask_many(commands))) if commands else []

    def survey(self, commands: Sequence[Sequence[Word]]) -> list[tuple[str, list[Any]]]:
        return [(self.title, self._use(lambda wire: wire.ask_many(commands)))]

    def wait_bell(self, keys: Sequence[str], timeout: float) -> str | None:
        give_up = time.monotonic() + timeout
        answer = self._use(lambda wire: self._listen(wire, keys, give_up), self._idle_listeners)
        return None if answer is None else answer[0].decode()

    def close(self) -> None:
        if os.getpid() != self._pid:  # after a fork the connections are the parent's
            return
        with self._changing:
            self.closed = True
            for wire in self._listening:
                wire.interrupt()
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close the connections that nobody uses just now; the link stays as good as it was."""
        for idle in (self._idle, self._idle_listeners):
            with suppress(IndexError):  # several threads may drop: each pops its own
                while True:
                    idle.pop().close()

    # --- connections -------------------------------------------------------------------------------

    def _use(self, work: Callable[[Wire], T], idle: list[Wire] | None = None) -> T:
        """Do `work` on a kept connection, or on a new one; on a new one too when the kept one turns out to be stale."""
        self._check_usable()
        idle = self._idle if idle is None else idle
        try:
            kept = idle.pop()
        except IndexError:
            return self._work(self._open(), work, idle)
        with suppress(Stale):
            return self._work(kept, work, idle)
        return self._work(self._open(), work, idle)

    def _work(self, wire: Wire, work: Callable[[Wire], T], idle: list[Wire]) -> T:
        try:
            answer = work(wire)
        except RedisError as error:
            self._judge(wire, error, idle)
            raise
        except BaseException:  # in the middle of an exchange: the next answer on this wire would be the wrong one
            wire.close()
            raise
        self._keep(wire, idle)
        return answer

    def _judge(self, wire: Wire, error: RedisError, idle: list[Wire]) -> None:
        """Raise what the error means; return when it is a fault of ours. Keep the connection if it is sound."""
        meaning = self._explain(error)
        if meaning.sound:
            self._keep(wire, idle)
        else:
            wire.close()
            self.drop_idle()
            self._check_usable()  # closed by us meanwhile: say so
        if meaning.hung_up and wire.used:
            raise Stale from error
        if meaning.error:
            raise meaning.error from error

    def _explain(self, error: RedisError) -> Explained:
        return explain(error, self._door)

    def _keep(self, wire: Wire, idle: list[Wire]) -> None:
        wire.used = True
        idle.append(wire)
        if self.closed:
            self.drop_idle()

    def _listen(self, wire: Wire, keys: Sequence[str], give_up: float) -> Any:
        remaining = max(give_up - time.monotonic(), SHORTEST_WAIT)
        self._announce(wire)
        try:
            return wire.ask_slowly(("BLPOP", *keys, remaining), remaining + self._door.timeout)
        finally:
            self._forget(wire)

    def _announce(self, wire: Wire) -> None:
        """Let `close` interrupt this wire, on which a thread is about to wait."""
        with self._changing:
            self._check_usable()
            self._listening.add(wire)

    def _forget(self, wire: Wire) -> None:
        with self._changing:
            self._listening.discard(wire)

    def _open(self) -> Wire:
        try:
            return self._door.open()
        except RedisError as error:
            raise (self._explain(error).error or error) from error

    def _check_usable(self) -> None:
        if self.closed:
            raise BackendUnavailable(f"the connection to {self.title} was closed: open the backend again")
        if os.getpid() != self._pid:
            raise ConfigurationError(
                f"the connection to {self.title} was opened by process {self._pid}, before a fork, and cannot"
                " be shared: open the backend after the fork, in the process that uses it"
            )


def first_error(answers: list[Any]) -> list[Any]:
    """Return the answers, or the first error among them, raised."""
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise answer
    return answers


class Stale(Exception):
    """A kept connection was closed by the server before this call. Nothing is known of the call."""
