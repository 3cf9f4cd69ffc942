"""The program that a pool with `--cron` runs beside it: `python -m jobpool.cli.companion CONFIG_FD MASTER_PID`."""

from __future__ import annotations

import sys

from jobpool.cron.service import read_start, serve
from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.logs import configure
from jobpool.mechanism import linux

FAILED = 1
USAGE = 2


def main(argv: list[str]) -> int:
    """Run with these arguments; the exit status: 0 told to end, 1 no broker, 2 the app or a setting cannot work."""
    config, master = map(int, argv[1:3])
    linux.die_with_parent(master)
    start = read_start(config)
    configure(start.log_level, start.log_format)
    try:
        serve(start, companion=True)
    except JobpoolError as error:
        print(f"jobpool: the scheduler: {error}", file=sys.stderr, flush=True)
        return USAGE if isinstance(error, ConfigurationError) else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
