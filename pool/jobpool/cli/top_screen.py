"""The live table of `jobpool top`: what the keys do, what is shown, and the bytes that bring it to a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING

import click

from jobpool.cli.output import cut, text_width
from jobpool.cli.top_lines import lines_wanted, pool_lines
from jobpool.message.printable import one_line
from jobpool.telemetry.logs import is_colourful

if TYPE_CHECKING:
    from jobpool.ops.runtime_dir import PoolFile
    from jobpool.ops.top import PoolSample, SlotRow, Watcher

SORTS: dict[str, Callable[[SlotRow], object]] = {
    "slot": lambda row: row.slot,
    "age": lambda row: (row.state != "busy", -row.age),
    "cpu": lambda row: -row.cpu,
    "memory": lambda row: -row.rss,
    "done": lambda row: -row.done,
    "failed": lambda row: -row.failed,
}
ORDERS = {"s": "stack", "c": "cancel", "x": "restart"}
MIN_POOL_LINES = 6  # of a pool that is shown with its slots; where there is less room, only the chosen one is
MAX_FRAME_BYTES = 4096  # written at once: a slow terminal hears of a key before it has shown all
DRAW_ON_S = 0.02  # seconds between two parts of one picture

_KEYS = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b": "escape", "\x04": "end"}
_KEYS |= {"\r": "enter", "\n": "enter", "\x7f": "back", "\x08": "back"}
_PRESSED = re.compile("\x1b\\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
_HALF = re.compile("\x1b(\\[[0-9;]*|O)?$")
_STYLE_OR_CHAR = re.compile("(\x1b\\[[0-9;]*m)|(.)", re.DOTALL)
_PLAIN = "\x1b[0m"  # ends all styles


@dataclass(slots=True)
class View:
    """The choices of a person, and their answers. `order` carries an order out, and may block for seconds."""

    order: Callable[[PoolFile, str, SlotRow], str]
    nobody: str
    sort: str = "slot"
    terms: str = ""  # of the filter
    chosen: tuple[str, int] | None = None  # scoreboard of the pool, slot
    typing: bool = False
    asked: tuple[PoolSample, str, SlotRow] | None = None  # the order that waits for a yes
    said: str = ""
    page: list[str] = field(default_factory=list)  # a stack that is shown in place of the table
    page_at: int = 0
    left: bool = False

    def press(self, key: str, samples: list[PoolSample]) -> None:
        """Do what a key means now."""
        if key == "end":
            self.left = True
        elif self.page:
            self._turn(key)
        elif self.asked:
            self._answer(key)
        elif self.typing:
            self._type(key)
        else:
            self.said = ""
            self._choose(key, self.shown(samples))

    def shown(self, samples: list[PoolSample]) -> list[PoolSample]:
        """Return the pools whose slots the filter lets through, with these slots in order."""
        found = []
        for sample in samples:
            rows = [row for row in sample.rows if self._passes(sample, row)]
            if rows or not self.terms.strip():
                found.append(replace(sample, rows=tuple(sorted(rows, key=SORTS[self.sort]))))  # type: ignore[arg-type]
        return found

    def lines(self, samples: list[PoolSample], width: int, height: int) -> list[str]:
        """Return the lines of the whole window, in colours, at most `height`; the last one says what keys do."""
        if self.page:
            head, *whole = self.page
            rest = [line[at : at + width] for line in whole for at in range(0, len(line) or 1, max(1, width))]
            self.page_at = max(0, min(self.page_at, len(rest) - height + 1))
            body = rest[self.page_at : self.page_at + height - 1]
            return [click.style(cut(head, width), bold=True), *body]
        body = self._body(self.shown(samples), width, max(1, height - 1))
        return [*body, *[""] * (height - 1 - len(body)), self._foot(width)][:height]

    def _passes(self, sample: PoolSample, row: SlotRow) -> bool:
        words = (sample.pool.name, row.state, row.handler, row.name, row.job, row.queue, row.progress_text)
        text = " ".join(words).lower()
        return all(term in text for term in self.terms.lower().split())

    def _body(self, shown: list[PoolSample], width: int, height: int) -> list[str]:
        if not shown:
            return [click.style(cut("no slot passes the filter" if self.terms else self.nobody, width), fg="yellow")]
        whole = shown
        if height < MIN_POOL_LINES * len(shown):
            whole = [sample for sample in shown if self._slot_of(sample) is not None] or shown[:1]
        rest = [sample for sample in shown if sample not in whole]
        rooms = _shares([lines_wanted(sample) for sample in whole], max(MIN_POOL_LINES - 2, height - len(rest)))
        pools = zip(whole, rooms, strict=True)
        lines = [line for sample, room in pools for line in pool_lines(sample, width, room, self._slot_of(sample))]
        lines += [pool_lines(sample, width, 1)[0] for sample in rest]
        if len(lines) > height:
            lines[height - 1 :] = [click.style(cut("… more pools: make the window taller, or filter", width), dim=True)]
        return lines

    def _slot_of(self, sample: PoolSample) -> int | None:
        return self.chosen[1] if self.chosen and self.chosen[0] == sample.pool.board else None

    def _foot(self, width: int) -> str:
        if self.asked:
            return click.style(cut(f"{self._question()} y/N", width), fg="yellow", bold=True)
        if self.typing:
            return cut(f"filter: {one_line(self.terms)}_", width)
        if self.said:
            return click.style(cut(self.said, width), fg="yellow")
        filtered = f"/ filter: {one_line(self.terms)}" if self.terms else "/ filter"
        keys = f"↑↓ choose  s stack  c cancel  x restart  o order: {self.sort}  {filtered}  q leave"
        return click.style(cut(keys, width), dim=True)

    def _question(self) -> str:
        assert self.asked is not None
        sample, verb, row = self.asked
        where = f"{sample.pool.name}, slot {row.slot}, child {row.pid}"
        runs = f"job {row.job} ({row.handler})"
        text = {
            "stack": f"show the stack of {where}?",
            "cancel": f"cancel {runs} of {where}?",
            "restart": f"replace {where}" + (f", after {runs}?" if row.job else "?"),
        }
        return one_line(text[verb])

    def _choose(self, key: str, shown: list[PoolSample]) -> None:
        places = [(sample.pool.board, row.slot) for sample in shown for row in sample.rows]
        at = places.index(self.chosen) if self.chosen in places else -1
        if key in ("q", "Q"):
            self.left = True
        elif key in ("up", "k", "down", "j") and places:
            last = len(places) - 1
            self.chosen = places[max(0, at - 1) if key in ("up", "k") else min(last, at + 1)]
        elif key == "o":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "/":
            self.typing = True
        elif key == "escape":
            self.terms = ""
        elif key in ORDERS:
            self._ask(ORDERS[key], shown)

    def _ask(self, verb: str, shown: list[PoolSample]) -> None:
        slots = [(sample, row) for sample in shown for row in sample.rows if row.slot == self._slot_of(sample)]
        if not slots:
            self.said = "choose a slot first, with the arrow keys or j and k"
            return
        sample, row = slots[0]
        if not row.pid or (verb == "cancel" and not row.job):
            self.said = f"slot {row.slot} " + ("runs no job" if row.pid else "has no child")
        else:
            self.asked = (sample, verb, row)

    def _answer(self, key: str) -> None:
        assert self.asked is not None
        (sample, verb, row), self.asked = self.asked, None
        if key not in ("y", "Y"):
            self.said = "nothing was done"
            return
        text = self.order(sample.pool, verb, row)
        said, *more = [one_line(line) for line in text.splitlines() if line.strip()] or [""]
        if not more:
            self.said = said
            return
        title = one_line(f"stack of child {row.pid}, slot {row.slot} of {sample.pool.name}  (↑↓ scroll, q back)")
        self.page, self.page_at = [title, said, *more], 0

    def _turn(self, key: str) -> None:
        if key in ("up", "k", "down", "j"):
            self.page_at += -1 if key in ("up", "k") else 1
        else:
            self.page = []

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            self.terms = self.terms if key == "enter" else ""
        elif key == "back":
            self.terms = self.terms[:-1]
        elif len(key) == 1 and key.isprintable():
            self.terms += key


def _shares(wanted: list[int], room: int) -> list[int]:
    """Part `room`: equal shares, but what one does not want is for the others."""
    shares = [0] * len(wanted)
    left = len(wanted)
    for at in sorted(range(len(wanted)), key=lambda at: wanted[at]):
        shares[at] = min(wanted[at], room // left)
        room, left = room - shares[at], left - 1
    return shares


class Keyboard:
    """The keys that were pressed, one by one. `fd` None: nobody is there to press any."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._rest = b""

    def read(self, timeout: float) -> list[str]:
        """Wait for keys; return [] after `timeout` seconds, and `end` when the terminal is closed."""
        ready, _, _ = select.select([] if self._fd is None else [self._fd], [], [], timeout)
        if not ready or self._fd is None:
            rest, self._rest = self._rest, b""
            return ["escape"] if rest == b"\x1b" else []
        data = os.read(self._fd, 256)
        if not data:
            return ["end"]
        text = (self._rest + data).decode("utf-8", "ignore")
        half = _HALF.search(text)  # the rest of an arrow key may still be on its way
        self._rest = half[0].encode() if half else b""
        whole = text[: half.start()] if half else text
        return [_KEYS.get(key, key) for key in _PRESSED.findall(whole)]


