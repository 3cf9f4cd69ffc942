"""`jobpool list`, `inspect`, `stats` and `reap`: messages and queues as a person looks at them.

Where a broker can do less than others, which a field of `Capabilities` says, a refusal is an `Unsupported` with the
mend. An answer that is less than asked for is told on stderr.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
from msgspec import structs

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.broker_time import BrokerTime
from jobpool.broker.filters import BadFilter, matching, parse_filter
from jobpool.broker.values import REAP_LIMIT, Leases, Message, MessageFilter, QueueStats, ReapPolicy, State
from jobpool.cli.options import Command, as_json, bare_id, option, queue_option
from jobpool.cli.output import answer, answered, columns, note, plural, say
from jobpool.cli.session import Session
from jobpool.errors import ConfigurationError, MalformedEnvelope, Unsupported
from jobpool.message.death import Death, cause_headline, cause_values
from jobpool.message.envelope import OVERSIZED, WIRE_VERSION, decode
from jobpool.message.names import MAX_NAMED, check_queue, listed, nearest
from jobpool.message.printable import headline, json_text, one_line, printable
from jobpool.message.settlement import FAILED_REASONS, OTHER_REASONS
from jobpool.message.units import format_duration

QUEUES = columns("QUEUE!, WAITING>, DELAYED>, LEASED>, DEAD>, OLDEST>, POOLS>")
POSTED = columns("POSTED>")  # shown where there is one: most people post nothing
PAUSED = columns("PAUSED~")  # the same

LIVE_COLUMNS = columns("ID, STATE, QUEUE~, HANDLER~, PRI>, FAILED>, CRASH>, AGE>, WHY~")
DEAD_COLUMNS = columns("ID, QUEUE~, HANDLER~, FAILED>, CRASH>, AGE>, REASON, CAUSE~, ERROR~")
KILLED = frozenset({"timeout", "memory-limit", "crash-limit"})
"""Reasons that `cause` explains; with any other it is the record of an earlier attempt."""

TIMES = ("enqueued_at", "available_at", "died_at", "ends_at")

terms_argument = click.argument("terms", nargs=-1, metavar="[FILTER]...")
queue_term = queue_option("The same as queue:NAME.")
limit_option = option(
    "--limit", type=click.IntRange(0, 10**9), default=50, show_default=True, help="Show at most this number; 0 = all."
)
names_argument = click.argument("names", nargs=-1, metavar="[QUEUE]...")
names_option = option("-Q", "--queue", "more", multiple=True, metavar="NAME", help="The same as QUEUE.")


@click.command("list", cls=Command)
@terms_argument
@queue_term
@limit_option
@as_json
def list_(session: Session, terms: tuple[str, ...], queue: str | None, limit: int) -> None:
    """List messages in the order of their enqueue.

    FILTER: queue:reports handler:report state:dead reason:timeout "age:>1h" id:ID "some text". Every term must match;
    a word that is the id of a message stands for that.
    """
    show(session, read_filter(terms, queue), limit)


@click.command("inspect", cls=Command)
@click.argument("ident", metavar="ID")
@queue_option("Queue of the message, for brokers that cannot look in all queues.")
@as_json
def inspect(session: Session, ident: str, queue: str | None) -> None:
    """Show everything about one message.

    Counters, times, payload, last error, and how its last attempt was killed, or what it printed.
    """
    ident = bare_id(ident)
    with session.broker() as backend:
        if queue is None:
            declare_queues(session, backend)
            message = backend.inspect(ident)
        else:
            states = () if backend.capabilities.lists_live else (State.DEAD,)
            where = MessageFilter(queue=queue, ids=(ident,), states=states)
            message = next(iter(backend.list_messages(where, limit=1)), None)
        if message is None:
            raise click.ClickException(f"no message {ident!r}: {unseen(backend)}")
    if not answered(values := as_values(message)):
        _describe(message, values)


def read_filter(terms: tuple[str, ...], queue: str | None = None, *, changes: bool = False) -> MessageFilter:
    """Return the filter that these shell words mean. Raises `BadFilter`.

    Of several bare words each is an id. With `changes`, for a verb that changes what it finds, a lone one is too.
    """
    if not all(term.strip(' "\t\n') for term in terms):  # of a shell's variable that is not set
        raise BadFilter(f"an empty word is not a filter{'; --all selects every message' if changes else ''}")
    bare = [term for term in terms if set(term).isdisjoint(':" \t\n')]
    words = [f"id:{term}" if (changes or len(bare) > 1) and term in bare else _term(term) for term in terms]
    return parse_filter(" ".join([*words, *([] if queue is None else [f"queue:{queue}"])]))


def show(session: Session, where: MessageFilter, limit: int, *, dead: bool = False) -> None:
    """List what matches; `dead`: with the columns of dead letters."""
    with session.broker() as backend:
        declare_queues(session, backend, where.queue, shows=True)
        where = listable(backend, id_meant(backend, where))
        found = matching(backend, where, limit + 1 if limit else 0)
        titles, cells = (DEAD_COLUMNS, dead_row) if dead else (LIVE_COLUMNS, row)
        if not answer(found, as_values, titles, partial(cells, backend.time), limit=limit):
            note(none_matches(backend, where))


def unknown_reason(where: MessageFilter) -> str:
    """Say that nothing has this reason, if it is not one of jobpool's; "" = it is, or none is asked for."""
    known = FAILED_REASONS | OTHER_REASONS
    if where.reason is None or where.reason in known:
        return ""
    return f"no message matches: none has the reason {where.reason!r}{nearest(where.reason, known)}"


