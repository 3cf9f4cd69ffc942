"""An app whose children die at the phase of a job that the job names: it puts itself between the steps of a child.

Nothing of this is in the child's own code: the app, which is imported before children are forked, wraps the functions
that take a frame, run it and answer it. Each job kills its child once, in whichever delivery first comes that far.

What happened is written to the file `phases` beside the ledger: one JSON object a line, `event` `ready` (a child
has said so) or `killed`, with the slot, the fork server and CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jobpool
from jobpool.child import main as child_main
from jobpool.ipc import packets
from jobpool.ipc.frames import RUN_HEAD
from jobpool.ipc.process_options import ChildBoot
from jobpool_torture.ledger import LEDGER

sys.path.insert(0, str(Path(__file__).parent))

from apps_pool import note  # brings its handlers along

READ, TAKEN, RUNNING, COMPUTED, HALF, WRITTEN = PHASES = (
    *("frame read", "frame taken", "in user code"),
    *("result computed", "half an answer written", "answer written"),
)

FOLDER = Path(os.environ[LEDGER]).parent
LARGE = 40 << 10
"""Characters of output that make an answer too large for one packet: it goes in two, and a file."""


def tell(event: str, slot: int, **more: Any) -> None:
    line = {"event": event, "server": os.getppid(), "slot": slot, "pid": os.getpid(), "at": time.monotonic(), **more}
    with (FOLDER / "phases").open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


class Doom:
    """What the job at hand asks for."""

    def __init__(self) -> None:
        self.id = self.phase = ""
        self.slot = -1

    def read(self, packet: bytes, slot: int) -> None:
        wire = json.loads(packet[RUN_HEAD.size :])
        payload = wire["payload"]
        self.id, self.slot = wire["identifier"], slot
        self.phase = payload.get("phase", "") if isinstance(payload, dict) else ""

    def at(self, phase: str) -> None:
        """Die, if this is the phase, and the job has not killed a child before."""
        if phase == self.phase and self._is_first():
            tell("killed", self.slot, id=self.id, phase=phase)
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_first(self) -> bool:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(FOLDER / f"killed {self.id}", os.O_CREAT | os.O_EXCL))
            return True
        return False


doom = Doom()


class PhasedChild(child_main.Child):
    """A child that looks at each step whether it is to die there."""

    _has_told = False

    def __init__(self, boot: ChildBoot, capture: Any, lines: Any, masker: Any) -> None:
        super().__init__(boot, capture, lines, masker)
        self._slot = boot.slot

    def _next(self) -> bytes | None:
        """The first time it is asked for what comes right after the child has said that it is ready."""
        if not self._has_told:
            self._has_told = True
            tell("ready", self._slot)
        return super()._next()

    def _attempt(self, packet: bytes, ack: Any = None) -> str:
        doom.read(packet, self._slot)
        doom.at(READ)
        return super()._attempt(packet, ack)

    def _send(self, nonce: int, attempt: Any, leaving: str) -> None:
        doom.at(COMPUTED)
        super()._send(nonce, attempt, leaving)
        doom.at(WRITTEN)


def decode_taken(*args: Any, **options: Any) -> Any:
    doom.at(TAKEN)
    return _decode_again(*args, **options)


def write_half(fd: int, data: bytes) -> None:
    """The reader has been told that a file comes; it never does."""
    half = len(data) // 2
    _write_all(fd, data[:half])
    doom.at(HALF)
    _write_all(fd, data[half:])


_decode_again, _write_all = child_main.decode_again, packets._write_all  # type: ignore[attr-defined]
child_main.Child = PhasedChild  # type: ignore[misc]
child_main.decode_again = decode_taken  # type: ignore[attr-defined]
packets._write_all = write_half


@jobpool.handler
def phased(ctx: jobpool.JobContext, phase: str) -> str:
    note(ctx, "start", tag=phase)
    doom.at(RUNNING)
    note(ctx, "end", tag=phase)
    return "x" * LARGE if phase == HALF else ""