class Picture:
    """The picture on a terminal, and the bytes that change it."""

    def __init__(self) -> None:
        self._size = (0, 0)
        self._shown: list[str] = []
        self._next = 0  # the line with which the next part begins

    def change(self, lines: list[str], size: tuple[int, int]) -> str:
        """Return what to write: nothing if all is shown, else about `MAX_FRAME_BYTES` at most. Call it till then."""
        text = ""
        if size != self._size:
            self._size, self._shown, self._next, text = size, [], 0, "\x1b[2J"
        self._shown += [""] * (max(size[1], len(lines)) - len(self._shown))
        order = [*range(self._next, len(self._shown)), *range(self._next)]
        most = max(MAX_FRAME_BYTES // 4, MAX_FRAME_BYTES - 8 * size[0])  # before the last line of this part
        for row in order:
            after = lines[row] if row < len(lines) else ""
            if after != self._shown[row]:
                if len(text.encode()) >= most:
                    self._next = row
                    break
                text += changed(row, self._shown[row], after)
                self._shown[row] = after
        return text


def changed(row: int, before: str, after: str) -> str:
    """Return the bytes that turn one line into another: from the first cell that differs to the last one."""
    old, new = _cells(before), _cells(after)
    if any(text_width(char) != 1 for _, char in old + new if not char.isascii()):
        return f"\x1b[{row + 1};1H{after}\x1b[K"  # the characters' places are not their cells
    differ = [at for at, (one, other) in enumerate(zip_longest(old, new)) if one != other]
    if not differ:
        return ""
    text = _styled(new[differ[0] : differ[-1] + 1])
    return f"\x1b[{row + 1};{differ[0] + 1}H{text}" + ("\x1b[K" if len(new) < len(old) else "")


def _cells(line: str) -> list[tuple[str, str]]:
    """Return each character with the escape sequences of its style."""
    cells, style = [], ""
    for sequence, char in _STYLE_OR_CHAR.findall(line):
        if char:
            cells.append((style, char))
        else:
            style = "" if sequence == _PLAIN else style + sequence
    return cells


def _styled(cells: list[tuple[str, str]]) -> str:
    runs = ((style, "".join(char for _, char in run)) for style, run in groupby(cells, key=itemgetter(0)))
    return "".join(f"{style}{text}{_PLAIN if style else ''}" for style, text in runs)


def show(watcher: Watcher, view: View, interval: float) -> None:
    """Show the pools until the person leaves. A terminal that does not keep up is written to less often."""
    with _keys() as fd, contextlib.suppress(KeyboardInterrupt), _window():
        keyboard, picture, colours = Keyboard(fd), Picture(), is_colourful(sys.stdout)
        while not view.left:
            samples, size = watcher.sample(), shutil.get_terminal_size()
            lines = view.lines(samples, *size)
            text = ""
            if select.select([], [sys.stdout], [], 0)[1]:
                text = picture.change(lines if colours else list(map(click.unstyle, lines)), size)
                sys.stdout.write(text)
                sys.stdout.flush()
            for key in keyboard.read(DRAW_ON_S if len(text) >= MAX_FRAME_BYTES // 2 else interval):
                view.press(key, samples)


@contextlib.contextmanager
def _window() -> Iterator[None]:
    """Show the terminal's other screen, without a cursor; long lines are cut, not wrapped."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[?7l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?7h\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Yield the keyboard, key by key and without echo; None when stdin is not a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
