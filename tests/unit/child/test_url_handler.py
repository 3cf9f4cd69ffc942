"""The built-in handler `url` as jobs meet it: through the registry, under settings, with a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.built_in import attempt, failure, output, refusal
from support.tables import row
from support.webserver import WebServer, answer

from jobpool.errors import ConfigurationError
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.allowances import Allowances
from jobpool.message.outcome import ResultKind
from jobpool.settings import load

INWARD: dict[str, Any] = {"allowed_url_networks": ["127.0.0.0/8"]}


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    with WebServer() as server:
        server.answers.update(
            {
                "/": answer(b'{"ok": true}', content_type="application/json"),
                "/large": answer(b"x" * 2000),
                "/busy": answer(b"busy", "503 Busy", retry_after="7"),
                "/broken": answer(b"oops", "500 Broken"),
                "/cut": answer(b"x", content_length="9"),
                "/gone": answer(b"", "404 Not Found"),
                "/moved": answer(b"", "301 Moved", location="http://169.254.169.254/"),
                "/slow": lambda _: server.ending.wait(30),
            }
        )
        yield server


def get(server: WebServer, path: str = "/", **options: Any) -> dict[str, Any]:
    return {"method": "GET", "url": f"http://127.0.0.1:{server.port}{path}", "options": options}


def test_what_a_call_answers_is_the_output_of_the_attempt(server: WebServer) -> None:
    assert json.loads(output("url", get(server), **INWARD)) == {
        "status": 200,
        "headers": {"content-type": "application/json"},
        "body": '{"ok": true}',
        "bytes": 12,
    }


def test_the_result_fits_into_the_output_that_is_kept(server: WebServer) -> None:
    result = json.loads(output("url", get(server, "/large"), output_cap=1024, **INWARD))

    assert (result["bytes"], result["truncated"], len(result["body"])) == (2000, True, 512)


def test_nothing_inward_is_allowed_by_itself(server: WebServer) -> None:
    before = server.connections

    assert "127.0.0.1 is an address that is not public (loopback)" in refusal("url", get(server))
    assert server.connections == before


@pytest.mark.parametrize("path", ["/gone", "/moved"])
def test_what_would_be_the_same_again_is_given_up_in_one_sentence(server: WebServer, path: str) -> None:
    assert refusal("url", get(server, path), **INWARD).startswith("refused (")


@pytest.mark.parametrize("path", ["/broken", "/cut"])
def test_what_may_be_better_next_time_is_a_failed_attempt_in_one_sentence(server: WebServer, path: str) -> None:
    assert failure("url", get(server, path), **INWARD).startswith(f"GET 127.0.0.1:{server.port}")


def test_a_busy_server_says_when_to_come_again(server: WebServer) -> None:
    made = attempt("url", get(server, "/busy"), **INWARD)

    assert (made.kind, made.after) == (ResultKind.RETRY, 7.0)
    assert made.error == f"GET 127.0.0.1:{server.port} answered 503: busy"


def test_the_limits_of_the_settings_hold(server: WebServer) -> None:
    assert "more than the 1000 bytes" in refusal("url", get(server, "/large"), url_max_bytes=1000, **INWARD)
    slow = failure("url", get(server, "/slow", timeout=60), url_timeout=0.1, **INWARD)
    assert slow == f"GET 127.0.0.1:{server.port}: no complete answer in time"


def test_hooks_and_retries_are_set_as_for_every_built_in_handler(server: WebServer) -> None:
    registry = HandlerRegistry()
    seen: list[str] = []
    registry.builtin("url", max_retries=4, before_run=lambda ctx: seen.append(ctx.handler))

    output("url", get(server), registry, **INWARD)

    assert seen == ["url"]
    assert registry.resolve("url", "default").max_retries == 4


def test_wrong_limits_are_refused_by_name() -> None:
    for wrong in [
        {"allowed_url_networks": ["10.1.2.3/24"]},
        {"allowed_url_networks": ["example.com"]},
        {"allowed_url_networks": "10.0.0.0/8"},
        {"url_timeout": 0},
        {"url_timeout": 86401},
        {"url_timeout": float("nan")},
        {"url_max_bytes": 0},
        {"url_max_bytes": 1.5},
    ]:
        [name] = wrong
        with row(wrong), pytest.raises(ConfigurationError, match=name):
            Allowances(**wrong)


def test_wrong_settings_are_refused_by_name() -> None:
    for key, value, told in [
        ("allowed_url_networks", "10.1.2.3/24", "--allowed-url-networks: 10.1.2.3/24 has host bits set"),
        ("url_limits", "timeout=0", "--url-limits: timeout= must be above 0"),
        ("url_limits", "timeout=86401", "--url-limits: timeout= must be above 0, and at most 86400 seconds"),
        ("url_limits", "body=0", "--url-limits: body= must be 1 to"),
        ("url_limits", "body=1.5", "--url-limits: body=1.5: '1.5' is not a size"),
    ]:
        with row(key, value), pytest.raises(ConfigurationError, match=told):
            load({key: value})


def test_settings_reach_the_handler() -> None:
    flags = {
        "backend": "memory://",
        "allowed_url_networks": ("10.0.0.0/8,fd00::/8", "192.168.7.0/24"),
        "url_limits": "timeout=2m body=64K",
    }
    allowances = load(flags).allowances

    assert allowances.allowed_url_networks == ("10.0.0.0/8", "fd00::/8", "192.168.7.0/24")
    assert (allowances.url_timeout, allowances.url_max_bytes) == (120.0, 65536)


def test_a_child_that_never_calls_holds_no_http_client() -> None:
    program = """
import sys
from jobpool.handlers.registry import HandlerRegistry
HandlerRegistry().resolve("url", "default").bound
print([name for name in ("urllib3", "http.client", "ssl") if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert ran.stdout == "[]\n"
