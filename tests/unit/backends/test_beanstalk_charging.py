"""What a crash does to a message of beanstalkd, as a table, and who is told."""

from __future__ import annotations

import random

import pytest

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool_backends.beanstalk.records import MAX_DELAY_S, Charge, Record, charge, whole_seconds
from jobpool_backends.reaping import NativeReaping

NOW = 1000.0
POLICY = ReapPolicy(max_crashes=3, window=100.0, back_off=8.0, back_off_cap=20.0)


def test_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", max)
    for case, before, at, new, policy, crashes, delay, dead in [
        ("first: at once", 0, 0.0, 1, POLICY, 1, 0, False),
        ("second: after a back-off", 1, 950.0, 1, POLICY, 2, 8, False),
        ("third: twice that", 2, 950.0, 1, POLICY, 3, 16, False),
        ("past the limit", 3, 950.0, 1, POLICY, 4, 0, True),
        ("at the window's end", 3, 900.0, 1, POLICY, 4, 0, True),
        ("before the window: counted anew", 3, 899.9, 1, POLICY, 1, 0, False),
        ("two at once", 1, 950.0, 2, POLICY, 3, 16, False),
        ("four at once", 0, 0.0, 4, POLICY, 4, 0, True),
        ("none", 8, 999.0, 1, ReapPolicy(max_crashes=0, back_off=8.0, back_off_cap=20.0), 9, 20, False),
        ("rounded up to a second", 1, 999.0, 1, ReapPolicy(back_off=0.3), 2, 1, False),
        ("without a back-off", 1, 999.0, 1, ReapPolicy(back_off=0.0), 2, 0, False),
    ]:
        record = Record(
            "x", 1.0, attempts=2, crashes=before, deliveries=7, crashed_at=at, last_error="boom", cause="old"
        )
        charged = charge(record, new, "SIGBUS", policy, NOW)
        died = ("crash-limit", NOW) if dead else (None, None)
        assert charged == Charge(Record("x", 1.0, 2, crashes, 7, NOW, "boom", "SIGBUS", *died), delay), case


def test_delays_are_rounded_up_to_whole_seconds() -> None:
    for delay, seconds in [
        (0.0, 0),
        (-1.0, 0),
        (float("nan"), 0),
        (1e-9, 1),
        (1.0, 1),
        (1.001, 2),
        (float("inf"), MAX_DELAY_S),
        (1e12, MAX_DELAY_S),
    ]:
        assert whole_seconds(delay) == seconds, delay


def test_the_ledger_tells_each_charge_once_and_keeps_the_policy_of_each_queue() -> None:
    ledger = NativeReaping()
    assert ledger.policy("mails") == ReapPolicy()
    for number in range(1200):
        ledger.add(Charge(Record(str(number), 1.0, crashes=1, cause="SIGBUS"), 0).reaped("mails"))
    ledger.add(Charge(Record("y", 1.0, crashes=6, cause="c", died_at=2.0), 0).reaped("others"))
    first = ledger.reap("mails", POLICY)
    assert (len(first), first[0]) == (1000, Reaped("0", "mails", 1, "SIGBUS", False))
    assert len(ledger.reap("mails", POLICY)) == 200
    assert ledger.reap("mails", POLICY) == []
    assert ledger.reap("others", ReapPolicy()) == [Reaped("y", "others", 6, "c", True)]
    assert (ledger.policy("mails"), ledger.policy("others")) == (POLICY, ReapPolicy())
