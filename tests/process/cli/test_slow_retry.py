"""`dead retry --rate` on a real terminal: its progress, and Ctrl-C."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest
from cli_shell import Shell

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition

LETTERS = 40


@pytest.fixture
def broker(shell: Shell) -> Iterator[QueueBackend]:
    """With some dead letters."""
    backend = open_backend(f"sqlite:///{shell.directory}/jobpool.db")
    backend.enqueue_many(JobDefinition("report") for _ in range(LETTERS))
    for lease in backend.fetch_many("default", limit=LETTERS):
        assert backend.abandon(lease, "timeout")
    yield backend
    backend.close()


def test_it_shows_its_progress_and_ctrl_c_says_how_far_it_came(shell: Shell, broker: QueueBackend) -> None:
    words = ("dead", "retry", "reason:timeout", "--rate", "240", "--yes")
    shown, code = shell.on_a_terminal(*words, until=b" 5%", then=signal.SIGINT)
    assert code == 130, shown
    said = re.search(r"interrupted: (\d+) messages retried so far; the same command goes on with the rest", shown)
    assert said, shown
    done = int(said[1])
    assert 2 <= done < LETTERS
    counts = broker.stats("default")
    assert (counts.waiting, counts.dead) == (done, LETTERS - done)

    assert shell.call("dead", "retry", "reason:timeout", "--yes").stdout == f"{LETTERS - done} messages retried\n"
    assert broker.stats("default").dead == 0


def test_in_a_pipe_there_is_no_bar(shell: Shell, broker: QueueBackend) -> None:
    done = shell.run("dead", "retry", "--all", "--rate", "30000", "--yes")
    assert (done.stdout, done.returncode) == (f"{LETTERS} messages retried\n", 0)
    assert "%" not in done.stderr
    assert broker.stats("default").waiting == LETTERS
