"""Requests of a person to a pool, over the socket beside its scoreboard."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import wait_until

from jobpool.ipc.requests import MAX_ANSWER_BYTES, Request, RequestSocket, ask, reply, socket_path

REQUEST = Request("stack", 3, 4711, "a-job")


@pytest.fixture
def board(tmp_path: Path) -> str:
    """In a directory with a name far longer than a socket's address may be."""
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    return str(folder / "main.1.board")


@pytest.fixture
def server(board: str) -> Iterator[RequestSocket]:
    server = RequestSocket(board)
    yield server
    server.close()


def answered(server: RequestSocket, board: str, text: str) -> str:
    """What one who asks is told."""
    answers: list[str] = []
    asker = threading.Thread(target=lambda: answers.append(ask(board, REQUEST, 30.0)))
    asker.start()
    [(request, answer)] = wait_until(server.read)
    assert request == REQUEST
    reply(answer, text)
    asker.join(30.0)
    return answers[0]


def test_only_the_pools_user_may_write_to_the_socket(board: str) -> None:
    umask = os.umask(0)
    try:
        RequestSocket(board).close()
    finally:
        os.umask(umask)
    assert stat.S_IMODE(os.stat(socket_path(board)).st_mode) == 0o600


def test_a_request_is_answered_and_of_what_is_too_long_the_end_is_told(server: RequestSocket, board: str) -> None:
    assert answered(server, board, "Grüße") == "Grüße"
    assert answered(server, board, "x" * MAX_ANSWER_BYTES + "end") == "x" * (MAX_ANSWER_BYTES - 3) + "end"


def test_one_that_gets_no_answer_goes_on(server: RequestSocket, board: str) -> None:
    with pytest.raises(TimeoutError):
        ask(board, REQUEST, 0.01)
    [(_, answer)] = server.read()
    reply(answer, "too late")


def test_a_pool_that_lets_go_of_a_request_is_no_answer(server: RequestSocket, board: str) -> None:
    closer = threading.Thread(target=lambda: wait_until(server.read)[0][1].close())
    closer.start()
    with pytest.raises(ConnectionResetError, match="it has ended"):
        ask(board, REQUEST, 30.0)
    closer.join(30.0)


def test_nobody_listens(board: str) -> None:
    with pytest.raises(FileNotFoundError):
        ask(board, REQUEST, 1.0)
    RequestSocket(board).close()
    with pytest.raises(ConnectionRefusedError):
        ask(board, REQUEST, 1.0)
    RequestSocket(board).close()  # what a killed pool left is in nobody's way


def test_rubbish_is_dropped_and_leaves_no_descriptor(
    server: RequestSocket, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.chdir(Path(board).parent)
    whole = b'{"verb":"stack","slot":1,"pid":2,"job":""}'
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, open("/dev/null") as null:
        sender.connect(os.path.basename(socket_path(board)))
        deep = b'{"verb":%b,"slot":1,"pid":2}' % (b"[" * 900 + b"]" * 900)
        for data in (b"", b"{", b"\xff", b'{"verb":1}', b'{"verb":"x","slot":"1","pid":2,"job":""}', deep, b"x" * 9000):
            socket.send_fds(sender, [data], [sender.fileno()])
        sender.send(whole)
        socket.send_fds(sender, [whole], [null.fileno()])
        assert server.read() == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_socket_of_a_kind_that_python_does_not_know_is_dropped(
    server: RequestSocket, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job can send one: it has the pool's user."""

    def refuse(fileno: int) -> None:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT), fileno)

    monkeypatch.chdir(Path(board).parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(os.path.basename(socket_path(board)))
        socket.send_fds(sender, [b'{"verb":"stack","slot":1,"pid":2}'], [sender.fileno()])
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", refuse)
            assert server.read() == []
        assert len(os.listdir("/proc/self/fd")) == before
