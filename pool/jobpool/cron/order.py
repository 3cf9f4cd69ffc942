"""The order in which jobs run that depend on one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from jobpool.errors import ConfigurationError
from jobpool.message.definition import JobDefinition


def job_name(definition: JobDefinition) -> str:
    """Return the name of a scheduled job, as in `depends_on`: its name, else its handler's."""
    return definition.name or definition.handler


def execution_order(definitions: Iterable[JobDefinition], places: Sequence[str] = ()) -> list[JobDefinition]:
    """Order jobs so that each comes after those that it depends on; where that leaves a choice, as declared.

    Args:
        definitions: In the order of declaration.
        places: Where each was declared (`shop/jobs.py:17`), for errors; empty = not known.

    Raises:
        ConfigurationError: Two jobs have one name (both places are named); `Dependency 'x' for job 'y' does not
            exist.`; `Circular dependency detected in jobs.`, with the circle in the error's notes.
    """
    jobs = list(definitions)
    index = _index(jobs, places)
    for job in jobs:
        _check_known(job, index)
    awaited = [{index[name] for name in job.depends_on} for job in jobs]
    followers: list[list[int]] = [[] for _ in jobs]
    for number, before in enumerate(awaited):
        for one in before:
            followers[one].append(number)
    order = _sorted(awaited, followers)
    if len(order) < len(jobs):
        raise _circular(jobs, awaited, set(range(len(jobs))) - set(order))
    return [jobs[number] for number in order]


def _index(jobs: Sequence[JobDefinition], places: Sequence[str]) -> dict[str, int]:
    index: dict[str, int] = {}
    for number, job in enumerate(jobs):
        first = index.setdefault(job_name(job), number)
        if first != number:
            raise ConfigurationError(
                f"two scheduled jobs are named {job_name(job)!r}: {_described(jobs, places, first)} and"
                f" {_described(jobs, places, number)}; give one of them another name with .named(…)"
            )
    return index


def _described(jobs: Sequence[JobDefinition], places: Sequence[str], number: int) -> str:
    job = jobs[number]
    where = f" in {places[number]}" if number < len(places) else f", declared as number {number + 1}"
    return f"handler {job.handler!r}, {job.cron_expression!r}{where}"


def _check_known(job: JobDefinition, index: dict[str, int]) -> None:
    for name in job.depends_on:
        if name not in index:
            raise ConfigurationError(f"Dependency '{name}' for job '{job_name(job)}' does not exist.")


def _sorted(awaited: list[set[int]], followers: list[list[int]]) -> list[int]:
    """Return numbers in order, the smallest free one first; members of a circle, and their followers, are left out."""
    open_ends = [len(before) for before in awaited]
    free = [number for number, count in enumerate(open_ends) if count == 0]  # ascending: a heap already
    order: list[int] = []
    while free:
        order.append(heappop(free))
        for follower in followers[order[-1]]:
            open_ends[follower] -= 1
            if open_ends[follower] == 0:
                heappush(free, follower)
    return order


def _circular(jobs: Sequence[JobDefinition], awaited: list[set[int]], left: set[int]) -> ConfigurationError:
    """Return the error, with one circle in its notes: all jobs that are left wait for each other."""
    path = [min(left)]
    while (before := min(awaited[path[-1]] & left)) not in path:
        path.append(before)
    circle = [job_name(jobs[number]) for number in [*path[path.index(before) :], before]]
    error = ConfigurationError("Circular dependency detected in jobs.")
    error.add_note("each waits for the next: " + " → ".join(map(repr, circle)))
    return error
