"""`jobpool top`: the pools of this machine, live. The values come from jobpool.top; here they get a face."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from jobpool.cli.health import no_pool
from jobpool.cli.options import Command, as_json, option
from jobpool.cli.output import Column, answer_json, note, say, table
from jobpool.cli.session import Session
from jobpool.cli.topview import COLUMNS, cells, headline, screen

if TYPE_CHECKING:
    from jobpool.ops.top import Watcher

FAILED = 1


@click.command("top", cls=Command, short_help="Watch the pools of this machine, slot by slot.")
@option("--once", is_flag=True, help="Print once and exit.  [default when stdout is not a terminal]")
@option("-d", "--interval", type=click.FloatRange(min=0.1), default=0.5, show_default=True, help="Pause in seconds.")
@as_json
@click.pass_context
def top(ctx: click.Context, session: Session, once: bool, interval: float, json_: bool) -> None:
    """Watch every slot of the pools on this machine: what it runs, for how long, with how much memory.

    It reads shared memory only, so it answers while a pool or its broker hangs. q or Ctrl-C leaves.
    """
    from jobpool.ops.runtime_dir import discover
    from jobpool.ops.top import Watcher

    directory = session.runtime_dir()
    with Watcher(partial(discover, directory, session.pool_name())) as watcher:
        if json_:
            answer_json([asdict(sample) for sample in watcher.sample()])
        elif once or not sys.stdout.isatty():
            ctx.exit(_print(watcher, no_pool(session.pool_name(), str(directory))))
        else:
            _live(watcher, interval, no_pool(session.pool_name(), str(directory)))


def _print(watcher: Watcher, nobody: str) -> int:
    samples = watcher.sample()
    for number, sample in enumerate(samples):
        say(("\n" if number else "") + headline(sample))
        if sample.rows:
            table([Column(column.title, column.right) for column in COLUMNS], [cells(row) for row in sample.rows])
    if not samples:
        note(nobody)
    return 0 if samples else FAILED


def _live(watcher: Watcher, interval: float, nobody: str) -> None:
    from jobpool.telemetry.logs import is_colourful

    with _keys() as keys, contextlib.suppress(KeyboardInterrupt), _window():
        while True:
            text = "\x1b[K\n".join(screen(watcher.sample(), *shutil.get_terminal_size(), nobody))
            sys.stdout.write(f"\x1b[H{text if is_colourful(sys.stdout) else click.unstyle(text)}\x1b[K\x1b[J")
            sys.stdout.flush()
            if _left(keys, interval):
                return


@contextlib.contextmanager
def _window() -> Iterator[None]:
    """The terminal's other screen for the block, without a cursor; long lines are cut, not wrapped."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[?7l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?7h\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Yield the keyboard, key by key and without echo, for the block; None when stdin is not a terminal."""
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


def _left(keyboard: int | None, interval: float) -> bool:
    """Wait; whether the person wants to leave. Another key only looks again at once."""
    ready, _, _ = select.select([] if keyboard is None else [keyboard], [], [], interval)
    if not ready or keyboard is None:
        return False
    pressed = os.read(keyboard, 32)
    return not pressed or pressed[:1] in b"qQ\x03\x04"
