from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from support.descriptors import few_descriptors, open_descriptors

from jobpool.ipc import packets
from jobpool.ipc.frames import nonce_of, run_packet
from jobpool.ipc.linux import open_fds
from jobpool.ipc.packets import Outbox

Socket = socket.socket


@pytest.fixture
def pair() -> Iterator[tuple[Socket, Socket]]:
    """Two ends; no descriptor may be left of a test, its own neither."""
    before = open_fds()
    here, there = packets.pair()
    with here, there:
        yield here, there
    assert open_fds() == before


@pytest.fixture
def here(pair: tuple[Socket, Socket]) -> Socket:
    return pair[0]


@pytest.fixture
def there(pair: tuple[Socket, Socket]) -> Socket:
    return pair[1]


@pytest.mark.parametrize(
    "size", [1, 2, 1000, packets.INLINE_BYTES - 1, packets.INLINE_BYTES, packets.INLINE_BYTES + 1, 1 << 20, 40 << 20]
)
def test_a_packet_of_any_size_arrives_whole(here: Socket, there: Socket, size: int) -> None:
    packet = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    packets.send(here, packet)
    assert packets.recv(there) == (packet, [])


def test_packets_keep_their_edges_and_their_order(here: Socket, there: Socket) -> None:
    """Also one that looks like the mark of a large one."""
    told = [b"a", b"bb" * packets.INLINE_BYTES, b"\xff", b"ccc"]
    for packet in told:
        packets.send(here, packet)
    assert [packets.recv(there) for _ in told] == [(packet, []) for packet in told]


def test_descriptors_travel_beside_a_packet_and_are_close_on_exec(here: Socket, there: Socket) -> None:
    reading, writing = os.pipe()
    packets.send(here, b"two", (reading, writing))
    packets.close_all([reading, writing])
    got = packets.recv(there)
    assert got is not None
    packet, [got_reading, got_writing] = got
    try:
        os.write(got_writing, b"through")
        assert (packet, os.read(got_reading, 100)) == (b"two", b"through")
        assert not os.get_inheritable(got_reading)
    finally:
        packets.close_all([got_reading, got_writing])


def test_more_descriptors_than_the_bound_are_refused_and_closed(here: Socket, there: Socket) -> None:
    here_fds = [os.dup(0) for _ in range(packets.MAX_FDS + 3)]
    packets.send(here, b"many", tuple(here_fds))
    packets.close_all(here_fds)
    with pytest.raises(packets.PacketTooLarge, match="descriptors"):
        packets.recv(there)


def test_a_packet_above_the_readers_bound_is_taken_off_and_refused(here: Socket, there: Socket) -> None:
    packets.send(here, b"x" * 200_000)
    packets.send(here, b"next")
    with pytest.raises(packets.PacketTooLarge, match="200000 bytes; at most 100000"):
        packets.recv(there, largest=100_000)
    assert packets.recv(there) == (b"next", [])


def test_a_plain_packet_that_is_too_large_is_refused(here: Socket, there: Socket) -> None:
    here.send(b"x" * (packets.INLINE_BYTES + 2))
    with pytest.raises(packets.PacketTooLarge):
        packets.recv(there)


def test_a_packet_above_the_senders_bound_is_refused_before_it_is_sent(
    here: Socket, there: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packets, "MAX_PACKET_BYTES", 50_000)
    with pytest.raises(packets.PacketTooLarge):
        packets.send(here, b"x" * 50_001)
    with pytest.raises(BlockingIOError):
        packets.recv(there, flags=socket.MSG_DONTWAIT)


def test_a_large_packet_whose_file_its_sender_could_still_change_is_refused(here: Socket, there: Socket) -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    socket.send_fds(here, [b"\xff"], [unsealed])
    os.close(unsealed)
    with pytest.raises(packets.PacketTooLarge, match="unsealed"):
        packets.recv(there)


def test_the_end_of_the_stream_is_none(here: Socket, there: Socket) -> None:
    packets.send(here, b"last")
    here.close()
    assert packets.recv(there) == (b"last", [])
    assert packets.recv(there) is None


def test_a_send_to_a_peer_that_is_gone_is_an_os_error(here: Socket, there: Socket) -> None:
    there.close()
    for send in (partial(packets.send, here), Outbox(here).send):
        with pytest.raises(BrokenPipeError):
            send(b"x")


READER = """
import socket, sys
from jobpool.ipc import packets
from jobpool.ipc.frames import nonce_of
work = socket.socket(fileno=int(sys.argv[1]))
print("reading", flush=True)
while received := packets.recv(work):
    print(nonce_of(received[0]))
"""


def test_of_two_readers_of_one_end_each_packet_goes_to_exactly_one(here: Socket, there: Socket) -> None:
    """So the master may take back what it has sent ahead: the child has it, or the master, never both or neither."""
    taken_back: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(there.fileno())], pass_fds=[there.fileno()], stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        for nonce in range(1, 20_001):
            packets.send(here, run_packet(nonce, 1, 0, 0, 0.0, b"x"))
            if nonce % 3 == 0:
                taken_back += _take_back(there)
        taken_back += _take_back(there)
        here.shutdown(socket.SHUT_WR)
        read = [int(line) for line in reader.stdout]
    assert reader.returncode == 0
    assert sorted(read + taken_back) == list(range(1, 20_001))
    assert read
    assert taken_back


