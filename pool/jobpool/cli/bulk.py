"""`jobpool dead list|retry|purge` and `jobpool purge`: many messages at once, never without a look at them first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jobpool.cli.messages import read_filter, row, show
from jobpool.cli.options import Command, as_json, common, confirmed, option
from jobpool.cli.output import note, plural, say
from jobpool.cli.session import Session

if TYPE_CHECKING:
    from jobpool.backend import MessageFilter, QueueBackend, Verb

CAP = 100_000
"""Counting stops here, so that a look costs little however long the queue is."""

BATCH = 1000
EXAMPLES = 5

queue_option = option("-Q", "--queue", metavar="NAME", help="The same as queue:NAME.")
all_option = option("--all", "all_", is_flag=True, help="Every message, when there is no FILTER.")


@click.command("list", cls=Command)
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@queue_option
@option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Show so many; 0 = all.")
@as_json
@common
def dead_list(session: Session, terms: tuple[str, ...], queue: str | None, limit: int, json_: bool) -> None:
    """List dead letters; FILTER as in `jobpool list`."""
    show(session, _dead(read_filter(terms, queue)), limit, json_)


@click.command("retry", cls=Command, short_help="Make dead letters wait again.")
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@queue_option
@all_option
@confirmed
@common
def dead_retry(
    session: Session, terms: tuple[str, ...], queue: str | None, all_: bool, yes: bool, dry_run: bool
) -> None:
    """Make dead letters wait again, under their ids, with all counters at 0; FILTER as in `jobpool list`."""
    from jobpool.backend import Verb

    _require(terms, queue, all_)
    with session.broker() as backend:
        _carry_out(backend, _dead(read_filter(terms, queue)), Verb.RETRY, "retry", yes=yes, dry_run=dry_run)


@click.command("purge", cls=Command)
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@queue_option
@all_option
@confirmed
@common
def dead_purge(
    session: Session, terms: tuple[str, ...], queue: str | None, all_: bool, yes: bool, dry_run: bool
) -> None:
    """Throw dead letters away; FILTER as in `jobpool list`."""
    from jobpool.backend import Verb

    _require(terms, queue, all_)
    with session.broker() as backend:
        _carry_out(backend, _dead(read_filter(terms, queue)), Verb.DELETE, "purge", yes=yes, dry_run=dry_run)


@click.command("purge", cls=Command, short_help="Throw messages away.")
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@queue_option
@all_option
@confirmed
@common
def purge(session: Session, terms: tuple[str, ...], queue: str | None, all_: bool, yes: bool, dry_run: bool) -> None:
    """Throw messages away that wait, are delayed or dead; leased ones are left alone. FILTER as in `jobpool list`."""
    from jobpool.backend import Verb

    _require(terms, queue, all_)
    with session.broker() as backend:
        _carry_out(backend, _unleased(read_filter(terms, queue)), Verb.DELETE, "purge", yes=yes, dry_run=dry_run)


def _require(terms: tuple[str, ...], queue: str | None, all_: bool) -> None:
    if not terms and queue is None and not all_:
        raise click.UsageError("say which messages: a FILTER such as queue:reports reason:timeout, or --all")
    if terms and all_:
        raise click.UsageError("a FILTER and --all exclude each other")


def _dead(where: MessageFilter) -> MessageFilter:
    from jobpool.backend import State

    if where.states not in ((), (State.DEAD,)):
        raise click.UsageError("only dead letters are meant here: leave the term state: out")
    return replace(where, states=(State.DEAD,))


def _unleased(where: MessageFilter) -> MessageFilter:
    from jobpool.backend import State

    if State.LEASED in where.states:
        raise click.UsageError("leased messages cannot be purged: they are being worked on")
    return replace(where, states=where.states or (State.WAITING, State.DELAYED, State.DEAD))


def _carry_out(backend: QueueBackend, where: MessageFilter, verb: Verb, word: str, *, yes: bool, dry_run: bool) -> None:
    count = backend.count(where, cap=CAP)
    if not count:
        note("no message matches")
        return
    _preview(backend, where, f"would {word}" if dry_run else word, count, say if dry_run else note)
    if dry_run:
        return
    if not yes:
        _ask(f"{word} {_about(count)}?")
    say(f"{plural(_repeat(backend, where, verb, count), 'message')} {DONE[word]}")


DONE = {"retry": "retried", "purge": "purged"}


def _preview(backend: QueueBackend, where: MessageFilter, word: str, count: int, tell: Callable[[str], None]) -> None:
    tell(f"{word} {_about(count)}:")
    examples = backend.list_messages(where, limit=EXAMPLES)
    for message in examples:
        ident, state, queue, handler, _, attempts, _, age, why = row(message)
        tell(f"  {ident}  {state}  {queue}  {handler}  attempts={attempts}  age={age}  {why[:80]}".rstrip())
    if count > len(examples):
        tell(f"  … and {'at least ' if count >= CAP else ''}{count - len(examples):,} more")


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: give --yes, or --dry-run to look only")
    if not click.confirm(question, err=True):
        note("nothing was changed")
        raise click.exceptions.Exit(1)


def _repeat(backend: QueueBackend, where: MessageFilter, verb: Verb, count: int) -> int:
    """In batches until all are done; never more than were shown, so that a job that dies again at once ends it."""
    done = 0
    most = sys.maxsize if count >= CAP else count
    while done < most:
        limit = min(BATCH, most - done)
        changed = backend.bulk(where, verb, limit=limit)
        done += changed
        if changed < limit:
            break
    return done


def _about(count: int) -> str:
    return ("at least " if count >= CAP else "") + plural(count, "message")
