"""Writers and readers of the scoreboard's parts, under the sequence lock that scoreboard.py explains."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from jobpool.ipc.board_layout import CHILD, MAX_COUNT, PRINTED, PROGRESS, WORD, ChildState, ChildView, Layout, Memory

V = TypeVar("V")

_BUSY, _IDLE, _BOOTING = int(ChildState.BUSY), int(ChildState.IDLE), int(ChildState.BOOTING)
_PID, _STATE, _NONCE, _ATTEMPT, _DONE, _FAILED, _SINCE, _STARTED, _DEADLINE, _IDENT, _QUEUE, _HANDLER, _NAME = (
    field.at for field in CHILD.fields.values()
)
_FOR_NONCE, _FRACTION, _TEXT = (field.at for field in PROGRESS.fields.values())
_PRINTED_FOR, _TOTAL, _RING = (field.at for field in PRINTED.fields.values())
_NAME_ROOM, _TEXT_ROOM = CHILD.fields["ident"].room, PROGRESS.fields["text"].room
_RING_START, _RING_ROOM = (_RING + 1) * WORD, PRINTED.fields["ring"].room


def cut(text: str, room: int) -> bytes:
    """Return `text` in UTF-8, at most `room` bytes, never half a character; a lone surrogate becomes "?"."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= room:
        return raw
    return raw[:room].decode("utf-8", "ignore").encode()


def write_text(memory: Memory, at: int, text: str, room: int) -> None:
    """Store `text` in the field at word `at`. Call it between the two writes of the sequence."""
    raw = cut(text, room)
    start = (at + 1) * WORD
    memory.bytes[start : start + len(raw)] = raw
    memory.words[at] = len(raw)


class NamedPart(Generic[V]):
    """A part that is written by name, by the master's main thread only, where a microsecond does not matter.

    The sequence is the writer's own number. The shared memory is never read back to write: a word there that is not
    ours must not end the master.
    """

    def __init__(self, layout: Layout, page: memoryview, view: Callable[..., V]) -> None:
        self._layout = layout
        self._memory = layout.of(page)
        self._view = view
        self._sequence = 0

    def write(self, **fields: int | float | str) -> None:
        """Set these fields in one step; the others stay. Raises `KeyError`, and writes nothing, for an unknown one."""
        places: list[tuple[Any, Any]] = [(self._layout.fields[name], value) for name, value in fields.items()]
        memory = self._memory
        self._sequence += 2
        memory.words[0] = self._sequence - 1
        try:
            for (kind, room, at), value in places:
                if kind == "real":
                    memory.reals[at] = value
                elif kind == "text":
                    write_text(memory, at, value, room)
                else:
                    memory.words[at] = int(value)
        finally:
            memory.words[0] = self._sequence

    def read(self) -> V:
        """Read what it says now. Blocks for `READ_LIMIT_S` seconds at most."""
        *values, torn = self._layout.read(self._memory)
        return self._view(**dict(zip(self._layout.fields, values, strict=True)), torn=torn)

    def release(self) -> None:
        self._memory.release()


