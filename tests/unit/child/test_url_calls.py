"""The built-in handler `url` with real servers: where a call goes, what it carries, and what it never does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.certificates import Authority
from support.nameserver import AAAA, A, NameServer
from support.urljobs import call, two_servers
from support.webserver import WebServer, answer

from jobpool.handlers.builtin import Failure
from jobpool.handlers.builtin.url.addresses import Bounds
from jobpool.handlers.builtin.url.call import Caller
from jobpool.handlers.builtin.url.connection import _connection, tls_context
from jobpool.handlers.builtin.url.request import METHODS, TLS_OPTIONS, Refused, parse

NAMES = {"good.test": ["127.0.0.1"], "other.test": ["127.0.0.1"], "common.test": ["127.0.0.1"]}


def loopback(**options: Any) -> Caller:
    """A caller that may reach loopback, where names are those above."""
    return Caller(networks=["127.0.0.0/8"], lookup=NAMES.__getitem__, **{"timeout": 10.0, **options})


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer() as server:
        server.answers["/"] = answer(b"hello", content_type="text/plain", set_cookie="secret=1", x_request_id="r1")
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_a_call_returns_status_headers_and_body(server: WebServer) -> None:
    assert call(loopback(), f"http://good.test:{server.port}/") == {
        "status": 200,
        "headers": {"content-type": "text/plain", "x-request-id": "r1"},
        "body": "hello",
        "bytes": 5,
    }


@pytest.mark.parametrize("method", METHODS)
def test_every_method(server: WebServer, method: str) -> None:
    server.answers["/"] = answer(b"" if method == "HEAD" else b"x", content_length="1")

    assert call(loopback(), f"http://good.test:{server.port}/?a=1", method.lower(), query={"b": [True, "ä&"]})["status"]

    [seen] = server.seen
    assert (seen.method, seen.path) == (method, "/?a=1&b=true&b=%C3%A4%26")
    assert seen.headers["host"] == f"good.test:{server.port}"
    assert seen.headers.get("idempotency-key") == ("a1" if method in ("POST", "PATCH") else None)


@pytest.mark.parametrize(
    ("options", "kind", "body"),
    [
        ({"json": {"a": "ü"}}, "application/json", '{"a":"ü"}'),
        ({"json": None}, "application/json", "null"),
        ({"form": {"a": "x y", "b": [1, 2]}}, "application/x-www-form-urlencoded", "a=x+y&b=1&b=2"),
        ({"body": "ü"}, "text/plain; charset=utf-8", "ü"),
        ({"body": "<a/>", "headers": {"content-type": "text/xml"}}, "text/xml", "<a/>"),
        ({}, None, ""),
    ],
)
def test_bodies(server: WebServer, options: dict[str, Any], kind: str | None, body: str) -> None:
    call(loopback(), f"http://good.test:{server.port}/", "POST", **options)

    [seen] = server.seen
    assert (seen.headers.get("content-type"), seen.body.decode()) == (kind, body)
    assert seen.headers["content-length"] == str(len(body.encode()))


def test_headers_of_the_caller_are_sent_and_take_the_place_of_ours(server: WebServer) -> None:
    mine = {"Authorization": "Bearer t", "User-Agent": "me", "IDEMPOTENCY-key": "mine"}
    call(loopback(), f"http://good.test:{server.port}/", "POST", headers=mine)

    headers = server.seen[0].headers
    assert [headers[name] for name in ("authorization", "user-agent", "idempotency-key")] == ["Bearer t", "me", "mine"]


def test_an_id_of_the_producers_goes_into_a_header_and_adds_none(server: WebServer) -> None:
    payload = {"method": "POST", "url": f"http://good.test:{server.port}/"}
    loopback().run(SimpleNamespace(id="ä\r\nX: y/1", payload=payload))  # type: ignore[arg-type]

    assert server.seen[0].headers["idempotency-key"] == "%C3%A4%0D%0AX:%20y/1"
    assert "x" not in server.seen[0].headers


def test_the_connection_goes_to_the_address_that_was_checked_though_the_name_moves_inward() -> None:
    zone: dict[str, list[list[str] | None]] = {"moving.test": [["127.0.0.2"], ["127.0.0.1"]]}
    with two_servers() as (outside, inside), NameServer(zone) as names:
        outside.answers["/"] = answer(b"outside")
        inside.answers["/"] = answer(b"inside")
        caller = Caller(networks=["127.0.0.2"], lookup=names.lookup)

        first = call(caller, f"http://moving.test:{outside.port}/")
        asked = list(names.asked)
        with pytest.raises(Refused, match="not public"):
            call(caller, f"http://moving.test:{outside.port}/")

        assert first["body"] == "outside"
        assert sorted(asked) == [("moving.test", A), ("moving.test", AAAA)], "looked up once, for both kinds"
        assert [seen.headers["host"] for seen in outside.seen] == [f"moving.test:{outside.port}"]
        assert (outside.connections, inside.connections) == (1, 0)


def test_a_name_with_one_private_address_among_public_ones_is_not_called() -> None:
    zone: dict[str, list[list[str] | None]] = {"half.test": [["127.0.0.2", "127.0.0.1"]]}
    with two_servers() as (outside, inside), NameServer(zone) as names:
        with pytest.raises(Refused) as caught:
            call(Caller(networks=["127.0.0.2"], lookup=names.lookup), f"http://half.test:{outside.port}/")

        assert caught.value.rule == "address"
        assert (outside.connections, inside.connections) == (0, 0)


def test_a_name_that_is_not_there_or_is_not_answered_is_a_failed_attempt() -> None:
    with NameServer({"silent.test": [None], "empty.test": [[]]}) as names:
        caller = Caller(timeout=0.3, lookup=names.lookup)
        for host, why in {"none.test": "Name or service", "empty.test": "", "silent.test": "in time"}.items():
            with pytest.raises(Failure, match=f"{host} could not be resolved.*{why}"):
                call(caller, f"http://{host}/")
    for thread in threading.enumerate():
        if thread.name == "url-lookup":
            thread.join(10)


def test_the_next_address_is_tried_when_one_takes_no_connection(server: WebServer) -> None:
    caller = Caller(networks=["127.0.0.0/8"], lookup=lambda _: ["127.0.0.3", "127.0.0.1"])

    assert call(caller, f"http://good.test:{server.port}/")["body"] == "hello"


def test_a_mapped_address_is_called_as_the_address_in_it(server: WebServer) -> None:
    caller = Caller(networks=["127.0.0.0/8"], lookup=lambda _: ["::ffff:127.0.0.1"])

    assert call(caller, f"http://good.test:{server.port}/")["body"] == "hello"
    assert call(caller, f"http://[::ffff:127.0.0.1]:{server.port}/")["body"] == "hello"


def test_proxies_of_the_environment_are_not_used(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with WebServer() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")

        assert call(loopback(), f"http://good.test:{server.port}/")["body"] == "hello"
        assert proxy.connections == 0


# --- TLS ------------------------------------------------------------------------------------------------


def test_tls_names_the_host_though_the_connection_is_to_an_address(authority: Authority) -> None:
    with WebServer(context=authority.server_context("DNS:good.test")) as server:
        server.answers["/"] = answer(b"safe")
        caller = loopback(context=tls_context(str(authority.ca_file)))

        assert call(caller, f"https://good.test:{server.port}/")["body"] == "safe"
        assert server.names == ["good.test"]
        assert server.seen[0].headers["host"] == f"good.test:{server.port}"


def test_an_address_is_verified_as_an_address(authority: Authority) -> None:
    with WebServer(context=authority.server_context("IP:127.0.0.1")) as server:
        server.answers["/"] = answer(b"safe")
        caller = loopback(context=tls_context(str(authority.ca_file)))

        assert call(caller, f"https://127.0.0.1:{server.port}/")["body"] == "safe"
        with pytest.raises(Failure, match="certificate is not accepted"):
            call(caller, f"https://good.test:{server.port}/")


@pytest.mark.parametrize(
    ("host", "trusted", "why"),
    [
        ("other.test", True, "Hostname mismatch"),
        ("127.0.0.1", True, "IP address mismatch"),
        ("common.test", True, "Hostname mismatch"),
        ("good.test", False, "unable to get local issuer certificate"),
    ],
    ids=["another name", "an address", "a name in the subject alone", "an unknown authority"],
)
def test_a_certificate_that_does_not_fit_fails_whatever_the_job_says(
    authority: Authority, host: str, trusted: bool, why: str
) -> None:
    off: dict[str, Any] = {name: name.endswith(("tls", "ssl", "insecure", "file")) for name in TLS_OPTIONS}
    with WebServer(context=authority.server_context("DNS:good.test")) as server:
        caller = loopback(context=tls_context(str(authority.ca_file)) if trusted else None)

        with pytest.raises(Failure, match=f"certificate is not accepted: {why}"):
            call(caller, f"https://{host}:{server.port}/", **off)
        assert server.seen == []


def test_tls_options_are_ignored_and_named(authority: Authority) -> None:
    with WebServer(context=authority.server_context("DNS:good.test")) as server:
        server.answers["/"] = answer()
        caller = loopback(context=tls_context(str(authority.ca_file)))
        result = call(caller, f"https://good.test:{server.port}/", verify=False, Ca_Certs="/tmp/x")

    assert result["ignored"] == ["Ca_Certs: TLS is always verified", "verify: TLS is always verified"]


def test_a_handshake_gets_only_the_time_that_is_left(server: WebServer) -> None:
    target = parse(f"https://good.test:{server.port}/")
    connection = _connection(target, "127.0.0.1", Bounds(5.0, 0), tls_context())
    sock = connection._new_conn()
    with sock:
        assert 0 < (sock.gettimeout() or 0) < (connection.timeout or 0) <= 5.0


def test_https_with_a_server_that_speaks_no_tls_fails(server: WebServer) -> None:
    server.answers["/"] = answer()
    with pytest.raises(Failure):
        call(loopback(timeout=0.2), f"https://good.test:{server.port}/")
    assert server.seen == []
