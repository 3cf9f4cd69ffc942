"""Faults on the broker: its users locked out, or itself restarted by the user's command.

The pools log in as a user of the run's own. Nothing else is touched: no user, role or right that was there before. The
user is made if the one of the broker's URL may make others; the run's own looks at the broker use the URL's.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl

from jobpool.broker.opening import scheme_of
from jobpool.errors import JobpoolError
from jobpool.message.printable import headline
from jobpool_torture.network import Route, find_route
from jobpool_torture.schedule import Fault

if TYPE_CHECKING:
    from psycopg import Connection

CALL_LIMIT_S = 2
RETRY_PAUSE_S = 0.2
_REASONS = {
    "servicebus": "its keys belong to the whole namespace",
    "rediss": "users are looked after without TLS",
    "redis+unix": "users are looked after by TCP",
}

STOP_COMMAND_LIMIT_S = 10.0
"""Seconds that a command has which still runs when the torture is over: a broker shall not be left half-way."""

TERM_LIMIT_S = 2.0  # seconds from the TERM that it gets then to the KILL


class AccessFailed(JobpoolError):
    """The broker does not answer, or does not allow it."""


class Access(ABC):
    """A user of a random name on one server, and its rights while faults overlap: all of them, once the last is over.

    `orders` to the server are texts, into which names and a password are put. `url`: for the pools.
    """

    options: ClassVar[tuple[str, ...]]  # options of a URL that name a user as well: where one is there, none is made
    allow: ClassVar[tuple[str, ...]]  # orders that make it, or give it back all its rights
    denials: ClassVar[Mapping[str, tuple[str, ...]]]  # ways to lock it out, in a few words each, and their orders
    delete: ClassVar[tuple[str, ...]]  # orders that delete it, if it is there

    def __init__(self, url: str) -> None:
        """Make the user. Blocks for some round trips. Raises `AccessFailed`: it cannot be had, and none is left."""
        self.name = f"torture-{secrets.token_hex(4)}"
        self._password = secrets.token_hex(16)
        scheme, _, rest = url.partition("://")
        place, slash, path = rest.partition("/")
        self._own = url
        self.url = f"{scheme}://{self.name}:{self._password}@{place.rpartition('@')[2]}{slash}{path}"
        self._active: dict[int, str] = {}
        self._is_wrong = False
        self._retry_at = self._bad_at = 0.0
        try:
            self.obey(self.allow)
            self.check()
        except AccessFailed:
            self.remove()
            raise

    @abstractmethod
    def obey(self, orders: Iterable[str]) -> None:
        """Give the server these orders, as the URL's user. Blocks for some round trips; raises `AccessFailed`."""

    @abstractmethod
    def check(self) -> None:
        """Log in as this user. Blocks and raises as `obey`."""

    def begin(self, fault: Fault) -> str:
        """Lock it out; return how. Raises `AccessFailed`: nothing was done."""
        way = list(self.denials)[fault.pick % len(self.denials)]
        self._bad_at = time.monotonic()
        self.obey(self.denials[way])
        self._active[fault.number] = way
        return f"user {self.name}: {way}"

    def end(self, number: int) -> str:
        """End that fault; the others go on."""
        self._active.pop(number, None)
        self.forget()
        self.mend()
        return "a fault on the user is over" + (", and undone as soon as the broker answers" if self._is_wrong else "")

    def forget(self) -> None:
        """Forget the user of a broker that was started again: `mend` makes it anew."""
        self._is_wrong = True
        self._retry_at = 0.0

    def mend(self) -> None:
        """Let the broker know what holds now, where it does not; call it again and again."""
        now = time.monotonic()
        if not self._is_wrong or now < self._retry_at:
            return
        self._bad_at, self._retry_at = now, now + RETRY_PAUSE_S
        with suppress(AccessFailed):
            self.obey(self.allow)
            for way in self._active.values():
                self.obey(self.denials[way])
            self._is_wrong = False

    @property
    def is_whole(self) -> bool:
        """Return whether the user may do everything again."""
        return not (self._active or self._is_wrong)

    def was_denied_since(self, moment: float) -> bool:
        """Return whether it was locked out at or after `moment` (CLOCK_MONOTONIC), as far as is known."""
        return not self.is_whole or self._bad_at >= moment

    def remove(self) -> str:
        """Delete the user; return "" or why it is still there. Safe to call twice."""
        try:
            self.obey(self.delete)
        except AccessFailed as error:
            return f"the user {self.name} was not deleted: {error}"
        return ""


