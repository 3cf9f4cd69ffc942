"""The built-in handler `url`: every rule that refuses a call before it is made, against hostile input."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hostile_urls import NAMES, refusals

from jobpool.handlers.builtin import Failure
from jobpool.handlers.builtin.url import addresses
from jobpool.handlers.builtin.url.call import Caller
from jobpool.handlers.builtin.url.request import Refused

TABLE = refusals()
AFTER_THE_ANSWER = {"redirect", "status", "response-size"}
"""Rules that need a server: test_url_answers.py has them."""

connects: list[Any] = []
watching: list[bool] = []


@pytest.fixture(autouse=True, scope="module")
def _audit() -> Iterator[None]:
    """Note every connection that this process tries to make, whoever does. No hook can be taken off again."""
    sys.addaudithook(lambda event, args: connects.append(args) if watching and event == "socket.connect" else None)
    watching.append(True)
    yield
    watching.clear()


class Job:
    """As much of a context as the handler reads."""

    id = "a1"

    def __init__(self, payload: Any) -> None:
        self.payload = payload


def refused(payload: Any, **options: Any) -> Refused:
    caller = Caller(max_bytes=1000, lookup=NAMES.__getitem__, **options)
    with pytest.raises(Refused) as caught:
        caller.run(Job(payload))  # type: ignore[arg-type]
    return caught.value


def named(case: tuple[str, Any]) -> str:
    return f"{case[0]}-{ascii(case[1])[:90]}"


@pytest.mark.parametrize(("rule", "payload"), TABLE, ids=[named(case) for case in TABLE])
def test_hostile_input_is_refused_by_its_rule_and_nothing_is_connected(rule: str, payload: Any) -> None:
    connects.clear()

    error = refused(payload)

    assert error.rule == rule
    assert str(error).startswith(f"refused ({rule}): ")
    assert connects == []


def test_a_connection_would_have_been_noticed() -> None:
    connects.clear()
    with pytest.raises(Failure, match="the connection failed"):
        Caller(networks=["127.0.0.0/8"]).run(Job({"method": "GET", "url": "http://127.0.0.1:1/"}))  # type: ignore[arg-type]

    assert [address for _, address in connects] == [("127.0.0.1", 1)]


def test_every_rule_in_the_code_has_hostile_input() -> None:
    folder = Path(inspect.getfile(addresses)).parent
    code = "".join(file.read_text() for file in folder.glob("*.py"))
    rules = set(re.findall(r'Refused\(\s*"([a-z-]+)"', code)) | {"query", "form"}

    assert {rule for rule, _ in TABLE} | AFTER_THE_ANSWER == rules


def test_no_text_of_a_refusal_shows_a_password_a_token_or_an_inner_address() -> None:
    shown = [
        refused({"method": "GET", "url": "http://user:hunter2@public.test/"}),
        refused({"method": "GET", "url": "http://private.test/?token=hunter2"}),
        refused({"method": "GET", "url": "http://public.test/%?token=hunter2"}),
        refused({"method": "POST", "url": "http://public.test/", "options": {"headers": {"Host": "hunter2"}}}),
        refused({"method": "POST", "url": "http://public.test/", "options": {"headers": {"X": "hunter2\n"}}}),
    ]

    assert not [error for error in shown if "hunter2" in str(error) or "10.1.2.3" in str(error)]


@pytest.mark.parametrize("url", ["http://private.test/", "http://10.1.2.3/", "http://[::ffff:10.1.2.3]/"])
def test_a_network_that_is_allowed_opens_itself_alone(url: str) -> None:
    assert refused({"method": "GET", "url": url}, networks=["10.1.2.4/30", "192.168.0.0/16"]).rule == "address"
    assert refused({"method": "GET", "url": "http://half6.test/"}, networks=["10.1.2.0/24"]).rule == "address"
