"""An authority and certificates for tests, made by the openssl program."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Signs certificates; `ca_file` is what a client must trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca_file = folder / "ca.pem"
        self._key = folder / "ca.key"
        subject = ("-subj", "/CN=An authority of a test", "-addext", "keyUsage=critical,keyCertSign")
        _openssl("req", "-x509", *KEY, "-keyout", self._key, "-out", self.ca_file, *subject, "-days", "2")

    def sign(self, stem: str, *names: str, days: int = 2) -> tuple[Path, Path]:
        """A certificate that holds these names (`DNS:a.test`, `IP:127.0.0.1`), for so many days, and its key."""
        certificate, key = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        extension = ("-addext", f"subjectAltName={','.join(names)}", "-addext", "basicConstraints=CA:FALSE")
        signer = ("-CA", self.ca_file, "-CAkey", self._key)
        subject = ("-subj", "/CN=common.test")
        _openssl(
            *("req", "-x509", *KEY, "-keyout", key, "-out", certificate, *subject),
            *(*extension, *signer, "-days", str(days)),
        )
        return certificate, key

    def server_context(self, *names: str, days: int = 2) -> ssl.SSLContext:
        """For a server with such a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.sign(names[0].replace(":", "_"), *names, days=days))
        return context


def _openssl(*words: str | Path) -> None:
    ended = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
