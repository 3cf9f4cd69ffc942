"""Starting processes that never outlive the one that started them.

The kernel kills a server when whoever started it dies (`setpriv --pdeathsig`); but by "whoever" it means the *thread*.
One thread that lives as long as the process therefore starts them all.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

from support.servers.errors import ServerFailed


def launch(
    command: Sequence[str], log: Path, environment: Mapping[str, str], user: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that dies with this one; its output is appended to `log`.

    `user` as in `as_user`. Raises `ServerFailed` where `setpriv` (util-linux) is missing.
    """
    # setpriv sets the signal last: a change of credentials would clear it.
    bound = [setpriv(), "--pdeathsig", "KILL", *_credentials(user), "--", *command]
    with log.open("ab") as output:
        return _launcher().call(
            # In "/", which every user may pass.
            bound,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd="/",
        )


def as_user(command: Sequence[str], user: str | None) -> list[str]:
    """`command`, run by `user`; None = by who we are."""
    return [setpriv(), *_credentials(user), "--", *command] if user else list(command)


def _credentials(user: str | None) -> list[str]:
    return ["--reuid", user, "--regid", user, "--clear-groups"] if user else []


def setpriv() -> str:
    """The program that changes what a process may do. Raises `ServerFailed`: it is missing."""
    found = shutil.which("setpriv")
    if found is None:
        raise ServerFailed("there is no setpriv on this machine; install util-linux")
    return found


def find_program(name: str) -> str:
    """Where it is. Raises `ServerFailed`: it is missing.

    Debian and Red Hat keep Postgres's programs out of PATH, a folder a version, of which the newest is taken; Debian
    keeps others where only root's PATH leads.
    """
    versions = [path for pattern in ("lib/postgresql/*/bin", "pgsql-*/bin") for path in Path("/usr").glob(pattern)]
    versions.sort(key=lambda path: float(path.parent.name.removeprefix("pgsql-")), reverse=True)
    places = [*map(str, versions), os.environ.get("PATH", os.defpath), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise ServerFailed(f"there is no {name} on this machine; scripts/services up installs what tests need")
    return found


class _Launcher:
    """The one thread that starts processes, and lives as long as this process."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Future[Any], Sequence[str], dict[str, Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="launcher of servers", daemon=True).start()

    def call(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((answer, command, options))
        return answer.result()

    def _run(self) -> None:
        while True:
            answer, command, options = self._orders.get()
            try:
                answer.set_result(subprocess.Popen(command, **options))
            except BaseException as error:  # noqa: BLE001 - raised by the caller's result()
                answer.set_exception(error)


@cache
def _launcher() -> _Launcher:
    return _Launcher()
