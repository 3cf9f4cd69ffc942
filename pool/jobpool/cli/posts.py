"""`jobpool message post|list|delete|pop`: messages that no pool runs, and what a claim shows of any message."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click

from jobpool.cli.messages import shown_value
from jobpool.cli.options import Command, as_json, option
from jobpool.cli.output import answer, answer_ids, answer_json, columns, note, plural, say
from jobpool.cli.session import Session
from jobpool.errors import JobpoolError
from jobpool.message.units import format_duration, parse_duration

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.broker.claim_store import ClaimStore
    from jobpool.client.claims import ClaimMessage, Queue

MESSAGES = columns("ID, HANDLER~, AGE>, LEFT>, CLAIMS>, MESSAGE~")
LISTED = columns("ID, HANDLER~, AGE>, LEFT>, CLAIMS>, CLAIM, MESSAGE~")
MAX_SHOWN_CHARS = 200
"""Characters of a message in a table."""

queue_argument = click.argument("queue", metavar="QUEUE")


@click.command("post", cls=Command, short_help="Add messages that no pool runs.")
@queue_argument
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@option("--ttl", metavar="TIME", help="Life of a message, 60s to 14d; then it is deleted.  [default: no end]")
@option("--delay", metavar="TIME", default="0", help="Time before it can be claimed, up to 15m.  [default: 0]")
@option(
    "--file", "file", type=click.File("rb"), metavar="FILE", help="File of messages, one JSON value a line; - = stdin."
)
@as_json
def post(
    session: Session,
    queue: str,
    messages: tuple[str, ...],
    ttl: str | None,
    delay: str,
    file: IO[bytes] | None,
    json_: bool,
) -> None:
    """Add messages to a queue, to be claimed, and print their ids.

    Each MESSAGE is one JSON value where it can be read as JSON, else text:

    \b
      jobpool message post mail '{"to": "a@example.org"}' "a second one"
    """
    if bool(messages) == (file is not None):
        raise click.UsageError("give the messages, or a --file of them: jobpool message post QUEUE MESSAGE...")
    values = map(_json_or_text, messages) if file is None else _from_lines(file)
    life = given(ttl, "--ttl")
    with session.broker() as backend, wrong_usage():
        batches = selected(backend, queue).post_in_batches(values, life, seconds(delay, "--delay"))
        answer_ids(json_, batches, "message", "posted; the ids are on stdout")


@click.command("list", cls=Command, short_help="List the free messages of a queue.")
@queue_argument
@option("--claimed", is_flag=True, help="Show claimed and leased messages too.")
@option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Show at most this number; 0 = all.")
@as_json
def list_(session: Session, queue: str, claimed: bool, limit: int, json_: bool) -> None:
    """List the messages of a queue that a claim could take, jobs too, in the order of their enqueue."""
    with session.broker() as backend:
        found = selected(backend, queue).messages(claimed=claimed)
        shown = list(found if not limit else islice(found, limit))
        more = next(found, None) is not None
        titles, row = (LISTED, _listed_row) if claimed else (MESSAGES, message_row)
        answer(json_, shown, message_values, titles, row, f"no message of queue {queue!r} is free")
    if more and not json_:
        note(f"there are more than {limit}; --limit 0 lists all")


@click.command("delete", cls=Command, short_help="Delete messages by id.")
@queue_argument
@click.argument("idents", nargs=-1, required=True, metavar="ID...")
@option("--claim", metavar="CLAIM", help="Claim that holds the messages.")
@as_json
def delete(session: Session, queue: str, idents: tuple[str, ...], claim: str | None, json_: bool) -> None:
    """Delete messages: free ones, or with --claim those that it holds. To delete one again is not an error.

    Messages that somebody else holds are left alone, and the exit code is 1; the others are deleted.
    """
    with session.broker() as backend:
        selected(backend, queue)
        held = list(_delete(backend.claims, queue, idents, claim))
    done = [ident for ident in idents if ident not in held]
    if json_:
        answer_json({"deleted": done, "forbidden": held})
    elif done:
        note(f"{plural(len(done), 'message')} deleted, or gone before")
    if held:
        mend = f"not claim {claim}" if claim else "name its claim with --claim, or leave it to its holder"
        raise click.ClickException(f"in queue {queue!r} somebody holds {', '.join(held)}: {mend}")


@click.command("pop", cls=Command, short_help="Take messages and delete them at once.")
@queue_argument
@option("--limit", type=int, default=1, show_default=True, metavar="N", help="Largest number of messages, 1 to 20.")
@as_json
def pop(session: Session, queue: str, limit: int, json_: bool) -> None:
    """Take the oldest free messages, delete them, and print them, one a line. Nothing brings them back.

    Into a pipe or a file their bytes go as they are; on a terminal control characters are shown, not sent.
    """
    with session.broker() as backend:
        with wrong_usage():
            taken = selected(backend, queue).pop(limit)
        if json_:
            answer_json([message_values(message) for message in taken])
            return
    for message in taken:
        _print(message.body)
    if not taken:
        note(f"no message of queue {queue!r} is free")


def selected(backend: QueueBackend, queue: str, max_claims: int = 0) -> Queue:
    """Return this queue of that broker. Raises `InvalidJob`, or `Unsupported` where the broker has no claims."""
    from jobpool.client.claims import Queue

    _ = backend.claims
    return Queue(lambda: backend, queue, max_claims)


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Raise `click.UsageError`, with the bound, for a number out of its bounds."""
    try:
        yield
    except JobpoolError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def seconds(text: str, flag: str) -> float:
    """Return `90`, `5m`, `1h` in seconds. Raises `click.UsageError` naming the flag."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"{flag}: {error}") from None


def given(text: str | None, flag: str) -> float | None:
    """Return the same of a flag that may be left out; None = it was."""
    return None if text is None else seconds(text, flag)


def message_row(message: ClaimMessage) -> list[str]:
    """Return a message as the cells of `MESSAGES`."""
    now = time.time()
    left = "" if message.ends_at is None else format_duration(max(0.0, message.ends_at - now))
    age = format_duration(max(0.0, now - message.enqueued_at))
    text = message.body[: 4 * MAX_SHOWN_CHARS].decode("utf-8", "replace")[:MAX_SHOWN_CHARS]
    return [message.id, message.handler or "-", age, left, str(message.claims), text]


def _listed_row(message: ClaimMessage) -> list[str]:
    *cells, text = message_row(message)
    return [*cells, message.claim or "", text]


def message_values(message: ClaimMessage) -> dict[str, Any]:
    """Return a message as JSON values: its payload, or why that cannot be trusted; bytes that are not JSON as text.

    Where neither tells all of the body, it stands beside in Base64: what was popped is nowhere else.
    """
    from jobpool.errors import MalformedEnvelope

    values: dict[str, Any] = {
        name: getattr(message, name) for name in ("id", "handler", "claims", "claim", "enqueued_at", "ends_at")
    }
    if message.handler is None:
        more = {} if _is_text(message.body) else _exact(message.body)
        return values | {"payload": shown_value(message.body)} | more
    try:
        return values | {"payload": message.payload}
    except MalformedEnvelope as error:
        return values | {"malformed": str(error)} | _exact(message.body)


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _exact(body: bytes) -> dict[str, str]:
    return {"base64": b64encode(body).decode()}


def _print(body: bytes) -> None:
    """Print one line: the bytes themselves, but on a terminal, which they might steer, their escapes."""
    if not sys.stdout.isatty():
        click.echo(body)
        return
    text = body.decode("utf-8", "backslashreplace")
    say(text)


def _delete(claims: ClaimStore, queue: str, idents: Iterable[str], claim: str | None) -> Iterator[str]:
    """Delete all of these; yields those that are held by somebody else. Raises `ClaimNotFound`."""
    from jobpool.broker.claim_store import MOST_MESSAGES, Deleted

    rest = iter(idents)
    while batch := tuple(islice(rest, MOST_MESSAGES)):
        for ident, end in zip(batch, claims.delete_many(queue, batch, claim), strict=True):
            if end is Deleted.FORBIDDEN:
                yield ident


def _json_or_text(word: str) -> Any:
    try:
        return _read_json(word)
    except (ValueError, RecursionError):
        return word


def _read_json(text: str | bytes) -> Any:
    """Return a JSON value. Raises `ValueError`, also for NaN and Infinity, which only Python reads."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none")


def _from_lines(file: Iterable[bytes]) -> Iterator[Any]:
    from jobpool.errors import InvalidJob

    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield _read_json(line)
            except (ValueError, RecursionError) as error:
                raise InvalidJob(f"line {number} is no JSON value: {error}") from None
