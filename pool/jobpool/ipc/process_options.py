"""Options that a fork server is told at its start, as JSON, and that a child is given at its birth."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Collection, Mapping
from typing import Any, Self

import msgspec
from msgspec import Struct, field

from jobpool.ipc.inheritance import Inheritance
from jobpool.ipc.scoreboard import ChildPage

ASKS_STACK = signal.SIGUSR1
"""From the master to a child: write your stack. Blocked from the fork until the child can, or it would end it."""

NO_LINES = 1000
"""A level above all: no line of a handler goes to the log."""

_OURS = re.compile(r"(JOBPOOL|JOBS)_", re.IGNORECASE)
_SECRET_NAME = re.compile(r"URL|URI|DSN|BACKEND|BROKER|STATE|KEY|SECRET|TOKEN|PASSW|SIGN|CREDENTIAL", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://|Endpoint=", re.IGNORECASE)


class ChildOptions(Struct, frozen=True):
    """Options of a child. JSON-able; the same for all children of one fork server."""

    apps: list[str] = field(default_factory=list)  # modules to import, in order
    kill_grace: float = 1.0  # seconds, >= 0, between the hard timeout and the kill
    output_cap: int = 65536  # bytes of captured output that are kept of one attempt
    max_jobs: int = 0  # jobs after which the child is recycled; 0 = never
    max_rss: int = 0  # bytes of resident memory above which a child is recycled after its job; 0 = never
    recycle_on_failure: str = "suspect"  # after which failed attempts: `suspect`, `always` or `never`
    lines_level: int = NO_LINES  # level of `logging` from which lines of handlers go to the pool's log
    mask_keys: list[str] = field(default_factory=list)  # more keys whose values are masked in these lines
    title: str = "jobpool"  # the word that process titles begin with
    preload: bool = True  # True: the app was imported before the fork. False: the child imports it itself
    sys_path: list[str] = field(default_factory=list)  # put in front of `sys.path` before anything is imported
    queue_handlers: dict[str, list[str]] = field(default_factory=dict)  # queue → its only handlers; absent = free
    enqueue_to: list[str] = field(default_factory=list)  # the only queues for handlers; empty = any. Also in the master
    result_ttl: dict[str, float] = field(default_factory=dict)  # queue → seconds that results of its jobs are kept
    allowances: dict[str, Any] = field(default_factory=dict)  # permissions of built-in handlers; {} = none


class ProgramOptions(Struct, frozen=True, kw_only=True):
    """The options of a program that the master starts; the field `options` has those of its app.

    Fields that it does not know are ignored: the master of a reload may be of another version.
    """

    environ: dict[str, str] = field(default_factory=dict)  # variables that it lacks: it was started without them

    def to_json(self) -> bytes:
        """Return it as JSON. Not by msgspec: names of files and variables need not be UTF-8."""
        return json.dumps(msgspec.to_builtins(self)).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Reverse `to_json`. Raises `ValueError` or `msgspec.ValidationError` for anything else."""
        return msgspec.convert(json.loads(data), cls)


class ForkServerConfig(ProgramOptions, frozen=True):
    """Options of a fork server. The rooms above are named by strings only, because this room may not import them.

    `app_loader` imports the app and raises what went wrong. A `ConfigurationError` is passed on in its own words.
    """

    options: ChildOptions  # for it and its children
    child_main: str  # "module:function", called in the child as `function(boot: ChildBoot) -> int`, the exit status
    app_loader: str  # "module:function", called as `function(options: ChildOptions) -> list[HandlerInfo]`
    name: str = ""  # of the pool, for the process title


class ChildBoot(Struct, frozen=True):
    """The belongings of a child at its birth: process group, signals, descriptors and standard streams are set."""

    slot: int  # its place in the pool
    child: int  # serial number, never reused in the life of a master
    work: socket.socket  # blocking; attempts come from it, and its end tells the child to leave
    channel: socket.socket  # blocking, duplex
    page: ChildPage  # its own page of the board; never released in a child
    trace_fd: int  # where the fault handler writes stacks
    output_fd: int  # writing end of the output pipe, of which descriptors 1 and 2 are copies
    options: ChildOptions  # `options.preload` False: import the app before `Ready`
    inheritance: Inheritance  # descriptors that the app's import had opened, and their fate here


def scrubbed(environ: Mapping[str, str], credentials: Collection[str] = ()) -> dict[str, str]:
    """Return `environ` without our own variables that hold a broker's URL or a key: only the master may know them.

    Variables of other names are the app's, and stay, but for those of the broker's own `credentials`.
    """
    return {name: value for name, value in environ.items() if name not in credentials and not _is_secret(name, value)}


def harmless(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without any variable that might hold a credential of a broker, which is not known yet."""
    return {name: value for name, value in scrubbed(environ).items() if not _SECRET_NAME.search(name)}


def _is_secret(name: str, value: str) -> bool:
    return bool(_OURS.match(name) and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)))