def _take_back(reading_end: socket.socket) -> list[int]:
    nonces = []
    with contextlib.suppress(BlockingIOError):
        while got := packets.recv(reading_end, flags=socket.MSG_DONTWAIT):
            nonces.append(nonce_of(got[0]))
    return nonces


def test_an_outbox_keeps_what_the_socket_does_not_take_in_order_with_copies_of_its_descriptors(
    here: Socket, there: Socket
) -> None:
    here.setblocking(False)
    outbox = Outbox(here)
    reading, writing = os.pipe()
    for number in range(5000):
        outbox.send(b"%d" % number)
    outbox.send(b"with a pipe", [writing])
    os.close(writing)
    assert len(outbox) > 0

    got: list[tuple[bytes, list[int]] | None] = []
    while len(got) < 5001:
        got.append(packets.recv(there))
        outbox.flush()
    last = got.pop()
    assert last is not None
    os.write(last[1][0], b"end")
    assert os.read(reading, 10) == b"end"
    packets.close_all([*last[1], reading])
    assert got == [(b"%d" % number, []) for number in range(5000)]
    assert len(outbox) == 0


def test_an_outbox_that_is_closed_closes_the_copies(here: Socket, there: Socket) -> None:
    here.setblocking(False)
    outbox = Outbox(here)
    while not outbox:
        outbox.send(b"x", [0])
    outbox.close()
    there.close()


def test_an_outbox_without_descriptors_for_all_copies_keeps_none(here: Socket, there: Socket) -> None:
    here.setblocking(False)
    outbox = Outbox(here)
    while not outbox:
        outbox.send(b"x")
    before, kept = open_fds(), len(outbox)
    with few_descriptors(more=1), pytest.raises(OSError, match="Too many open files"):
        outbox.send(b"with files", [0, 0])
    assert (open_fds(), len(outbox)) == (before, kept)
    there.close()


# --- announced packets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, packets.INLINE_BYTES, packets.INLINE_BYTES + 1, 3_000_000])
def test_a_reader_gets_each_packet_as_it_was_sent(here: Socket, there: Socket, size: int) -> None:
    reader = packets.Reader(there)
    for packet in (b"a" * size, b"after"):
        packets.send_announced(here, packet)
        assert reader.read() == packet


def test_a_reader_that_is_early_waits_for_what_was_announced(here: Socket, there: Socket) -> None:
    there.setblocking(False)
    reader = packets.Reader(there)
    here.send(b"\xfe")
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            reader.read()
    packets.send(here, b"x" * 100_000)
    assert reader.read() == b"x" * 100_000


def test_a_reader_sees_the_end_also_after_an_announcement(here: Socket, there: Socket) -> None:
    here.send(b"\xfe")
    here.close()
    assert packets.Reader(there).read() is None


def test_packets_of_other_threads_may_come_between_an_announcement_and_its_packet(here: Socket, there: Socket) -> None:
    reader, before = packets.Reader(there), open_descriptors()
    here.send(b"\xfe")
    here.send(b"a line")
    here.send(b"\xfe")  # another thread has a large one too
    packets.send(here, b"x" * 100_000)
    here.send(b"next line")
    packets.send(here, b"y" * 100_000)
    packets.send(here, b"with one", (here.fileno(),))
    assert [reader.read() for _ in range(5)] == [b"a line", b"x" * 100_000, b"next line", b"y" * 100_000, b"with one"]
    assert open_descriptors() <= before


def test_an_announcement_whose_packet_a_signal_kept_back_spoils_no_other(here: Socket, there: Socket) -> None:
    reader = packets.Reader(there)
    here.send(b"\xfe")
    for packet in (b"a", b"x" * 100_000, b"b"):
        packets.send_announced(here, packet)
        assert reader.read() == packet


def test_a_sender_of_announcements_alone_does_not_keep_a_reader(here: Socket, there: Socket) -> None:
    for _ in range(packets.MAX_ANNOUNCED + 1):
        here.send(b"\xfe")
    here.send(b"after")
    reader = packets.Reader(there)
    assert [reader.read(), reader.read()] == [b"\xfe", b"after"]


def test_a_large_packet_that_cannot_be_sent_is_not_announced(
    here: Socket, there: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", lambda *_: os.open("/nowhere", os.O_RDONLY))
        with pytest.raises(FileNotFoundError):
            packets.send_announced(here, b"x" * 100_000)
    with pytest.raises(packets.PacketTooLarge):
        packets.send_announced(here, bytes(packets.MAX_PACKET_BYTES + 1))
    here.send(b"after")
    assert there.recv(100) == b"after"


def test_a_reader_refuses_what_is_too_large(here: Socket, there: Socket) -> None:
    here.send(b"x" * (packets.INLINE_BYTES + 1))
    with pytest.raises(packets.PacketTooLarge):
        packets.Reader(there).read()
    packets.send_announced(here, b"x" * 100_000)
    with pytest.raises(packets.PacketTooLarge):
        packets.Reader(there, largest=99_999).read()


def test_a_reader_keeps_no_descriptor_that_came_unasked(here: Socket, there: Socket) -> None:
    before = open_descriptors()
    packets.send(here, b"with one", (here.fileno(),))
    assert packets.Reader(there).read() == b"with one"
    assert open_descriptors() <= before
