"""The options of a run, checked; and whether a broker and a machine can bear it."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import psutil

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import scheme_of
from jobpool.errors import ConfigurationError
from jobpool.message.names import check_queue
from jobpool.message.units import format_size
from jobpool_backends import PLACES
from jobpool_torture.schedule import KINDS, About

FAULTS_A_SECOND = 0.5
POOL_BYTES = 90 << 20
CHILD_BYTES = 12 << 20
"""Memory of a pool with its fork server, and of each of its children; measured, rounded up."""

JOB_BYTES = 16 << 10  # of memory, that the count takes for each job
FOLDER_BYTES = 2 << 10  # of the folder's disk, that each job takes, in the ledger above all; measured, rounded up
CAPS = ("dead_max", "dead_max_age")  # options of a URL by which the broker throws dead letters away
BUSY_SCHEMES = ("sync", "memory")  # brokers that live in one process: no second pool can reach them


@dataclass(frozen=True, slots=True)
class Options:
    """A run. Raises `ConfigurationError`: one is out of its bounds."""

    backend: str = field(repr=False)  # the broker's URL
    seconds: float = 300.0  # for how long faults strike, > 0
    seed: int = 0
    pools: int = 3
    workers: int = 4
    queue: str = ""  # its queue, empty at the start; "" = one of its own name, made by its first job
    ttl: float = 5.0  # seconds of a lease where a pool can choose
    rate: float = 20.0  # jobs a second
    faults: tuple[str, ...] = ()  # kinds; empty = all that can be had
    restart_broker: str = ""  # A command for the shell that restarts the broker; "" = it is left alone
    keep: bool = False  # leave folder, jobs and dead letters where they are

    def __post_init__(self) -> None:
        _between("the run", self.seconds, 1.0, 7 * 86400.0, "seconds")
        _between("--pools", self.pools, 1, 16)
        _between("--workers", self.workers, 1, 64)
        _between("--ttl", self.ttl, 1.0, 60.0, "seconds")
        _between("--rate", self.rate, 0.1, 500.0, "jobs a second")
        if self.queue:
            check_queue(self.queue)
        if unknown := [kind for kind in self.faults if kind not in KINDS]:
            raise ConfigurationError(f"{unknown[0]!r} is not a kind of fault: {', '.join(KINDS)}, or all")
        if scheme_of(self.backend) in BUSY_SCHEMES:
            raise ConfigurationError(
                f"{scheme_of(self.backend)}:// lives in one process, and pools are several: name a broker that they"
                " share, such as --backend sqlite:///torture.db"
            )

    def on_its_queue(self) -> Options:
        return self if self.queue else replace(self, queue=f"torture-{secrets.token_hex(4)}")

    def about(self) -> dict[str, Any]:
        """Return the facts of this run that its schedule file has."""
        return {name: getattr(self, name) for name in About.__struct_fields__}

    def timed(self, url: str) -> str:
        """Return `url`; if it has no timeout, with one that is so short that a lease outlives two of them.

        A backend that is not ours need not know that option.
        """
        return with_timeout(url, min(5.0, max(1.0, self.ttl / 4))) if scheme_of(url) in PLACES else url


def with_timeout(url: str, seconds: float) -> str:
    """Return `url`, with this option `timeout` if it has none."""
    place, _, query = url.partition("?")
    options = [query] if query else []
    return url if "timeout" in dict(parse_qsl(query)) else f"{place}?{'&'.join([*options, f'timeout={seconds:g}'])}"


def _between(what: str, value: float, least: float, most: float, unit: str = "") -> None:
    if not least <= value <= most:
        raise ConfigurationError(f"{what} must be {least:g} to {most:g}{f' {unit}' if unit else ''}, not {value:g}")


def check_broker(backend: QueueBackend, options: Options) -> None:
    """Raise `ConfigurationError` unless the broker can be tortured, and the queue is there and empty."""
    if not backend.capabilities.leases:
        raise ConfigurationError(f"{backend.scheme}:// keeps no messages: there is nothing that a pool could lose")
    if not options.queue and not backend.capabilities.makes_queues:
        raise ConfigurationError(
            f"{backend.scheme}:// makes no queues by itself (Capabilities.makes_queues): make an empty one, and name it"
            " with --queue"
        )
    # Messages that the broker has thrown away by itself look like lost ones.
    named = dict(parse_qsl(options.backend.partition("?")[2]))
    if found := [name for name in CAPS if named.get(name, "0").strip("0.")]:
        raise ConfigurationError(
            f"with {' and '.join(found)} in its URL the broker throws dead letters away, and each would count as"
            " lost: name the broker without, with --backend"
        )
    backend.prepare()
    if not options.queue:
        return
    stats = backend.stats(options.queue)
    held = {name: getattr(stats, name) for name in ("waiting", "delayed", "leased", "dead", "posted")}
    if any(held.values()):
        told = ", ".join(f"{count:,} {name}" for name, count in held.items() if count)
        raise ConfigurationError(
            f"queue {options.queue!r} is not empty ({told}), and what is in it would be run and thrown away: name an"
            " empty one, or leave --queue out"
        )


def check_machine(options: Options, folder: Path) -> None:
    """Raise `ConfigurationError`: there is too little memory for the processes or jobs, or disk for a ledger.

    `folder`: where the run will write, or in which that will be made.
    """
    needed = options.pools * (POOL_BYTES + options.workers * CHILD_BYTES)
    free = psutil.virtual_memory().available
    if free < needed:
        raise ConfigurationError(
            f"{options.pools} pools with {options.workers} workers each take about {format_size(needed)} of memory, and"
            f" {format_size(free)} are free: ask for fewer with --pools and --workers"
        )
    jobs = round(options.seconds * options.rate)
    if free < needed + jobs * JOB_BYTES:
        raise ConfigurationError(
            f"to count {jobs:,} jobs takes about {format_size(jobs * JOB_BYTES)} of memory, and"
            f" {format_size(free - needed)} are free beside the pools: ask for fewer with --minutes or --rate"
        )
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), Path("/"))
    disk, ledger = shutil.disk_usage(there).free, jobs * FOLDER_BYTES
    if disk < ledger:
        raise ConfigurationError(
            f"the ledger takes about {format_size(ledger)}, and {format_size(disk)} are free at {there}: name a folder"
            " on another disk with --directory, or ask for less with --minutes or --rate"
        )


def check_folder(directory: Path) -> Path:
    """Make the folder if it is missing. Raises `ConfigurationError`: it cannot be had, or is not empty."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigurationError(f"--directory {directory} is not empty: name a new one")
    except OSError as error:
        raise ConfigurationError(f"--directory {directory}: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--directory {directory} cannot be written to: name another one")
    return directory.absolute()
