"""What the settings of a queue mean."""

from __future__ import annotations

import importlib
import inspect
from datetime import timedelta
from typing import Any

import azure.servicebus
import pytest
from azure.servicebus.aio import _async_utils
from azure.servicebus.management import EntityStatus, QueueProperties
from msgspec.structs import replace

import jobpool_backends.servicebus
from jobpool.broker.finding import Finding, Level
from jobpool_backends.servicebus import check_sdk_version
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.checks import Facts, ask, judge, judge_lock, read
from jobpool_backends.servicebus.namespace import FILTERED_LINES

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


def test_each_setting_that_can_lose_something_is_told_with_its_mend() -> None:
    cases: list[tuple[dict[str, Any], str, Level, str]] = [
        ({"status": "Disabled"}, "servicebus.queue", Level.PROBLEM, "is Disabled"),
        ({"sessions": True}, "servicebus.queue", Level.PROBLEM, "requires sessions"),
        ({"lock": 30.0}, "servicebus.lock", Level.PROBLEM, "says 60 s"),
        ({"deliveries": 10}, "servicebus.deliveries", Level.WARNING, "MaxDeliveryCount 10"),
        ({"ttl": 3600.0}, "servicebus.expiry", Level.PROBLEM, "vanish unseen"),
        ({"duplicates": 0.0}, "servicebus.duplicates", Level.NOTE, "not detected"),
    ]
    for changed, check, level, word in cases:
        finding = found(replace(GOOD, **changed))[check]
        assert finding.level is level, changed
        assert word in str(finding), changed
        assert bool(finding.mend) is finding.is_bad, changed


def test_what_expires_into_the_dead_letters_is_not_lost() -> None:
    finding = found(replace(GOOD, ttl=3600.0, keeps_expired=True))["servicebus.expiry"]
    assert finding.level is Level.OK
    assert "3,600 s" in finding.found


def test_a_lock_is_bad_that_is_shorter_than_declared_or_leaves_no_time_to_renew_it() -> None:
    for declared, lasts, blur, level in [
        (30.0, 60.0, 0.0, Level.OK),
        (5.0, 5.0, 0.0, Level.WARNING),
        (60.0, 59.0, 0.5, Level.PROBLEM),
        (60.0, 59.0, 1.5, Level.OK),  # it was measured, and may be off
    ]:
        assert judge_lock("queue 'reports'", declared, lasts, blur=blur).level is level, (declared, lasts, blur)


# --- where the settings come from -----------------------------------------------------------------------------


def described(**told: Any) -> QueueProperties:
    """What the service tells of a queue: nothing but this."""
    names = inspect.signature(QueueProperties.__init__).parameters.keys() - {"self", "name"}
    return QueueProperties("reports", **{**dict.fromkeys(names), **told})


def test_what_the_service_leaves_out_is_as_by_default() -> None:
    facts = read(described())
    assert (facts.lock, facts.deliveries, facts.duplicates, facts.status) == (60.0, 10, 0.0, "Active")
    assert facts.ttl == float("inf")
    assert read(described(default_message_time_to_live=timedelta(days=10675199))).ttl == float("inf"), "its `never`"


def test_what_the_service_tells_is_read() -> None:
    told = described(
        lock_duration=timedelta(seconds=30),
        max_delivery_count=100,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=5),
        default_message_time_to_live=timedelta(days=14),
        dead_lettering_on_message_expiration=True,
        requires_session=True,
        status=EntityStatus.DISABLED,
    )
    assert read(told) == Facts(30.0, 100, 300.0, 14 * 86400.0, True, True, "Disabled")


def test_nobody_is_asked_about_an_emulator() -> None:
    assert "Config.json" in str(ask(Address("127.0.0.1:1", "Endpoint=sb://127.0.0.1:1", emulated=True), "reports"))


def test_who_cannot_be_asked_leaves_a_reason_without_the_key() -> None:
    string = "Endpoint=sb://127.0.0.1;SharedAccessKeyName=Listen;SharedAccessKey=c2VjcmV0LWtleQ=="
    why = ask(Address("127.0.0.1", string), "reports")
    assert isinstance(why, str)
    assert "Manage" in why
    assert "c2VjcmV0" not in why


def test_an_sdk_that_is_known_is_taken() -> None:
    for installed in ("7.15", "7.15.0", "7.15.9", "7.15.0b1"):
        check_sdk_version(installed)


@pytest.mark.parametrize("installed", ["7.14.3", "7.16.0", "7.150.0", "8.0.0"])
def test_an_sdk_that_is_not_known_is_refused_when_the_backend_is_imported(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure.servicebus, "__version__", installed)
    with pytest.raises(ImportError, match=rf"azure-servicebus {installed} is installed, and jobpool works with 7\.15"):
        importlib.reload(jobpool_backends.servicebus)


def test_the_line_about_a_handler_that_does_not_close_is_left_out_of_the_log() -> None:
    [begin] = [begin for module, begin in FILTERED_LINES.items() if module == _async_utils.__name__]
    assert f'_log.warning("{begin}' in inspect.getsource(_async_utils)