def id_meant(backend: QueueBackend, where: MessageFilter) -> MessageFilter:
    """Return the filter with its text as an id, if a message has exactly that one. After `declare_queues`."""
    text = where.text
    if text is None or where.ids:
        return where
    named = where.queue is not None and not backend.capabilities.makes_queues  # it may not be known yet
    if (named and backend.count(MessageFilter(queue=where.queue, ids=(text,)), cap=1)) or backend.inspect(text):
        return structs.replace(where, text=None, ids=(text,))
    return where


def none_matches(backend: QueueBackend, where: MessageFilter) -> str:
    """Say that nothing was found, what is held, and which queues there are if the chosen one is empty."""
    if told := unknown_reason(where):
        return told
    if len(where.ids) > 1:
        return "no message matches: of several words each is an id; put a text of several in quotes"
    if State.WAITING in where.states and State.LEASED not in where.states and backend.capabilities.lists_live:
        held = backend.count(structs.replace(where, states=(State.LEASED,)))
        if held:
            free = "`jobpool reap` frees those whose lease or claim has ended"
            return f"no message matches that is free: pools or claims hold {plural(held, 'message')}; {free}"
    if where.queue is None and not backend.capabilities.makes_queues:
        return "no message matches in the queues of the setting `queues`; name others to look in them"
    if where.queue is None or not backend.capabilities.makes_queues or where.queue in (known := backend.queues()):
        return "no message matches"
    there = f"those that do: {', '.join(known)}" if known else "nor does any other"
    return f"no message matches: queue {where.queue!r} holds none at all; {there}"


def row(time: BrokerTime, message: Message) -> list[str]:
    """Return a message as the cells of `LIVE_COLUMNS`."""
    return [
        *(message.id, message.state.value, message.queue, _handler(message), str(message.priority)),
        *(str(message.attempts), str(message.crashes), age(time, message), _why(time, message)),
    ]


def dead_row(time: BrokerTime, message: Message) -> list[str]:
    """Return a dead letter as the cells of `DEAD_COLUMNS`."""
    return [
        *(message.id, message.queue, _handler(message), str(message.attempts), str(message.crashes)),
        age(time, message),
        message.reason or "",
        Death.from_text(message.cause).short if message.cause and message.reason in KILLED else "",
        headline(message.last_error) or "",
    ]


def _handler(message: Message) -> str:
    """Return its handler, and in brackets the job's name if that is another: a schedule's, say."""
    name = _body(message.body).get("name") if message.handler else None
    return f"{message.handler} ({name})" if name and name != message.handler else message.handler or "-"


def age(time: BrokerTime, message: Message) -> str:
    """Since its enqueue; of a dead letter since its death."""
    return format_duration(max(0.0, time.now() - (message.died_at or message.enqueued_at)))


def as_values(message: Message) -> dict[str, Any]:
    """Return a message as JSON values: times in RFC 3339, bodies of envelopes and posts decoded."""
    names = ("id", "queue", "handler", "priority", "attempts", "crashes", "deliveries", "claims", "claim", "reason")
    values: dict[str, Any] = {name: getattr(message, name) for name in (*names, "last_error")}
    values["cause"] = cause_values(message.cause)
    values["state"] = message.state.value
    times = {name: getattr(message, name) for name in TIMES} | {"lease_until": message.expires_at}
    values |= {name: moment(time, "microseconds") for name, time in times.items()}
    return values | (_body(message.body) if message.handler else {"message": shown_value(message.body)})


def shown_value(body: bytes) -> Any:
    """Return a posted message as a JSON value; other bytes as text."""
    from jobpool.client.claims import posted_value

    value = posted_value(body)
    return _text(value) if isinstance(value, bytes) else value


