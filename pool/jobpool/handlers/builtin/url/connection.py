"""One HTTP exchange with an address that was checked. The only module here that imports urllib3.

urllib3 is given the address, not the name, so there is nothing left to resolve: the connection goes where the check
looked. The name goes into the `Host` header, the TLS handshake (SNI) and the check of the certificate. Connections are
used directly, without a pool or its manager: so there are no redirects, no retries, no proxies and no environment.

A socket's own timeout starts anew with every system call. So a peer that sends a byte now and then could hold a call
open forever. And http.client can be told to read without end: by a chunk of size -1, for one. Here each system call
gets the rest of the call's time, and received bytes are counted, without a thread or a signal.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

from urllib3 import BaseHTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from jobpool.handlers.builtin import Failure
from jobpool.handlers.builtin.url.addresses import Bounds
from jobpool.handlers.builtin.url.request import Address, Request, Target

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Used = TypeVar("Used")

# urllib3 warns of a broken head with the whole URL, and thus with tokens in its query: the warning is left out.
logging.getLogger("urllib3.connection").addFilter(
    lambda record: not str(record.msg).startswith("Failed to parse headers")
)

CONNECT_TIMEOUT_S = 10.0  # seconds for the TCP connection to one address, and again for its TLS handshake
MAX_ADDRESSES = 4  # addresses of a name that are tried
ERRORS = (OSError, HTTPError, HTTPException)  # errors of an exchange


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Return a context that verifies certificates and names, against the system's authorities or those of `ca_file`.

    No payload reaches this. Takes some 20 ms: keep it.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    context.hostname_checks_common_name = False
    context.sslsocket_class = BoundedTlsSocket
    return context


def exchange(
    request: Request,
    addresses: Sequence[Address],
    bounds: Bounds,
    context: ssl.SSLContext | None,
    use: Callable[[BaseHTTPResponse], Used],
) -> Used:
    """Send the request to the first of the addresses that answers, and return what `use` makes of the response.

    The body is not read when `use` gets it. Every end of this, by the hard timeout too, closes the socket. Blocks until
    the deadline at most. Raises the errors of `use`, and `TooMuch`: more came in than the bounds allow.

    Raises:
        Failure: No address took the connection, or the exchange broke off, in `use` too.
    """
    try:
        connection = _connect_any(request.target, addresses, bounds, context)
        try:
            _send(connection, request)
            with contextlib.closing(connection.getresponse()) as response:
                return use(response)
        finally:
            connection.close()
    except ERRORS as error:
        raise Failure(f"{request.method} {request.target.authority}: {_told(error)}") from error


def _connect_any(
    target: Target, addresses: Sequence[Address], bounds: Bounds, context: ssl.SSLContext | None
) -> HTTPConnection:
    *others, last = addresses[:MAX_ADDRESSES]
    for address in others:
        with contextlib.suppress(*ERRORS):
            return _connect(target, address, bounds, context)
    return _connect(target, last, bounds, context)


def _connect(target: Target, address: Address, bounds: Bounds, context: ssl.SSLContext | None) -> HTTPConnection:
    connection = _connection(target, str(address), bounds, context)
    try:
        connection.connect()
        peer = connection.sock.getpeername()[0]
        if ip_address(peer) != address:  # cannot be; but all the rest stands on it
            raise OSError("connected to another address than the one that was checked")
        connection.sock = bounded(connection.sock, bounds)
    except BaseException:
        connection.close()
        raise
    return connection


def _connection(
    target: Target, address: str, bounds: Bounds, context: ssl.SSLContext | None
) -> HTTPConnection | HTTPSConnection:
    timeout = min(CONNECT_TIMEOUT_S, bounds.left())
    if target.scheme == "http":
        return _Http(address, target.port, timeout=timeout)
    if context is None:  # urllib3 would make one of its own
        raise TypeError("a call of https needs a TLS context")
    made = _Https(address, target.port, timeout=timeout, ssl_context=context, server_hostname=target.host)
    made.bounds = bounds
    return made


class _FinalResponse(HTTPResponse):
    """The answer after all interim ones, such as 103: http.client passes over 100 alone."""

    def begin(self) -> None:
        super().begin()
        while 101 < self.status < 200:  # 101 is final: nobody asked to switch protocols
            self.headers = None  # type: ignore[assignment]  # then it begins anew
            super().begin()


class _Http(HTTPConnection):
    response_class = _FinalResponse


class _Https(HTTPSConnection):
    """Its handshake keeps to the deadline too: urllib3 would give it the time anew that TCP may have used up."""

    response_class = _FinalResponse
    bounds: Bounds

    def _new_conn(self) -> socket.socket:
        sock = super()._new_conn()
        try:
            sock.settimeout(min(CONNECT_TIMEOUT_S, self.bounds.left()))
        except BaseException:
            sock.close()
            raise
        return sock


def _send(connection: HTTPConnection, request: Request) -> None:
    framing = {"Host": request.target.authority, "Accept-Encoding": "identity", "Connection": "close"}
    # A server that has read enough may answer and hang up: its answer is what counts then.
    with contextlib.suppress(BrokenPipeError):
        connection.request(
            request.method,
            request.target.path,
            body=request.body,
            headers=framing | request.headers,
            preload_content=False,
            decode_content=False,
        )


def _told(error: Exception) -> str:
    """Describe the error in a few words. urllib3's own texts hold the connection's address, which stays private."""
    cause: BaseException = error
    while isinstance(cause, HTTPError) and isinstance(cause.__cause__ or cause.__context__, Exception):
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    if isinstance(cause, TimeoutError):
        return "no complete answer in time"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason or type(cause).__name__}"
    if isinstance(cause, OSError):
        return f"the connection failed: {cause.strerror or type(cause).__name__}"
    return f"the answer is broken: {type(cause).__name__}"


# --- sockets with bounds ------------------------------------------------------------------------------


class BoundedSocket(socket.socket):
    """A TCP socket. Set `bounds` before use."""

    bounds: Bounds

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.settimeout(self.bounds.left())
        return self.bounds.took(super().recv_into(*args, **options))

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:  # TLS sends with this
        self.settimeout(self.bounds.left())
        return super().send(data, flags)

    def sendall(self, data: ReadableBuffer, flags: int = 0) -> None:
        self.settimeout(self.bounds.left())
        super().sendall(data, flags)


class BoundedTlsSocket(BoundedSocket, ssl.SSLSocket):
    """A TLS socket. Set `bounds` after the handshake, which keeps to the timeout of the socket."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:  # the hard timeout: `ssl` closes for errors only
            self.close()
            raise


def bounded(sock: socket.socket, bounds: Bounds) -> socket.socket:
    """Return the same connection as a socket that keeps to the bounds; `sock` itself must not be used any more."""
    if not isinstance(sock, ssl.SSLSocket):
        sock = BoundedSocket(sock.family, sock.type, sock.proto, fileno=sock.detach())
    if not isinstance(sock, BoundedSocket):
        raise TypeError("the TLS context is not one of tls_context()")
    sock.bounds = bounds
    return sock
