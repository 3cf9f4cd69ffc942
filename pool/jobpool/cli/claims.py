"""`jobpool claim create|show|renew|release|list`: messages checked out by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from jobpool.cli.options import Command, as_json, option
from jobpool.cli.output import answer, answer_json, columns, note, plural, say, table
from jobpool.cli.posts import (
    MESSAGES,
    given,
    message_row,
    message_values,
    queue_argument,
    seconds,
    selected,
    wrong_usage,
)
from jobpool.cli.session import Session
from jobpool.message.units import format_duration

if TYPE_CHECKING:
    from jobpool.broker.claim_store import HeldClaim
    from jobpool.client.claims import Claim

COLUMNS = columns("CLAIM, QUEUE~, MESSAGES>, AGE>, TTL>, GRACE>")

HOLD = "Hold them for so long; 60s to 12h."
OUTLIVE = "A message outlives the claim by so long at least; 60s to 12h."

claim_argument = click.argument("ident", metavar="CLAIM")


@click.command("create", cls=Command, short_help="Claim the oldest free messages of a queue.")
@queue_argument
@option("--limit", type=int, default=10, show_default=True, metavar="N", help="Largest number of messages, 1 to 20.")
@option("--ttl", metavar="TIME", default="5m", show_default=True, help=HOLD)
@option("--grace", metavar="TIME", default="60s", show_default=True, help=OUTLIVE)
@option("--max-claims", type=int, default=0, metavar="N", help="Claims that a message survives.  [default: no limit]")
@as_json
def create(session: Session, queue: str, limit: int, ttl: str, grace: str, max_claims: int, json_: bool) -> None:
    """Claim the oldest free messages of a queue, and show them.

    Nobody else gets them until the claim ends. Delete each one when it is done, renew the claim if it takes longer, and
    release the rest. With --json the answer is null if no message is free.
    """
    with session.broker() as backend:
        with wrong_usage():
            chosen = selected(backend, queue, max_claims)
            found = chosen.claim(limit, seconds(ttl, "--ttl"), seconds(grace, "--grace"))
        if found is not None:
            _show(found, json_)
            return
    if json_:
        answer_json(None)
    note(f"no message of queue {queue!r} is free")


@click.command("show", cls=Command, short_help="Show a claim and the messages still in it.")
@queue_argument
@claim_argument
@as_json
def show(session: Session, queue: str, ident: str, json_: bool) -> None:
    """Show a claim and the messages that are still in it."""
    with session.broker() as backend:
        _show(selected(backend, queue).get_claim(ident), json_)


@click.command("renew", cls=Command, short_help="Hold the messages of a claim for longer.")
@queue_argument
@claim_argument
@option("--ttl", metavar="TIME", help=f"{HOLD}  [default: as before]")
@option("--grace", metavar="TIME", help=f"{OUTLIVE}  [default: as before]")
@as_json
def renew(session: Session, queue: str, ident: str, ttl: str | None, grace: str | None, json_: bool) -> None:
    """Hold the messages of a claim for its TTL once more, counted from now. After its end it is too late."""
    with session.broker() as backend:
        claim = selected(backend, queue).get_claim(ident)
        with wrong_usage():
            claim.renew(given(ttl, "--ttl"), given(grace, "--grace"))
        if json_:
            answer_json(_values(claim))
            return
    note(f"{plural(len(claim), 'message')} held for {format_duration(claim.ttl)} from now")


@click.command("release", cls=Command, short_help="Free the remaining messages of claims.")
@queue_argument
@click.argument("idents", nargs=-1, required=True, metavar="CLAIM...")
@as_json
def release(session: Session, queue: str, idents: tuple[str, ...], json_: bool) -> None:
    """Free the remaining messages of claims. Claims that have ended, or never were, are ignored."""
    with session.broker() as backend:
        selected(backend, queue)
        freed = sum(backend.claims.release(queue, ident) for ident in idents)
    if json_:
        answer_json({"released": freed})
        return
    note(f"{plural(freed, 'message')} released")


@click.command("list", cls=Command, short_help="List the live claims of queues.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@as_json
def list_(session: Session, queues: tuple[str, ...], json_: bool) -> None:
    """List the live claims of these queues, or of all."""
    with session.broker() as backend:
        _ = backend.claims  # where there are none, that is the answer, whatever queues there are
        names = queues or backend.queues()
        held = [one for name in names for one in selected(backend, name).claims()]
    answer(json_, held, _listed, COLUMNS, _row, "there are no claims")


def _show(claim: Claim, json_: bool) -> None:
    if json_:
        answer_json(_values(claim))
        return
    say(f"claim {claim.id}")
    note(
        f"queue {claim.queue.name}, age {_age(claim.age)}, held for {format_duration(claim.ttl)},"
        f" grace {format_duration(claim.grace)}"
    )
    table(MESSAGES, [message_row(message) for message in claim.messages])


def _values(claim: Claim) -> dict[str, Any]:
    told = {"id": claim.id, "queue": claim.queue.name, "ttl": claim.ttl, "grace": claim.grace, "age": claim.age}
    return told | {"messages": [message_values(message) for message in claim.messages]}


def _listed(held: HeldClaim) -> dict[str, Any]:
    values = asdict(held)
    del values["messages"]
    return values


def _row(held: HeldClaim) -> list[str]:
    times = (_age(held.age), format_duration(held.ttl), format_duration(held.grace))
    return [held.id, held.queue, f"{held.count:,}", *times]


def _age(seconds: int) -> str:
    """Return an age in whole seconds, as the broker tells it."""
    return f"{seconds}s" if seconds < 60 else format_duration(seconds)