class ChildPart:
    """The child's word on itself. Writers are called in the child, on its main thread; `progress` on any thread.

    The sequences are this object's own numbers, so each write leaves them even. A kill or the alarm's exception may
    have ended the writer before in mid-write, and left an odd one.
    """

    def __init__(self, memory: Memory, progress: Memory) -> None:
        self._memory = memory
        self._words = memory.words
        self._reals = memory.reals
        self._progress = progress
        self._queue = self._handler = self._name = ""
        self._done = self._failed = 0
        self._sequence = self._progress_sequence = 0
        self._lock = threading.Lock()

    def booting(self, pid: int, now: float) -> None:
        """Take the page over from the child before, in any state: reset all but the totals, and heal both sequences."""
        words, progress = self._words, self._progress.words
        self._lock = threading.Lock()  # the old one may have been held when the process was forked
        self._queue = self._handler = self._name = ""
        words[_DONE] = self._done = _count(words[_DONE])
        words[_FAILED] = self._failed = _count(words[_FAILED])
        self._sequence = sequence = (_count(words[0]) | 1) + 1
        self._progress_sequence = (_count(progress[0]) | 1) + 1
        words[0] = sequence - 1
        words[_PID] = pid
        words[_STATE] = _BOOTING
        words[_NONCE] = words[_ATTEMPT] = words[_IDENT] = words[_QUEUE] = words[_HANDLER] = words[_NAME] = 0
        self._reals[_STARTED] = self._reals[_DEADLINE] = 0.0
        self._reals[_SINCE] = now
        words[0] = sequence
        self._write_progress(0, 0.0, "")

    def idle(self, now: float) -> None:
        """Note that it waits for a frame."""
        words = self._words
        self._sequence = sequence = self._sequence + 2
        words[0] = sequence - 1
        words[_STATE] = _IDLE
        self._reals[_SINCE] = now
        words[0] = sequence

    def took(self, nonce: int, now: float) -> None:
        """Note that it has received this frame and not looked into it: the first act on a frame."""
        words, reals = self._words, self._reals
        self._sequence = sequence = self._sequence + 2
        words[0] = sequence - 1
        words[_NONCE] = nonce
        words[_STATE] = _BUSY
        words[_IDENT] = 0
        reals[_SINCE] = reals[_STARTED] = now
        reals[_DEADLINE] = 0.0
        words[0] = sequence

    def started(self, deadline: float, ident: str, queue: str, handler: str, attempt: int, name: str = "") -> None:
        """Note what the frame that it has taken asks for. `deadline` 0 = unlimited. `name`: the job's."""
        words = self._words
        self._sequence = sequence = self._sequence + 2
        words[0] = sequence - 1
        words[_ATTEMPT] = attempt
        self._reals[_DEADLINE] = deadline
        write_text(self._memory, _IDENT, ident, _NAME_ROOM)
        if queue != self._queue:
            write_text(self._memory, _QUEUE, queue, _NAME_ROOM)
            self._queue = queue
        if handler != self._handler:
            write_text(self._memory, _HANDLER, handler, _NAME_ROOM)
            self._handler = handler
        if name != self._name:
            write_text(self._memory, _NAME, name, _NAME_ROOM)
            self._name = name
        words[0] = sequence

    def finished(self, succeeded: bool, now: float) -> None:
        """Note that the attempt has ended with a verdict, and that it waits for a frame."""
        words = self._words
        self._sequence = sequence = self._sequence + 2
        words[0] = sequence - 1
        words[_STATE] = _IDLE
        self._reals[_SINCE] = now
        if succeeded:
            self._done += 1
            words[_DONE] = self._done
        else:
            self._failed += 1
            words[_FAILED] = self._failed
        words[0] = sequence

    def progress(self, fraction: float, text: str = "") -> None:
        """Note how far the attempt is. When two threads tell at the same time, one is left out."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._write_progress(self._words[_NONCE], fraction, text)
        finally:
            self._lock.release()

    def _write_progress(self, nonce: int, fraction: float, text: str) -> None:
        words = self._progress.words
        self._progress_sequence = sequence = self._progress_sequence + 2
        words[0] = sequence - 1
        words[_FOR_NONCE] = nonce
        self._progress.reals[_FRACTION] = fraction
        write_text(self._progress, _TEXT, text, _TEXT_ROOM)
        words[0] = sequence

    @property
    def nonce(self) -> int:
        """The last attempt that the slot's child has taken; one word, never torn, no lock."""
        return self._words[_NONCE]

    def read(self) -> ChildView:
        """Read what it says now. Blocks for twice `READ_LIMIT_S` seconds at most."""
        told_for, fraction, text, torn_progress = PROGRESS.read(self._progress)
        pid, state, nonce, *rest, torn = CHILD.read(self._memory)
        if told_for != nonce or torn_progress:  # of an attempt before: so no new one has to reset it
            fraction, text = 0.0, ""
        known = ChildState(state) if state <= _BUSY else ChildState.NONE
        shown = [_printable(value) if isinstance(value, str) else value for value in rest]
        return ChildView(*(pid, known, nonce, *shown, min(1.0, max(0.0, fraction)), _printable(text), torn))

    def release(self) -> None:
        self._memory.release()
        self._progress.release()


def _count(word: int) -> int:
    return word if word < MAX_COUNT else 0


def _printable(text: str) -> str:
    """Return `text` on one line, without what a terminal would obey."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


class PrintedPart:
    """The last text that the running attempt has printed, where a kill cannot take it away.

    `write` is called in the child. A thread that writes at the same time may lose some of it to another.
    """

    def __init__(self, memory: Memory, child: Memory) -> None:
        self._memory = memory
        self._words = memory.words
        self._ring = memory.bytes[_RING_START : _RING_START + _RING_ROOM]
        self._child = child.words

    def write(self, data: bytes) -> None:
        """Add to it; the first bytes of an attempt take the place of those of the one before."""
        words = self._words
        if words[_PRINTED_FOR] != self._child[_NONCE]:
            words[_TOTAL] = 0
            words[_PRINTED_FOR] = self._child[_NONCE]
        total = _count(words[_TOTAL])
        kept = data[-_RING_ROOM:]
        at = (total + len(data) - len(kept)) % _RING_ROOM
        first = min(len(kept), _RING_ROOM - at)
        self._ring[at : at + first] = kept[:first]
        self._ring[: len(kept) - first] = kept[first:]
        words[_TOTAL] = total + len(data)

    def read(self, nonce: int) -> str:
        """Read what attempt `nonce` has printed, its last 2 KiB; "" when another was the last to print."""
        total = self._words[_TOTAL]
        if self._words[_PRINTED_FOR] != nonce or not total:
            return ""
        at = total % _RING_ROOM if total > _RING_ROOM else 0
        ring = bytes(self._ring[: min(total, _RING_ROOM)])
        return (ring[at:] + ring[:at]).decode("utf-8", "replace")

    def release(self) -> None:
        self._ring.release()
        self._memory.release()
