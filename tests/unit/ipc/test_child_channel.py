"""The master's end of one child: what is written to its work, taken back, and what cannot be."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest
from support.descriptors import few_descriptors

from jobpool.ipc import packets
from jobpool.ipc.child_channel import DRAINS_AT_ONCE, TRACE_BYTES, BrokenChannelError, ChildChannel
from jobpool.ipc.frames import NO_JOBS, Ask, BootFailed, Frame, Ready, Reply, Result, Said, decode, run_packet
from jobpool.ipc.line_budget import SAID_AT_ONCE
from jobpool.message.outcome import ResultKind

RUN = run_packet(7, 1, 0, 0, 0.0, b"x")


@pytest.fixture
def line() -> Iterator[ChildChannel]:
    line = ChildChannel(1, 65536)
    yield line
    line.close()


@pytest.fixture
def reading(line: ChildChannel) -> Iterator[int]:
    """A copy of the child's reading end."""
    reading = os.dup(line.fds[0])
    yield reading
    os.close(reading)


def test_taking_back_what_a_child_has_not_read_does_not_take_back_the_order_to_leave(
    line: ChildChannel, reading: int
) -> None:
    assert line.write_runs([(7, RUN)])
    line.retire()
    assert line.take_back() == {7}
    assert line.take_back() == frozenset()
    assert os.read(reading, 1) == b"", "its work has ended"


def test_what_a_child_was_given_before_it_was_told_to_leave_is_there_to_be_read(
    line: ChildChannel, reading: int
) -> None:
    assert line.write_runs([(7, RUN)])
    line.retire()
    assert os.read(reading, packets.INLINE_BYTES) == RUN
    assert os.read(reading, 1) == b""
    assert not line.write_runs([(7, RUN)]), "nothing more is handed to it"


def test_a_large_frame_is_not_lost_if_no_descriptor_is_to_be_had_to_take_it_back(line: ChildChannel) -> None:
    runs = [(nonce, run_packet(nonce, 1, 0, 0, 0.0, bytes(size))) for nonce, size in ((7, 1), (8, 50_000), (9, 1))]
    assert line.write_runs(runs) == 3
    with few_descriptors():
        assert line.take_back() == {7}
        assert list(line.handed) == [8, 9]
        assert line.take_back() == frozenset()
        assert line.take_rest() == {8, 9}, "of a dead child, whose own files are not needed any more"


def test_frames_are_written_in_order_until_the_socket_is_full_and_counted(line: ChildChannel, reading: int) -> None:
    runs = [(nonce, run_packet(nonce, 1, 0, 0, 0.0, bytes(20_000))) for nonce in range(1, 500)]
    count = line.write_runs(iter(runs))
    assert 0 < count < len(runs)
    assert list(line.handed) == [nonce for nonce, _ in runs[:count]]
    assert [os.read(reading, packets.INLINE_BYTES) for _ in range(2)] == [run for _, run in runs[:2]]


def test_an_answer_for_a_job_that_was_not_taken_leaves_it_to_be_taken_back(line: ChildChannel) -> None:
    line.write_runs([(7, RUN)])
    os.write(line.fds[1], Result(8, ResultKind.SUCCEEDED, 1.0, 1.0).encode())
    with pytest.raises(BrokenChannelError):
        line.receive()
    assert line.take_back() == {7}


def test_a_child_that_has_its_work_cut_short_is_cut_off(line: ChildChannel, reading: int) -> None:
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 1))  # a filter that leaves one byte of a packet
    with socket.socket(fileno=os.dup(reading)) as work:
        line.write_runs([(7, RUN)])
        work.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(code)))  # SO_ATTACH_FILTER
        line.write_runs([(9, RUN)])
        work.setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER
        line.write_runs([(8, run_packet(8, 1, 0, 0, 0.0, b"x"))])
        os.write(line.fds[1], Ready().encode())
        assert line.take_back() == {7, 8}
        assert isinstance(line.receive(), Ready)
        with pytest.raises(BrokenChannelError, match="closed"):
            line.receive()


def test_a_child_that_answers_for_what_it_has_not_taken_is_cut_off(line: ChildChannel) -> None:
    line.write_runs([(7, RUN)])
    os.write(line.fds[1], Result(7, ResultKind.SUCCEEDED, 1.0, 1.0).encode())  # it peeked
    assert isinstance(line.receive(), Result)
    assert line.take_back() == frozenset()
    with pytest.raises(BrokenChannelError, match="closed"):
        line.receive()


def test_a_kill_that_comes_before_the_child_is_known_to_be_born_is_carried_out_at_its_birth(line: ChildChannel) -> None:
    line.signal(signal.SIGUSR1)
    line.signal(signal.SIGKILL)
    with subprocess.Popen(["sleep", "600"]) as child:
        line.bear(child.pid, os.pidfd_open(child.pid))
        assert child.wait(30.0) == -signal.SIGKILL
    assert line.has_ended()


# --- what a child prints past Python ----------------------------------------------------------------------------------


