"""A server that a test starts, stops, kills and freezes; it never outlives the process that started it.

A server listens on loopback, on a port that was free, and keeps all that it writes in one folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from support.servers.errors import ServerFailed as ServerFailed
from support.servers.family import family_of, freeze, is_alive, send
from support.servers.launching import as_user as as_user
from support.servers.launching import find_program as find_program
from support.servers.launching import launch
from support.servers.ports import free_port as free_port
from support.waiting import wait_ended, wait_until

LIMIT = 30.0
"""Seconds that a server has to start, to stop, or to die: far above what any of them takes."""

TRIES = 5
"""How many ports are tried before a start fails."""


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
        family = [] if self._over() else freeze(self.pid)
        for member in family:
            send(member, signal.SIGKILL)
        self._ended("die")
        wait_until(lambda: not any(map(is_alive, family)), LIMIT, f"the end of {family}")

    def restart(self) -> None:
        """`stop` and `start`, on the same port, with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP to all its processes: connections stay open, and nothing answers. Returns when all stand still."""
        if not self._over():
            freeze(self.pid)

    def resume(self) -> None:
        """SIGCONT to all its processes."""
        for member in [] if self._over() else family_of(self.pid):
            send(member, signal.SIGCONT)

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
        """Whether it has ended by itself, or was never started: its pid may be another process's by now."""
        return self._process is None or self._process.poll() is not None

    def _said(self, began: int) -> str:
        """The end of its log, from byte `began` on; whatever of it still runs is killed first."""
        self.kill()
        return self.log.read_bytes()[began:].decode(errors="replace").strip()[-2000:]

    def _ended(self, what: str) -> None:
        """Wait until the process that was told to end has ended."""
        assert self._process is not None
        try:
            wait_ended(self._process, LIMIT)
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


_started: set[Server] = set()
_owner = os.getpid()


@atexit.register
def close_all() -> None:
    """Close every server that this process has started. In a fork of it, which runs the same handlers, nothing."""
    if os.getpid() == _owner:
        for server in list(_started):
            with contextlib.suppress(ServerFailed):
                server.close()
