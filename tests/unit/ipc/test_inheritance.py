"""The table of what becomes of an inherited descriptor, with the real thing behind each row."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.descriptors import no_more_descriptors

from jobpool.ipc.inheritance import Inheritance, Treatment, flush, missed, opened_anew, renew, treatment_of

REOPEN, KEEP, CUT = Treatment.REOPEN, Treatment.KEEP, Treatment.CUT


def _fifo(path: Path, flags: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    return os.open(path, flags | os.O_NONBLOCK)


def test_each_kind_of_descriptor_has_its_treatment(tmp_path: Path) -> None:
    file, fifo = tmp_path / "file", tmp_path / "fifo"
    file.write_text("text")
    epoll = select.epoll()
    rows: list[tuple[str, Treatment, Callable[[], int]]] = [
        ("a file that is read", REOPEN, lambda: os.open(file, os.O_RDONLY)),
        ("a file that is read through no link", REOPEN, lambda: os.open(file, os.O_RDONLY | os.O_NOFOLLOW)),
        ("a file that is written", REOPEN, lambda: os.open(file, os.O_WRONLY)),
        ("a file that is appended to", REOPEN, lambda: os.open(file, os.O_WRONLY | os.O_APPEND)),
        ("a file that is read and appended to", REOPEN, lambda: os.open(file, os.O_RDWR | os.O_APPEND)),
        ("a file that is read and written", CUT, lambda: os.open(file, os.O_RDWR)),
        ("a file without a name", REOPEN, lambda: os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY)),
        ("a file's place", KEEP, lambda: os.open(file, os.O_PATH)),
        ("a folder", REOPEN, lambda: os.open(tmp_path, os.O_RDONLY)),
        ("random numbers", REOPEN, lambda: os.open("/dev/urandom", os.O_RDONLY)),
        ("nothing, both ways", REOPEN, lambda: os.open("/dev/null", os.O_RDWR)),
        ("a terminal, both ways", CUT, lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)),
        ("a named pipe", CUT, lambda: _fifo(fifo, os.O_RDONLY)),
        ("shared memory", CUT, lambda: os.memfd_create("shared")),
        ("a socket", CUT, lambda: socket.socket().detach()),
        ("epoll", CUT, lambda: os.dup(epoll.fileno())),
        ("a wake-up", CUT, lambda: os.eventfd(0)),
        ("a process", CUT, lambda: os.pidfd_open(os.getpid())),
    ]
    for what, expected, opens in rows:
        fd = opens()
        try:
            assert treatment_of(fd) is expected, what
            if expected is REOPEN:
                os.close(opened_anew(fd))
        finally:
            os.close(fd)
    epoll.close()


def test_reading_goes_on_where_the_app_was_and_moves_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "gone").write_text("one two")
    first = os.open(tmp_path / "gone", os.O_RDONLY)
    (tmp_path / "gone").unlink()
    assert os.read(first, 4) == b"one "
    second = os.dup(first)
    assert renew(second)
    assert os.read(second, 9) == os.read(first, 9) == b"two"
    os.close(first)
    os.close(second)


def test_two_writers_of_one_file_do_not_overwrite_each_other_and_keep_their_flags(tmp_path: Path) -> None:
    first = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(first, b"0")
    second = os.dup(first)
    os.set_inheritable(second, True)
    assert renew(first)
    assert renew(second)
    os.write(first, b"1")
    os.write(second, b"2")
    os.write(first, b"3")
    assert (tmp_path / "log").read_text() == "0123"
    assert [os.get_inheritable(fd) for fd in (first, second)] == [False, True]
    os.close(first)
    os.close(second)


def test_a_descriptor_that_cannot_be_opened_again_is_cut_off() -> None:
    fd = os.open("/dev/zero", os.O_RDONLY)
    with no_more_descriptors():
        assert not renew(fd)
        assert missed(fd) == "/dev/zero (it cannot be opened again: Too many open files)"
    os.close(fd)


def test_what_is_cut_off_is_told_by_path_or_address_and_what_is_not_missed_is_not(tmp_path: Path) -> None:
    inheritance = Inheritance()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    named = socket.socket(socket.AF_UNIX)
    named.bind(str(tmp_path / "named"))
    peer = socket.create_connection(("127.0.0.1", port))
    things: list[Any] = [listener, named, *socket.socketpair(), peer, select.epoll()]
    descriptors = [os.open(tmp_path / "db", os.O_RDWR | os.O_CREAT), *os.pipe(), os.memfd_create("shared")]
    (tmp_path / "mapped").write_bytes(b"data")
    with open(tmp_path / "mapped", "r+b") as file:
        things.append(mmap.mmap(file.fileno(), 0))
    with open(tmp_path / "log", "w") as log:
        inheritance.app_is_imported()
        log.write("kept")
    assert inheritance.cut == sorted(
        [
            f"{tmp_path}/db (open for reading and writing)",
            f"socket at 127.0.0.1:{port}",
            f"socket at {tmp_path}/named",
            f"socket to 127.0.0.1:{port}",
            "socket without an address",
            "eventpoll",
            "pipe",
        ]
    )
    for thing in things:
        thing.close()
    for fd in descriptors:
        os.close(fd)


def test_text_that_a_stream_still_holds_is_written_once_and_each_stream_is_found(tmp_path: Path) -> None:
    inheritance = Inheritance()
    reading, writing = os.pipe()
    with (
        open(tmp_path / "text", "w") as text,
        open(tmp_path / "bytes", "ab") as data,
        open(tmp_path / "both", "w+") as both,
        open(tmp_path / "text") as reader,
        os.fdopen(reading, "rb"),
        os.fdopen(writing, "wb") as pipe,
    ):
        for stream, held in ((text, "one"), (data, b"two"), (both, "three"), (pipe, b"four")):
            stream.write(held)  # type: ignore[arg-type]
        inheritance.app_is_imported()
        assert [(tmp_path / name).read_text() for name in ("text", "bytes", "both")] == ["one", "two", "three"]
        found = [ref() for ref in inheritance.streams]
        assert text in found
        assert data in found
        assert not {both, reader, pipe} & set(found), "what is cut off, or holds nothing, is not flushed in children"
        text.write(" more")
        assert flush(inheritance.streams) is None
        assert (tmp_path / "text").read_text() == "one more"
    assert flush(inheritance.streams) is None, "closed streams are passed over"


def test_a_full_disk_is_told() -> None:
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:
        full.write("lost")
        error = flush([weakref.ref(full)])
        assert isinstance(error, OSError)
        assert error.errno == errno.ENOSPC
