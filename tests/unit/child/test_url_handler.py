"""The built-in handler `url` as jobs meet it: through the registry, under settings, with a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.built_in import failure, output, refusal
from support.tables import row
from support.webserver import WebServer, answer

from jobpool.errors import ConfigurationError
from jobpool.settings import load

INWARD: dict[str, Any] = {"allowed_url_networks": ["127.0.0.0/8"]}


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    with WebServer() as server:
        server.answers.update(
            {
                "/": answer(b'{"ok": true}', content_type="application/json"),
                "/large": answer(b"x" * 2000),
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


def test_the_limits_of_the_settings_hold(server: WebServer) -> None:
    assert "more than the 1000 bytes" in refusal("url", get(server, "/large"), url_max_bytes=1000, **INWARD)
    slow = failure("url", get(server, "/slow", timeout=60), url_timeout=0.1, **INWARD)
    assert slow == f"GET 127.0.0.1:{server.port}: no complete answer in time"


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
