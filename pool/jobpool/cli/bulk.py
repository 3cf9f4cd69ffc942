"""`jobpool dead list|retry|purge` and `jobpool purge`: many messages at once, never without a look at them first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jobpool.cli.lacking import goes_whole, meet_queues, unseen
from jobpool.cli.messages import none_matches, read_filter, row, show
from jobpool.cli.options import Command, as_json, common, confirmed, option
from jobpool.cli.output import note, plural, say
from jobpool.cli.session import Session
from jobpool.cli.sweep import CAP, Sweep, WholeQueues
from jobpool.message.printable import one_line
from jobpool.message.units import format_duration

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.broker.values import MessageFilter

EXAMPLES = 5

MOST_KEPT = 1_000_000
"""The largest --keep: what is kept is counted."""

queue_option = option("-Q", "--queue", metavar="NAME", help="The same as queue:NAME.")
all_option = option("--all", "all_", is_flag=True, help="Every message, when there is no FILTER.")


@click.command("list", cls=Command)
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@queue_option
@option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Show so many; 0 = all.")
@as_json
@common
def dead_list(session: Session, terms: tuple[str, ...], queue: str | None, limit: int, json_: bool) -> None:
    """List dead letters: why each died, and of what; FILTER as in `jobpool list`, such as reason:timeout "age:<1h"."""
    show(session, _dead(read_filter(terms, queue)), limit, json_, dead=True)


@click.command("retry", cls=Command, short_help="Make dead letters wait again.")
@click.argument("terms", nargs=-1, metavar="[FILTER|ID]...")
@queue_option
@all_option
@option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="So many a minute, spread evenly.")
@option("--keep-counters", is_flag=True, help="Leave attempts, crashes and the last error as they are.")
@confirmed
@common
def dead_retry(
    session: Session,
    terms: tuple[str, ...],
    queue: str | None,
    all_: bool,
    rate: float | None,
    keep_counters: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Make dead letters wait again, under their ids, with all counters at 0; FILTER as in `jobpool list`.

    A letter that dies again meanwhile is left for the next time. Ctrl-C ends it; the same command goes on.
    """
    from jobpool.broker.values import Verb

    _require(terms, queue, all_)
    verb = Verb.RESUME if keep_counters else Verb.RETRY
    where = _dead(read_filter(terms, queue))
    with session.broker() as backend:
        if not backend.capabilities.makes_queues:
            meet_queues(session, backend, where.queue)
        sweep = Sweep(backend, where, verb, rate=rate)
        _carry_out(sweep, "retry", yes=yes, dry_run=dry_run)


@click.command("purge", cls=Command)
@click.argument("terms", nargs=-1, metavar="[FILTER|ID]...")
@queue_option
@all_option
@option("--older-than", metavar="TIME", help="Dead for longer than this; the same as age:>TIME.")
@option("--keep", type=click.IntRange(0, MOST_KEPT), default=0, metavar="N", help="Keep the N that are newest.")
@confirmed
@common
def dead_purge(
    session: Session,
    terms: tuple[str, ...],
    queue: str | None,
    all_: bool,
    older_than: str | None,
    keep: int,
    yes: bool,
    dry_run: bool,
) -> None:
    """Throw dead letters away, the oldest first; FILTER as in `jobpool list`."""
    from jobpool.broker.values import Verb

    _require(terms, queue, all_, bounded=bool(keep) or older_than is not None)
    if older_than is not None:
        terms = (*terms, f"age:>{older_than}")
    where = _dead(read_filter(terms, queue))
    with session.broker() as backend:
        if not backend.capabilities.makes_queues:
            meet_queues(session, backend, where.queue)
        sweep = Sweep(backend, where, Verb.DELETE, keep=keep)
        _carry_out(sweep, "purge", yes=yes, dry_run=dry_run)


@click.command("purge", cls=Command, short_help="Throw messages away.")
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@queue_option
@all_option
@confirmed
@common
def purge(session: Session, terms: tuple[str, ...], queue: str | None, all_: bool, yes: bool, dry_run: bool) -> None:
    """Throw messages away that wait, are delayed or dead; leased ones are left alone. FILTER as in `jobpool list`."""
    from jobpool.broker.values import Verb

    _require(terms, queue, all_)
    where = _unleased(read_filter(terms, queue))
    with session.broker() as backend:
        queues = [] if backend.capabilities.makes_queues else meet_queues(session, backend, where.queue)
        if goes_whole(backend, where):
            queues = queues or meet_queues(session, backend, where.queue)
            sweep: Sweep = WholeQueues(backend, where, Verb.DELETE, queues=queues)
        else:
            sweep = Sweep(backend, where, Verb.DELETE)
        _carry_out(sweep, "purge", yes=yes, dry_run=dry_run)


