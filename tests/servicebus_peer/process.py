"""A peer in a process of its own, which ends with the one that started it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.servers.process import Server

from servicebus_peer.control import Control
from servicebus_peer.settings import Settings, connection_string

TESTS = Path(__file__).parents[1]


class PeerProcess(Server):
    """Running once it is made; `stop`, `start`, `kill`, `pause` and more as every server of the tests has them.

    Args:
        folder: For its log; made if it is missing.
        settings: Fields of `Settings`.

    Attributes:
        control: Known while it runs; another one after each start.
    """

    name = "servicebus"

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder)
        self._settings = Settings(**settings)
        self._began = 0
        self.port = self._settings.port
        self.control = Control(self.host, 0)
        self.start()

    @property
    def url(self) -> str:
        return f"sb://{self.host}:{self.port}"

    @property
    def connection_string(self) -> str:
        return connection_string(self.host, self.port)

    def _command(self, port: int) -> Sequence[str]:
        self._began = self.log.stat().st_size if self.log.exists() else 0
        words = [sys.executable, "-m", "servicebus_peer", "--port", str(port)]
        words += [] if self._settings.auth else ["--no-auth"]
        return words + (["--auto-create"] if self._settings.auto_create else [])

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(TESTS)}

    def _answers(self) -> bool:
        """It says so itself, in a line of its log."""
        said = self.log.read_bytes()[self._began :]
        for line in said.splitlines(keepends=True):
            if line.startswith(b'{"port"') and line.endswith(b"\n"):
                self.control = Control(self.host, json.loads(line)["control_port"])
                return True
        return False
