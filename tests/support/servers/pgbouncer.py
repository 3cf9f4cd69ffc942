"""A real pgbouncer in front of a Postgres server, which lends sessions for one transaction at a time."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from support.servers.process import Server, find_program

_FILE = """\
[databases]
* = {server}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
{settings}
"""

_SETTINGS = {
    "pool_mode": "transaction",
    "default_pool_size": "4",
    "max_client_conn": "200",
    "server_login_retry": "0.1",
}


class Pgbouncer(Server):
    """A running pgbouncer, on a free port of 127.0.0.1; who connects is taken for the user in `server`.

    It refuses to run as root; then the user `postgres` runs it.

    Args:
        folder: For its log; made if it is missing.
        server: URL of the Postgres behind it.
        config: Settings of the section [pgbouncer], over those here.
    """

    name = "pgbouncer"

    def __init__(self, folder: Path, server: str, *, config: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        if os.geteuid() == 0:
            self._user = "postgres"
        self._server = {name: str(value) for name, value in conninfo_to_dict(server).items()}
        self._settings = {**_SETTINGS, **(config or {})}
        self._place = Path(tempfile.mkdtemp(prefix="jobpool-pgbouncer-"))  # where the other user may read
        self._place.chmod(0o755)
        try:
            self.start()
        except BaseException:
            self._clear()
            raise

    def url(self, query: str = "") -> str:
        """Its address, for the database in the URL of the server behind it."""
        address = f"postgresql://jobpool@{self.host}:{self.port}/{self._server.get('dbname', 'postgres')}"
        return f"{address}?{query}" if query else address

    def _command(self, port: int) -> list[str]:
        file = self._place / "pgbouncer.ini"
        file.write_text(
            _FILE.format(
                server=_pairs(self._server, " ", ("host", "port", "user", "password")),
                host=self.host,
                port=port,
                settings=_pairs(self._settings, "\n", self._settings),
            )
        )
        self._asked = port
        return [find_program("pgbouncer"), str(file)]

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.host, self._asked), timeout=1.0).close()
        except OSError:
            return False
        return not self._over()

    def _clear(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)


def _pairs(values: Mapping[str, str], between: str, names: Mapping[str, str] | tuple[str, ...]) -> str:
    return between.join(f"{name}={values[name]}" for name in names if name in values)
