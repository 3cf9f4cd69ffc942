"""`jobpool enqueue`: one job from the command line, or many from a file of JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import click

from jobpool.cli.options import SIGNER, Command, as_json, option, queue_option, setting, time_option
from jobpool.cli.output import answer_ids, asks_json, note, plural
from jobpool.cli.session import Session
from jobpool.client.jobs import job_batches
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.message.definition import DEFAULT_PRIORITY, JobDefinition, check_may_start
from jobpool.message.names import DEFAULT_QUEUE
from jobpool.message.units import parse_duration

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.handlers.registry import HandlerRegistry

Fit = Callable[[JobDefinition], JobDefinition]


@click.command("enqueue", cls=Command, common=SIGNER)
@click.argument("handler", required=False)
@click.argument("payload", nargs=-1)
@setting("apps", "Options")
@option("--no-check", is_flag=True, help="Do not import the app, and enqueue unseen.")
@queue_option("Queue.  [default: the handler's; `default` if it names none]")
@option("-p", "--priority", type=int, metavar="N", help="Priority, 0 to 255; smaller runs sooner.  [default: 5]")
@time_option("--delay", help="Time from now before which it does not run.")
@option("--max-retries", type=int, metavar="N", help="Number of retries after a failed first run.")
@time_option("--timeout", help="Hard timeout of an attempt; 0 = unlimited.")
@option("--id", metavar="ID", help="Id; enqueued again, it changes nothing. Not on beanstalkd and Service Bus.")
@option("--job-name", metavar="NAME", help="Name of the job, in logs and for --single-instance.  [default: HANDLER]")
@time_option("--expires-in", help="Time from now after which it is not started any more, but dead.")
@time_option("--result-ttl", help="Time for which the result is kept, 30 days at most.  [default: 0]")
@option("--idempotency-key", metavar="KEY", help="Key under which one job succeeds; later ones are skipped.")
@option("--unique", is_flag=True, default=None, help="Enqueue only if the queue knows no job with this key.")
@option("--single-instance", is_flag=True, default=None, help="Run one job of this name at a time.")
@option("--concurrency-key", metavar="KEY", help="Key for the pool's limits per key.")
@option("--file", "file", type=click.File("rb"), metavar="FILE", help="File of jobs, one JSON value a line; - = stdin.")
@as_json
def enqueue(
    session: Session,
    handler: str | None,
    payload: tuple[str, ...],
    apps: tuple[str, ...],
    file: IO[bytes] | None,
    no_check: bool,
    **options: Any,
) -> None:
    """Enqueue a job, or a file of jobs, and print the ids.

    With --file on a terminal, print how many there are.

    PAYLOAD is one JSON value, or any number of key=value. A value is JSON where it can be read as JSON, else text. If
    the app is known, a word such as 2026 is text for a parameter that is a `str`:

    \b
      jobpool enqueue report '{"customer": 7, "month": "2026-06"}'
      jobpool enqueue report customer=7 month=2026-06 --queue reports

    Where an app is configured, or named by --app, it is imported: an unknown handler or wrong arguments are refused.

    With --file each line is one payload for HANDLER. Without HANDLER it is an object with "handler" and "payload". It
    may have "queue", "priority", "max_retries", "timeout", "delay", "expires_in", "result_ttl", "id", "name",
    "idempotency_key", "unique", "single_instance" and "concurrency_key".
    """
    single: JobDefinition | None = None
    defaults = {"name" if key == "job_name" else key: value for key, value in options.items() if value is not None}
    if file is not None:
        if payload:
            raise click.UsageError("a payload and --file exclude each other: the payloads are the lines of the file")
        if "id" in defaults:
            raise click.UsageError('--id and --file exclude each other: write "id" into the lines')
        definitions = _from_lines(file, handler, defaults, _fitting(_app(session, apps, no_check)))
    elif handler is None:
        raise click.UsageError("the name of a handler is missing: jobpool enqueue HANDLER [PAYLOAD]")
    else:
        registry = _app(session, apps, no_check)
        value = read_payload(payload, partial(registry.fits, handler) if registry else None)
        single = _fitting(registry)(_definition({**defaults, "handler": handler, "payload": value}))
        definitions = iter([single])
    counts = file is not None and not asks_json() and sys.stdout.isatty()
    with session.broker(makes=True) as backend:
        batches = _enqueue(backend, definitions)
        answer_ids(batches if file is None else _counted(batches), "job", "enqueued", counts=counts)
    if single:
        unseen = not (no_check or "queue" in defaults or session.is_quiet or session.settings(apps=apps).apps)
        if unseen:
            _note_unseen(single.handler)
        mend = ". `jobpool edit ID --move QUEUE` moves it"
        if registry is None:
            mend += "; with --app a job goes to the queue of its handler"
        elif "queue" not in defaults and single.queue != DEFAULT_QUEUE:
            mend = ". It is the queue of its handler: let a pool serve it, or send the pool HUP if the handler is new"
        note_unserved(session, single.queue or DEFAULT_QUEUE, "the job waits in", mend)


def _note_unseen(handler: str) -> None:
    from jobpool.handlers.builtin import MAKERS

    if handler not in MAKERS:  # with an app, the job of a built-in one would be unseen too
        unseen = f"the job was not checked, and is in queue {DEFAULT_QUEUE!r}"
        note(f"{unseen}: no app is named (--app, or apps in jobpool.toml)")


def note_unserved(session: Session, queue: str, what: str, mend: str = "") -> None:
    """Say that the pools of this machine serve other queues. Says nothing if there are none: one may come."""
    served = session.queues_served()
    if served and queue not in served:
        note(f"{what} queue {queue!r}; the pools on this machine serve {', '.join(sorted(served))}{mend}")


def _counted(batches: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield them, and show on a terminal how many jobs there are so far."""
    if not sys.stderr.isatty():
        yield from batches
        return
    count = 0
    try:
        for batch in batches:
            yield batch
            count += len(batch)
            click.echo(f"\r\x1b[K{plural(count, 'job')} …", err=True, nl=False)
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


