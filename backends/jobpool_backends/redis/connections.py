"""Links to the server: scripts and commands, each call on a connection of its own.

Connections are kept in a small stack and taken by one thread at a time, so no call waits for another. One that fails is
thrown away together with all idle ones, which will have broken too. Nothing is retried, with one exception: a kept
connection that the server had closed is replaced at once, once. Most calls may be repeated safely, because they carry
ids. One that may not is sent on a connection that was seen to be open, and raises what breaks it then.

Blocks: a call takes `timeout` seconds at most for its answer, and `connect_timeout` before that when it has to connect.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, RedisError, ResponseError

from jobpool.errors import JobpoolError
from jobpool_backends.redis.connection import Connection, Endpoint, Explained, Word, explain
from jobpool_backends.shared import IdleConnections

Result = TypeVar("Result")
_Idle = IdleConnections[Connection]

MIN_WAIT_S = 0.01  # BLPOP takes 0 for "forever", and Redis 6.2 takes 0.001 for 0


class Stale(Exception):
    """A kept connection was closed by the server, mostly before this call. Nothing is known of the call.

    `meaning`: the error to raise in its place where the call may not be repeated.
    """

    def __init__(self, meaning: JobpoolError | None) -> None:
        super().__init__(meaning)
        self.meaning = meaning


def popped(answer: list[bytes] | None) -> str | None:
    """Return the key of the element that a BLPOP took, None for none; "" for an empty one, which only ends the wait."""
    return None if answer is None else answer[0].decode() if answer[1] else ""


class Script:
    """A Lua script. Its digest is known beforehand, so that a call sends forty characters instead of the source.

    `names`: of the keys that it wants of each queue, or of the one space or queue that it is for.
    """

    def __init__(self, source: str, names: tuple[str, ...] = ()) -> None:
        self.source = source
        self.names = names
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class Link(ABC):
    """A link to Redis of any kind; shared by any number of threads, never across a fork.

    Answers are bytes, integers, lists of them, or None. All methods raise `BackendUnavailable` (nothing is known),
    `ConfigurationError` (the server refuses us, or lacks what we need), or redis-py's `ResponseError`: a fault of ours.
    """

    title: str
    """Name of the server in error texts: with host and port, never a password."""

    @abstractmethod
    def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word], *, repeatable: bool = True) -> Any:
        """Run a script; one that the server does not know is sent whole. On a cluster all keys are in one slot.

        `repeatable`: a second run of the same call does no harm.
        """

    @abstractmethod
    def call(self, *words: Word) -> Any:
        """Run one plain command. On a cluster its second word is its key."""

    def ping(self) -> None:
        self.call("PING")

    @abstractmethod
    def call_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Run plain commands in one round trip; not atomic. Raise the first error when all were answered."""

    @abstractmethod
    def survey(self, commands: Sequence[Sequence[Word]]) -> list[tuple[str, list[Any]]]:
        """Ask every server; return its title, and its answers: refusals are values, and so is the silence of a node."""

    @abstractmethod
    def wait_pop(self, keys: Sequence[str], timeout: float) -> str | None:
        """Take an element from one of these lists as soon as there is any; see `popped`. None after `timeout` seconds.

        None comes up to 0.1 s late: an idle server looks at its clock that often. A silent server is noticed the
        link's own timeout later. `close` in another thread ends the wait with `BackendUnavailable`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is idle and wake who waits; a call under way closes its connection when it is done. Safe twice."""


class ServerLink(Link):
    """Connections to one server at a time; `open_connection` opens each, if `place` is not one known server."""

    def __init__(self, place: Endpoint, open_connection: Callable[[], Connection] | None = None) -> None:
        self.place = place
        self.title = place.title
        self._open_connection = open_connection or place.open
        self._idle = _Idle(f"the connection to {self.title}")
        self._idle_listeners = _Idle(f"the connection to {self.title}")
        self._listening: set[Connection] = set()
        self._changing = threading.Lock()

    def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word], *, repeatable: bool = True) -> Any:
        words = (len(keys), *keys, *args)
        try:
            return self._use(lambda connection: connection.ask(("EVALSHA", script.sha, *words)), repeatable=repeatable)
        except NoScriptError:
            return self._use(lambda connection: connection.ask(("EVAL", script.source, *words)), repeatable=repeatable)

    def call(self, *words: Word) -> Any:
        return self._use(lambda connection: connection.ask(words))

    def call_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        def ask(connection: Connection) -> list[Any]:
            answers = connection.ask_many(commands)
            for error in answers:
                if isinstance(error, ResponseError):
                    raise error
            return answers

        return self._use(ask) if commands else []

    def survey(self, commands: Sequence[Sequence[Word]]) -> list[tuple[str, list[Any]]]:
        return [(self.title, self._use(lambda connection: connection.ask_many(commands)))]

    def wait_pop(self, keys: Sequence[str], timeout: float) -> str | None:
        give_up = time.monotonic() + timeout

        def listen(connection: Connection) -> Any:
            remaining = max(give_up - time.monotonic(), MIN_WAIT_S)
            self._announce(connection)
            try:
                connection.send(("BLPOP", *keys, remaining))
                return connection.receive(remaining + self.place.timeout)
            finally:
                self._forget(connection)

        answer = self._use(listen, self._idle_listeners)
        return popped(answer)

    def close(self) -> None:
        if self._idle.is_inherited:
            return
        with self._changing:
            self._idle.close()
            self._idle_listeners.close()
            for connection in self._listening:
                connection.interrupt()

    def drop_idle(self) -> None:
        self._idle.drop_idle()
        self._idle_listeners.drop_idle()

    def _use(
        self, work: Callable[[Connection], Result], idle: _Idle | None = None, *, repeatable: bool = True
    ) -> Result:
        """Do `work` on a kept connection; on a new one if there is none, or it turns out to be stale."""
        idle = self._idle if idle is None else idle
        idle.check_usable()
        kept = idle.take(None if repeatable else Connection.is_closed)
        if kept is not None:
            try:
                return self._work(kept, work, idle)
            except Stale as stale:
                if not repeatable and stale.meaning:
                    raise stale.meaning from None
        return self._work(self._open(), work, idle)

    def _work(self, connection: Connection, work: Callable[[Connection], Result], idle: _Idle) -> Result:
        try:
            answer = work(connection)
        except RedisError as error:
            self._judge(connection, error, idle)
            raise
        except BaseException:  # in the middle of an exchange: the next answer on this connection would be the wrong one
            connection.close()
            raise
        connection.used = True
        idle.give_back(connection)
        return answer

    def _judge(self, connection: Connection, error: RedisError, idle: _Idle) -> None:
        """Raise what the error means; return when it is a fault of ours. Keep the connection if it is sound."""
        meaning = self._explain(error)
        if meaning.sound:
            connection.used = True
            idle.give_back(connection)
        else:
            connection.close()
            self.drop_idle()
            self._idle.check_usable()  # closed by us meanwhile: say so
        if meaning.hung_up and connection.used:
            raise Stale(meaning.error) from error
        if meaning.error:
            raise meaning.error from None

    def _explain(self, error: RedisError) -> Explained:
        return explain(error, self.place)

    def _announce(self, connection: Connection) -> None:
        """Let `close` interrupt this connection, on which a thread is about to wait."""
        with self._changing:
            self._idle.check_usable()
            self._listening.add(connection)

    def _forget(self, connection: Connection) -> None:
        with self._changing:
            self._listening.discard(connection)

    def _open(self) -> Connection:
        try:
            return self._open_connection()
        except RedisError as error:
            raise self._explain(error).error or error from None
