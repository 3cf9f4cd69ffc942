"""A process and its children, taken together."""

from __future__ import annotations

import contextlib
import signal

import psutil

from support.waiting import wait_until

LIMIT = 30.0
"""Seconds within which a stopped process stands still: far above what it takes."""


def family_of(pid: int) -> list[psutil.Process]:
    """The process, first, and its children; none when it has gone."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def freeze(pid: int) -> list[psutil.Process]:
    """SIGSTOP to the first process, so that it starts no more, then to the rest; all of them, once they stand still."""
    hold(family_of(pid)[:1])
    family = family_of(pid)
    hold(family)
    return family


def hold(members: list[psutil.Process]) -> None:
    for member in members:
        send(member, signal.SIGSTOP)
    still = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    wait_until(lambda: all(_status(member) in still for member in members), LIMIT, f"{members} to stand still")


def send(member: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        member.send_signal(number)


def is_alive(member: psutil.Process) -> bool:
    """A zombie is dead: the first process of a container may never collect it."""
    return _status(member) != psutil.STATUS_ZOMBIE


def _status(member: psutil.Process) -> str:
    """One that is gone counts as a zombie."""
    try:
        return str(member.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)