def _require(terms: tuple[str, ...], queue: str | None, all_: bool, *, bounded: bool = False) -> None:
    """`bounded`: another option says which messages, so that no filter is needed."""
    if not (terms or queue or all_ or bounded):
        raise click.UsageError("say which messages: a FILTER such as queue:reports reason:timeout, or --all")
    if terms and all_:
        raise click.UsageError("a FILTER and --all exclude each other")


def _dead(where: MessageFilter) -> MessageFilter:
    from jobpool.broker.values import State

    if where.states not in ((), (State.DEAD,)):
        raise click.UsageError("only dead letters are meant here: leave the term state: out")
    return replace(where, states=(State.DEAD,))


def _unleased(where: MessageFilter) -> MessageFilter:
    from jobpool.broker.values import State

    if State.LEASED in where.states:
        raise click.UsageError("leased messages cannot be purged: they are being worked on")
    anywhere = (State.DEAD,) if where.reason is not None else (State.WAITING, State.DELAYED, State.DEAD)
    return replace(where, states=where.states or anywhere)


def _carry_out(sweep: Sweep, word: str, *, yes: bool, dry_run: bool) -> None:
    count = sweep.count()
    _check_ids(sweep, count)
    if not count:
        note(none_matches(sweep.backend, sweep.where) if not sweep.keep else "no message is beyond those to keep")
        return
    _preview(sweep, f"would {word}" if dry_run else word, count, say if dry_run else note)
    if dry_run:
        return
    if not yes:
        _ask(f"{word} {_about(count)}?")
    say(f"{plural(sweep.run(count, DONE[word]), 'message')} {DONE[word]}")


DONE = {"retry": "retried", "purge": "purged"}


def _check_ids(sweep: Sweep, count: int) -> None:
    """An id that was named and is not meant is somebody's mistake: say which, and why, before anything is changed."""
    where = sweep.where
    if sweep.keep or count >= len(set(where.ids)):
        return
    found = {ident: _why_not(sweep.backend, ident, where) for ident in where.ids}
    wrong = [f"{ident}: {said}" for ident, said in found.items() if said]
    if wrong:
        raise click.ClickException("nothing was changed: " + "; ".join(wrong))


def _why_not(backend: QueueBackend, ident: str, where: MessageFilter) -> str:
    """Why this message is not among those that are meant; "" = it is."""
    message = backend.inspect(ident)
    if message is None:
        return f"there is no such message: {unseen(backend)}"
    if message.state not in where.states:
        return f"it is {message.state.value}, not {' or '.join(where.states)}"
    if where.queue not in (None, message.queue):
        return f"it is in queue {message.queue!r}, not in {where.queue!r}"
    return ""


def _preview(sweep: Sweep, word: str, count: int, tell: Callable[[str], None]) -> None:
    kept = f", and keep the newest {sweep.keep:,}" if sweep.keep else ""
    slowly = f", in about {format_duration(count * 60 / sweep.rate)}" if sweep.rate else ""
    tell(f"{word} {_about(count)}{kept}{slowly}:")
    if isinstance(sweep, WholeQueues):
        for line in sweep.counted:
            tell(f"  {line}")
        return
    examples = sweep.backend.list_messages(sweep.where, limit=min(EXAMPLES, count))
    for message in examples:
        ident, state, queue, handler, _, attempts, _, age, why = row(message)
        shown = f"  {ident}  {state}  {queue}  {handler}  attempts={attempts}  age={age}  {why[:80]}"
        tell(one_line(shown).rstrip())
    if count > len(examples):
        tell(f"  … and {'at least ' if count >= CAP else ''}{count - len(examples):,} more")


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: give --yes, or --dry-run to look only")
    if not click.confirm(question, err=True):
        note("nothing was changed")
        raise click.exceptions.Exit(1)


def _about(count: int) -> str:
    return ("at least " if count >= CAP else "") + plural(count, "message")
