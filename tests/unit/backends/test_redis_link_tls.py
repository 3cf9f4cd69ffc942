"""TLS, with certificates that the test makes: who is trusted, and what is told when somebody is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis_rig import linked
from support.certificates import Authority
from support.servers import RedisServer, free_port, shared_redis

from jobpool.errors import BackendUnavailable, ConfigurationError

PASSWORD = "hidden-from-all"


class Certificates:
    """What an authority has signed for a server and for a client; and the same of an authority that nobody trusts."""

    def __init__(self, folder: Path, other: Path) -> None:
        authority, stranger = Authority(folder), Authority(other)
        self.server = authority.sign("server", "DNS:localhost")
        self.trusted, self.untrusted = ({"ssl_ca_certs": str(each.ca_file)} for each in (authority, stranger))
        self.ours, self.theirs = (shown(*each.sign("client", "DNS:localhost")) for each in (authority, stranger))


def shown(certificate: Path, key: Path) -> dict[str, str]:
    return {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("authority"), tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module", params=["no", "yes"], ids=["server only", "both sides"])
def wants_ours(request: pytest.FixtureRequest) -> str:
    """Whether the server wants a certificate of the client."""
    return str(request.param)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, wants_ours: str) -> Iterator[int]:
    """The TLS port of a server."""
    found = free_port()
    config = {
        "tls-port": str(found),
        "tls-cert-file": str(certificates.server[0]),
        "tls-key-file": str(certificates.server[1]),
        "tls-ca-cert-file": certificates.trusted["ssl_ca_certs"],
        "tls-auth-clients": wants_ours,
        "requirepass": PASSWORD,
    }
    with RedisServer(tmp_path_factory.mktemp("redis"), config=config):
        yield found


def ask(url: str, **options: Any) -> object:
    """What a server answers to PING, through a new link."""
    with linked(url, **{"timeout": 1.0, **options}) as link:
        return link.call("PING")


def test_both_sides_are_known_and_the_host_unless_told_otherwise(certificates: Certificates, port: int) -> None:
    trusted = certificates.trusted | certificates.ours
    assert ask(f"rediss://:{PASSWORD}@localhost:{port}", **trusted) == b"PONG"
    address = f"rediss://:{PASSWORD}@127.0.0.1:{port}"
    with pytest.raises(ConfigurationError, match=r"certificate \(IP address mismatch.*\): .* or mend the host"):
        ask(address, **trusted)
    assert ask(f"{address}?ssl_check_hostname=no", **trusted) == b"PONG"
    assert ask(f"{address}?ssl_cert_reqs=none", **certificates.ours) == b"PONG"


def test_who_is_not_trusted_is_not_talked_to(certificates: Certificates, port: int) -> None:
    for authority in ({}, certificates.untrusted):
        with pytest.raises(
            ConfigurationError, match=r"shows no valid certificate \(.*\): renew it, name its auth"
        ) as told:
            ask(f"rediss://:{PASSWORD}@localhost:{port}", **authority, **certificates.ours)
        assert f"Redis at localhost:{port}" in str(told.value)
        assert PASSWORD not in str(told.value)


def test_our_certificate_where_it_is_wanted(certificates: Certificates, port: int, wants_ours: str) -> None:
    url = f"rediss://:{PASSWORD}@localhost:{port}"
    if wants_ours == "no":
        assert ask(url, **certificates.trusted) == b"PONG"
        return
    for given in ({}, certificates.theirs):
        # TLS 1.3 says so after the handshake, when the server may have hung up already.
        with pytest.raises((ConfigurationError, BackendUnavailable), match=r"certificate.* ssl_certfile"):
            ask(url, **certificates.trusted, **given)


def test_tls_is_spoken_where_it_is_wanted_and_nowhere_else(port: int) -> None:
    for url, kinds, text in [
        (f"redis://:{PASSWORD}@localhost:{port}", (BackendUnavailable,), "if the port wants TLS, write rediss://"),
        (
            f"rediss://:{PASSWORD}@localhost:{shared_redis().port}",
            (BackendUnavailable, ConfigurationError),
            "write redis://",
        ),
    ]:
        with pytest.raises(kinds, match=text) as told:
            ask(url, connect_timeout=0.5)
        assert PASSWORD not in str(told.value)
