"""The built-in handler `url` with servers that are hostile, broken, slow, or say no."""

from __future__ import annotations

import contextlib
import gzip
import socket
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.built_in import attempt
from support.descriptors import open_descriptors
from support.tables import row
from support.urljobs import call
from support.waiting import wait_until
from support.webserver import Answer, WebServer, answer

from jobpool.handlers.builtin import Failure
from jobpool.handlers.builtin.url.call import CHARSETS, MAX_WAIT_S, Caller, Later, wait_asked
from jobpool.handlers.builtin.url.connection import tls_context
from jobpool.handlers.builtin.url.request import Refused
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.outcome import ResultKind

LIMIT = 100_000


@pytest.fixture(scope="module")
def running() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


@pytest.fixture
def server(running: WebServer) -> WebServer:
    running.answers.clear()
    running.seen.clear()
    return running


def get(server: WebServer, reply: Answer, method: str = "GET", **options: Any) -> dict[str, Any]:
    server.answers["/"] = reply
    return call(caller(), f"http://127.0.0.1:{server.port}/", method, **options)


def caller(timeout: float = 10.0) -> Caller:
    return Caller(networks=["127.0.0.1"], timeout=timeout, max_bytes=LIMIT, keep=1000)


# --- statuses -------------------------------------------------------------------------------------------

STATUSES: dict[type[Exception], tuple[str, ...]] = {
    Refused: (
        *("300 Multiple Choices", "301 Moved", "302 Found", "304 Not Modified", "307 Temporary Redirect"),
        *("308 Permanent Redirect", "400 Bad Request", "401 Unauthorized", "404 Not Found"),
        *("407 Proxy Authentication Required", "410 Gone", "422 Unprocessable", "101 Switching Protocols"),
    ),
    Failure: (
        *("408 Request Timeout", "425 Too Early", "429 Too Many Requests", "500 Internal Server Error"),
        *("502 Bad Gateway", "503 Service Unavailable", "599 What"),
    ),
}


def test_what_a_status_means(server: WebServer) -> None:
    for kind, statuses in STATUSES.items():
        for status in statuses:
            with row(status), pytest.raises((Refused, Failure)) as caught:
                get(server, answer(b"" if status[0] == "1" else b"no\x07pe", status, location="http://127.0.0.1/"))
            assert type(caught.value) is kind, status
            assert f"GET 127.0.0.1:{server.port} answered {status[:3]}" in str(caught.value)
            assert str(caught.value).endswith(": no pe") or not status.startswith(("4", "5")), status


def test_interim_answers_are_passed_over(server: WebServer) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nContent-Length: 9\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + early * 2
    result = get(server, interim + answer(b"ok", etag="x"))
    assert (result["status"], result["headers"], result["body"]) == (200, {"etag": "x"}, "ok")
    for reply in (early, endless(early, b"")):
        with pytest.raises((Failure, Refused)):
            get(server, reply)


def test_a_redirect_inward_is_not_followed(server: WebServer) -> None:
    server.answers["/inner"] = answer(b"secret")
    place = f"http://127.0.0.1:{server.port}/inner?token=secret"
    with pytest.raises(Refused) as caught:
        get(server, answer(status="302 Found", location=place))

    assert caught.value.rule == "redirect"
    assert f"points to 127.0.0.1:{server.port}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert [seen.path for seen in server.seen] == ["/"]


def test_statuses_that_the_job_expects_are_success_and_others_are_not(server: WebServer) -> None:
    assert get(server, answer(b"gone", "404 Not Found"), expect=[200, 404])["body"] == "gone"
    assert get(server, answer(b"", "302 Found", location="/x"), expect=302)["headers"] == {"location": "/x"}
    assert get(server, answer(status="503 Later", retry_after="9"), expect=[503])["status"] == 503
    with pytest.raises(Refused, match="answered 200"):
        get(server, answer(b"", "200 OK"), expect=404)


@pytest.mark.parametrize("status", ["429 Slow Down", "503 Later"])
def test_retry_after_says_when(server: WebServer, status: str) -> None:
    with pytest.raises(Later, match=f"answered {status[:3]}: busy") as caught:
        get(server, answer(b"busy", status, retry_after="7"))

    assert caught.value.after == 7.0


def test_what_retry_after_asks_for_at_ten_seconds_past_the_epoch() -> None:
    for value, after in [
        (None, None),
        ("0", 0.0),
        (" 120 ", 120.0),
        ("99999999999", MAX_WAIT_S),
        ("9" * 400, None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_WAIT_S),
        ("Fri, 99 Dec 9999 23:59:59 GMT", None),
    ]:
        assert wait_asked(value, 10.0) == after, value


# --- sizes ----------------------------------------------------------------------------------------------


def endless(piece: bytes, head: bytes) -> Callable[[socket.socket], None]:
    def send(sock: socket.socket) -> None:
        sock.sendall(head)
        while True:
            sock.sendall(piece)  # until the client hangs up

    return send


