"""A server that a test starts, stops, kills and freezes; it never outlives the process that started it.

A server listens on loopback, on a port that was free, and keeps all that it writes in one folder. Three things are
less simple than they look, and are dealt with here once:

* The kernel kills the server when whoever started it dies (`setpriv --pdeathsig`); but by "whoever" it means the
  *thread*. One thread that lives as long as the process therefore starts them all.
* A port below the range from which the kernel takes ports for outgoing connections. From within it, a client that
  tries again and again to reach a stopped server can be given that very port, connect to itself, and keep the server
  from coming back.
* A fork of this process runs the same exit handlers; only the process that started a server stops it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import Any, Self

import psutil

from support.waiting import wait_until

LIMIT = 30.0
"""Seconds that a server has to start, to stop, or to die: far above what any of them takes."""

TRIES = 5
"""How many ports are tried before a start fails."""


class ServerFailed(Exception):
    """A server did not start or did not stop; the text ends with the last lines of its log."""


class Server(ABC):
    """One server, started by `start`; a context manager that closes it.

    Attributes:
        folder: Where its log is, and its data unless it says otherwise.
        host: Always 127.0.0.1.
        port: Where it listens; the same after `restart`.
        log: The file that takes its output.
    """

    name = "server"

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.host = "127.0.0.1"
        self.port = 0
        self.log = self.folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._user: str | None = None
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        """Of the running server. Raises `ServerFailed` when it does not run."""
        if self._process is None:
            raise ServerFailed(f"{self.name} on port {self.port} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped since; a frozen one runs."""
        return self._process is not None

    def start(self) -> None:
        """Start it and wait until it answers. The first start chooses the port, later ones keep it.

        Raises `ServerFailed` when it does not answer within `LIMIT` seconds.
        """
        if self.running:
            return
        if self.port:
            self._start_on(self.port)
        else:
            self._start_on_a_free_port()

    def stop(self) -> None:
        """Ask it to end, and wait for that; its data stays. Nothing when it does not run."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(self._stop_signal())
        self._ended("stop")

    def kill(self) -> None:
        """SIGKILL to all its processes, and wait for their end; its data stays. Nothing when it does not run."""
        if self._process is None:
            return
        family = self._freeze()
        for member in family:
            _signal(member, signal.SIGKILL)
        self._ended("die")
        wait_until(lambda: not any(map(_alive, family)), LIMIT, f"the end of {family}")

    def restart(self) -> None:
        """`stop` and `start`, on the same port, with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP to all its processes: connections stay open, and nothing answers. Returns when all stand still."""
        self._freeze()

    def resume(self) -> None:
        """SIGCONT to all its processes."""
        for member in self._family():
            _signal(member, signal.SIGCONT)

    def close(self) -> None:
        """Stop it for good, and remove what it keeps outside `folder`. Safe to call twice."""
        _started.discard(self)
        try:
            self.stop()
        finally:
            self._clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what a kind of server fills in ------------------------------------------------------------------

    @abstractmethod
    def _command(self, port: int) -> Sequence[str]:
        """What to run."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether *this* process, not another one that got hold of the port, serves clients now."""

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGTERM

    def _clear(self) -> None:  # noqa: B027 - most kinds keep nothing elsewhere
        """Remove what lies outside `folder`."""

    def _gone(self, pid: int) -> None:  # noqa: B027 - most kinds leave nothing behind
        """Tidy up behind a process that has just ended."""

    # --- starting and ending -----------------------------------------------------------------------------

    def _start_on_a_free_port(self) -> None:
        for left in reversed(range(TRIES)):
            port = free_port()
            try:
                self._start_on(port)
            except ServerFailed as error:
                if not left or "in use" not in str(error):
                    raise
            else:
                self.port = port
                return

    def _start_on(self, port: int) -> None:
        began = self.log.stat().st_size if self.log.exists() else 0
        self._process = launch(self._command(port), self.log, self._environment(), self._user)
        _started.add(self)
        try:
            wait_until(lambda: self._over() or self._answers(), LIMIT)
            if self._over():
                raise ServerFailed(f"{self.name} ended instead of starting: {self._said(began)}")
        except AssertionError:
            raise ServerFailed(f"{self.name} does not answer on port {port}: {self._said(began)}") from None
        except BaseException:
            self.kill()
            raise

    def _over(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _said(self, began: int) -> str:
        """The end of its log, from byte `began` on; whatever of it still runs is killed first."""
        self.kill()
        return self.log.read_bytes()[began:].decode(errors="replace").strip()[-2000:]

    def _ended(self, what: str) -> None:
        """Wait until the process that was told to end has ended."""
        assert self._process is not None
        try:
            self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ServerFailed(f"{self.name} on port {self.port} did not {what} within {LIMIT} s; {self.log}") from None
        finally:
            self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        pid, self._process = self._process.pid, None
        self._gone(pid)

    # --- all its processes -------------------------------------------------------------------------------

    def _freeze(self) -> list[psutil.Process]:
        """Stop the first process, so that it starts no more; then the others. All of them, first one first."""
        _hold(self._family()[:1])
        family = self._family()
        _hold(family)
        return family

    def _family(self) -> list[psutil.Process]:
        """Itself and its children; none when it has ended by itself and was collected."""
        try:
            first = psutil.Process(self.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _hold(members: list[psutil.Process]) -> None:
    for member in members:
        _signal(member, signal.SIGSTOP)
    still = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    wait_until(lambda: all(_status(member) in still for member in members), LIMIT, f"{members} to stand still")


def _signal(member: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        member.send_signal(number)


def _alive(member: psutil.Process) -> bool:
    """A zombie is dead: the first process of a container may never collect it."""
    return _status(member) != psutil.STATUS_ZOMBIE


def _status(member: psutil.Process) -> str:
    """One that is gone counts as a zombie."""
    try:
        return str(member.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


# --- launching ---------------------------------------------------------------------------------------------


def launch(
    command: Sequence[str], log: Path, environment: Mapping[str, str], user: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that dies with this one; its output is appended to `log`.

    `user` as in `as_user`. Raises `ServerFailed` where `setpriv` (util-linux) is missing.
    """
    # setpriv sets the signal last: a change of credentials would clear it.
    bound = [_setpriv(), "--pdeathsig", "KILL", *_credentials(user), "--", *command]
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
    return [_setpriv(), *_credentials(user), "--", *command] if user else list(command)


def _credentials(user: str | None) -> list[str]:
    return ["--reuid", user, "--regid", user, "--clear-groups"] if user else []


def _setpriv() -> str:
    found = shutil.which("setpriv")
    if found is None:
        raise ServerFailed("there is no setpriv on this machine; install util-linux")
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


# --- ports -------------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port on loopback that nothing listens on now.

    It is not reserved: who wants it listens on it, and asks for another one when that fails.
    """
    for _ in range(1000):
        port = SystemRandom().randrange(10_000, _first_outgoing_port())
        if _is_free(port):
            return port
    raise ServerFailed("no port is free on 127.0.0.1")


def _first_outgoing_port() -> int:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return first if first > 12_000 else 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As servers do: what is left of a closed connection does not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


# --- the end of this process -------------------------------------------------------------------------------

_started: set[Server] = set()
_owner = os.getpid()


@atexit.register
def close_all() -> None:
    """Close every server that this process has started."""
    if os.getpid() == _owner:
        for server in list(_started):
            with contextlib.suppress(ServerFailed):
                server.close()
