"""The sample thread: resident memory and CPU share of each child, by psutil, once a second.

It holds no lease, so an error of its own, such as a process without a free descriptor, is told and ends nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import psutil

from jobpool.master.events import Sampled
from jobpool.master.inbox import Inbox
from jobpool.master.thread import MasterThread

SAMPLE_EVERY_S = 1.0
"""Seconds between two samples: the longest time for which a growing job is above its limit unseen."""

IDLE_SAMPLE_ROUNDS = 5
"""Idle children are looked at only every so many samples."""


log = logging.getLogger("jobpool.pool")


class SampleThread(MasterThread):
    """`children` is asked for (child, pid, busy) of each living child."""

    def __init__(self, children: Callable[[], list[tuple[int, int, bool]]], inbox: Inbox) -> None:
        super().__init__("sample", inbox)
        self._children = children
        self._known: dict[int, psutil.Process] = {}
        self._round = 0
        self._failing = False

    def serve(self) -> None:
        while not self._halt.wait(SAMPLE_EVERY_S):
            try:
                self._sample()
            except Exception as error:  # noqa: BLE001 - a pool whose children are not measured still runs jobs
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            text = "children cannot be measured, and memory_limit is not kept to; trying again each second"
            log.error(text, extra={"error": repr(error)})
        self._failing = True

    def _sample(self) -> None:
        children = self._children()
        self._known = {child: known for child, known in self._known.items() if child in {c for c, _, _ in children}}
        looks = [
            (child, pid) for child, pid, busy in children if pid and (busy or self._round % IDLE_SAMPLE_ROUNDS == 0)
        ]
        self._round += 1
        at = time.monotonic()
        samples = [sample for child, pid in looks if (sample := self._look(child, pid))]
        if samples:
            self._failing = False
            self._inbox.put(Sampled(samples, at))

    def _look(self, child: int, pid: int) -> tuple[int, int, float] | None:
        try:
            process = self._known.get(child)
            if process is None:
                process = self._known[child] = psutil.Process(pid)
            with process.oneshot():
                return child, process.memory_info().rss, process.cpu_percent() / 100
        except psutil.Error:
            return None  # it has just died: its death is on its way
