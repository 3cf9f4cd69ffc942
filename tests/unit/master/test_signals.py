"""Signals become events, in order, and a storm of them loses none."""

from __future__ import annotations

import os
import signal

from jobpool.master.events import SignalCame
from jobpool.master.signals import Signals

STORM = 2_000


def test_a_storm_that_nobody_has_read_yet_does_not_swallow_the_signal_behind_it() -> None:
    signals = Signals()
    signals.install()
    try:
        for _ in range(STORM):
            os.kill(os.getpid(), signal.SIGTTOU)
        os.kill(os.getpid(), signal.SIGTTIN)
        came = [event.number for event in signals.read() if isinstance(event, SignalCame)]
    finally:
        signals.close()
    assert came == [signal.SIGTTOU] * STORM + [signal.SIGTTIN]


def test_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGHUP)
    signals = Signals()
    signals.install()
    assert signal.getsignal(signal.SIGHUP) is not before
    signals.close()
    assert signal.getsignal(signal.SIGHUP) is before
