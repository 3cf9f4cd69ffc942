"""What a handler leaves behind outlasts the run, at whose end it is looked for."""

from __future__ import annotations

import os
import subprocess
import sys

from jobpool_torture.ledger import LASTS


def test_it_lasts_longer_than_faults_strike() -> None:
    code = "from jobpool_torture import handlers; print(handlers.FOREVER_S)"
    assert int(subprocess.check_output([sys.executable, "-c", code], env={**os.environ, LASTS: "300"})) == 3900
