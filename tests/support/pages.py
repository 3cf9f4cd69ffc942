"""What a page says, and what it says to type: typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROGRAMS = {"python": sys.executable, "jobpool": str(Path(sys.executable).with_name("jobpool"))}
SETTINGS = ("JOBPOOL_", "JOBS_", "DJANGO_", "OTEL_", "SENTRY_", "SHOP_")
LIMIT = 120.0
"""Seconds for one command; on a busy machine they take a tenth of it."""


def page(name: str) -> str:
    """The text of docs/NAME.md."""
    return (DOCS / f"{name}.md").read_text("utf-8")


def section(text: str, heading: str) -> str:
    """The part below this heading, up to the next one of its kind."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str = "python") -> list[str]:
    """The blocks of code in this language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(
    folder: Path, program: str, *words: str, fails: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run one of `PROGRAMS` in this folder, with no settings of the machine; it must succeed, or fail if told so."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    done = subprocess.run(
        [PROGRAMS[program], *words],
        cwd=folder,
        env={**own, "JOBPOOL_RUNTIME_DIR": str(folder / "run"), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done
