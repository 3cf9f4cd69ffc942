"""`jobpool message …` and `jobpool claim …`: messages that no pool runs, and messages checked out by hand."""

from __future__ import annotations

import sys
from base64 import b64encode
from functools import partial
from itertools import islice
from typing import IO, Any

import click
from msgspec.structs import asdict

from jobpool.broker.backend import QueueBackend
from jobpool.broker.broker_time import BrokerTime
from jobpool.broker.claim_store import MOST_MESSAGES, Deleted, HeldClaim
from jobpool.cli.enqueue import json_lines, json_or_text
from jobpool.cli.messages import limit_option, shown_value
from jobpool.cli.options import SIGNER, Command, as_json, option, time_option
from jobpool.cli.output import answer, answer_ids, answered, columns, note, plural, say, table
from jobpool.cli.session import Session
from jobpool.client.claims import Claim, ClaimMessage, Queue
from jobpool.errors import MalformedEnvelope
from jobpool.message.units import format_duration

MESSAGES = columns("ID, HANDLER~, AGE>, LEFT>, CLAIMS>, MESSAGE~")
LISTED = columns("ID, HANDLER~, AGE>, LEFT>, CLAIMS>, CLAIM, MESSAGE~")
CLAIMS = columns("CLAIM, QUEUE~, MESSAGES>, AGE>, TTL>, GRACE>")
MAX_SHOWN_CHARS = 200  # characters of a message in a table

HOLD = "Hold them for so long; 60s to 12h."
OUTLIVE = "A message outlives the claim by so long at least; 60s to 12h."

queue_argument = click.argument("queue", metavar="QUEUE")
claim_argument = click.argument("ident", metavar="CLAIM")


# --- messages ---------------------------------------------------------------------------------------------------------


@click.command("post", cls=Command, short_help="Add messages that no pool runs.")
@queue_argument
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@time_option("--ttl", help="Life of a message, 60s to 14d; then it is deleted.  [default: no end]")
@time_option("--delay", default="0", help="Time before it can be claimed, up to 15m.  [default: 0]")
@option("--file", type=click.File("rb"), metavar="FILE", help="File of messages, one JSON value a line; - = stdin.")
@as_json
def post(
    session: Session, queue: str, messages: tuple[str, ...], ttl: float | None, delay: float, file: IO[bytes] | None
) -> None:
    """Add messages to a queue, to be claimed, and print their ids.

    Each MESSAGE is one JSON value where it can be read as JSON, else text:

    \b
      jobpool message post mail '{"to": "a@example.org"}' "a second one"
    """
    if bool(messages) == (file is not None):
        raise click.UsageError("give the messages, or a --file of them: jobpool message post QUEUE MESSAGE...")
    if "-" in messages:
        raise click.UsageError("`-` is not a message: --file - reads stdin, and '\"-\"' is that text")
    values = map(json_or_text, messages) if file is None else (value for _, value in json_lines(file))
    with session.broker(makes=True) as backend:
        batches = _select(backend, queue).post_in_batches(values, ttl, delay)
        answer_ids(batches, "message", "posted")


@click.command("list", cls=Command, common=SIGNER, short_help="List the free messages of a queue.")
@queue_argument
@option("--claimed", is_flag=True, help="Show claimed and leased messages too.")
@limit_option
@as_json
def list_messages(session: Session, queue: str, claimed: bool, limit: int) -> None:
    """List the messages of a queue that a claim could take, jobs too, in the order of their enqueue."""
    with session.broker() as backend:
        found = _select(backend, queue).messages(claimed=claimed)
        titles, row = LISTED if claimed else MESSAGES, partial(_message_row, backend.time, claimed=claimed)
        answer(found, _message_values, titles, row, f"no message of queue {queue!r} is free", limit)


