"""Signals become events, in order, and a storm of them loses none."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import click
import pytest
from support.waiting import wait_until

from jobpool.cli.run import _EarlyStop, _take_early
from jobpool.ipc.linux import ACCIDENTAL_SIGNALS
from jobpool.master.events import SignalCame
from jobpool.master.inbox import Signals

STORM = 2_000


@pytest.fixture
def signals() -> Iterator[Signals]:
    """Installed; the handlers before them come back."""
    before = signal.getsignal(signal.SIGHUP)
    signals = Signals()
    signals.install()
    assert signal.getsignal(signal.SIGHUP) is not before
    yield signals
    signals.close()
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_storm_that_nobody_has_read_yet_does_not_swallow_the_signal_behind_it(signals: Signals) -> None:
    for _ in range(STORM):
        os.kill(os.getpid(), signal.SIGTTOU)
    os.kill(os.getpid(), signal.SIGTTIN)
    came = [event.number for event in signals.read() if isinstance(event, SignalCame)]
    assert came == [signal.SIGTTOU] * STORM + [signal.SIGTTIN]


def test_signals_that_are_sent_by_accident_do_nothing_and_are_not_heard(signals: Signals) -> None:
    for number in ACCIDENTAL_SIGNALS:
        os.kill(os.getpid(), number)
    assert signals.read() == []
    assert {signal.SIGUSR1, signal.SIGPWR, signal.SIGXCPU, signal.SIGRTMIN} < ACCIDENTAL_SIGNALS
    assert not ACCIDENTAL_SIGNALS & {signal.SIGABRT, signal.SIGSEGV, signal.SIGTERM, signal.SIGPIPE, signal.SIGTSTP}


def test_a_handler_of_the_programs_own_for_a_signal_that_means_nothing_here_is_left_to_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: heard.append(number))
    try:
        signals = Signals()
        signals.install()
        os.kill(os.getpid(), signal.SIGUSR2)
        signals.close()
        os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2] * 2


def test_an_early_signal_whose_exception_was_ignored_ends_the_next_call_or_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Raising:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    early = _EarlyStop()
    ours = signal.SIGTERM, signal.SIGINT, signal.SIGALRM
    before = [*map(signal.getsignal, ours)]
    signals = Signals()
    with click.Context(click.Command("run")) as ctx:
        _take_early(ctx, early, *ours[:2])
        early.keep_looking(ctx)
        Raising()
        try:
            with pytest.raises(SystemExit):
                time.sleep(10.0)
            signals.install()
            wait_until(lambda: signal.getitimer(signal.ITIMER_REAL)[0] == 0.0)  # it looks no more
            assert signals.read() == [SignalCame(signal.SIGTERM)]
            with pytest.raises(SystemExit):
                early(signal.SIGINT, None)
        finally:
            signals.close()
    assert [*map(signal.getsignal, ours)] == before
    assert "SystemExit" not in capfd.readouterr().err


def test_the_handler_of_a_program_in_c_that_python_cannot_put_back_leaves_the_default() -> None:
    before = signal.getsignal(signal.SIGTTIN)
    signals = Signals()
    signals.install()
    try:
        signals._before[signal.SIGTTIN] = None  # as `signal.signal` returns for it
        signals.close()
        assert signal.getsignal(signal.SIGTTIN) is signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == -1, "or the pool's closed pipe would get each later signal"
    finally:
        signal.signal(signal.SIGTTIN, before)
