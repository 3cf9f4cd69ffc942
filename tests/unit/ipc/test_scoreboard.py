from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct, structs
from support.stalls import Stopwatch

from jobpool.ipc import board_layout
from jobpool.ipc.board_layout import (
    CHILD,
    HEADER,
    MASTER,
    PAGE,
    PRINTED,
    PROGRESS,
    ChildState,
    ChildView,
    HeaderView,
    Layout,
    MasterView,
)
from jobpool.ipc.board_parts import ChildPart, cut
from jobpool.ipc.linux import open_fds
from jobpool.ipc.scoreboard import ChildPages, Scoreboard, ScoreboardError
from jobpool.ops.top import slot_row


@pytest.fixture
def board() -> Iterator[Scoreboard]:
    with Scoreboard.create(None, 4) as board:
        yield board


@pytest.fixture
def child(board: Scoreboard) -> ChildPart:
    """The first child's part of it."""
    return board.slot(0).child


class Bomb(str):
    """A text that ends its writer in mid-write."""

    def encode(self, *_: str) -> bytes:
        raise ZeroDivisionError


# --- the tables --------------------------------------------------------------------------------------


def names(view: type[Struct]) -> list[str]:
    return list(view.__struct_fields__)


def test_a_view_has_the_fields_of_its_table_in_their_order() -> None:
    assert sorted(names(HeaderView)) == sorted([*HEADER.fields, "torn"]), "this one is made by name"
    assert names(MasterView) == [*MASTER.fields, "torn"]
    assert names(ChildView) == [*CHILD.fields, "progress", "progress_text", "torn"]


def test_parts_do_not_overlap() -> None:
    assert CHILD.end <= PROGRESS.start
    assert PROGRESS.end <= PRINTED.start
    assert HEADER.start >= board_layout.FRONT_WORDS


def test_a_table_that_outgrows_its_page_is_refused_at_import() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Layout(0, f"text {PAGE} essay")


# --- the board ---------------------------------------------------------------------------------------


def test_a_new_board_is_empty(board: Scoreboard) -> None:
    child, master = board.slot(3).child.read(), board.slot(3).master.read()
    assert (child.pid, child.state, child.nonce, child.ident, child.torn) == (0, ChildState.NONE, 0, "", False)
    assert (master.state, master.pid, master.cpu, master.torn) == ("", 0, 0.0, False)
    assert board.header.read().loop_at == 0.0


def test_a_file_is_private_complete_and_readable_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "board"
    path.write_text("an old one")
    with Scoreboard.create(path, 2) as board, Scoreboard.open(path) as outside:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [entry.name for entry in tmp_path.iterdir()] == ["board"]
        board.slot(1).master.write(state="idle", pid=77)
        assert outside.slots == 2
        assert outside.slot(1).master.read().pid == 77
        with pytest.raises(TypeError, match="read-only"):
            outside.slot(1).master.write(pid=1)


def test_a_board_is_handed_on_by_descriptor(board: Scoreboard) -> None:
    with ChildPages(board.fd).mapped(3) as page:
        page.child.took(5, 1.0)
        page.child.started(2.0, "id", "q", "h", 1)
    assert [board.slot(index).child.nonce for index in range(4)] == [0, 0, 0, 5]


def test_an_attempt_is_cancelled_by_its_nonce(board: Scoreboard) -> None:
    with ChildPages(board.fd).mapped(3) as page:
        page.child.took(5, 1.0)
        assert not page.is_cancelled()
        board.slot(3).cancel(5)
        assert page.is_cancelled()
        page.child.took(6, 2.0)
        assert not page.is_cancelled(), "the next attempt is another"


def test_closing_leaves_no_descriptor_and_may_be_repeated(tmp_path: Path) -> None:
    before = open_fds()
    board = Scoreboard.create(tmp_path / "board", 3)
    board.slot(0).child.read()
    board.close()
    board.close()
    assert open_fds() == before


@pytest.mark.parametrize("slots", [0, -1])
def test_a_board_without_slots_is_refused(slots: int) -> None:
    with pytest.raises(ValueError, match="1 slot or more"):
        Scoreboard.create(None, slots)