def _text(body: bytes) -> str:
    """Return a body as text; "" for one that is too large for a list."""
    return "" if body is OVERSIZED else body.decode("utf-8", "replace")


def _term(term: str) -> str:
    """Return what a word means: 16 hex digits are an id. The shell has eaten the quotes of `"disk full"`, so a word
    with spaces and nothing else special is one text.
    """
    if len(term) == 16 and set(term) <= set("0123456789abcdef"):
        return f"id:{term}"
    if any(char.isspace() for char in term) and not set(term) & set('":'):
        return '"' + re.sub(r'(["\\])', r"\\\1", term) + '"'
    return term


def _why(time: BrokerTime, message: Message) -> str:
    """Return the reason of a dead letter, and the end of the last error: the line that names the exception."""
    said = headline(message.last_error) or cause_headline(message.cause)
    if message.state is State.LEASED and message.expires_at is not None and message.expires_at <= time.now():
        return "its lease or claim has ended: the next claim, pool or `jobpool reap` frees it"
    if message.state is State.DELAYED and not said:
        why = "snoozed, or waits for a lock, a limit or a handler; " if message.deliveries else ""
        said = f"{why}due in {format_duration(max(0.0, message.available_at - time.now()))}"
    return ": ".join(part for part in (message.reason, said) if part)


def _body(body: bytes) -> dict[str, Any]:
    try:
        envelope = decode(body, attempts=0)
    except MalformedEnvelope as error:
        return {"body": _text(body), "malformed": str(error)}
    names = ("name", "max_retries", "timeout", "idempotency_key", "payload", "meta")
    expires = envelope.expires if envelope.version <= WIRE_VERSION else None  # a newer one may keep anything there
    return {"expires_at": moment(expires, "microseconds")} | {name: getattr(envelope, name) for name in names}


def _describe(message: Message, values: dict[str, Any]) -> None:
    long = {key: values.pop(key, None) for key in ("payload", "meta", "message", "body", "last_error", "cause")}
    width = max(len(key) for key in values)
    for key, value in values.items():
        if value not in (None, ""):
            say(f"{key:<{width}}  {one_line(str(value))}")
    if message.cause:
        death = Death.from_text(message.cause)
        earlier = message.reason and message.reason not in KILLED
        del long["cause"]
        title = "cause of an earlier attempt's end" if earlier else "cause"
        long[title if death.how else "output of the last failed attempt"] = death.details()
    for key, value in long.items():
        if value not in (None, {}, ""):
            text = value if isinstance(value, str) and key not in ("payload", "message") else json_text(value, indent=2)
            say(f"\n{key}\n  " + printable(text).rstrip().replace("\n", "\n  "))


@click.command("stats", cls=Command)
@names_argument
@names_option
@as_json
def stats(session: Session, names: tuple[str, ...], more: tuple[str, ...]) -> None:
    """Count waiting, delayed, leased, dead and posted messages, in these queues or in all.

    POOLS, in JSON "pools": pools of this user on this machine that serve the queue; `jobpool pools` lists those of all.
    PAUSED, in JSON "paused": why and until when a queue is paused, if it is.
    """
    with session.broker() as backend:
        paused = control.read(backend).paused if backend.has_control else {}
        named = _named(session, backend, names + more)
        if backend.capabilities.makes_queues and not names + more:
            named = sorted({*named, *paused})
        found = {queue: backend.stats(queue) for queue in named}
        serving = session.queues_served()
        if not backend.capabilities.exact_counts and any(counts.waiting for counts in found.values()):
            note(f"{backend.scheme}:// counts messages that others have leased as waiting")
    posts, is_paused = any(counts.posted for counts in found.values()), any(name in paused for name in found)

    def values(name: str) -> dict[str, Any]:
        pause = paused.get(name)
        return {"queue": name, **asdict(found[name]), "pools": serving[name], "paused": pause and asdict(pause)}

    def row(name: str) -> list[str]:
        extra = [f"{found[name].posted:,}"] * posts + [_paused(paused.get(name))] * is_paused
        return [*_counts(name, found[name], serving[name]), *extra]

    answer(found, values, QUEUES + POSTED * posts + PAUSED * is_paused, row, "every queue is empty")
    settings = session.settings()
    served = {*serving, settings.dead_letter_queue}
    waits = [name for name, counts in found.items() if counts.unattended and name not in served]
    if waits and backend.capabilities.exact_counts:  # else leased jobs count as waiting
        start = f"`jobpool --queue {','.join(waits[:MAX_NAMED])}{'' if settings.apps else ' --app YOUR_APP'}`"
        note(f"no pool on this machine serves {listed(waits)}: jobs wait there until one does, such as {start}")


