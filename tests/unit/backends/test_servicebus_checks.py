"""What the settings of a queue mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobpool.finding import Finding, Level
from jobpool_backends.servicebus.checks import Facts, judge, judge_lock

GOOD = Facts(lock=60.0, deliveries=1000, duplicates=600.0)


def found(facts: Facts, declared: float = 60.0) -> dict[str, Finding]:
    return {finding.check: finding for finding in judge("reports", declared, facts)}


def test_good_settings_are_told_and_none_is_bad() -> None:
    findings = found(GOOD)
    assert not [finding for finding in findings.values() if finding.is_bad]
    assert set(findings) == {
        "servicebus.lock",
        "servicebus.deliveries",
        "servicebus.expiry",
        "servicebus.duplicates",
    }
    assert str(findings["servicebus.lock"]) == "queue 'reports': locks last 60 s"


BAD = [
    pytest.param({"status": "Disabled"}, "servicebus.queue", Level.PROBLEM, "is Disabled", id="disabled"),
    pytest.param({"sessions": True}, "servicebus.queue", Level.PROBLEM, "requires sessions", id="sessions"),
    pytest.param({"lock": 30.0}, "servicebus.lock", Level.PROBLEM, "says 60 s", id="shorter lock"),
    pytest.param({"deliveries": 10}, "servicebus.deliveries", Level.WARNING, "MaxDeliveryCount 10", id="few"),
    pytest.param({"ttl": 3600.0}, "servicebus.expiry", Level.PROBLEM, "vanish unseen", id="expires unseen"),
    pytest.param({"duplicates": 0.0}, "servicebus.duplicates", Level.NOTE, "not detected", id="duplicates"),
]


@pytest.mark.parametrize(("changed", "check", "level", "word"), BAD)
def test_each_setting_that_can_lose_something_is_told_with_its_mend(
    changed: dict[str, object], check: str, level: Level, word: str
) -> None:
    finding = found(replace(GOOD, **changed))[check]  # type: ignore[arg-type]
    assert finding.level is level
    assert word in str(finding)
    assert bool(finding.mend) is finding.is_bad


def test_what_expires_into_the_dead_letters_is_not_lost() -> None:
    finding = found(replace(GOOD, ttl=3600.0, keeps_expired=True))["servicebus.expiry"]
    assert finding.level is Level.OK
    assert "3,600 s" in finding.found


def test_a_lock_that_lasts_longer_than_declared_is_no_harm() -> None:
    assert judge_lock("queue 'reports'", 30.0, 60.0).level is Level.OK


def test_a_very_short_lock_leaves_no_time_to_renew_it() -> None:
    assert judge_lock("queue 'reports'", 5.0, 5.0).level is Level.WARNING


@pytest.mark.parametrize(("blur", "level"), [(0.5, Level.PROBLEM), (1.5, Level.OK)])
def test_a_lock_that_was_measured_may_be_off(blur: float, level: Level) -> None:
    assert judge_lock("queue 'reports'", 60.0, 59.0, blur=blur).level is level
