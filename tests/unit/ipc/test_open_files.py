"""The limit of open files, in a process of its own: what is lowered here must not stay."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys
from jobpool.ipc.linux import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400))
print(allow_open_files(int(sys.argv[1])), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""

POOL = """
import resource
from jobpool.master.run import run_pool
from jobpool.settings import Settings
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400))
run_pool(Settings(queues=(("q", 1.0),), backend="memory://", workers=300))
"""


def test_the_soft_limit_is_raised_as_far_as_the_hard_one_lets_it() -> None:
    for case, wanted, answer in [
        ("enough already", 100, "100 200"),
        ("raised", 300, "300 300"),
        ("as far as it goes", 1000, "400 400"),
    ]:
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(wanted)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == answer, case


def test_a_pool_that_cannot_have_enough_open_files_says_so_before_it_starts() -> None:
    done = subprocess.run([sys.executable, "-c", POOL], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "300 workers need" in done.stderr
    assert "ulimit -n" in done.stderr


SERVER = """
import os, resource, sys
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.process_options import ChildOptions, ForkServerConfig
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400))
begun = ForkServerClient(os.environ)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
begun.tell(ForkServerConfig(ChildOptions(), "none:none", "none:none"), 0, os.environ)
print(resource.prlimit(begun.pid, resource.RLIMIT_NOFILE))
begun.discard()
"""


def test_a_fork_server_that_began_before_the_limit_was_raised_has_the_raised_one() -> None:
    done = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(300, 400)\n", "")