@pytest.mark.parametrize("index", [-1, 4])
def test_a_slot_outside_is_an_index_error(board: Scoreboard, index: int) -> None:
    with pytest.raises(IndexError, match="scoreboard with 4"):
        board.slot(index)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a jobpool scoreboard"),
        (b"short", "not a jobpool scoreboard"),
        (b"x" * PAGE, "not a jobpool scoreboard"),
        (b"JOBPOOL\0" + bytes([99, 0, 0, 0, 0, 0, 0, 0]) + bytes(PAGE), "has layout 99, and this jobpool reads layout"),
        (
            b"JOBPOOL\0"
            + board_layout.VERSION.to_bytes(8, "little")
            + b"\2".ljust(8, b"\0")
            + PAGE.to_bytes(8, "little"),
            "cut short",
        ),
    ],
    ids=["empty", "short", "rubbish", "other layout", "cut short"],
)
def test_what_is_no_board_of_this_layout_is_refused_with_a_reason(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "board"
    path.write_bytes(content)
    before = open_fds()
    with pytest.raises(ScoreboardError, match=re.escape(why)):
        Scoreboard.open(path)
    assert open_fds() == before


def test_a_failed_creation_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "board").mkdir()
    before = open_fds()
    with pytest.raises(OSError, match="directory"):
        Scoreboard.create(tmp_path / "board", 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["board"]
    assert open_fds() == before


# --- the child's part --------------------------------------------------------------------------------


def test_the_life_of_a_child_as_it_is_read(board: Scoreboard) -> None:
    child = board.slot(2).child
    child.booting(42, 1.0)
    assert (child.read().state, child.read().pid) == (ChildState.BOOTING, 42)
    child.idle(2.0)
    assert (child.read().state, child.read().since) == (ChildState.IDLE, 2.0)
    child.took(7, 3.0)
    assert (child.nonce, child.read().state, child.read().ident) == (7, ChildState.BUSY, "")
    child.started(13.5, "0123456789abcdef", "reports", "render", 2, "nightly")
    child.progress(0.4, "rendering")
    view = child.read()
    assert view == ChildView(
        pid=42,
        state=ChildState.BUSY,
        nonce=7,
        attempt=2,
        done=0,
        failed=0,
        since=3.0,
        started=3.0,
        deadline=13.5,
        ident="0123456789abcdef",
        queue="reports",
        handler="render",
        name="nightly",
        progress=0.4,
        progress_text="rendering",
        torn=False,
    )
    child.finished(True, 4.0)
    assert (child.read().state, child.read().done, child.nonce) == (ChildState.IDLE, 1, 7)


def test_progress_of_the_attempt_before_is_not_shown(child: ChildPart) -> None:
    child.took(1, 0.0)
    child.started(0.0, "a", "q", "h", 1)
    child.progress(0.9, "nearly")
    child.took(2, 0.0)
    child.started(0.0, "b", "q", "h", 1)
    assert (child.read().progress, child.read().progress_text) == (0.0, "")


def test_queue_and_handler_are_read_right_when_they_change_and_change_back(child: ChildPart) -> None:
    for nonce, (queue, handler) in enumerate([("a", "long handler"), ("b", "h"), ("b", "h"), ("a", "long handler")]):
        child.took(nonce, 0.0)
        child.started(0.0, "id", queue, handler, 1)
        assert (child.read().queue, child.read().handler) == (queue, handler)


def test_a_new_child_resets_the_page_but_for_the_totals_of_the_slot(board: Scoreboard, child: ChildPart) -> None:
    child.booting(1, 0.0)
    child.took(5, 1.0)
    child.started(2.0, "id", "q", "h", 3)
    child.finished(True, 2.0)
    child.finished(False, 3.0)
    with ChildPages(board.fd).mapped(0) as of_next:
        successor = of_next.child
        successor.booting(2, 9.0)
        view = board.slot(0).child.read()
        assert (view.pid, view.nonce, view.ident, view.queue, view.attempt) == (2, 0, "", "", 0)
        assert (view.started, view.deadline, view.since) == (0.0, 0.0, 9.0)
        assert (view.done, view.failed) == (1, 1)
        successor.finished(True, 9.0)
        assert board.slot(0).child.read().done == 2


def test_a_write_broken_off_by_an_exception_is_torn_until_the_next_write(child: ChildPart) -> None:
    child.took(5, 1.0)
    with pytest.raises(ZeroDivisionError):
        child.started(2.0, Bomb("x"), "q", "h", 1)
    assert child.read().torn
    child.finished(False, 3.0)
    assert not child.read().torn


def test_progress_broken_off_neither_tears_the_rest_nor_ends_progress(child: ChildPart) -> None:
    child.took(5, 1.0)
    child.started(2.0, "id", "q", "h", 1)
    with pytest.raises(ZeroDivisionError):
        child.progress(0.5, Bomb("x"))
    view = child.read()
    assert (view.torn, view.progress, view.ident) == (False, 0.0, "id")
    child.progress(0.6)
    assert child.read().progress == 0.6


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff", b"\x7f\xef\xff", b"\x00\x00\x00\x00\x00\x00\xf8\x7f", b"\x1b[2J", bytes(range(256)), b"\x01"],
    ids=["ones", "large", "NaN", "escapes", "all bytes", "odd"],
)
def test_whatever_a_child_leaves_on_its_page_is_read_and_its_successor_lives(board: Scoreboard, rubbish: bytes) -> None:
    pages = ChildPages(board.fd)
    with pages.mapped(1) as page:
        page.child.booting(1, 0.0)
        memory = board._page(2)
        memory[:] = (rubbish * PAGE)[:PAGE]
        memory.release()
        page.child.took(8, 1.0)
        page.child.progress(0.5, "half of it")
        page.child.finished(True, 2.0)
        page.printed.write(b"printed")
        memory = board._page(2)
        memory[:] = (rubbish * PAGE)[:PAGE]
        memory.release()
    slot = board.slot(1)
    view = slot.child.read()
    json.dumps(structs.asdict(view), allow_nan=False)
    assert 0 <= view.progress <= 1
    assert all(text.isprintable() for text in (view.ident, view.queue, view.handler, view.progress_text))
    slot_row(1, view, slot.master.read(), 100.0)
    slot.printed.read(slot.child.nonce)
    with pages.mapped(1) as page:
        page.child.booting(2, 3.0)
        page.child.took(9, 4.0)
        page.printed.write(b"printed")
        page.child.progress(0.5, "half of it")
        assert (slot.child.read().progress, slot.printed.read(9)) == (0.5, "printed")
        page.child.finished(True, 5.0)
        view = slot.child.read()
        assert (view.pid, view.state, view.torn, view.failed) == (2, ChildState.IDLE, False, view.failed)
        assert 1 <= view.done <= 2**53
    assert [board.slot(index).child.read().pid for index in (0, 2, 3)] == [0, 0, 0], "the pages of others"


def test_a_master_writes_whatever_is_on_its_pages(board: Scoreboard) -> None:
    """Nobody but it has them mapped; if somebody writes there all the same, that does not end it."""
    for number in (0, 1 + board.slots):
        memory = board._page(number)
        memory[64:] = b"\xff" * (PAGE - 64)
        memory.release()
    board.header.write(pid=7)
    board.slot(0).master.write(pid=8)
    assert (board.header.read().pid, board.slot(0).master.read().pid) == (7, 8)


# --- the master's parts ------------------------------------------------------------------------------


def test_named_writes_change_these_fields_only(board: Scoreboard) -> None:
    master = board.slot(1).master
    master.write(state="busy", pid=9, rss=1 << 40, cpu=0.75, last_death="signal 11")
    master.write(state="idle")
    view = master.read()
    assert (view.state, view.pid, view.rss, view.cpu, view.last_death) == ("idle", 9, 1 << 40, 0.75, "signal 11")
    board.header.write(pid=1, draining=True, name="reports", queues="a b")
    header = board.header.read()
    assert (header.pid, header.draining, header.name, header.queues) == (1, 1, "reports", "a b")


def test_an_unknown_field_is_refused_and_nothing_is_written(board: Scoreboard) -> None:
    with pytest.raises(KeyError, match="colour"):
        board.header.write(pid=5, colour="red")
    assert (board.header.read().pid, board.header.read().torn) == (0, False)


def test_a_value_of_the_wrong_kind_does_not_leave_the_part_torn(board: Scoreboard) -> None:
    with pytest.raises(ValueError, match="invalid"):
        board.header.write(ready=-1)
    assert not board.header.read().torn


# --- text --------------------------------------------------------------------------------------------


def test_text_is_cut_between_two_characters() -> None:
    for text, room, kept in [
        ("", 8, ""),
        ("abc", 3, "abc"),
        ("abcd", 3, "abc"),
        ("aé", 2, "a"),
        ("aé", 3, "aé"),
        ("€€", 5, "€"),
        ("😀😀", 7, "😀"),
        ("a\udc80b", 8, "a?b"),
    ]:
        assert cut(text, room).decode() == kept, (text, room)


def test_texts_longer_than_their_room_do_not_touch_their_neighbours(board: Scoreboard, child: ChildPart) -> None:
    child.took(1, 1.0)
    child.started(2.0, "é" * 5000, "q" * 5000, "h" * 5000, 1)
    child.progress(0.5, "t" * 5000)
    view = child.read()
    assert (view.ident, view.queue, view.handler) == ("é" * 100, "q" * 200, "h" * 200)
    assert view.progress_text == "t" * 200
    assert board.slot(0).master.read().state == ""
    assert board.slot(1).child.read().pid == 0


# --- other processes ---------------------------------------------------------------------------------

WRITER = """
import sys
from jobpool.ipc.scoreboard import ChildPages
mapped = ChildPages(int(sys.argv[1])).mapped(0)
child = mapped.__enter__().child
number = 0
while True:
    number += 1
    text = str(number) * (1 + number % 9)
    child.took(number, float(number))
    child.started(float(number), text, text, text, number % 1000)
    if number == 1000:
        print("writing", flush=True)
"""

KILLED = """
import os, signal, sys
from jobpool.ipc.scoreboard import ChildPages
class Bomb(str):
    def encode(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)
mapped = ChildPages(int(sys.argv[1])).mapped(0)
child = mapped.__enter__().child
child.took(5, 1.0)
child.started(2.0, Bomb("x"), "q", "h", 1)
"""


def test_a_record_read_while_another_process_writes_it_is_never_mixed(board: Scoreboard, child: ChildPart) -> None:
    whole = torn = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(board.fd)], pass_fds=[board.fd], stdout=subprocess.PIPE
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            give_up = time.monotonic() + 10
            while whole < 20_000 and time.monotonic() < give_up:
                view = child.read()
                torn += view.torn
                if not view.torn:
                    whole += 1
                    assert_of_one_piece(view)
        finally:
            writer.kill()
    assert whole >= 1_000
    assert torn <= whole / 10


def assert_of_one_piece(view: ChildView) -> None:
    assert view.started == float(view.nonce)
    if not view.ident:  # it has taken the frame, and not decoded it yet
        assert view.deadline == 0.0
        return
    text = (str(view.nonce) * (1 + view.nonce % 9)).encode()[:200].decode()
    assert view.deadline == float(view.nonce)
    assert view.attempt == view.nonce % 1000
    assert view.ident == view.queue == view.handler == text


def test_a_writer_killed_in_mid_write_is_told_and_its_successor_heals_the_page(board: Scoreboard) -> None:
    dead = subprocess.run([sys.executable, "-c", KILLED, str(board.fd)], pass_fds=[board.fd], check=False)
    assert dead.returncode == -signal.SIGKILL
    begun = Stopwatch()
    view = board.slot(0).child.read()
    assert view.torn
    assert view.nonce == 5
    assert begun.seconds() < 0.5
    board.slot(0).child.booting(77, 1.0)
    assert (board.slot(0).child.read().torn, board.slot(0).child.read().pid) == (False, 77)
