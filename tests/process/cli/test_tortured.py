"""The command whose pool runs under the witness: `jobpool` in every other way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
from jobpool_torture.ledger import Ledger

APP = """
import jobpool

@jobpool.handler
def work(ctx):
    pass
"""


def tortured(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "JOBS_"))}
    return subprocess.run(
        [sys.executable, "-m", "jobpool_torture.pool_process", *words],
        cwd=folder,
        env=kept | {"JOBPOOL_RUNTIME_DIR": str(folder / "run")} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_pool_under_the_witness(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    backend = open_backend(f"sqlite:///{tmp_path}/jobpool.db")
    ident = backend.enqueue(JobDefinition("work"))
    backend.close()

    done = tortured(tmp_path, "-A", "app", "--until-empty", JOBPOOL_LEDGER="ledger", JOBPOOL_NAME="mine")

    assert done.returncode == 0, done.stderr
    lines = Ledger(tmp_path / "ledger").read()
    assert [(line.event, line.id, line.pool, line.answer) for line in lines] == [
        ("fetched", ident, "mine", ""),
        ("asked", ident, "mine", ""),
        ("settled", ident, "mine", "ok"),
    ]


def test_without_a_ledger_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = tortured(tmp_path, "-A", "app", "--until-empty")

    assert done.returncode == 2
    assert "set JOBPOOL_LEDGER to the file that the witness writes" in done.stderr
    assert "Traceback" not in done.stderr
