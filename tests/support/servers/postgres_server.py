"""A Postgres of the tests' own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.servers.process import Server, ServerFailed, as_user, find_program

DURABLE = {"fsync": "on", "full_page_writes": "on"}
"""Configuration with which a commit waits for the disk, as in earnest. Without it a commit still survives `kill`,
which takes the server away and not the machine."""

_QUICK = {"fsync": "off", "full_page_writes": "off"}


class PostgresServer(Server):
    """A running Postgres, on a free port of 127.0.0.1; who connects is believed to be who they say.

    The server refuses to run as root; then the user `postgres` runs it, and where that user cannot reach `folder`
    the data goes to a folder of its own, which `close` removes.

    Args:
        folder: For its log and its data; made if it is missing.
        config: Lines of postgresql.conf, over what is set here; `DURABLE` for the speed of a real disk.

    Attributes:
        data: The data directory.
    """

    name = "postgres"

    def __init__(self, folder: Path, *, config: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        if os.geteuid() == 0:
            self._user = "postgres"
        self._elsewhere: Path | None = None
        self.data = self._place() / "data"
        try:
            self._initialise(dict(config or {}))
            self.start()
        except BaseException:
            self._clear()
            raise

    def url(self, dbname: str = "postgres") -> str:
        """Of one of its databases, for the superuser `postgres`."""
        return f"postgresql://postgres@{self.host}:{self.port}/{dbname}"

    def _place(self) -> Path:
        if self._user is None or _can_reach(self.folder, pwd.getpwnam(self._user).pw_uid):
            return self.folder
        self._elsewhere = Path(tempfile.mkdtemp(prefix="jobpool-postgres-"))
        self._elsewhere.chmod(0o755)
        return self._elsewhere

    def _initialise(self, config: dict[str, str]) -> None:
        self.data.mkdir(mode=0o700)
        if self._user:
            shutil.chown(self.data, self._user, self._user)
        options = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8"]
        done = subprocess.run(
            as_user([find_program("initdb"), "-D", str(self.data), *options], self._user),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        if done.returncode:
            raise ServerFailed(f"initdb failed: {done.stderr.strip()}")
        lines = {
            "listen_addresses": self.host,
            "unix_socket_directories": "",
            "max_connections": "200",
            "dynamic_shared_memory_type": "mmap",  # in the data directory: nothing is left behind by a kill
            **_QUICK,
            **config,
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{key} = '{value}'\n" for key, value in lines.items())

    def _command(self, port: int) -> list[str]:
        return [find_program("postgres"), "-D", str(self.data), "-p", str(port)]

    def _answers(self) -> bool:
        """As its own file says; nobody else's server can be taken for it."""
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return lines[0] == str(self.pid) and len(lines) > 7 and lines[7].strip() == "ready"

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGINT  # "fast": SIGTERM would wait for the clients to leave

    def _clear(self) -> None:
        if self._elsewhere:
            shutil.rmtree(self._elsewhere, ignore_errors=True)


def _can_reach(folder: Path, uid: int) -> bool:
    return all(_may_pass(part.stat(), uid) for part in (folder.resolve(), *folder.resolve().parents))


def _may_pass(found: os.stat_result, uid: int) -> bool:
    return bool(found.st_mode & (stat.S_IXUSR if found.st_uid == uid else stat.S_IXOTH))
