"""A thread of the master: if it dies, the pool must know, because leases would rot unseen."""

from __future__ import annotations

import threading
import traceback
from abc import ABC, abstractmethod

from jobpool.errors import JobpoolError
from jobpool.master.events import ThreadDied
from jobpool.master.inbox import Inbox


class MasterThread(threading.Thread, ABC):
    """Runs `serve`; an error that leaves it ends the pool in good order.

    It is a fault of ours, or the broker's last word, such as that a queue is not there any more.
    """

    def __init__(self, name: str, inbox: Inbox) -> None:
        super().__init__(name=name, daemon=True)
        self._inbox = inbox
        self._halt = threading.Event()

    @abstractmethod
    def serve(self) -> None:
        """Work until `stop` was called."""

    def stop(self) -> None:
        """End soon. Returns at once."""
        self._halt.set()

    def run(self) -> None:
        try:
            self.serve()
        except JobpoolError as error:
            self._inbox.put(ThreadDied(self.name, traceback.format_exc(), str(error)))
        except Exception:  # noqa: BLE001 - whatever it is, it is reported and the pool stops
            self._inbox.put(ThreadDied(self.name, traceback.format_exc()))