def _app(session: Session, apps: tuple[str, ...], no_check: bool) -> HandlerRegistry | None:
    """Import the app; None = none is known. Raises `ConfigurationError`: it does not import."""
    session.settings(apps=apps)  # what is wrong with those is wrong without a look too
    try:
        return None if no_check else session.app(apps=apps)
    except ConfigurationError as error:
        error.args = (f"{error}; --no-check enqueues without a look at the app",)
        raise


def _fitting(registry: HandlerRegistry | None) -> Fit:
    """Return what checks a job against the app, if one is known, and puts it on its handler's first queue.

    It raises `InvalidJob`: the app cannot run the job; the text says why.
    """
    if registry is None:
        return lambda definition: definition
    from jobpool.handlers.registry import HandlerNotAllowed, UnknownHandler, no_handler

    queues = {info.name: info.queues for info in registry.infos()}

    def fit(definition: JobDefinition) -> JobDefinition:
        name = definition.handler
        queue = definition.queue or queues.get(name, [DEFAULT_QUEUE])[0]
        try:
            handler = registry.resolve(name, queue)
            if name in queues:  # built-in ones check when they run: their pool's settings may differ
                handler.check(definition.payload)
        except UnknownHandler:
            raise InvalidJob(f"{no_handler(name, queues)} (--no-check enqueues it)") from None
        except (HandlerNotAllowed, InvalidJob) as error:
            raise InvalidJob(f"{error}; --no-check enqueues it") from None
        return replace(definition, queue=queue)

    return fit


def read_payload(words: tuple[str, ...], fits: Callable[[str, Any], bool] | None = None) -> Any:
    """Return the payload that these words spell: one JSON value, or key=value words; none = an empty object.

    `fits`: whether a value suits a key. A word that does so only as it stands is text, though it can be read as JSON.
    Raises `click.UsageError`: the words are neither.
    """
    if len(words) == 1 and ("=" not in (text := words[0]) or text.lstrip()[:1] in ("{", "[", '"')):
        try:
            return read_json(text)
        except (ValueError, RecursionError) as error:
            raise click.UsageError(
                f"the payload {text[:60]!r} is neither JSON nor key=value: {error}; a text is written '\"like this\"'"
            ) from None
    pairs: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise click.UsageError(f"{word!r} is not key=value; give one JSON value, or only key=value words")
        if key in pairs:
            raise click.UsageError(f"{key!r} is given twice")
        pairs[key] = json_or_text(value)
        if fits and not fits(key, pairs[key]) and fits(key, value):
            pairs[key] = value
    return pairs


def json_or_text(word: str) -> Any:
    """Return the JSON value that a word spells, or the word."""
    try:
        return read_json(word)
    except (ValueError, RecursionError):
        return word


def read_json(text: str | bytes) -> Any:
    """Return a JSON value. Raises `ValueError`, also for NaN and Infinity, which only Python reads."""
    return json.loads(text, parse_constant=_refuse)


def json_lines(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield the number and the JSON value of each line that is not blank. Raises `InvalidJob`: one is not JSON."""
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                value = read_json(line)
            except (ValueError, RecursionError) as error:
                raise InvalidJob(f"line {number} is not a JSON value: {error}") from None
            yield number, value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none")


def _from_lines(file: IO[bytes], handler: str | None, defaults: dict[str, Any], fit: Fit) -> Iterator[JobDefinition]:
    for number, value in json_lines(file):
        try:
            if handler is not None:
                value = {"handler": handler, "payload": value}
            elif not isinstance(value, dict) or "handler" not in value:
                raise ValueError('it is not an object with "handler"; name a HANDLER if the lines are payloads')
            yield fit(_definition({**defaults, **value}))
        except (ValueError, RecursionError) as error:
            raise InvalidJob(f"line {number}: {error}") from None


def _definition(values: dict[str, Any]) -> JobDefinition:
    """Return the job of these fields. Raises `ValueError`: one is wrong."""
    fields, now = dict(values), datetime.now(UTC)
    if "id" in fields:
        fields["identifier"] = fields.pop("id")
    for key in ("timeout", "expires_in", "result_ttl"):
        if fields.get(key) is not None:
            fields[key] = parse_duration(fields[key])
    if "delay" in fields:
        due = now + timedelta(seconds=parse_duration(fields.pop("delay")))
        fields["scheduled_at"] = due.isoformat()
    return check_may_start(JobDefinition.from_dict(fields), now)


def _enqueue(backend: QueueBackend, definitions: Iterator[JobDefinition]) -> Iterator[list[str]]:
    """Enqueue in batches, all or none each; yields their ids. Say which options of the first the broker ignores."""
    can, scheme = backend.capabilities, backend.scheme
    first = next(definitions, None)
    if first and first.priority != DEFAULT_PRIORITY and not can.priorities:
        note(f"{scheme}:// knows no priorities: the job waits for those before it")
    if first and first.identifier is not None and not can.keeps_records:
        note(f"{scheme}:// knows no ids: enqueued again, it is a second message")
    for batch in job_batches(chain([first] if first else [], definitions)):
        yield backend.enqueue_many(batch)
