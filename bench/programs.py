"""Each sample in a process of its own: `python -m bench.NAME '{…}'`, which answers with one line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

LIMIT = 240.0
"""Seconds after which a sample is killed: it hangs, or the machine is far too slow for its size."""


class SampleFailed(RuntimeError):
    """A program did not answer; the text has the end of what it wrote to its standard error."""


def sample(
    module: str, *, python: str = sys.executable, environment: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Run `bench.<module>` with this spec, in this Python, with these variables; its answer. Raises `SampleFailed`."""
    command = [python, "-m", f"bench.{module}", json.dumps(spec)]
    variables = clean_environment(**environment or {})
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            answer, errors = process.communicate(timeout=LIMIT)
        except BaseException:
            process.kill()  # a pool's fork server and children end with it
            raise
    if process.returncode:
        raise SampleFailed(f"bench.{module} ended with status {process.returncode}:\n{errors[-2000:]}")
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def answer(function: Callable[..., dict[str, Any]]) -> None:
    """Run such a program."""
    print(json.dumps(function(**json.loads(sys.argv[1]))))


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without variables that would configure a pool."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "JOBS_"))}
    return kept | more
