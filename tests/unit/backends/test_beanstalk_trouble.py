"""What is told when beanstalkd cannot be reached, is something else, or refuses: cause and mend, in one sentence."""

from __future__ import annotations

import socket

import greenstalk
import pytest
from answering import answering
from support.servers import free_port
from support.tables import row

from jobpool import open_backend
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, JobpoolError
from jobpool_backends.beanstalk.address import Address, read_address
from jobpool_backends.beanstalk.connection import refusal


def test_what_is_no_beanstalkd_is_told() -> None:
    for text, told in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak beanstalkd's protocol: mend the host or the port"),
        (b"OK many\r\n", "does not speak beanstalkd's protocol"),
        (b"", "closed the connection"),
        (b"OK 100\r\n---\n", "closed the connection"),
    ]:
        with row(text), answering(text) as (host, port), pytest.raises(JobpoolError, match=told):
            open_backend(f"beanstalk://{host}:{port}")


def test_what_cannot_be_reached_is_told_with_the_mend() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for where, told in [
            (f"127.0.0.1:{port}", rf"beanstalkd at 127\.0\.0\.1:{port} refuses connections.* Start beanstalkd"),
            ("nowhere.invalid", r"beanstalkd at nowhere\.invalid:11300 cannot be found: mend the host"),
            (
                f"127.0.0.1:{silent.getsockname()[1]}?timeout=0.1",
                r"did not answer within 0\.1 s.*raise the option timeout",
            ),
        ]:
            with row(where), pytest.raises(BackendUnavailable, match=told):
                open_backend(f"beanstalk://{where}")


def test_refusals() -> None:
    for error, kind, told in [
        (greenstalk.DrainingError(), BackendUnavailable, "drain mode.*SIGUSR1.*Restart it"),
        (greenstalk.OutOfMemoryError(), BackendUnavailable, "out of memory or disk: give it more"),
        (greenstalk.BuriedError(), BackendUnavailable, "buried a job.*kick it"),
        (greenstalk.InternalError(), BackendUnavailable, "full disk.*make room, then restart it"),
        (greenstalk.JobTooBigError(), InvalidJob, "as big as this: make its payload smaller, or .* -z"),
        (greenstalk.BadFormatError(), ConfigurationError, "check the option tube_prefix"),
        (greenstalk.UnknownCommandError(), ConfigurationError, "reserve-job.*upgrade it to beanstalkd 1.12"),
    ]:
        with row(error), pytest.raises(kind, match=rf"^beanstalkd at jobs:11300 .*{told}"):
            raise refusal(error, Address("jobs")) or AssertionError


def test_answers_like_any_other_are_no_trouble() -> None:
    for error in (greenstalk.NotFoundError(), greenstalk.TimedOutError(), greenstalk.DeadlineSoonError()):
        assert refusal(error, Address("jobs")) is None, error


def test_what_is_read() -> None:
    cases: list[tuple[str, dict[str, object], Address]] = [
        ("beanstalk://localhost", {}, Address("localhost")),
        ("beanstalk://localhost/", {}, Address("localhost")),
        ("beanstalk://10.0.0.1:11301", {}, Address("10.0.0.1", 11301)),
        ("BEANSTALK://Jobs.example.org.", {}, Address("Jobs.example.org.")),
        ("beanstalk://[::1]:5", {}, Address("::1", 5)),
        ("beanstalk://h?ttr=90&tube_prefix=shop.&timeout=2", {}, Address("h", ttr=90, tube_prefix="shop.", timeout=2)),
        ("beanstalk://h?ttr=90", {"ttr": 5}, Address("h", ttr=5)),
        ("beanstalk://h", {"ttr": 0.1, "connect_timeout": 1}, Address("h", ttr=1, connect_timeout=1)),
        ("beanstalk://h?ttr=29.5", {}, Address("h", ttr=30)),
    ]
    for url, options, address in cases:
        assert read_address(url, options) == address, url


def test_a_slip_is_one_sentence_that_names_it() -> None:
    for url, told in [
        ("beanstalk://", "write host, host:11300"),
        ("beanstalk://h:0", "valid host"),
        ("beanstalk://h:65536", "valid host"),
        ("beanstalk://h:x", "valid host"),
        ("beanstalk://-h-!", "valid host"),
        ("beanstalk://a,b", "one host"),
        ("beanstalk://me:pass@h", "no user or password"),
        ("beanstalk://h/reports", "no path"),
        ("beanstalk://h?ttr=0", "ttr as more than 0 seconds and less than a year, not '0'"),
        ("beanstalk://h?ttr=nan", "ttr"),
        ("beanstalk://h?ttr=31622400", "less than a year"),
        ("beanstalk://h?ttr=soon", "ttr"),
        ("beanstalk://h?timeout=0", "timeout as more than 0 and at most 3600 seconds"),
        ("beanstalk://h?connect_timeout=3601", "connect_timeout"),
        ("beanstalk://h?tube_prefix=-a", "tube_prefix"),
        ("beanstalk://h?tube_prefix=a%20b", "tube_prefix"),
        (f"beanstalk://h?tube_prefix={'a' * 101}", "up to 100"),
        ("beanstalk://h?dead_max=5", "no option dead_max: leave it out"),
    ]:
        with row(url), pytest.raises(ConfigurationError, match=r"^beanstalk:// ") as raised:
            read_address(url, {})
        assert told in str(raised.value), url
        assert "pass" not in str(raised.value) or "password" in told, url


def test_an_option_by_keyword_of_a_wrong_kind_is_refused() -> None:
    for options in ({"ttr": None}, {"timeout": True}, {"tube_prefix": 7}):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            read_address("beanstalk://h", options)


def test_tubes_and_queues_know_each_other() -> None:
    address = Address("::1", tube_prefix="shop.")
    assert address.tube("mails") == "shop.mails"
    assert address.queue("shop.mails") == "mails"
    assert address.queue("other") is None
    assert address.title == "beanstalkd at [::1]:11300"
