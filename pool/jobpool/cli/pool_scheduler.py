"""The program that a pool with `--cron` runs: `python -P -m jobpool.cli.pool_scheduler LINE_FD MASTER`."""

from __future__ import annotations

import os
import socket
import sys

from jobpool.cron.service import serve
from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.ipc import linux
from jobpool.ipc.scheduler_process import HIDDEN, REFUSED, CronStart, MasterPipe
from jobpool.telemetry.logs import configure


def main(argv: list[str]) -> int:
    """Run with these arguments; the exit status: 0 told to end, 1 no broker, 2 the app or a setting cannot work."""
    line, master = map(int, argv[1:3])
    os.set_inheritable(line, False)
    linux.die_with_parent(master)
    linux.hide_memory()
    master_pipe = MasterPipe(line)
    master_pipe.say(HIDDEN)
    with socket.socket(fileno=os.dup(line)) as told:
        _, (config,), _, _ = socket.recv_fds(told, 64, 1)
    start = CronStart.from_json(os.pread(config, os.fstat(config).st_size, 0))
    os.close(config)
    os.environ.update(start.environ)
    os.set_blocking(line, False)  # a master that stands still does not stop schedules
    configure(start.log_level, start.log_format).write_in_background()
    try:
        serve(start, master_pipe)
    except JobpoolError as error:
        master_pipe.say(str(error).encode())  # the master logs it
        return REFUSED if isinstance(error, ConfigurationError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
