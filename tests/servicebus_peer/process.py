"""A peer in a process of its own, which ends with the one that started it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
        return connection_string(self.host, self.port, self._settings.key_name, self._settings.key)

    def _command(self, port: int) -> Sequence[str]:
        self._began = self.log.stat().st_size if self.log.exists() else 0
        settings = self._settings
        words = [sys.executable, "-m", "servicebus_peer", "--port", str(port)]
        words += ["--control-port", str(settings.control_port), "--key-name", settings.key_name, "--key", settings.key]
        words += [] if settings.auth else ["--no-auth"]
        words += ["--auto-create"] if settings.auto_create else []
        words += ["--standing-clock", repr(settings.standing_clock)] if settings.standing_clock is not None else []
        pairs = (f"{name}={json.dumps(value)}" for name, value in asdict(settings.defaults).items())
        return [*words, "--defaults", ",".join(pairs)]

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