def bomb(wrapped: bytes) -> bytes:
    return answer(wrapped, content_encoding="gzip")


TOO_LARGE: dict[str, Answer] = {
    "by its own word": answer(b"x" * 10, content_length=str(LIMIT + 1)),
    "by a word of many digits": answer(b"x" * 10, content_length="9" * 30),
    "by a byte": answer(b"x" * (LIMIT + 1)),
    "without a length": endless(b"x" * 4096, b"HTTP/1.1 200 OK\r\n\r\n"),
    "in chunks": endless(b"1000\r\n" + b"x" * 4096 + b"\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "in a chunk of size -1": endless(b"x" * 65536, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"),
    "in its head": endless(b"X: y\r\n" + b"X" * 60000, b"HTTP/1.1 200 OK\r\n"),
    "when unpacked": bomb(gzip.compress(bytes(50_000_000))),
    "when unpacked, deflated": answer(zlib.compress(bytes(LIMIT + 1)), content_encoding="deflate"),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_an_answer_that_is_too_large_is_refused_and_never_held(server: WebServer, case: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as caught:
            get(server, TOO_LARGE[case])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert caught.value.rule == "response-size"
    assert peak < 20 * LIMIT


def test_an_answer_of_just_the_limit_is_taken_and_its_beginning_kept(server: WebServer) -> None:
    for reply in (answer(b"x" * LIMIT), bomb(gzip.compress(b"x" * LIMIT))):
        result = get(server, reply)
        assert (result["bytes"], result["body"], result["truncated"]) == (LIMIT, "x" * 1000, True)


def test_a_head_tells_a_length_that_it_does_not_send(server: WebServer) -> None:
    assert get(server, answer(content_length=str(10 * LIMIT)), "HEAD")["bytes"] == 0


def test_the_text_of_a_body(server: WebServer) -> None:
    for kind, body, text in [
        ("text/plain; charset=latin-1", b"\xfc", "ü"),
        ("text/plain; charset=utf-16", "ü".encode("utf-16"), "ü"),
        ("text/plain; charset=utf-16le", "ü".encode("utf-16le"), "ü"),
        ("text/plain; charset=utf16le", b"abc", "abc"),  # Python knows no codec of this name
        ("text/plain", b"\xff", "�"),
        ("text/plain;charset = 'Shift_JIS'", b"\x82\xa0", "あ"),
        ("text/plain; charset=rot13", b"abc", "abc"),
        ("text/plain; charset=zip", b"abc", "abc"),
        ("text/plain; charset=idna", b"xn--", "xn--"),
        ("text/plain; charset=punycode", b"a-b", "a-b"),
        ("text/plain; charset=undefined", b"abc", "abc"),
        ("text/plain; charset=../../x", b"abc", "abc"),
        ("text/plain; charset=\x00", b"abc", "abc"),
        ("text/plain; charset=unicode_escape", b"\\x41", "\\x41"),
        ("nonsense", b"abc", "abc"),
    ]:
        assert get(server, answer(body, content_type=kind))["body"] == text, kind


# --- broken ---------------------------------------------------------------------------------------------


def test_every_encoding_that_a_body_may_have_is_known_and_takes_any_bytes() -> None:
    names = [f"utf{dash}{size}" for dash in ("", "-") for size in ("8", "16", "32")]
    names += [f"utf-{size}{dash}{end}" for dash in ("", "-") for size in (16, 32) for end in ("be", "LE")]
    names += ["us-ascii", "latin1", "koi8-u", "euc-kr", "gb2312", "gbk", "gb18030", "big5"]
    names += [f"iso-8859-{n}" for n in range(1, 17)] + [f"windows-125{n}" for n in range(9)]
    for name in filter(CHARSETS.fullmatch, names):
        assert isinstance(bytes(range(256)).decode(name, "replace"), str)
    assert [name for name in names if not CHARSETS.fullmatch(name)] == ["iso-8859-12"]


BROKEN: dict[str, Answer] = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "HTTP 0.9": b"<html>",
    "a status that is not a number": b"HTTP/1.1 abc OK\r\n\r\n",
    "a status line without end": endless(b"x" * 4096, b"HTTP/1.1 200 "),
    "a header without end": endless(b"x" * 4096, b"HTTP/1.1 200 OK\r\nX: "),
    "headers without end": endless(b"X: y\r\n" * 100, b"HTTP/1.1 200 OK\r\n"),
    "a body cut short": answer(b"x" * 10, content_length="20"),
    "a chunk cut short": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "a chunk of no size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
    "a chunk of negative size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nab\r\n0\r\n\r\n",
    "a chunk size without end": endless(b"1" * 4096, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "lengths that differ": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "packed as nobody asked": answer(b"x", content_encoding="br"),
    "packed twice": answer(gzip.compress(gzip.compress(b"x")), content_encoding="gzip, gzip"),
    "packed wrongly": answer(b"xxxxxxxxxx", content_encoding="gzip"),
    "packed and cut short": answer(gzip.compress(b"x" * 99)[:-9], content_encoding="gzip"),
    "packed, and more behind it": answer(gzip.compress(b"x") + b"y", content_encoding="gzip"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_answer_is_a_failed_attempt(server: WebServer, case: str) -> None:
    with pytest.raises(Failure):
        get(server, BROKEN[case])


def test_an_empty_body_that_is_called_packed_is_empty(server: WebServer) -> None:
    assert get(server, answer(content_encoding="gzip"))["body"] == ""


PIECES = (
    *(
        b"HTTP/1.1 ",
        b"200",
        b"302",
        b"503",
        b" OK",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\t",
        b" ",
        b":",
        b"\0",
        b"\xff",
        b"5",
    ),
    *(b"-1", b"abc", b"HTTP/1.1 100 \r\n\r\n", b"Content-Length: ", b"Transfer-Encoding: chunked", b"Retry-After: "),
    *(b"Content-Encoding: gzip", b"Location: ", b"http://[", b"Content-Type: text/x; charset="),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=20).map(b"".join))
def test_whatever_a_server_sends_is_a_result_or_one_of_our_errors(server: WebServer, reply: bytes) -> None:
    for data in (reply, b"HTTP/1.1 200 OK\r\n" + reply):
        try:
            assert get(server, data)["status"] in range(200, 300)
        except (Refused, Failure, Later):
            continue


def test_a_broken_head_is_not_logged_with_the_url(server: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    server.answers["/"] = b"HTTP/1.1 200 OK\r\nno colon\r\n\r\nx"
    call(caller(), f"http://127.0.0.1:{server.port}/?token=secret")

    assert "secret" not in caplog.text


# --- time -----------------------------------------------------------------------------------------------


def dripping(server: WebServer, head: bytes, piece: bytes = b"x") -> Callable[[socket.socket], None]:
    """A byte now and then, 500 of them: ten seconds and more."""

    def send(sock: socket.socket) -> None:
        sock.sendall(head)
        for _ in range(500):
            if server.ending.wait(0.02):
                break
            sock.sendall(piece)

    return send


SLOW: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "a status line": (b"HTTP/1.1 200 ", b"x"),
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x"),
    "a body without a length": (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "an error's body": (b"HTTP/1.1 503 Busy\r\nContent-Length: 9999\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("case", SLOW)
def test_a_slow_answer_ends_with_the_time_of_the_call(server: WebServer, case: str) -> None:
    head, piece = SLOW[case]
    began = time.monotonic()
    with pytest.raises(Failure, match=r"in time|answered 503"):
        get(server, dripping(server, head, piece), timeout=0.2)

    assert time.monotonic() - began < 5.0, "500 drops take twice as long"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_never_reads_ends_with_the_time_of_the_call(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/"
        slow = Caller(networks=["127.0.0.1"], timeout=0.2, max_bytes=1 << 25)
        large = SimpleNamespace(id="a1", payload={"method": "POST", "url": url, "options": {"body": "x" * (1 << 25)}})

        with pytest.raises(Failure, match="in time"):
            slow.run(large)  # type: ignore[arg-type]


# --- the hard timeout -----------------------------------------------------------------------------------


def timed_out(caller: Caller, url: str, timeout: float) -> bool:
    registry = HandlerRegistry()
    registry.handler("it")(caller.run)
    return attempt("it", {"method": "GET", "url": url}, registry, timeout=timeout).kind is ResultKind.TIMEOUT


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"], ids=repr
)
def test_the_hard_timeout_leaves_no_connection_behind(server: WebServer, head: bytes) -> None:
    hung_up: list[bytes] = []

    def stay(sock: socket.socket) -> None:
        sock.sendall(head)
        hung_up.append(sock.recv(1))

    server.answers |= {"/": b"", "/stay": stay}  # a call of an earlier test, which timed out, may come only now
    assert timed_out(caller(timeout=60.0), f"http://127.0.0.1:{server.port}/stay", 0.2)
    wait_until(lambda: hung_up, what="the client has closed its end")
    assert hung_up == [b""]


def test_the_hard_timeout_in_a_tls_handshake_leaves_no_connection_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        patient = caller(timeout=60.0)
        patient.context = tls_context()  # that, and the import of urllib3, may take longer than the attempt has
        assert timed_out(patient, f"https://127.0.0.1:{listener.getsockname()[1]}/", 0.3)
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(10)
            while sock.recv(65536):  # its greeting, and then the end
                pass


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_the_hard_timeout_in_a_connect_leaves_no_connection_behind() -> None:
    """Nobody accepts, and the queue is full. What `socket` had in hand is closed with its frame, hence the warning."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        port = listener.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        before = open_descriptors()
        assert timed_out(caller(timeout=60.0), f"http://127.0.0.1:{port}/", 0.2)
        assert open_descriptors() <= before
