"""What a beanstalkd URL and its options mean, and what each slip is told."""

from __future__ import annotations

import pytest
from support.tables import row

from jobpool.errors import ConfigurationError
from jobpool_backends.beanstalk.address import Address, read_address


def test_what_is_read() -> None:
    for url, options, address in [
        ("beanstalk://localhost", {}, Address("localhost")),
        ("beanstalk://localhost/", {}, Address("localhost")),
        ("beanstalk://10.0.0.1:11301", {}, Address("10.0.0.1", 11301)),
        ("BEANSTALK://Jobs.example.org.", {}, Address("Jobs.example.org.")),
        ("beanstalk://[::1]:5", {}, Address("::1", 5)),
        ("beanstalk://h?ttr=90&tube_prefix=shop.&timeout=2", {}, Address("h", ttr=90, tube_prefix="shop.", timeout=2)),
        ("beanstalk://h?ttr=90", {"ttr": 5}, Address("h", ttr=5)),
        ("beanstalk://h", {"ttr": 0.1, "connect_timeout": 1}, Address("h", ttr=1, connect_timeout=1)),
        ("beanstalk://h?ttr=29.5", {}, Address("h", ttr=30)),
    ]:
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
