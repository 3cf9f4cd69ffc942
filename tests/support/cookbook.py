"""A program of the cook-book, run as its page says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jobpool

BOOK = Path(__file__).resolve().parents[2] / "docs" / "cookbook"
LIMIT = 60.0


class Rig:
    """A folder with one program of the book and a broker."""

    def __init__(self, folder: Path, app: str) -> None:
        self.folder, self.app = folder, app
        self.url = f"sqlite:///{folder}/jobs.db"
        shutil.copy(BOOK / app, folder)

    def run(self, *line: str, **variables: str) -> str:
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JOBPOOL_", "OTEL_", "SENTRY_", "SHOP_"))
        }
        more = {"JOBPOOL_RUNTIME_DIR": f"{self.folder}/run", "JOBPOOL_BACKEND": self.url, **variables}
        done = subprocess.run(
            line, cwd=self.folder, env=own | more, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def pool(self, *flags: str, **variables: str) -> str:
        """Run a pool of one child until the queue is empty; its log."""
        jobpool_command = str(Path(sys.executable).with_name("jobpool"))
        line = (jobpool_command, "--app", self.app, "--queue", "orders", "--workers", "1", "--until-empty", *flags)
        return self.run(*line, **variables)

    def enqueue(self, *jobs: tuple[str, Any]) -> list[str]:
        with jobpool.Jobs(self.url) as producer:
            return producer.enqueue_many(producer.define(name, payload).queue("orders") for name, payload in jobs)
