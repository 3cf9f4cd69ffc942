"""Requests of a person on this machine to one pool: a socket beside its scoreboard, a packet each way.

Only the pool's user can reach it: the socket has mode 0600 from its first moment on. A request carries the descriptor
on which it is answered, so the pool keeps nothing of one who has gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import MsgspecError, Struct, json

STACK, CANCEL, RESTART = "stack", "cancel", "restart"
MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 64 * 1024
MAX_REQUESTS_AT_ONCE = 16  # a turn of the pool's loop; the rest waits for the next


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """A request about the child of one slot. It is refused when another child or job is there by then."""

    verb: str
    slot: int
    pid: int  # of the child
    job: str = ""  # the id of the job that it runs; only a cancel looks at it


def socket_path(board: str) -> str:
    return str(Path(board).with_suffix(".sock"))


def ask(board: str, request: Request, timeout: float) -> str:
    """Return the pool's answer, text for a person. Blocks for `timeout` seconds at most.

    Raises `OSError`: nothing listens there, or there was no answer in time (`TimeoutError`).
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        mine.settimeout(timeout)
        sender.settimeout(timeout)
        with _short(socket_path(board)) as path:
            sender.connect(path)
        socket.send_fds(sender, [json.encode(request)], [theirs.fileno()])
        theirs.close()
        if answer := mine.recv(MAX_ANSWER_BYTES):
            return answer.decode("utf-8", "replace")
    raise ConnectionResetError("it has ended, or has no descriptor left")


class RequestSocket:
    """The pool's end. Raises `OSError` when it cannot be made. Nothing here blocks."""

    def __init__(self, board: str) -> None:
        path = socket_path(board)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            os.fchmod(self._socket.fileno(), 0o600)  # before it has a name: `bind` makes the file with this mode
            with _short(path) as short:
                self._socket.bind(short)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> list[tuple[Request, socket.socket]]:
        """Return the requests that have come, each with the socket for `reply`; drop anything else."""
        found = []
        for _ in range(MAX_REQUESTS_AT_ONCE):
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, MAX_REQUEST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                break
            request = _read(data)
            for fd in fds:  # one at most
                with contextlib.suppress(OSError):  # of a kind of socket that Python does not know
                    if request and stat.S_ISSOCK(os.fstat(fd).st_mode):
                        found.append((request, socket.socket(fileno=fd)))
                        continue
                os.close(fd)
        return found

    def close(self) -> None:
        self._socket.close()


def reply(to: socket.socket, text: str) -> None:
    """Answer, and close. A caller that has gone, or does not read, gets nothing."""
    with to, contextlib.suppress(OSError):
        to.setblocking(False)
        to.send(text.encode("utf-8", "replace")[-MAX_ANSWER_BYTES:], socket.MSG_NOSIGNAL)


def _read(data: bytes) -> Request | None:
    with contextlib.suppress(MsgspecError, ValueError):
        return json.decode(data, type=Request)
    return None


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """Yield a name of the same place that fits into a socket's address, which has 107 bytes."""
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)