@click.command("delete", cls=Command, short_help="Delete messages by id.")
@queue_argument
@click.argument("idents", nargs=-1, required=True, metavar="ID...")
@option("--claim", metavar="CLAIM", help="Claim that holds the messages.")
@as_json
def delete(session: Session, queue: str, idents: tuple[str, ...], claim: str | None) -> None:
    """Delete messages: free ones, or with --claim those that it holds. To delete one again is not an error.

    Messages that somebody else holds are left alone, and the exit code is 1; the others are deleted.
    """
    held, rest = [], iter(idents)
    with session.broker() as backend:
        while batch := tuple(islice(rest, MOST_MESSAGES)):
            ends = backend.claims.delete_many(queue, batch, claim)
            held += [ident for ident, end in zip(batch, ends, strict=True) if end is Deleted.FORBIDDEN]
    done = [ident for ident in idents if ident not in held]
    if not answered({"deleted": done, "forbidden": held}) and done:
        note(f"{plural(len(done), 'message')} deleted, or gone before")
    if held:
        mend = f"not claim {claim}" if claim else "name its claim with --claim, or leave it to its holder"
        raise click.ClickException(f"in queue {queue!r} somebody holds {', '.join(held)}: {mend}")


@click.command("pop", cls=Command, common=SIGNER, short_help="Take messages and delete them at once.")
@queue_argument
@option("--limit", type=int, default=1, show_default=True, metavar="N", help="Largest number of messages, 1 to 20.")
@as_json
def pop(session: Session, queue: str, limit: int) -> None:
    """Take the oldest free messages, delete them, and print them, one a line. Nothing brings them back.

    Into a pipe or a file their bytes go as they are; on a terminal control characters are shown, not sent.
    """
    with session.broker(makes=True) as backend:
        taken = _select(backend, queue).pop(limit)
    if answered([_message_values(message) for message in taken]):
        return
    for message in taken:
        if sys.stdout.isatty():
            say(message.body.decode("utf-8", "backslashreplace"))
        else:
            click.echo(message.body)
    if not taken:
        note(f"no message of queue {queue!r} is free")


# --- claims -----------------------------------------------------------------------------------------------------------


@click.command("create", cls=Command, common=SIGNER, short_help="Claim the oldest free messages of a queue.")
@queue_argument
@option("--limit", type=int, default=10, show_default=True, metavar="N", help="Largest number of messages, 1 to 20.")
@time_option("--ttl", default="5m", show_default=True, help=HOLD)
@time_option("--grace", default="60s", show_default=True, help=OUTLIVE)
@option("--max-claims", type=int, default=0, metavar="N", help="Claims that a message survives.  [default: no limit]")
@as_json
def create(session: Session, queue: str, limit: int, ttl: float, grace: float, max_claims: int) -> None:
    """Claim the oldest free messages of a queue, and show them.

    Nobody else gets them until the claim ends. Delete each one when it is done, renew the claim if it takes longer, and
    release the rest. With --json the answer is null if no message is free.
    """
    with session.broker(makes=True) as backend:
        found = _select(backend, queue, max_claims).claim(limit, ttl, grace)
        if found is not None:
            _show(found, backend.time)
            return
    answered(None)
    note(f"no message of queue {queue!r} is free")


@click.command("show", cls=Command, common=SIGNER, short_help="Show a claim and the messages still in it.")
@queue_argument
@claim_argument
@as_json
def show(session: Session, queue: str, ident: str) -> None:
    """Show a claim and the messages that are still in it."""
    with session.broker() as backend:
        _show(_select(backend, queue).get_claim(ident), backend.time)


@click.command("renew", cls=Command, common=SIGNER, short_help="Hold the messages of a claim for longer.")
@queue_argument
@claim_argument
@time_option("--ttl", help=f"{HOLD}  [default: as before]")
@time_option("--grace", help=f"{OUTLIVE}  [default: as before]")
@as_json
def renew(session: Session, queue: str, ident: str, ttl: float | None, grace: float | None) -> None:
    """Hold the messages of a claim for its TTL once more, counted from now. After its end it is too late."""
    with session.broker() as backend:
        claim = _select(backend, queue).get_claim(ident)
        claim.renew(ttl, grace)
        if not answered(_claim_values(claim)):
            note(f"{plural(len(claim), 'message')} held for {format_duration(claim.ttl)} from now")


