"""What a Redis URL and its options mean, and what each slip is told."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobpool.errors import ConfigurationError
from jobpool_backends.redis.address import Address, read_address
from jobpool_backends.shared import DeadCaps

SECRET = "hidden"  # in every URL below that has a password: no error may repeat it


def read(url: str, **options: Any) -> Address:
    return read_address(url, options)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate and its key, and the key again with a pass phrase."""
    folder = tmp_path_factory.mktemp("tls")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=localhost -days 2"
    for key in (["-nodes", "-keyout", "own.key"], ["-passout", f"pass:{SECRET}", "-keyout", "locked.key"]):
        certificate = key[-1].replace("key", "crt")
        subprocess.run([*words.split(), *key, "-out", certificate], cwd=folder, check=True, capture_output=True)
    return folder


# --- what is read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port", "db", "username", "password"),
    [
        ("redis://localhost", "localhost", 6379, 0, None, None),
        ("redis://10.0.0.1:6380", "10.0.0.1", 6380, 0, None, None),
        ("redis://localhost:6380/3", "localhost", 6380, 3, None, None),
        ("redis://localhost/", "localhost", 6379, 0, None, None),
        ("redis://localhost?db=4", "localhost", 6379, 4, None, None),
        ("redis://:hidden@localhost", "localhost", 6379, 0, None, "hidden"),
        ("redis://me:hidden@localhost/1", "localhost", 6379, 1, "me", "hidden"),
        ("redis://me:a%2Fb%40c%3Ad@localhost", "localhost", 6379, 0, "me", "a/b@c:d"),
        ("redis://m%40e:hid:den@localhost", "localhost", 6379, 0, "m@e", "hid:den"),
        ("redis://[::1]:6380/2", "::1", 6380, 2, None, None),
        ("redis://[fe80::1%eth0]", "fe80::1%eth0", 6379, 0, None, None),
        ("REDIS://Cache.example.org.", "Cache.example.org.", 6379, 0, None, None),
    ],
)
def test_one_server(url: str, host: str, port: int, db: int, username: str | None, password: str | None) -> None:
    address = read(url)
    [server] = address.seeds
    assert (address.cluster, address.service) == (False, "")
    assert (server.host, server.port, server.db) == (host, port, db)
    assert (server.username, server.password) == (username, password)
    assert (server.timeout, server.connect_timeout, server.tls) == (2.0, 2.0, None)


def test_a_unix_socket() -> None:
    [server] = read("redis+unix:///run/redis/my%20own.sock?db=2&timeout=5", password="hidden").seeds
    assert (server.path, server.db, server.timeout, server.password) == ("/run/redis/my own.sock", 2, 5.0, "hidden")
    assert server.title == "Redis at /run/redis/my own.sock"


def test_sentinels() -> None:
    address = read("redis+sentinel://me:hidden@h1,h2:26380/reports/5", sentinel_password="other", timeout=1)
    assert not address.cluster
    assert address.service == "reports"
    assert [(seed.host, seed.port) for seed in address.seeds] == [("h1", 26379), ("h2", 26380)]
    assert {(seed.username, seed.password, seed.db) for seed in address.seeds} == {(None, "other", 0)}
    assert (address.node.username, address.node.password, address.node.db) == ("me", "hidden", 5)
    assert address.node.timeout == 1.0


def test_a_cluster() -> None:
    address = read("redis+cluster://:hidden@[::1]:7000,h2,h3:7002")
    assert address.cluster
    assert [(seed.host, seed.port) for seed in address.seeds] == [("::1", 7000), ("h2", 6379), ("h3", 7002)]
    assert {seed.password for seed in address.seeds} == {address.node.password} == {"hidden"}


def test_options_by_keyword_win_over_those_in_the_url() -> None:
    [server] = read(
        "redis://me:wrong@localhost/1?timeout=7&connect_timeout=8", timeout=3, db=2, password="hidden"
    ).seeds
    assert (server.timeout, server.connect_timeout, server.db, server.password) == (3.0, 8.0, 2, "hidden")


def test_the_prefix_and_the_caps_are_part_of_the_address() -> None:
    address = read("redis://localhost?prefix=mine&timeout=3", dead_max=7)
    assert (address.prefix, address.caps) == ("mine", DeadCaps(7))
    assert address.seeds[0].timeout == 3.0


def test_no_password_is_in_what_is_printed() -> None:
    assert SECRET not in repr(read("redis+sentinel://me:hidden@h/reports", sentinel_password="hidden"))


# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["rediss://localhost", "rediss+sentinel://localhost/reports", "rediss+cluster://localhost"]
)
def test_tls_verifies_unless_told_otherwise(url: str) -> None:
    address = read(url)
    assert address.node.tls == address.seeds[0].tls == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}


def test_tls_options(certificate: Path) -> None:
    own, key = str(certificate / "own.crt"), str(certificate / "own.key")
    given = {"ssl_ca_certs": own, "ssl_certfile": own, "ssl_keyfile": key, "ssl_cert_reqs": "none"}
    assert read("rediss://localhost?ssl_check_hostname=no", **given).node.tls == given | {"ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ssl_ca_certs": "/nowhere.pem"}, "cannot use ssl_ca_certs /nowhere.pem: No such file"),
        ({"ssl_ca_certs": "own.key"}, "cannot use ssl_ca_certs .*own.key: it does not hold what it should"),
        ({"ssl_certfile": "own.crt"}, "cannot use ssl_certfile and ssl_keyfile: it does not hold"),
        ({"ssl_keyfile": "own.key"}, "ssl_keyfile without ssl_certfile: give both"),
        ({"ssl_certfile": "locked.crt", "ssl_keyfile": "locked.key"}, "an unencrypted key and its certificate"),
        ({"ssl_certfile": "own.crt", "ssl_keyfile": "locked.key"}, "an unencrypted key and its certificate"),
        ({"ssl_cert_reqs": "maybe"}, "ssl_cert_reqs as required, optional or none, not 'maybe'"),
        ({"ssl_check_hostname": "perhaps"}, "ssl_check_hostname as yes, no, true or false, not 'perhaps'"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_tls_options(certificate: Path, options: dict[str, str], text: str) -> None:
    given = {
        name: str(certificate / value) if "own." in value or "locked." in value else value
        for name, value in options.items()
    }
    with pytest.raises(ConfigurationError, match=text):
        read("rediss://localhost", **given)


def test_tls_options_without_tls_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"redis://.* speaks no TLS: write rediss://, or leave ssl_ca_certs out"
    ):
        read("redis://localhost?ssl_ca_certs=ca.pem")


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://", "redis:// has no valid host: write host, host:6379"),
        ("redis://:hidden@", "has no valid host"),
        ("redis://localhost:0", "has no valid host"),
        ("redis://localhost:70000", "has no valid host"),
        ("redis://localhost:six", "has no valid host"),
        ("redis://local host", "has no valid host"),
        ("redis://::1", "has no valid host"),
        ("redis://" + "a" * 64, "has no valid host"),
        ("redis://a..b", "has no valid host"),
        ("redis://h1,h2", r"takes one host: write redis\+sentinel:// or redis\+cluster://"),
        ("redis://localhost/one", "has no valid database: its number is 0, 1, 2"),
        ("redis://localhost/-1", "has no valid database"),
        ("redis://localhost/1/2", "has no valid database"),
        ("redis://me:hid/den@localhost", "cannot be read: write '/', .* in a password as %2F"),
        ("redis://me:hid?den@localhost", "in a password as %2F"),
        ("redis://me:1?hidden@localhost", "in a password as %2F"),
        ("redis://me:hid#den@localhost", "in a password as %2F"),
        ("redis://me:hid@den@localhost", "in a password as %2F"),
        ("redis://hidden@localhost", "has no password beside its user"),
        ("redis://hidden:@localhost", "has no password beside its user"),
        ("redis+unix://localhost/redis.sock", "names no socket: write redis.unix:///path"),
        ("redis+unix://", "names no socket"),
        ("redis+unix:///", "names no socket"),
        ("redis+sentinel://h1,h2", "names no service: write redis.sentinel://host:26379/SERVICE"),
        ("redis+sentinel:///reports", "has no valid host: write host, host:26379"),
        ("redis+sentinel://h1,,h2/reports", "has no valid host"),
        ("redis+sentinel://h1/reports/x", "has no valid database"),
        ("redis+cluster://h1/1", "has database 0 only: leave the number out"),
        ("redis://localhost?timeout=0", "option timeout as more than 0 and at most 3600 seconds, not '0'"),
        ("redis://localhost?timeout=nan", "option timeout as more than 0"),
        ("redis://localhost?connect_timeout=soon", "option connect_timeout as more than 0 .* not 'soon'"),
        ("redis://localhost?timeout=", "option timeout as more than 0"),
    ],
)
def test_what_is_wrong_with_a_url(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        read(url)
    assert not any(piece in str(caught.value) for piece in ("hid", "den@", "hidden"))


def test_a_password_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"takes option password as a text") as caught:
        read("redis://localhost", password=12345)
    assert "12345" not in str(caught.value)
