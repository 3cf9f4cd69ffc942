"""The command whose pool runs under the witness: `jobpool` in every other way."""

from __future__ import annotations

import sys

import pytest
from cli_shell import Shell

from jobpool_torture.ledger import Ledger

APP = """
import jobpool

@jobpool.handler
def work(ctx):
    pass
"""


PROGRAM = (sys.executable, "-m", "jobpool_torture.pool_process")


@pytest.fixture
def tortured(shell: Shell) -> Shell:
    (shell.directory / "app.py").write_text(APP)
    return shell


def test_a_pool_under_the_witness(tortured: Shell) -> None:
    ident = tortured.enqueue("work")
    ledger = {"JOBPOOL_LEDGER": "ledger", "JOBPOOL_NAME": "mine"}
    tortured.run("-A", "app", "--until-empty", program=PROGRAM, code=0, **ledger)

    lines = Ledger(tortured.directory / "ledger").read()
    assert [(line.event, line.id, line.pool, line.answer) for line in lines] == [
        ("fetched", ident, "mine", ""),
        ("asked", ident, "mine", ""),
        ("settled", ident, "mine", "ok"),
    ]


def test_without_a_ledger_it_says_so_in_one_sentence(tortured: Shell) -> None:
    done = tortured.run("-A", "app", "--until-empty", program=PROGRAM, code=2)
    assert "set JOBPOOL_LEDGER to the file that the witness writes" in done.stderr
    assert "Traceback" not in done.stderr
