"""Options that a fork server is told at its start, and a child is given at its birth.

The master writes a `ForkServerConfig` as JSON; the fork server reads it, and builds one `ChildBoot` a child. The room
`child` is named by strings only ("module:function"), because this room may not import it.
"""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jobpool.ipc.scoreboard import ChildPage

ASKS_STACK = signal.SIGUSR1
"""From the master to a child: write your stack. It is blocked from the fork until the child can: unheard, it would end
it."""

_OURS = re.compile(r"(JOBPOOL|JOBS)_", re.IGNORECASE)

_SECRET_NAME = re.compile(r"URL|URI|DSN|BACKEND|BROKER|STATE|KEY|SECRET|TOKEN|PASSW|SIGN|CREDENTIAL", re.IGNORECASE)

_SECRET_VALUE = re.compile(r"://|Endpoint=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """Options of a child. JSON-able; the same for all children of one fork server.

    Attributes:
        apps: Modules to import, in order.
        kill_grace: Seconds, >= 0, between the hard timeout and the kill.
        output_cap: Bytes of captured output that are kept of one attempt.
        max_jobs: The child is recycled after so many; 0 = never.
        max_jobs_jitter: Fraction, 0 to 1, by which `max_jobs` is drawn apart, so that children do not leave together.
        max_rss: Bytes of resident memory above which a child is recycled after its job; 0 = never.
        recycle_on_failure: After which failed attempts a child is recycled: `suspect`, `always` or `never`.
        max_leaked_fds: A child that has so many more descriptors than at its start is recycled.
        title: The word that process titles begin with.
        preload: True: the app was imported before the fork. False: the child imports it itself, after the fork.
        sys_path: Put in front of `sys.path` by the fork server, before anything of the app is imported.
        queue_handlers: Queue to the only handlers it may run; a queue that is absent is free.
        enqueue_to: The only queues that handlers may enqueue to; empty = any. The master enforces it, too.
        allowances: What the built-in handlers may do: arguments of `jobpool.allowances.Allowances`; {} = nothing.
    """

    apps: list[str] = field(default_factory=list)
    kill_grace: float = 1.0
    output_cap: int = 65536
    max_jobs: int = 0
    max_jobs_jitter: float = 0.1
    max_rss: int = 0
    recycle_on_failure: str = "suspect"
    max_leaked_fds: int = 64
    title: str = "jobpool"
    preload: bool = True
    sys_path: list[str] = field(default_factory=list)
    queue_handlers: dict[str, list[str]] = field(default_factory=dict)
    enqueue_to: list[str] = field(default_factory=list)
    allowances: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """As UTF-8 JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> ChildOptions:
        """The reverse of `to_json`. Raises `ValueError` or `TypeError` for anything else."""
        return cls(**json.loads(data))


@dataclass(frozen=True, slots=True)
class ForkServerConfig:
    """Options of a fork server.

    Attributes:
        options: For it and its children.
        child_main: "module:function", called in the child as `function(boot: ChildBoot) -> int`, the exit status.
        app_loader: "module:function", called as `function(options: ChildOptions) -> list[HandlerInfo]`; imports the
            app and raises what went wrong. A `ConfigurationError` is passed on in its own words.
        name: Of the pool, for the process title.
    """

    options: ChildOptions
    child_main: str
    app_loader: str
    name: str = ""

    def to_json(self) -> bytes:
        """As UTF-8 JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> ForkServerConfig:
        """The reverse of `to_json`. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        fields: dict[str, Any] = json.loads(data)
        return cls(options=ChildOptions(**fields.pop("options")), **fields)


@dataclass(frozen=True, slots=True)
class ChildBoot:
    """The belongings of a child at its birth.

    Its process group, signals, descriptors, standard streams and fault handler are set when it gets this.

    Attributes:
        slot: Its place in the pool.
        child: Serial number, never reused in the life of a master.
        work: Blocking; `Run` comes from it, and its end tells the child to leave.
        channel: Blocking, duplex.
        page: Its own page of the board. Never release it in a child.
        trace_fd: Where the fault handler writes stacks.
        output_fd: Writing end of the output pipe, of which descriptors 1 and 2 are copies.
        options: `options.preload` False: import the app before `Ready`.
    """

    slot: int
    child: int
    work: socket.socket
    channel: socket.socket
    page: ChildPage
    trace_fd: int
    output_fd: int
    options: ChildOptions


def scrubbed(environ: Mapping[str, str], credentials: Collection[str] = ()) -> dict[str, str]:
    """`environ` without what only the master may know: its own variables that hold a broker's URL or a key.

    Variables of other names are the app's, and stay, but for those of the broker's own `credentials`.
    """
    return {name: value for name, value in environ.items() if name not in credentials and not _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    return bool(_OURS.match(name) and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)))
