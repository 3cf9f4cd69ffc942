"""Compresses the log files of a folder by a program, one job a file.

    python compress.py /var/log/shop
    jobpool --app compress.py --queue archive --allowed-shell-commands gzip

What fails is tried twice again, and each failure is logged.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import jobpool

log = logging.getLogger("compress")


def tell(result: jobpool.ExecutionResult) -> None:
    if not result.success:
        log.warning("not compressed: %s", result.error)


jobpool.builtin("shell", max_retries=2, timeout=600, after_run=tell)


def compress(jobs: jobpool.Jobs, folder: Path) -> list[str]:
    """A job for each log file; the ids of the jobs."""
    commands = [["gzip", "--force", "--", str(file)] for file in sorted(folder.resolve().glob("*.log"))]
    return jobs.enqueue_many(jobs.define("shell", command).queue("archive") for command in commands)


if __name__ == "__main__":
    with jobpool.Jobs() as jobs:
        print(f"{len(compress(jobs, Path(sys.argv[1])))} files to compress")
