"""When a lease ends, and who holds what: without a broker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest
from support.waiting import wait_until

from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.leases import EXPIRED_KEPT_S, Held, HeldLeases, Locks, RequestTime
from jobpool_backends.servicebus.namespace import CALL_SPARE_S, Namespace, credential
from jobpool_backends.servicebus.queue_client import Delivery
from jobpool_backends.servicebus.records import Record

ASKED = RequestTime(boot=1000.0, wall=1_800_000_000.0, mono=50.0)


class Forgetful:
    """Counts what a receiver is told to forget."""

    def __init__(self) -> None:
        self.forgotten = 0

    def forget(self, deliveries: int) -> None:
        self.forgotten += deliveries


def locks(lock: float = 60.0) -> Locks:
    return Locks(Address("host", lock=lock), ManualClock())


def test_a_lease_ends_by_our_clock_and_never_after_the_lock() -> None:
    for case, told, length in [
        ("not told", None, 60.0),
        ("as declared", 60.0, 60.0),
        ("as far as clocks are alike", 59.5, 60.0),
        ("shorter locks, or our clock is ahead", 30.0, 30.0),
        ("longer locks, or our clock is behind", 300.0, 60.0),
        ("our clock is ahead by more than a lock", -5.0, 60.0),
    ]:
        until = None if told is None else ASKED.wall + told
        assert locks().end("q", ASKED, until) == ASKED.boot + length, case


def test_a_short_lock_is_told_once_and_kept_for_the_doctor(caplog: pytest.LogCaptureFixture) -> None:
    found = locks()
    with caplog.at_level(logging.WARNING):
        for left in (30.0, 20.0, 25.0):
            found.end("mails", ASKED, ASKED.wall + left)
    [told] = caplog.records
    assert "queue mails locked a message for 30.0 s instead of 60 s" in told.getMessage()
    assert found.noticed["mails"] == 20.0


def test_what_was_received_earlier_was_asked_for_earlier() -> None:
    assert ASKED.earlier(48.0) == RequestTime(998.0, ASKED.wall - 2.0, 48.0)
    assert ASKED.earlier(51.0) is ASKED


# --- leases ----------------------------------------------------------------------------------------


def held(clock: ManualClock, receiver: Forgetful | None = None, sequence: int = 5) -> Held:
    delivery = cast("Delivery", type("Received", (), {"receiver": receiver})())
    return Held(delivery, Record("i", 1, "", 5), "q", sequence, "a" * 32, clock.boot() + 60.0, 1)


def lease(**changes: object) -> JobLease:
    fields = {"id": "i", "queue": "q", "body": b"", "token": 5, "owner_token": "a" * 32, "expires_at": 0.0}
    return JobLease(**{**fields, "backend": "servicebus", **changes})  # type: ignore[arg-type]


def test_a_lease_ends_at_its_deadline_and_is_forgotten_later() -> None:
    clock, receiver = ManualClock(), Forgetful()
    leases = HeldLeases(clock)
    leases.add(held(clock, receiver))
    assert list(leases.of("q")) == [5]
    clock.advance(60.0)
    assert leases.take(lease()) is Settled.EXPIRED
    assert list(leases.of("q")) == []
    leases.prune("q")
    assert (leases.take(lease()), receiver.forgotten) == (Settled.EXPIRED, 0)
    clock.advance(EXPIRED_KEPT_S + 1)
    leases.prune("q")
    assert (leases.take(lease()), receiver.forgotten) == (Settled.NOT_IN_FLIGHT, 1)


def test_what_came_again_meanwhile_is_not_replaced_by_the_lease_before_it() -> None:
    """A settlement that was not answered is put back; if it took too long, the message may have come again."""
    clock, receiver = ManualClock(), Forgetful()
    leases = HeldLeases(clock)
    old, new = held(clock, receiver), held(clock, receiver)
    leases.add(old)
    assert leases.take(lease()) is old
    leases.put_back(old)
    assert (leases.take(lease()), receiver.forgotten) == (old, 0)
    leases.add(new)
    leases.put_back(old)
    assert (leases.find(lease()), receiver.forgotten) == (new, 1)


def test_a_lease_that_ran_out_and_came_again_is_forgotten_once() -> None:
    clock, receiver = ManualClock(), Forgetful()
    leases = HeldLeases(clock)
    leases.add(held(clock, receiver))
    leases.add(new := held(clock, receiver))
    assert (leases.find(lease()), receiver.forgotten) == (new, 1)


def test_what_is_lost_is_held_no_more() -> None:
    clock, receiver = ManualClock(), Forgetful()
    leases = HeldLeases(clock)
    leases.add(mine := held(clock, receiver))
    leases.drop(mine)
    leases.drop(mine)
    assert (leases.find(lease()), receiver.forgotten) == (Settled.NOT_IN_FLIGHT, 1)
    leases.add(held(clock, receiver, 6))
    assert len(leases.of("q")) == 1
    leases.clear()
    assert list(leases.of("q")) == []


@pytest.fixture
def loop() -> Iterator[Namespace]:
    loop = Namespace(Address("shop"))
    yield loop
    loop.close()


async def name_of_thread() -> str:
    return threading.current_thread().name


async def fail(error: BaseException) -> None:
    raise error


def threads() -> int:
    return sum(thread.name == "jobpool-servicebus" for thread in threading.enumerate())


def test_it_starts_with_the_first_call_and_is_one_for_all(loop: Namespace) -> None:
    before = threads()
    with ThreadPoolExecutor(4) as executor:
        names = set(executor.map(lambda _: loop.call(name_of_thread(), 5.0), range(8)))
    assert names == {"jobpool-servicebus"}
    assert threads() == before + 1


def test_what_fails_fails_for_the_caller(loop: Namespace) -> None:
    with pytest.raises(ZeroDivisionError):
        loop.call(fail(ZeroDivisionError()), 5.0)


@pytest.mark.parametrize(
    "work", [partial(asyncio.sleep, 60), partial(fail, TimeoutError())], ids=["by our limit", "by its own"]
)
def test_what_takes_too_long_is_an_outage_and_is_cancelled(
    loop: Namespace, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    with pytest.raises(BackendUnavailable, match=r"Service Bus at shop did not answer within 0\.05 s"):
        loop.call(work(), 0.05 - CALL_SPARE_S)


def test_it_ends_with_all_that_is_under_way(loop: Namespace) -> None:
    begun = threading.Event()
    before = threads()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(60)

    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(loop.call, work(), 30.0)
        assert begun.wait(10.0)
        started = time.monotonic()
        loop.close()
        with pytest.raises(BackendUnavailable, match="was closed meanwhile"):
            waiting.result(10.0)
    assert time.monotonic() - started < 5.0
    wait_until(lambda: threads() == before)
    with pytest.raises(BackendUnavailable, match="was closed here: open the backend again"):
        loop.call(name_of_thread(), 5.0)


def test_a_credential_is_asked_on_a_thread_of_its_own(loop: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names nobody whom azure-identity could be: that is told, and the loop was free meanwhile."""
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")

    async def ask() -> int:
        turns = 0
        token = asyncio.ensure_future(credential().get_token("https://servicebus.azure.net/.default"))
        while not token.done():
            turns += 1
            await asyncio.sleep(0)
        assert type(token.exception()).__name__ in ("ClientAuthenticationError", "CredentialUnavailableError")
        return turns

    assert loop.call(ask(), 30.0) > 1
