"""How long a pool waits before it tries again what does not come up."""

from __future__ import annotations

from jobpool.master.state import FIRST_BOOT_PAUSE_S, MAX_BOOT_PAUSE_S
from jobpool.policy.retry import BackOff

NOW = 100.0


def waits(count: int) -> list[float]:
    """Seconds from each of so many failures in a row to the next try."""
    boot = BackOff(FIRST_BOOT_PAUSE_S, MAX_BOOT_PAUSE_S)
    found = []
    for _ in range(count):
        boot.failed("no such module", NOW)
        found.append(boot.next_at - NOW)
    return found


def test_each_failure_doubles_the_wait_up_to_the_longest() -> None:
    assert [round(wait, 6) for wait in waits(10)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]


def test_it_stays_the_longest_however_often_it_fails() -> None:
    assert waits(5000)[-1] == MAX_BOOT_PAUSE_S


def test_a_success_lets_the_next_try_begin_at_once_and_the_wait_anew() -> None:
    boot = BackOff(FIRST_BOOT_PAUSE_S, MAX_BOOT_PAUSE_S)
    for _ in range(7):
        boot.failed("no such module", NOW)

    boot.succeeded()

    assert (boot.failures, boot.next_at, boot.last_error) == (0, 0.0, "")
    boot.failed("no such module", NOW)
    assert boot.next_at == NOW + FIRST_BOOT_PAUSE_S
