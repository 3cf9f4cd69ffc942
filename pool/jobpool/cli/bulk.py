"""`jobpool dead list|retry|purge` and `jobpool purge`: many messages at once, never without a look at them first.

Only messages that were there at the start are touched. A dead letter that is retried and dies again waits for the next
command. So a job that fails at once never takes the turn of the others.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import click
from msgspec import structs

from jobpool.broker.backend import QueueBackend
from jobpool.broker.filters import matching
from jobpool.broker.values import UNHELD, MessageFilter, State, Verb
from jobpool.cli import messages
from jobpool.cli.messages import declare_queues, queue_term, read_filter, terms_argument
from jobpool.cli.options import Command, Function, as_json, confirmed, option
from jobpool.cli.output import answered, note, plural, say
from jobpool.cli.session import INTERRUPTED, Session
from jobpool.errors import JobpoolError, Unsupported
from jobpool.message.printable import one_line
from jobpool.message.units import format_duration

MAX_EXAMPLES = 5
MAX_LOOKED_AT = 100  # messages among which jobs are sought for examples: posted ones may stand before them
MAX_COUNTED = 100_000  # counting stops here, so that a look costs little however long the queue is
BATCH = 1000
WORDS = {"delete": ("purge", "purged"), "cancel": ("cancel", "cancelled"), "edit": ("edit", "edited")}
MIN_RATE, MAX_RATE = 0.001, 10**9  # messages a minute
RATE_TICK_S = 0.25  # seconds between two calls when a rate is asked for that is above one message in this time


def selecting(function: Function) -> Function:
    """Add the words, `--queue` and `--all` by which a verb selects what it changes: see `chosen`."""
    words = click.argument("terms", nargs=-1, metavar="[FILTER|ID]...")
    every = option("--all", "all_", is_flag=True, help="Select every message, in place of a FILTER.")
    return words(queue_term(every(function)))


def _rate(_ctx: click.Context, _param: click.Parameter, rate: float | None) -> float | None:
    if rate is None or MIN_RATE <= rate <= MAX_RATE:
        return rate
    raise click.BadParameter(f"{rate!r} is not a number from {MIN_RATE:g} to {MAX_RATE:,}")  # nor is nan


@click.command("list", cls=Command)
@terms_argument
@queue_term
@messages.limit_option
@as_json
def dead_list(session: Session, terms: tuple[str, ...], queue: str | None, limit: int) -> None:
    """List dead letters with reason and cause. FILTER as in `jobpool list`, such as reason:timeout "age:<1h"."""
    messages.show(session, _dead(read_filter(terms, queue)), limit, dead=True)


@click.command("retry", cls=Command, short_help="Retry dead letters.")
@selecting
@option("--rate", type=float, callback=_rate, metavar="N", help="Retry at most N a minute, evenly.")
@option("--keep-counters", is_flag=True, help="Keep attempts, crashes and the last error.")
@confirmed
def dead_retry(session: Session, rate: float | None, **asked: Any) -> None:
    """Retry dead letters under their ids, with all counters at 0; FILTER as in `jobpool list`.

    A letter that dies again meanwhile waits for the next run of the command. After Ctrl-C, the same command goes on.
    """
    verb = Verb.RESUME if asked["keep_counters"] else Verb.RETRY
    _carry_out(session, _dead(chosen(asked)), verb, asked, partial(Sweep, rate=rate))


@click.command("purge", cls=Command)
@selecting
@option("--older-than", metavar="TIME", help="Select letters that died longer ago; the same as age:>TIME.")
@option("--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the N that died last.")
@confirmed
def dead_purge(session: Session, older_than: str | None, keep: int, **asked: Any) -> None:
    """Delete dead letters; FILTER as in `jobpool list`."""
    older = () if older_than is None else (f"age:>{older_than}",)
    where = chosen(asked, *older, is_bounded=bool(keep or older))
    _carry_out(session, _dead(where), Verb.DELETE, asked, partial(AllButNewest, keep=keep) if keep else Sweep)


@click.command("purge", cls=Command)
@selecting
@confirmed
def purge(session: Session, **asked: Any) -> None:
    """Delete waiting, delayed and dead messages, not leased ones. FILTER as in `jobpool list`."""
    where = chosen(asked)
    if State.LEASED in where.states:
        raise click.UsageError("leased messages cannot be purged: they are being worked on")
    anywhere = (State.DEAD,) if where.reason is not None else (*UNHELD, State.DEAD)
    _carry_out(session, structs.replace(where, states=where.states or anywhere), Verb.DELETE, asked, Sweep)


def chosen(asked: dict[str, Any], *more: str, is_bounded: bool = False) -> MessageFilter:
    """Return the filter of `selecting`, and `more` terms. Refuse none, unless `is_bounded` by another option."""
    terms, queue, all_ = asked["terms"], asked["queue"], asked["all_"]
    if not (terms or queue or all_ or is_bounded):
        raise click.UsageError("say which messages: a FILTER such as queue:reports reason:timeout, or --all")
    if terms and all_:
        raise click.UsageError("a FILTER and --all exclude each other")
    return read_filter((*terms, *more), queue, changes=True)


def _dead(where: MessageFilter) -> MessageFilter:
    if where.states not in ((), (State.DEAD,)):
        raise click.UsageError("this verb is for dead letters only: leave out the term state:")
    return structs.replace(where, states=(State.DEAD,))


def _purges_whole_queues(backend: QueueBackend, where: MessageFilter) -> bool:
    """Return True if the broker can purge these messages by whole queues only.

    Raises `Unsupported` if `where` picks out some of the messages that are not dead.
    """
    if backend.capabilities.keeps_records or where.states == (State.DEAD,):
        return False
    if structs.replace(where, queue=None, states=()) == MessageFilter():
        return True
    raise Unsupported(
        f"{backend.scheme}:// deletes what is waiting or delayed by whole queues only:"
        " leave all terms but queue: and state: out; `jobpool dead purge` takes any filter"
    )


def _carry_out(
    session: Session, where: MessageFilter, verb: Verb, asked: dict[str, Any], make: Callable[..., Sweep]
) -> None:
    with session.broker() as backend:
        queues = declare_queues(session, backend, where.queue)
        if where.queue is None and not where.ids and (foreign := backend.foreign_queues()):
            raise Unsupported(
                f"nothing was changed: jobs in {', '.join(foreign)} are other programs' by their look. Name the queue"
                " that you mean (-Q); `jobpool doctor` says how to keep them apart"
            )
        if _purges_whole_queues(backend, where):
            queues = [where.queue] if where.queue else queues or backend.queues()
            confirm_and_run(WholeQueues(backend, where, verb, queues=queues), asked)
        else:
            confirm_and_run(make(backend, where, verb), asked)


def confirm_and_run(sweep: Sweep, asked: dict[str, Any], members: int = 0) -> None:
    """Do it once it is confirmed. `matched`, in JSON: messages by the look before, or if more, those changed.

    `members`: of batches, which a dry run has counted beside these.
    """
    word, done = WORDS.get(sweep.verb, ("retry", "retried"))
    count = sweep.count()
    _check_ids(sweep, count)
    if not count and (told := messages.unknown_reason(sweep.where)):
        raise click.ClickException(told)
    if (asked["dry_run"] or not count) and answered({"matched": count + members, done: 0}):
        return
    if not count:
        kept = "no message is older than the newest to keep"
        note(kept if sweep.keep else messages.none_matches(sweep.backend, sweep.where))
        return
    if asked["dry_run"]:
        _preview(sweep, f"would {word}", count, say)
        return
    _preview(sweep, word, count, note)
    if not asked["yes"]:
        question = f"{word} {_about(count)}?"
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} There is no terminal to ask on: give --yes, or --dry-run")
        if not click.confirm(question, err=True):
            note("nothing was changed")
            raise click.exceptions.Exit(1)
    changed = sweep.run(count, done)
    if changed < count and not isinstance(sweep, Answered):  # which has told of the others
        left = plural(count - changed, "message")
        note(f"{left} not {done}: held by others for now, or gone; call again in a minute")
    if not answered({"matched": max(count, changed), done: changed}):
        say(f"{plural(changed, 'message')} {done}")


def _check_ids(sweep: Sweep, count: int) -> None:
    """Refuse ids that the filter does not match, before anything is changed."""
    where = sweep.where
    if sweep.keep or count >= len(set(where.ids)):
        return
    found = {ident: _why_not(sweep, ident) for ident in where.ids}
    wrong = [f"{ident}: {said}" for ident, said in found.items() if said]
    if wrong:
        hint = f"; text:{where.ids[0]} means all with this text" if len(where.ids) == 1 else ""
        raise click.ClickException(f"nothing was changed: {'; '.join(wrong)}{hint}")


def _why_not(sweep: Sweep, ident: str) -> str:
    """Return why the sweep leaves this message out; "" = it does not."""
    where, message = sweep.where, sweep.backend.inspect(ident)
    if message is None:
        return f"there is no such message: {messages.unseen(sweep.backend)}"
    if isinstance(sweep, Answered) and not message.handler:
        return "it was posted, and is not a job"
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
    most, jobs_only = min(MAX_EXAMPLES, count), isinstance(sweep, Answered)
    where = structs.replace(sweep.where, ids=sweep.going[:most]) if isinstance(sweep, AllButNewest) else sweep.where
    page = sweep.backend.list_messages(where, limit=MAX_LOOKED_AT if jobs_only else most)
    examples = [message for message in page if message.handler or not jobs_only][:most]
    for message in examples:
        ident, state, queue, handler, _, attempts, _, age, why = messages.row(sweep.backend.time, message)
        shown = f"  {ident}  {state}  {queue}  {handler}  attempts={attempts}  age={age}  {why[:80]}"
        tell(one_line(shown).rstrip())
    if count > len(examples):
        tell(f"  … and {'at least ' if count >= MAX_COUNTED else ''}{count - len(examples):,} more")


def _about(count: int) -> str:
    return ("at least " if count >= MAX_COUNTED else "") + plural(count, "message")


@dataclass(slots=True)
class Sweep:
    """`verb` for the messages that `where` matched when this was made, the oldest first."""

    backend: QueueBackend
    where: MessageFilter
    verb: Verb | str
    rate: float | None = None  # messages a minute, > 0; None = as quickly as it goes
    keep: int = 0
    done: int = 0
    begun: float = field(default_factory=time.monotonic)
    bar: Any = None  # of its progress, while one is shown

    def count(self) -> int:
        """Count the matching messages; `MAX_COUNTED` = at least that number."""
        return self.backend.count(self._still_there(), cap=MAX_COUNTED)

    def run(self, count: int, word: str) -> int:
        """Do it to all of them, `count` by the last look; how many it changed. Blocks for as long as the rate says.

        Raises `JobpoolError`: the broker is away; `click.exceptions.Exit`: Ctrl-C. Before, it tells how many are done.
        """
        so_far = "{} {} so far; the same command goes on with the rest".format
        is_watched = sys.stderr.isatty() and (self.rate is not None or count > BATCH)
        self.bar = click.progressbar(length=count, file=sys.stderr) if is_watched else None
        try:
            with self.bar or contextlib.nullcontext():
                while self._round(count) and count >= MAX_COUNTED:
                    count = self.count()
        except KeyboardInterrupt:
            note(f"\ninterrupted: {so_far(plural(self.done, 'message'), word)}")
            raise click.exceptions.Exit(INTERRUPTED) from None
        except JobpoolError:
            if self.done:
                note(so_far(plural(self.done, "message"), word))
            raise
        return self.done

    def _round(self, most: int) -> bool:
        """Do up to `most` messages, and return True if there were that many."""
        size = BATCH if self.rate is None else max(1, int(self.rate / 60 * RATE_TICK_S))
        left = most
        while left > 0:
            begun = time.monotonic()
            asked = min(size, left)
            changed = self._change(self._still_there(), asked)
            left -= changed
            if changed < asked:
                return False
            if self.rate is not None and left > 0:
                time.sleep(max(0.0, begun + asked * 60 / self.rate - time.monotonic()))
        return True

    def _change(self, where: MessageFilter, most: int) -> int:
        """Do it to at most this number of these, in one call; return how many it changed."""
        changed = self.backend.bulk(where, Verb(self.verb), limit=most)
        self.done += changed
        if self.bar is not None:
            self.bar.update(changed)
        return changed

    def _still_there(self) -> MessageFilter:
        """Return the filter, less messages that came since the start: ages are taken as they were then."""
        passed = time.monotonic() - self.begun
        older = (self.where.older_than or 0.0) + passed
        newer = None if self.where.newer_than is None else self.where.newer_than + passed
        return structs.replace(self.where, older_than=older, newer_than=newer)


@dataclass(slots=True)
class AllButNewest(Sweep):
    """Deletes the dead letters that match, but for the `keep` that died last: retried ones may be first in line."""

    going: tuple[str, ...] = ()  # the others, the first that died first, since `count` was called

    def count(self) -> int:
        """Count those that go. Blocks for a round trip a page of all that match."""
        died = [(letter.died_at or 0.0, letter.id) for letter in matching(self.backend, self.where, largest=0)]
        died.sort(key=itemgetter(0))  # of one moment, as they are listed
        self.going = tuple(ident for _, ident in died[: -self.keep])
        return len(self.going)

    def _round(self, most: int) -> bool:
        """Carry out all in one round."""
        for first in range(0, most, BATCH):
            ids = self.going[first : first + BATCH]
            self._change(structs.replace(self._still_there(), ids=ids), len(ids))
        return False


@dataclass(slots=True)
class WholeQueues(Sweep):
    """Deletes all that is in some states of `queues`, where a broker can pick out no less; as many as were counted."""

    queues: Sequence[str] = ()
    counted: list[str] = field(default_factory=list)  # a line a queue, since `count` was called
    is_capped: bool = False  # there may be more than was counted: then all goes, and what comes meanwhile too

    def count(self) -> int:
        """Count the messages, or the least number. Blocks for a round trip a queue."""
        self.counted, held = [], {}
        for queue in self.queues:
            stats = self.backend.stats(queue)
            numbers = {state.value: getattr(stats, state.value) for state in self.where.states}
            capped = {state for state, number in numbers.items() if stats.cap and number >= stats.cap}
            told = [f"{number:,}{'+' * (state in capped)} {state}" for state, number in numbers.items()]
            if total := sum(numbers.values()):
                held[queue] = total
                self.counted.append(f"{queue}: {', '.join(told)}")
            self.is_capped |= bool(capped)
        self.queues = list(held)  # of the others nothing is deleted, even if something comes meanwhile
        return sum(held.values())

    def _round(self, most: int) -> bool:
        """Carry out all in one round: there is no other after it."""
        all_states = {*UNHELD, State.DEAD} <= set(self.where.states)
        for queue in self.queues:
            whole = MessageFilter(queue=queue, states=() if all_states else self.where.states)
            while (size := BATCH if self.is_capped else min(BATCH, most - self.done)) and self._change(whole, size):
                pass
        return False


@dataclass(slots=True)
class Answered(Sweep):
    """A cancel or an edit, which answers for each message: all went well if the answer is the second of its `WORDS`."""

    act: Callable[[MessageFilter], Counter[Any]] = lambda _: Counter()
    answers: Counter[Any] = field(default_factory=Counter)  # how many there were of each

    def count(self) -> int:
        """Count the matching jobs: posted messages, which have no handler, are left alone."""
        count = self.backend.count(self._still_there(), cap=MAX_COUNTED)
        if not count or self.where.handler or not self.backend.capabilities.key_store:
            return count
        return count - self.backend.count(structs.replace(self._still_there(), handler=""), cap=count)

    def run(self, count: int, word: str) -> int:
        """Do it; return for how many all went well, and tell of the others."""
        del count
        self.answers = self.act(self._still_there())
        for answer, number in self.answers.items():
            if answer != word:
                note(f"{plural(number, 'message')}: {answer}")
        return self.answers[word]