@click.command("release", cls=Command, short_help="Free the remaining messages of claims.")
@queue_argument
@click.argument("idents", nargs=-1, required=True, metavar="CLAIM...")
@as_json
def release(session: Session, queue: str, idents: tuple[str, ...]) -> None:
    """Free the remaining messages of claims. Claims that have ended, or never were, are ignored."""
    with session.broker() as backend:
        freed = sum(backend.claims.release(queue, ident) for ident in idents)
    if not answered({"released": freed}):
        note(f"{plural(freed, 'message')} released")


@click.command("list", cls=Command, short_help="List the live claims of queues.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@as_json
def list_claims(session: Session, queues: tuple[str, ...]) -> None:
    """List the live claims of these queues, or of all."""
    with session.broker() as backend:
        _ = backend.claims  # where there are none, that is the answer, whatever queues there are
        held = [one for name in queues or backend.queues() for one in _select(backend, name).claims()]
    answer(held, _held_values, CLAIMS, _held_row, "there are no claims")


def _select(backend: QueueBackend, queue: str, max_claims: int = 0) -> Queue:
    """Return this queue of that broker. Raises `InvalidJob`, or `Unsupported` where the broker has no claims."""
    _ = backend.claims
    return Queue(lambda: backend, queue, max_claims)


def _message_row(time: BrokerTime, message: ClaimMessage, *, claimed: bool = False) -> list[str]:
    now = time.now()
    left = "" if message.ends_at is None else format_duration(max(0.0, message.ends_at - now))
    age = format_duration(max(0.0, now - message.enqueued_at))
    text = message.body[: 4 * MAX_SHOWN_CHARS].decode("utf-8", "replace")[:MAX_SHOWN_CHARS]
    claim = [message.claim or ""] if claimed else []
    return [message.id, message.handler or "-", age, left, str(message.claims), *claim, text]


def _message_values(message: ClaimMessage) -> dict[str, Any]:
    """Return a message as JSON values: its payload, or why that cannot be trusted; bytes that are not JSON as text.

    Where neither tells all of the body, it stands beside in Base64: what was popped is nowhere else.
    """
    names = ("id", "handler", "claims", "claim", "enqueued_at", "ends_at")
    values: dict[str, Any] = {name: getattr(message, name) for name in names}
    exact = {"base64": b64encode(message.body).decode()}
    if message.handler is not None:
        try:
            return values | {"payload": message.payload}
        except MalformedEnvelope as error:
            return values | {"malformed": str(error)} | exact
    is_text = message.body.decode("utf-8", "ignore").encode() == message.body
    return values | {"payload": shown_value(message.body)} | ({} if is_text else exact)


def _show(claim: Claim, time: BrokerTime) -> None:
    if answered(_claim_values(claim)):
        return
    say(f"claim {claim.id}")
    note(
        f"queue {claim.queue.name}, age {format_duration(claim.age)}, held for {format_duration(claim.ttl)},"
        f" grace {format_duration(claim.grace)}"
    )
    table(MESSAGES, [_message_row(time, message) for message in claim.messages])


def _claim_values(claim: Claim) -> dict[str, Any]:
    told = {"id": claim.id, "queue": claim.queue.name, "ttl": claim.ttl, "grace": claim.grace, "age": claim.age}
    return told | {"messages": [_message_values(message) for message in claim.messages]}


def _held_values(held: HeldClaim) -> dict[str, Any]:
    return {name: value for name, value in asdict(held).items() if name != "messages"}


def _held_row(held: HeldClaim) -> list[str]:
    return [held.id, held.queue, f"{held.count:,}", *map(format_duration, (held.age, held.ttl, held.grace))]
