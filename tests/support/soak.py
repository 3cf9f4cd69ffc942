"""A server of its own for `jobpool torture`, which may kill it: see scripts/soak.

`jobpool torture --restart-broker` takes a shell command. The server is this process's, so the command writes a line to
one pipe of this process and waits for a line from another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from jobpool_torture.options import with_timeout
from support.poolrig_brokers import SHORT_TTR, BeanstalkBroker, Broker, PostgresBroker, RedisBroker
from support.servers import RedisServer

EVERY_SECOND = {"appendonly": "yes", "appendfsync": "everysec"}


def main(name: str, options: list[str]) -> int:
    """Run `jobpool torture` on a broker of that name; its exit status."""
    with tempfile.TemporaryDirectory(prefix="jobpool-soak-") as folder:
        if name == "sqlite":
            return torture([f"--backend=sqlite:///{folder}/jobpool.db", *options])
        broker, more = start(name, Path(folder))
        with broker, Restarts(Path(folder), restarter(broker)) as restarts:
            return torture([f"--backend={broker.url}", f"--restart-broker={restarts.command}", *more, *options])


def start(name: str, folder: Path) -> tuple[Broker, list[str]]:
    """The broker, and options that it needs."""
    match name:
        case "redis":
            return RedisBroker.on_its_own(folder / "server"), []
        case "redis-everysec":
            return RedisBroker(RedisServer(folder / "server", config=EVERY_SECOND), shared=False), []
        case "postgres":
            return with_passwords(PostgresBroker.on_its_own(folder / "server")), []
        case "beanstalk":
            broker = BeanstalkBroker.on_its_own(folder / "server")
            broker.lasts = SHORT_TTR
            return broker, []
        case "servicebus":
            from support.poolrig_servicebus import ServiceBusBroker  # brings the SDK

            bus = ServiceBusBroker.on_its_own(folder / "server")
            return bus, ["--queue=default", f"--backend={with_timeout(bus.url, 4)}"]
    raise SystemExit(f"no broker {name!r}: sqlite, redis, redis-everysec, postgres, beanstalk or servicebus")


def with_passwords(broker: PostgresBroker) -> PostgresBroker:
    """It believes the superuser, and nobody else without a password: so one that is withdrawn locks a pool out."""
    lines = ("host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256")
    (broker.server.data / "pg_hba.conf").write_text("".join(f"{line}\n" for line in lines))
    broker.ask("SELECT pg_reload_conf()")
    return broker


def restarter(broker: Broker) -> Callable[[], None]:
    """What kills its server and starts it again, with its data."""
    restart = getattr(broker, "restart", None)
    if restart is not None:
        return restart  # type: ignore[no-any-return]

    def kill_and_start() -> None:
        broker.server.kill()
        broker.server.start()

    return kill_and_start


class Restarts:
    """Restarts the broker as often as `command` is run, until the block ends."""

    def __init__(self, folder: Path, restart: Callable[[], None]) -> None:
        self._asked, self._done = folder / "asked", folder / "done"
        self._restart = restart
        self._thread = threading.Thread(target=self._serve, name="restarts")
        self.command = f"echo now > {self._asked} && read line < {self._done}"

    def __enter__(self) -> Restarts:
        for pipe in (self._asked, self._done):
            os.mkfifo(pipe)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.write_text("end\n")
        self._thread.join()

    def _serve(self) -> None:
        while self._asked.read_text() != "end\n":
            self._restart()
            self._done.write_text("done\n")


def torture(options: list[str]) -> int:
    """Run the verb; Ctrl-C is its own affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = [sys.executable, "-m", "jobpool", "torture", *options]
    return subprocess.run(command, check=False, preexec_fn=_heed_ctrl_c).returncode


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]))
