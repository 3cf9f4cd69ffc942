"""The master's end of one child: what is written to its work, taken back, and what cannot be."""

from __future__ import annotations

import os
import signal
import subprocess

from jobpool.master.children import ChildLine
from jobpool.mechanism import packets
from jobpool.mechanism.frames import Run, decode

RUN = Run(7, 1, 0, 0, 0.0, b"x").encode()


def line_and_reader() -> tuple[ChildLine, int]:
    """A line, and a copy of the child's reading end."""
    line = ChildLine(1, 65536)
    return line, os.dup(line.birth().work.fileno())


def test_taking_back_what_a_child_has_not_read_does_not_take_back_the_order_to_leave() -> None:
    line, reading = line_and_reader()
    assert line.hand(7, RUN)
    line.retire()
    assert line.take_back() == {7}
    assert line.take_back() == frozenset()
    assert os.read(reading, 1) == b"", "its work has ended"
    os.close(reading)
    line.close()


def test_what_a_child_was_given_before_it_was_told_to_leave_is_there_to_be_read() -> None:
    line, reading = line_and_reader()
    assert line.hand(7, RUN)
    line.retire()
    assert isinstance(decode(os.read(reading, packets.INLINE)), Run)
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert not line.hand(7, RUN), "nothing more is handed to it"
    line.close()


def test_a_kill_that_comes_before_the_child_is_known_to_be_born_is_carried_out_at_its_birth() -> None:
    line, _ = line_and_reader()
    line.signal(signal.SIGUSR1)
    line.signal(signal.SIGKILL)
    with subprocess.Popen(["sleep", "600"]) as child:
        line.bear(os.pidfd_open(child.pid))
        assert child.wait(30.0) == -signal.SIGKILL
    assert line.has_ended()
    line.close()
