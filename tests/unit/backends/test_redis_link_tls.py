"""TLS, with certificates that the test makes: who is trusted, and what is told when somebody is not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis_rig import linked
from support.servers import RedisServer, free_port, shared_redis

from jobpool.errors import BackendUnavailable, ConfigurationError

PASSWORD = "hidden-from-all"


@dataclass(frozen=True, slots=True)
class Certificates:
    """In one folder: an authority, and what it has signed for a server and for a client."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        made = cls(folder)
        made._openssl("req -x509 -subj /CN=authority -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.crt")
        for name in ("server", "client"):
            made._openssl(
                f"req -x509 -CA ca.crt -CAkey ca.key -subj /CN={name} -keyout {name}.key -out {name}.crt"
                " -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:localhost"
            )
        made._openssl("req -x509 -subj /CN=stranger -keyout stranger.key -out stranger.crt")
        return made

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def _openssl(self, words: str) -> None:
        key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        subprocess.run(["openssl", *words.split(), *key.split()], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


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
        "tls-cert-file": certificates.path("server.crt"),
        "tls-key-file": certificates.path("server.key"),
        "tls-ca-cert-file": certificates.path("ca.crt"),
        "tls-auth-clients": wants_ours,
        "requirepass": PASSWORD,
    }
    with RedisServer(tmp_path_factory.mktemp("redis"), config=config):
        yield found


def ask(url: str, **options: Any) -> object:
    """What a server answers to PING, through a new link."""
    with linked(url, **{"timeout": 1.0, **options}) as link:
        return link.call("PING")


def ours(certificates: Certificates, name: str = "client") -> dict[str, str]:
    return {"ssl_certfile": certificates.path(f"{name}.crt"), "ssl_keyfile": certificates.path(f"{name}.key")}


def test_both_sides_are_known_and_the_host_unless_told_otherwise(certificates: Certificates, port: int) -> None:
    trusted = {"ssl_ca_certs": certificates.path("ca.crt"), **ours(certificates)}
    assert ask(f"rediss://:{PASSWORD}@localhost:{port}", **trusted) == b"PONG"
    address = f"rediss://:{PASSWORD}@127.0.0.1:{port}"
    with pytest.raises(ConfigurationError, match=r"certificate \(IP address mismatch.*\): .* or mend the host"):
        ask(address, **trusted)
    assert ask(f"{address}?ssl_check_hostname=no", **trusted) == b"PONG"
    assert ask(f"{address}?ssl_cert_reqs=none", **ours(certificates)) == b"PONG"


def test_who_is_not_trusted_is_not_talked_to(certificates: Certificates, port: int) -> None:
    for authority in ({}, {"ssl_ca_certs": certificates.path("stranger.crt")}):
        with pytest.raises(
            ConfigurationError, match=r"shows no valid certificate \(.*\): renew it, name its auth"
        ) as told:
            ask(f"rediss://:{PASSWORD}@localhost:{port}", **authority, **ours(certificates))
        assert f"Redis at localhost:{port}" in str(told.value)
        assert PASSWORD not in str(told.value)


def test_our_certificate_where_it_is_wanted(certificates: Certificates, port: int, wants_ours: str) -> None:
    trusted = {"ssl_ca_certs": certificates.path("ca.crt")}
    url = f"rediss://:{PASSWORD}@localhost:{port}"
    if wants_ours == "no":
        assert ask(url, **trusted) == b"PONG"
        return
    for given in ({}, ours(certificates, "stranger")):
        # TLS 1.3 says so after the handshake, when the server may have hung up already.
        with pytest.raises((ConfigurationError, BackendUnavailable), match=r"certificate.* ssl_certfile"):
            ask(url, **trusted, **given)


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
