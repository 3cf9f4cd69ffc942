"""What is told when beanstalkd cannot be reached, is something else, or refuses: cause and mend, in one sentence."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import greenstalk
import pytest
from support.servers import free_port
from support.tables import row

from jobpool import open_backend
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, JobpoolError
from jobpool_backends.beanstalk.address import Address
from jobpool_backends.beanstalk.connection import refusal


@contextmanager
def answering(text: bytes) -> Iterator[int]:
    """A port where every connection is told this, whatever it says; b"" = hung up on."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(text)
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_what_is_no_beanstalkd_is_told() -> None:
    for text, told in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak beanstalkd's protocol: mend the host or the port"),
        (b"OK many\r\n", "does not speak beanstalkd's protocol"),
        (b"", "closed the connection"),
        (b"OK 100\r\n---\n", "closed the connection"),
    ]:
        with row(text), answering(text) as port, pytest.raises(JobpoolError, match=told):
            open_backend(f"beanstalk://127.0.0.1:{port}")


def test_nobody_there() -> None:
    port = free_port()
    with pytest.raises(
        BackendUnavailable, match=rf"beanstalkd at 127\.0\.0\.1:{port} refuses connections.* Start beanstalkd"
    ):
        open_backend(f"beanstalk://127.0.0.1:{port}")


def test_no_such_host() -> None:
    with pytest.raises(
        BackendUnavailable, match=r"beanstalkd at nowhere\.invalid:11300 cannot be found: mend the host"
    ):
        open_backend("beanstalk://nowhere.invalid")


def test_a_host_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"beanstalk://127.0.0.1:{silent.getsockname()[1]}?timeout=0.1"
        with pytest.raises(BackendUnavailable, match=r"did not answer within 0\.1 s.*raise the option timeout"):
            open_backend(url)


def test_refusals() -> None:
    for error, kind, told in [
        (greenstalk.DrainingError(), BackendUnavailable, "drain mode.*SIGUSR1.*Restart it"),
        (greenstalk.OutOfMemoryError(), BackendUnavailable, "out of memory or disk: give it more"),
        (greenstalk.BuriedError(), BackendUnavailable, "buried a job.*kick it"),
        (greenstalk.InternalError(), BackendUnavailable, "check its disk"),
        (greenstalk.JobTooBigError(), InvalidJob, "as big as this: make its payload smaller, or .* -z"),
        (greenstalk.BadFormatError(), ConfigurationError, "check the option tube_prefix"),
        (greenstalk.UnknownCommandError(), ConfigurationError, "reserve-job.*upgrade it to beanstalkd 1.12"),
    ]:
        with row(error), pytest.raises(kind, match=rf"^beanstalkd at jobs:11300 .*{told}"):
            raise refusal(error, Address("jobs")) or AssertionError


def test_answers_like_any_other_are_no_trouble() -> None:
    for error in [
        greenstalk.NotFoundError(),
        greenstalk.TimedOutError(),
        greenstalk.DeadlineSoonError(),
    ]:
        assert refusal(error, Address("jobs")) is None, error