def make_access(url: str) -> Access | str:
    """Make a user on the broker of this URL; or return why there can be none, as half a sentence."""
    scheme = scheme_of(url)
    users: dict[str, type[Access]] = {"redis": RedisUser, "postgresql": PostgresUser, "postgres": PostgresUser}
    user = users.get(scheme)
    if user is None:
        several = "a user would belong to one of several servers" if "+" in scheme else ""
        return _REASONS.get(scheme, several or f"{scheme}:// has no users that could be locked out")
    if not isinstance(route := find_route(url), Route):
        return route
    if named := [name for name in user.options if name in dict(parse_qsl(url.partition("?")[2]))]:
        return f"the URL's option {named[0]} names a user: write it as user:password@host"
    try:
        return user(url)
    except AccessFailed as error:
        return f"the URL's user can make no other: {error}"


class RedisUser(Access):
    """A user of an ACL, with what docs/redis.md says that a pool needs."""

    options = ("username", "password")
    allow = (
        "ACL SETUSER {name} reset on >{password} ~* &* +@all -@admin -@dangerous"
        " +info +role +cluster|slots +client|id +client|unblock +config|get",
    )
    denials: ClassVar = {
        "off, its connections closed": ("ACL SETUSER {name} off", "CLIENT KILL USER {name}"),
        "another password, its connections closed": (
            "ACL SETUSER {name} resetpass >withdrawn",
            "CLIENT KILL USER {name}",
        ),
        "no commands": ("ACL SETUSER {name} -@all",),
        "no keys": ("ACL SETUSER {name} resetkeys",),
    }
    delete = ("ACL DELUSER {name}",)

    def obey(self, orders: Iterable[str], *, url: str = "") -> None:
        from redis import Redis, RedisError

        where = (url or self._own).partition("?")[0]
        try:
            with Redis.from_url(where, socket_timeout=CALL_LIMIT_S, socket_connect_timeout=CALL_LIMIT_S) as client:
                for order in orders:
                    client.execute_command(*order.format(name=self.name, password=self._password).split())
        except RedisError as error:
            raise _refusal(error) from error

    def check(self) -> None:
        self.obey(["PING"], url=self.url)


class PostgresUser(Access):
    """A role that is a member of the URL's, and so may do what that one may."""

    options = ("user", "password", "passfile", "service")
    allow = (
        "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {text})"
        " THEN CREATE ROLE {name}; END IF; END $$",
        "ALTER ROLE {name} LOGIN PASSWORD {password}",
        "GRANT {own} TO {name}",
    )
    _hang_up = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = {text}"
    denials: ClassVar = {
        "no login, its connections closed": ("ALTER ROLE {name} NOLOGIN", _hang_up),
        "another password, its connections closed": ("ALTER ROLE {name} PASSWORD 'withdrawn'", _hang_up),
        "no rights": ("REVOKE {own} FROM {name}",),
    }
    delete = (
        "DO $$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = {text})"
        " THEN REASSIGN OWNED BY {name} TO {own}; DROP OWNED BY {name}; DROP ROLE {name}; END IF; END $$",
    )

    def obey(self, orders: Iterable[str]) -> None:
        from psycopg import sql

        with self._connected(self._own) as connection:
            parts = {"name": sql.Identifier(self.name), "own": sql.Identifier(connection.info.user)}
            values = {"text": sql.Literal(self.name), "password": sql.Literal(self._password)}
            for order in orders:
                connection.execute(sql.SQL(order).format(**parts, **values))

    def check(self) -> None:
        """Check, before any pool runs, that it may be done: end its connection as a denial does it."""
        with self._connected(self.url):
            self.obey([self._hang_up])

    @contextmanager
    def _connected(self, url: str) -> Iterator[Connection[Any]]:
        import psycopg

        from jobpool_backends.postgres.connection import read_address

        limits: dict[str, Any] = {"options": f"-c statement_timeout={CALL_LIMIT_S}s"}
        try:
            with psycopg.connect(**limits | read_address(url).parameters, autocommit=True) as connection:
                yield connection
        except psycopg.Error as error:
            raise _refusal(error) from error


def _refusal(error: Exception) -> AccessFailed:
    return AccessFailed(headline(str(error)) or type(error).__name__)


class BrokerRestart:
    """The user's command that restarts the broker: run by the shell, one at a time, and waited for.

    Args:
        command: For the shell; "" = there is none.
        log: A file to which its output is appended.
    """

    def __init__(self, command: str, log: Path) -> None:
        self.command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._process is not None

    def begin(self) -> int:
        """Run it; its pid. It must not be under way. Raises OSError."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, shell=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        return self._process.pid

    def look(self) -> int | None:
        """Return its exit status, once, when it has ended since the last look; else None."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        self._process = None
        return status

    def close(self) -> None:
        """Wait for it; end it, and what it has started in its process group, if that takes too long."""
        if self._process is None:
            return
        for limit, number in ((STOP_COMMAND_LIMIT_S, signal.SIGTERM), (TERM_LIMIT_S, signal.SIGKILL)):
            try:
                self._process.wait(limit)
                break
            except subprocess.TimeoutExpired:  # it is not collected: the group is still its own
                os.killpg(self._process.pid, number)
        self._process.wait()
        self.look()
