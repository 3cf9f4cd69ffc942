"""`--watch`: a thread that looks at the app's files, and has the pool reload when one of them has changed."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

STATUS_LOOK_S = 0.5
LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages"})  # besides hidden folders
MAX_NAMED = 5  # files in a line of the log
DJANGO_APP = "jobpool.contrib.django.app"

log = logging.getLogger("jobpool.cli")


def watch(apps: Sequence[str], sys_path: Sequence[str]) -> None:
    """Start the thread; it ends with the process. `apps`: modules, or absolute paths of files."""
    folders = {folder for app in apps if (folder := folder_of(app, sys_path)) is not None}
    threading.Thread(target=_watch, args=(folders,), name="watch", daemon=True).start()


def folder_of(app: str, sys_path: Sequence[str]) -> Path | None:
    """Return the folder of an app's file, or of its outermost package; None = it cannot be found.

    jobpool's own app for Django stands for a project: that is the folder in which its settings are found.
    """
    if os.sep in app:
        return Path(app).parent
    of_django = app == DJANGO_APP
    module = os.environ.get("DJANGO_SETTINGS_MODULE", "") if of_django else app
    spec = PathFinder.find_spec(module.partition(".")[0], [*sys_path, *sys.path])
    if spec is None:
        return None
    if package := next(iter(spec.submodule_search_locations or ()), None):
        return Path(package).parent if of_django else Path(package)
    return Path(spec.origin or "").parent


def _watch(folders: set[Path]) -> None:
    known = look(folders)
    while True:
        time.sleep(STATUS_LOOK_S)
        if (now := look(folders)) == known:
            continue
        while (later := look(folders)) != now:  # several files are being saved
            now = later
            time.sleep(STATUS_LOOK_S)
        changed = sorted({path for path, _ in now.items() ^ known.items()})
        log.info("code has changed", extra={"fields": {"files": changed[:MAX_NAMED]}})
        known = now
        signal.raise_signal(signal.SIGHUP)


def look(folders: set[Path]) -> dict[str, int]:
    """Return each Python file below the folders, and when it was changed, in nanoseconds."""
    found: dict[str, int] = {}
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if name[0] != "." and name not in LEFT_OUT]
            if "pyvenv.cfg" in names:  # a virtual environment
                inner.clear()
                continue
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(place, name)
                    with suppress(OSError):  # an editor puts a new file into its place: the next look sees that
                        found[path] = os.stat(path).st_mtime_ns
    return found
