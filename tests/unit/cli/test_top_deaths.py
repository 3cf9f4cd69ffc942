"""`top` says how a slot's last child died, where there is no progress to show."""

from __future__ import annotations

from pathlib import Path

from face_boards import publish

from jobpool.cli.top_lines import cells
from jobpool.ops.top import Watcher

DEATH = "killed by SIGSEGV (itself); peak memory 31 MiB"


def test_the_last_death_of_a_slot_is_shown_until_something_runs_in_it(tmp_path: Path) -> None:
    pool, board = publish(tmp_path)
    with board, Watcher(lambda: [pool], now=lambda: 1000.0) as watcher:
        for index in (0, 1):
            board.slot(index).master.write(last_death=DEATH)
        [sample] = watcher.sample()
    busy, idle = sample.rows
    assert (busy.last_death, idle.last_death) == (DEATH, DEATH)
    assert cells(busy)[-1] == "40% rendering"
    assert cells(idle)[-1] == f"last death: {DEATH}"
