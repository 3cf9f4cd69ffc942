"""The thread on which the SDK runs: its limits and its end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.namespace import CALL_SPARE_S, Namespace, credential


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
    with pytest.raises(BackendUnavailable, match="was closed: open another"):
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
