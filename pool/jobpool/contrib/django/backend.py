"""`JobpoolBackend`: where `.enqueue` of a Django task sends a job, and what `TASKS` may say about that."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from django.core import checks
from django.db import connections, transaction
from django.utils import timezone

from jobpool.broker.opening import check_url, default_url, scheme_of
from jobpool.client.jobs import Jobs
from jobpool.contrib.django import framework, running
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.message import producer
from jobpool.message.definition import JobDefinition
from jobpool.message.names import check_queue, nearest_or_all
from jobpool.message.results import JobState

URL, ON_COMMIT = "backend", "on_commit"
RESULT_TTL = "result_ttl"
OF_JOBS = ("max_retries", "timeout", RESULT_TTL)  # fields of each job
OPTIONS = (URL, ON_COMMIT, *OF_JOBS)

NORMAL_PRIORITY = 100
"""jobpool's priority of Django's 0. There -100 to 100 run the larger first, here 0 to 255 the smaller."""


class JobpoolBackend(framework.BaseTaskBackend):  # type: ignore[misc]
    """A task backend that enqueues to a broker of jobpool, as an entry of `TASKS` describes it.

    `OPTIONS`, all of them optional:
        backend: URL of the broker; without it that of JOBPOOL_BACKEND or the configuration file.
        on_commit: Alias of the database with whose open transaction jobs are sent: when it commits, and never if it
            rolls back. True, which is the default, is the database `default`; False sends at once.
        max_retries, timeout: Of each job, as in `JobDefinition`.
        result_ttl: Seconds for which results are kept, for `get_result`; without it there are none.
    """

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.url: str | None = self.options.get(URL)
        self.supports_get_result = bool(self.options.get(RESULT_TTL))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a run of the task, now or when the transaction commits; its `TaskResult`.

        Raises:
            InvalidTask: The task cannot be found by its name in a worker, or does not fit this backend.
            TypeError: The arguments do not fit the function, or JSON cannot carry them.
            InvalidJob: An option is out of bounds, or, when it is sent, the arguments are too large.
            BackendUnavailable: The broker does not answer when it is sent.

        A task that waits for a commit is sent after that, so an error then leaves the rows without their task. Sending
        blocks for one round trip to the broker.
        """
        self.validate_task(task)
        try:
            found = running.find(task.module_path)
        except (LookupError, TypeError) as error:
            raise framework.InvalidTask(str(error)) from None
        if found.func is not task.func:  # so a worker would run that one
            raise framework.InvalidTask(f"{task.module_path} is another task: give each function a name of its own")
        running.check_arguments(task, args, kwargs)
        result = running.new_result(task, secrets.token_hex(8), list(args), dict(kwargs), self.alias)
        job = self._define(result)
        asked = self.options.get(ON_COMMIT, True)
        alias = "default" if asked is True else asked
        if alias and connections[alias].in_atomic_block:
            transaction.on_commit(partial(self._send, job, result), using=alias)
        else:
            self._send(job, result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the `TaskResult` as it is now. Its value and arguments have no secrets.

        Raises:
            NotImplementedError: `OPTIONS` has no `result_ttl`.
            TaskResultDoesNotExist: Nothing is known of it: it never was a task, or has ended longer ago than that.
            ResultTooLarge: It is done, and returned more than is kept.
            BackendUnavailable: The broker does not answer.
        """
        if not self.supports_get_result:
            raise NotImplementedError(
                f"TASKS[{self.alias!r}] keeps no results: set OPTIONS['result_ttl'], in seconds, or let the task write"
                f" to your database what you need of {result_id}"
            )
        jobs = open_jobs(self.url)
        with suppress(InvalidJob):  # it is not an id
            while (status := jobs.status(result_id)).state is not JobState.UNKNOWN:
                if status.state is JobState.DONE:
                    kept = jobs.result(result_id, 0.0)
                    if not isinstance(kept, dict) or kept.keys() != running.KEPT:
                        break
                    return running.done_result(result_id, kept, status.ended_at)
                if message := jobs.backend.inspect(result_id):  # None: it has ended just now
                    if message.handler != running.HANDLER:
                        break
                    return running.live_result(message, status)
        raise framework.TaskResultDoesNotExist(result_id)

    def check(self, **_: Any) -> Iterator[Any]:
        """Yield an error for each wrong option or queue, as Django's system checks show it."""
        for found in self.wrong():
            yield checks.Error(f"TASKS[{self.alias!r}]: {found}", id="jobpool.E001")

    def wrong(self) -> Iterator[str]:
        """Yield a sentence for each wrong option or queue."""
        for name in sorted(self.options.keys() - set(OPTIONS)):
            yield f"OPTIONS has no {name!r}{nearest_or_all(name, OPTIONS)}"
        for look in (
            lambda: self.url is None or check_url(self.url),
            lambda: self._job("task", {}),
            lambda: [check_queue(queue) for queue in self.queues],
        ):
            try:
                look()
            except (ConfigurationError, InvalidJob) as error:
                yield str(error)
        alias = self.options.get(ON_COMMIT, True)
        if not isinstance(alias, bool) and alias not in connections.settings:
            yield f"on_commit is True, False or an alias of DATABASES, not {alias!r}"

    def _job(self, name: str, payload: dict[str, Any], **fields: Any) -> JobDefinition:
        own = {option: self.options[option] for option in OF_JOBS if option in self.options}
        return JobDefinition(running.HANDLER, payload, name, **own, **fields)

    def _define(self, result: Any) -> JobDefinition:
        task = result.task
        payload = {"task": task.module_path, "args": result.args, "kwargs": result.kwargs, "backend": self.alias}
        payload |= {"keep": True} if self.supports_get_result else {}
        due = task.run_after
        if due is not None and timezone.is_naive(due):  # without USE_TZ it means the zone of TIME_ZONE
            due = timezone.make_aware(due)
        return self._job(
            task.module_path,
            payload,
            identifier=result.id,
            queue=task.queue_name,
            priority=NORMAL_PRIORITY - task.priority,
            scheduled_at=due,
        )

    def _send(self, job: JobDefinition, result: Any) -> None:
        open_jobs(self.url).enqueue(job)
        object.__setattr__(result, "enqueued_at", timezone.now())
        framework.task_enqueued.send(type(self), task_result=result)


_producers: dict[str | None, Jobs] = {}  # by URL: Django makes a backend for each thread, jobpool connects once


def open_jobs(url: str | None) -> Jobs:
    """Return the process's `Jobs` for this URL; None = the default one. In a test's `VirtualPool`, return its own."""
    if isinstance(chosen := producer.process.chosen, Jobs):
        running.register()
        return chosen
    if url not in _producers:
        if scheme_of(url or default_url()) == "sync":  # which runs the job in this process
            running.register()
        _producers.setdefault(url, Jobs(url))
    return _producers[url]


def entries() -> list[JobpoolBackend]:
    """Return the entries of TASKS that are of jobpool, `default` before the others."""
    found = [backend for backend in framework.task_backends.all() if isinstance(backend, JobpoolBackend)]
    return sorted(found, key=lambda backend: backend.alias != "default")