def fill(fd: int, data: bytes) -> int:
    """Write it again and again until nothing more is taken; the bytes that were."""
    written = 0
    os.set_blocking(fd, False)
    try:
        while True:
            written += os.write(fd, data)
    except BlockingIOError:
        return written
    finally:
        os.set_blocking(fd, True)


def test_a_full_output_pipe_has_room_again_and_keeps_the_newest(line: ChildChannel) -> None:
    output = line.fds[3]
    os.write(output, b"a little")
    assert not line.drain_output()
    assert line.note_dropped("printed") == "printed", "nothing is lost of what the child can read itself"
    written = fill(output, b"x" * 4096)
    assert line.drain_output()
    assert not line.drain_output()
    os.write(output, b"the last words")
    left = line.read_output()
    assert left.partition("\n")[0].endswith("xthe last words")
    dropped = int(left.rpartition("[… ")[2].split()[0])
    assert written / 4 < dropped < written


@pytest.mark.parametrize("direct", [0, os.O_DIRECT], ids=["merged", "in packets"])
def test_a_pipe_that_is_full_of_tiny_writes_has_room_again(line: ChildChannel, direct: int) -> None:
    """It may be full with far fewer bytes than it has room for."""
    output = line.fds[3]
    fcntl.fcntl(output, fcntl.F_SETFL, fcntl.fcntl(output, fcntl.F_GETFL) | direct)
    for _ in range(DRAINS_AT_ONCE):
        assert fill(output, b"x") > 0
        assert line.drain_output()


def test_a_trace_file_does_not_grow_and_holds_the_next_dump(line: ChildChannel) -> None:
    trace = line.fds[2]
    with contextlib.suppress(PermissionError):
        for _ in range(1000):
            os.write(trace, b"rubbish" * 10_000)
    assert os.fstat(trace).st_size == TRACE_BYTES
    assert "rubbish" in line.read_trace()
    os.write(trace, b"File x.py, line 1")
    assert line.read_trace() == "File x.py, line 1"
    os.lseek(trace, 1 << 40, os.SEEK_SET)
    line.read_trace()
    assert line.read_trace() == ""


# --- what a child says ------------------------------------------------------------------------------------------------


ANSWER = Result(7, ResultKind.SUCCEEDED, 1.0, 1.0)


@pytest.mark.parametrize(
    "frames",
    [
        [ANSWER, ANSWER],
        [Result(8, ResultKind.SUCCEEDED, 1.0, 1.0)],
        [Ready(), Ready()],
        [Ready(), BootFailed("too late")],
        [Result(7, ResultKind.FAILED, 1.0, 1.0, error="x" * 200_000)],
        [Result(7, ResultKind.SUCCEEDED, 1.0, 1.0, kept="x" * 200_000)],
        [Said(7, 20, "x"), Said(7, 20, "x" * 200_000)],
    ],
    ids=["twice", "for another", "ready twice", "boots and fails", "a text above its cap", "a value above it", "line"],
)
def test_what_comes_out_of_turn_is_rubbish(line: ChildChannel, frames: list[Frame]) -> None:
    line.write_runs([(7, RUN)])
    for frame in frames:
        packets.send_announced(line._far, frame.encode())
    for _ in frames[1:]:
        assert line.receive() is not None
    with pytest.raises(BrokenChannelError):
        line.receive()


def test_a_child_that_sends_more_lines_than_it_may_is_broken(line: ChildChannel) -> None:
    def flood() -> None:
        for _ in range(SAID_AT_ONCE * 100):
            line._far.send(Said(1, 20, "x").encode())
            line.receive()

    with pytest.raises(BrokenChannelError, match="more for the log"):
        flood()


def test_a_child_that_reads_no_answer_is_cut_off(line: ChildChannel) -> None:
    """Else it would wait forever for the answer that found no room."""
    asked = 0
    with contextlib.suppress(BrokenPipeError):
        while asked < 2000:
            packets.send(line._far, Ask(NO_JOBS).encode())
            assert line.receive() == Ask(NO_JOBS)
            line.reply(Reply(["x" * 1000]))
            asked += 1
    with pytest.raises(BrokenChannelError) as raised:
        line.receive()
    assert raised.value.closed


def test_an_answer_that_is_too_large_is_told_as_an_error(line: ChildChannel) -> None:
    line.reply(Reply(["x" * packets.MAX_PACKET_BYTES]))
    got = packets.recv(line._far)
    assert got is not None
    answer = decode(got[0])
    assert isinstance(answer, Reply)
    assert answer.kind == "InvalidJob"


def test_a_child_that_has_become_another_users_is_left_alone_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_pidfd: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with contextlib.closing(ChildChannel(1, 65536, slot=3)) as line:
        line.signal(signal.SIGKILL)
        assert not caplog.records, "it waits for the birth"
        line.bear(os.getpid(), os.pidfd_open(os.getpid()))
        line.signal(signal.SIGALRM)
    [record] = caplog.records
    assert record.getMessage() == "a child cannot be killed: it runs as another user"
    assert record.__dict__["fields"] == {"slot": 3, "pid": os.getpid(), "mend": f"as root: kill -9 {os.getpid()}"}
