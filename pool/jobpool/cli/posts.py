"""`jobpool message post|list|delete|pop`: messages that no pool runs, and what a claim shows of any message."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click

from jobpool.cli.messages import shown_value
from jobpool.cli.options import Command, as_json, common, option
from jobpool.cli.output import Column, answer_json, note, plural, say, table
from jobpool.cli.session import Session
from jobpool.units import format_duration

if TYPE_CHECKING:
    from jobpool.backend import QueueBackend
    from jobpool.claims import ClaimMessage, Queue

MESSAGES = (
    Column("ID"),
    Column("HANDLER", flexible=True),
    Column("AGE", right=True),
    Column("LEFT", right=True),
    Column("CLAIMS", right=True),
    Column("MESSAGE", flexible=True),
)
LISTED = (*MESSAGES[:-1], Column("CLAIM"), MESSAGES[-1])
SHOWN = 200
"""Characters of a message in a table."""

AT_ONCE = 20
"""Messages that one delete takes."""

queue_argument = click.argument("queue", metavar="QUEUE")


@click.command("post", cls=Command, short_help="Add messages that no pool runs.")
@queue_argument
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@option("--ttl", metavar="TIME", help="What nobody deleted by then is gone; 60s to 14d.  [default: never]")
@option("--delay", metavar="TIME", default="0", help="Not to be claimed before; up to 15m.  [default: 0]")
@option("--file", "file", type=click.File("rb"), metavar="FILE", help="Many, a JSON value a line; - = stdin.")
@as_json
@common
def post(
    session: Session,
    queue: str,
    messages: tuple[str, ...],
    ttl: str | None,
    delay: str,
    file: IO[bytes] | None,
    json_: bool,
) -> None:
    """Add messages to a queue, for whoever claims them, and print their ids.

    Each MESSAGE is one JSON value where it can be read as JSON, else text:

    \b
      jobpool message post mail '{"to": "a@example.org"}' "a second one"
    """
    if bool(messages) == (file is not None):
        raise click.UsageError("give the messages, or a --file of them: jobpool message post QUEUE MESSAGE...")
    values = map(_json_or_text, messages) if file is None else _from_lines(file)
    life = None if ttl is None else seconds(ttl, "--ttl")
    with session.broker() as backend:
        ids = selected(backend, queue).post(values, ttl=life, delay=seconds(delay, "--delay"))
    if json_:
        answer_json(ids)
    elif ids:
        say("\n".join(ids))


@click.command("list", cls=Command, short_help="List the free messages of a queue.")
@queue_argument
@option("--claimed", is_flag=True, help="Also those that a claim or a pool holds.")
@option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Show so many; 0 = all.")
@as_json
@common
def list_(session: Session, queue: str, claimed: bool, limit: int, json_: bool) -> None:
    """List the messages of a queue that a claim could take, jobs too, in the order of their enqueue."""
    with session.broker() as backend:
        found = selected(backend, queue).messages(claimed=claimed)
        shown = list(found if not limit else islice(found, limit))
        more = next(found, None) is not None
        if json_:
            answer_json([message_values(message) for message in shown])
            return
    if shown and claimed:
        table(LISTED, [[*message_row(one)[:-1], one.claim or "", message_row(one)[-1]] for one in shown])
    elif shown:
        table(MESSAGES, [message_row(message) for message in shown])
    else:
        note(f"no message of queue {queue!r} is free")
    if more:
        note(f"there are more than {limit}; --limit 0 lists all")


@click.command("delete", cls=Command, short_help="Delete messages by id.")
@queue_argument
@click.argument("idents", nargs=-1, required=True, metavar="ID...")
@option("--claim", metavar="CLAIM", help="The claim that holds them.")
@common
def delete(session: Session, queue: str, idents: tuple[str, ...], claim: str | None) -> None:
    """Delete messages: free ones, or with --claim those that it holds. Those that are gone already are no error."""
    with session.broker() as backend:
        chosen = selected(backend, queue)
        rest = iter(idents)
        while batch := tuple(islice(rest, AT_ONCE)):
            chosen.delete(*batch, claim=claim)
    note(f"{plural(len(idents), 'message')} deleted, or gone before")


@click.command("pop", cls=Command, short_help="Take messages and delete them at once.")
@queue_argument
@option("--limit", type=int, default=1, show_default=True, metavar="N", help="At most so many; 1 to 20.")
@as_json
@common
def pop(session: Session, queue: str, limit: int, json_: bool) -> None:
    """Take the oldest free messages, delete them, and print them, one a line. Nothing brings them back."""
    with session.broker() as backend:
        taken = selected(backend, queue).pop(limit)
        if json_:
            answer_json([message_values(message) for message in taken])
            return
    for message in taken:
        say(message.body.decode("utf-8", "replace"))
    if not taken:
        note(f"no message of queue {queue!r} is free")


def selected(backend: QueueBackend, queue: str, max_claims: int = 0) -> Queue:
    """This queue of that broker. Raises `InvalidJob`, or `Unsupported` where the broker has no claims."""
    from jobpool.claims import Queue

    _ = backend.claims
    return Queue(lambda: backend, queue, max_claims)


def seconds(text: str, flag: str) -> float:
    """`90`, `5m`, `1h` in seconds. Raises `click.UsageError` naming the flag."""
    from jobpool.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"{flag}: {error}") from None


def message_row(message: ClaimMessage) -> list[str]:
    """One message as the cells of `MESSAGES`."""
    now = time.time()
    left = "" if message.ends_at is None else format_duration(max(0.0, message.ends_at - now))
    age = format_duration(max(0.0, now - message.enqueued_at))
    text = message.body[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN]
    return [message.id, message.handler or "-", age, left, str(message.claims), text]


def message_values(message: ClaimMessage) -> dict[str, Any]:
    """One message as JSON values: its payload, or why that cannot be trusted; bytes that are no JSON as text."""
    from jobpool.errors import MalformedEnvelope

    values: dict[str, Any] = {
        name: getattr(message, name) for name in ("id", "handler", "claims", "claim", "enqueued_at", "ends_at")
    }
    if message.handler is None:
        return values | {"payload": shown_value(message.body)}
    try:
        return values | {"payload": message.payload}
    except MalformedEnvelope as error:
        return values | {"malformed": str(error)}


def _json_or_text(word: str) -> Any:
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        return word


def _from_lines(file: Iterable[bytes]) -> Iterator[Any]:
    from jobpool.errors import InvalidJob

    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidJob(f"line {number} is no JSON value: {error}") from None
