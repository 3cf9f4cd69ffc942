"""The scoreboard: shared memory that says what every slot does, readable from outside while the master is stopped.

A memfd or a file: one header page, one page a slot that its child writes, and one a slot that the master writes. A
child has nothing of the board in its memory but its own page, which a stray pointer of a handler may fill with bits.

A page holds *parts*. A part has one writer and a sequence lock of its own: the writer makes the sequence odd, writes,
makes it even. A reader takes what it read only between two equal even readings. A writer killed in mid-write leaves it
odd forever: readers give up after a bounded time and say `torn`, and the next writer heals it.

Numbers are native 8-byte words written through a cast memoryview: one store each, which does not tear. (`struct` with a
byte order packs byte by byte, and tears.) So a single number, `slot.child.nonce` say, may be read without the lock.
Python gives no memory barrier: the lock stands on the total store order of x86. Elsewhere a reader might in theory see
a mixed record; but the master *decides* by single words and frames, never by a record.

Times are CLOCK_MONOTONIC seconds, the same in all processes of a boot; a name that ends in `_wall` is Unix time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator

from jobpool.ipc.board_layout import (
    CANCEL,
    CHILD,
    HEADER,
    MASTER,
    PAGE,
    PRINTED,
    PROGRESS,
    VERSION,
    HeaderView,
    MasterView,
)
from jobpool.ipc.board_parts import ChildPart, NamedPart, PrintedPart

_MAGIC = int.from_bytes(b"JOBPOOL\0", "little")
_FRONT = struct.Struct("=QQQQ")  # magic, layout version, slots, bytes a page


class ScoreboardError(ValueError):
    """The file is not a scoreboard, is cut short, or has another layout; the text says which."""


class ChildPage:
    """The page that a slot's child writes: its parts `child` and `printed`."""

    def __init__(self, page: memoryview) -> None:
        child = CHILD.of(page)
        self.printed = PrintedPart(PRINTED.of(page), child)
        self.child = ChildPart(child, PROGRESS.of(page))
        self._cancel = CANCEL.of(page)

    def cancel(self, nonce: int) -> None:
        """Note that a person has cancelled this attempt. Called by the master."""
        self._cancel.words[1] = nonce

    def is_cancelled(self) -> bool:
        """Return whether that is the attempt which the child has begun last."""
        return self._cancel.words[1] == self.child.nonce

    def release(self) -> None:
        """Let the memory go, so that it can be unmapped."""
        self.printed.release()
        self.child.release()
        self._cancel.release()


class SlotPages(ChildPage):
    """The pages of one slot: its child's page, and beside it `master`, which the master writes."""

    def __init__(self, page: memoryview, of_master: memoryview) -> None:
        super().__init__(page)
        self.master = NamedPart(MASTER, of_master, MasterView)

    def release(self) -> None:
        super().release()
        self.master.release()


class ChildPages:
    """The board in an inherited descriptor, for the fork server: it maps a child's page when it forks the child.

    `fd` is taken over. Raises `ScoreboardError`, and closes it, when there is no board of this layout in it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.slots = _slots_of(fd)

    @contextlib.contextmanager
    def mapped(self, index: int) -> Iterator[ChildPage]:
        """Map the page of slot `index` as long as this is open; a child that is forked meanwhile keeps it.

        The child never leaves it: Python's mmap keeps a descriptor of its own, which the child has closed.
        Raises `OSError` if there is no memory or no descriptor.
        """
        with mmap.mmap(self._fd, PAGE, offset=PAGE * (index + 1)) as page, memoryview(page) as view:
            found = ChildPage(view)
            try:
                yield found
            finally:
                found.release()


class Scoreboard:
    """The mapped board. Make one with `create` or `open`; close it, or use it in a `with`."""

    def __init__(self, fd: int, *, writable: bool) -> None:
        """Take `fd` over. Raises `ScoreboardError`, and closes it, when there is no board of this layout in it."""
        self.fd = fd
        self.slots = _slots_of(fd)
        try:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(fd, _size(self.slots), access=access)
        except BaseException:
            os.close(fd)
            raise
        self._view = memoryview(self._map)
        self._pages: dict[int, SlotPages] = {}
        self.header = NamedPart(HEADER, self._page(0), HeaderView)

    @classmethod
    def create(cls, path: str | os.PathLike[str] | None, slots: int) -> Scoreboard:
        """Make a new, empty board, writable; `path` None = in memory only (a memfd, to be handed on by descriptor).

        The file has mode 0600 and appears complete, in one step, in place of an old one. Raises `OSError` if it cannot
        be written; a full disk shows here, not later as SIGBUS.
        """
        if slots < 1:
            raise ValueError(f"a scoreboard has 1 slot or more, not {slots!r}")
        if path is None:
            fd = os.memfd_create("jobpool-board", os.MFD_CLOEXEC)
            _fill(fd, slots)
        else:
            fd = _new_file(os.fspath(path), slots)
        return cls(fd, writable=True)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Scoreboard:
        """Open a board from outside, read-only: a write raises `TypeError`. Raises `ScoreboardError` or `OSError`."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), writable=False)

    def slot(self, index: int) -> SlotPages:
        """Return the pages of slot `index`, 0 to `slots` - 1; `IndexError` elsewhere."""
        slot = self._pages.get(index)
        if slot is None:
            if not 0 <= index < self.slots:
                raise IndexError(f"slot {index} of a scoreboard with {self.slots}")
            slot = self._pages[index] = SlotPages(self._page(1 + index), self._page(1 + self.slots + index))
        return slot

    def _page(self, number: int) -> memoryview:
        return self._view[PAGE * number : PAGE * (number + 1)]

    def close(self) -> None:
        """Unmap it and close the descriptor. Safe to call twice."""
        if self.fd < 0:
            return
        self.header.release()
        for slot in self._pages.values():
            slot.release()
        self._pages.clear()
        self._view.release()
        self._map.close()
        os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> Scoreboard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_file(path: str, slots: int) -> int:
    young = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(young)
    fd = os.open(young, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _fill(fd, slots)
        os.rename(young, path)
    except BaseException:
        os.close(fd)
        os.unlink(young)
        raise
    return fd


def _fill(fd: int, slots: int) -> None:
    os.posix_fallocate(fd, 0, _size(slots))
    os.pwrite(fd, _FRONT.pack(_MAGIC, VERSION, slots, PAGE), 0)


def _size(slots: int) -> int:
    return PAGE * (1 + 2 * slots)


def _slots_of(fd: int) -> int:
    """Count the slots of the board in `fd`; close it if there is none of this layout."""
    try:
        front = os.pread(fd, _FRONT.size, 0)
        if len(front) < _FRONT.size or _FRONT.unpack(front)[0] != _MAGIC:
            raise ScoreboardError("this file is not a jobpool scoreboard")
        _, version, slots, page = _FRONT.unpack(front)
        if version != VERSION or page != PAGE:
            raise ScoreboardError(
                f"this scoreboard has layout {version}, and this jobpool reads layout {VERSION}: "
                "use the jobpool that runs the pool, or restart the pool with this one"
            )
        if os.fstat(fd).st_size < _size(slots):
            raise ScoreboardError(f"this scoreboard is cut short: {slots} slots do not fit in it")
    except BaseException:
        os.close(fd)
        raise
    return int(slots)
