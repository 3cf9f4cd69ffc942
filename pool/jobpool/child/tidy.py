"""Putting back, after every attempt, what a handler may have changed in its process and what is cheap to put back.

Working directory, umask, signal handlers; the alarm and the signal mask are the alarm's own business, the standard
streams the capture's. Environment, locale, imported modules, recursion limits stay as the handler left them.
"""

from __future__ import annotations

import os
import signal

from jobpool.mechanism.alarm import raw_getsignal, raw_signal

_KEPT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGPIPE)


class Tidy:
    """What this process was like when this was made; `restore` makes it so again. Keeps one descriptor open."""

    def __init__(self) -> None:
        self._folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._signals = [(int(number), raw_getsignal(int(number))) for number in _KEPT]

    def restore(self) -> None:
        """Raises `OSError` when the handler has closed the folder's descriptor."""
        os.fchdir(self._folder)
        os.umask(self._umask)
        for number, handler in self._signals:
            if raw_getsignal(number) is not handler and handler is not None:
                raw_signal(number, handler)