@click.command("reap", cls=Command)
@names_argument
@names_option
@as_json
def reap(session: Session, names: tuple[str, ...], more: tuple[str, ...]) -> None:
    """Give back the messages whose lease has expired, in these queues or in all. Every pool does this by itself."""
    policy = ReapPolicy(session.settings().max_crashes)
    reaped = []
    with session.broker() as backend:
        for queue in _named(session, backend, names + more):
            reaped += (batch := backend.reap(queue, policy))
            while len(batch) >= REAP_LIMIT:
                reaped += (batch := backend.reap(queue, policy))
        if backend.capabilities.leases is not Leases.OURS:
            note(f"{backend.scheme}:// gives back messages with an expired lease by itself")
    if not answered([{**structs.asdict(one), "cause": cause_values(one.cause)} for one in reaped]):
        for one in reaped:
            say(one_line(f"{one.id}  {one.queue}  {'dead' if one.dead else 'waiting'}  crashes={one.crashes}"))
        note(f"{plural(len(reaped), 'message')} reaped")


def _named(session: Session, backend: QueueBackend, names: tuple[str, ...]) -> list[str]:
    parts = [part.strip() for name in names for part in name.split(",")]
    named = [check_queue(part) for part in dict.fromkeys(parts)]
    return named or declare_queues(session, backend, shows=True) or backend.queues()


def _counts(queue: str, counts: QueueStats, pools: int) -> list[str]:
    numbers = (counts.waiting, counts.delayed, counts.leased, counts.dead)
    shown = [f"{number:,}+" if counts.cap and number >= counts.cap else f"{number:,}" for number in numbers]
    return [queue, *shown, "-" if counts.oldest is None else format_duration(counts.oldest), str(pools)]


def _paused(pause: control.Pause | None) -> str:
    if pause is None:
        return "-"
    until = "" if pause.until is None else f"until {moment(pause.until)}"
    return " ".join(filter(None, ("yes", until, pause.reason)))


def moment(unix: Any, timespec: str = "seconds") -> str | None:
    """Return a Unix time in UTC; None for what is not one: a body may hold any number."""
    try:
        return datetime.fromtimestamp(unix, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def declare_queues(
    session: Session, backend: QueueBackend, queue: str | None = None, *, needed: bool = True, shows: bool = False
) -> list[str]:
    """Tell a broker that cannot list its queues of the settings', for a verb that names none; return these.

    Any other broker, and a verb with a `queue`, need none: []. `shows`: say which ones are shown. Blocks for a round
    trip a queue, if at all.

    Raises `click.UsageError`: one of those is not there, or one is `needed` and neither settings nor URL name any.
    """
    if queue is not None or backend.capabilities.makes_queues:
        return []
    names = session.settings().queue_names or tuple(filter(None, [backend.only_queue]))
    cannot = f"{backend.scheme}:// cannot list its queues"
    if not names and needed:
        raise click.UsageError(f"name the queue: {cannot}, and the setting `queues` names none")
    for name in names:
        try:
            backend.stats(name)
        except ConfigurationError as error:
            raise click.UsageError(f"name the queue: {cannot}, and of the setting `queues`: {error}") from None
    if names and shows:
        note(f"{cannot}: shown are {', '.join(names)}, of the setting `queues`; name others to see them")
    return list(names)


def listable(backend: QueueBackend, where: MessageFilter) -> MessageFilter:
    """Return `where`, less the states that the broker cannot list. Raises `Unsupported` when nothing is left."""
    if backend.capabilities.lists_live or where.states == (State.DEAD,):
        return where
    cannot = f"{backend.scheme}:// shows dead letters alone"
    if where.states and State.DEAD not in where.states:
        raise Unsupported(f"{cannot}, not what is {' or '.join(where.states)}: `jobpool stats` counts that")
    note(f"{cannot}: `jobpool stats` counts the other messages")
    return structs.replace(where, states=(State.DEAD,))


def unseen(backend: QueueBackend) -> str:
    """Return why a message with some id may not be found."""
    if backend.capabilities.finds_all:
        return "it is done and gone, or never was on this broker"
    if backend.capabilities.lists_live:
        looked = ", ".join(backend.queues()) or "no queue that holds a message"
        other = "or is in another queue: the setting `queues` says where to look, `jobpool inspect ID -Q NAME` too"
        return f"it is done and gone, never was, {other} (looked in: {looked})"
    only = f"{backend.scheme}:// shows dead letters alone"
    return f"no dead letter is called so, and {only}; `jobpool stats` counts the others"
