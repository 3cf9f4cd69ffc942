"""A program of the cook-book, run as its page says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jobpool
from support.pages import run

BOOK = Path(__file__).resolve().parents[2] / "docs" / "cookbook"


class Rig:
    """A folder with one program of the book and a broker."""

    def __init__(self, folder: Path, app: str) -> None:
        self.folder, self.app = folder, app
        self.url = f"sqlite:///{folder}/jobs.db"
        shutil.copy(BOOK / app, folder)

    def run(self, *line: str, **variables: Any) -> str:
        done = run(self.folder, *line, **{"JOBPOOL_BACKEND": self.url, **variables})
        return done.stdout + done.stderr

    def pool(self, *flags: str, **variables: str) -> str:
        """Run a pool of one child until the queue is empty; its log."""
        line = ("jobpool", "--app", self.app, "--queue", "orders", "--workers", "1", "--until-empty", *flags)
        return self.run(*line, **variables)

    def enqueue(self, *jobs: tuple[str, Any]) -> list[str]:
        with jobpool.Jobs(self.url) as producer:
            return producer.enqueue_many(producer.define(name, payload).queue("orders") for name, payload in jobs)
