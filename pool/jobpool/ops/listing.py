"""A process that imports the app and answers with its handlers: one line of JSON, the last one of its output."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from jobpool.errors import JobpoolError
from jobpool.handlers.app import load
from jobpool.handlers.registry import DEFAULT, SCHEDULE_CHECKS, declared_schedules
from jobpool.ipc.fork_server_main import prepared
from jobpool.ipc.inheritance import Inheritance
from jobpool.ipc.process_options import ChildOptions


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what a fork server would tell (`Loaded`), `unfit` and `refused`; or `error`: why there are no handlers."""
    inheritance = Inheritance()
    # An alarm names the line where the import hangs, and ends this process. It needs no thread, which would be counted.
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.setitimer(signal.ITIMER_REAL, asked.pop("limit"))
    try:
        options = ChildOptions(**asked)
        found = load(options)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except JobpoolError as error:
        return {"error": str(error)}
    unfit = [
        f"schedule {one.name or one.handler!r}: {why}" for one in declared_schedules() if (why := DEFAULT.unfit(one))
    ]
    refused = next(filter(None, (check() for check in SCHEDULE_CHECKS)), "")
    loaded = replace(prepared(found, inheritance, options.preload), unfit=unfit, refused=refused)
    told: dict[str, Any] = to_builtins(loaded)
    return told


if __name__ == "__main__":
    line = json.dumps(answer(json.load(sys.stdin)))
    # Threads that the app has started must not keep this process: it has given its answer.
    os.write(1, b"\n" + line.encode())
    os._exit(0)
