"""Ledger lines and kept messages, written as one reads them."""

from __future__ import annotations

from msgspec.structs import replace

from jobpool.broker.values import Message, State
from jobpool_torture.ledger import Line
from jobpool_torture.workload import Item

ID = "m"


class Clock:
    """Counts up, so that lines that are made later are later."""

    def __init__(self) -> None:
        self.now = 0.0

    def tick(self) -> float:
        self.now += 1.0
        return self.now


CLOCK = Clock()


def item(kind: str, **options: object) -> Item:
    return Item(0, 0.0, kind, "torture.work", {}, options=dict(options))


def fetched(fence: int, failures: int = 0, crashes: int = 0, *, owner: str = "", holds: float = 0.0) -> Line:
    """A delivery, with what the broker counts; its call began half a second before its line."""
    at, owner, attempt = CLOCK.tick(), owner or f"o{fence}", failures + 1
    return Line("fetched", ID, fence, at=at, since=at - 0.5, holds=holds, owner=owner, attempt=attempt, crashes=crashes)


def asked(fence: int, verb: str, *, adds: tuple[int, int] = (0, 0)) -> Line:
    at = CLOCK.tick()
    return Line("asked", ID, fence=fence, at=at, since=at, verb=verb, attempt=adds[0], crashes=adds[1])


def settled(fence: int, verb: str, answer: str = "ok", *, adds: tuple[int, int] = (0, 0)) -> list[Line]:
    """A call and its answer."""
    begun = asked(fence, verb, adds=adds)
    return [begun, replace(begun, event="settled", at=CLOCK.tick(), answer=answer)]


def unknown(fence: int, verb: str) -> list[Line]:
    """A call that raised."""
    begun = asked(fence, verb)
    return [begun, replace(begun, event="unknown", at=CLOCK.tick(), answer="BackendUnavailable")]


def run(event: str, fence: int = 1, attempt: int = 1, crashes: int = 0, tag: str = "") -> Line:
    """What a handler writes."""
    return Line(event, ID, fence=fence, at=CLOCK.tick(), attempt=attempt, crashes=crashes, tag=tag)


def enq(ident: str = ID) -> Line:
    return Line("enq", ident, at=CLOCK.tick())


def reaped(crashes: int, answer: str = "back") -> Line:
    return Line("reaped", ID, at=CLOCK.tick(), crashes=crashes, answer=answer)


def kept(state: State, deliveries: int, failures: int = 0, crashes: int = 0, ident: str = ID) -> Message:
    return Message(
        id=ident,
        queue="default",
        state=state,
        handler="work",
        priority=0,
        attempts=failures,
        crashes=crashes,
        deliveries=deliveries,
        enqueued_at=0.0,
        available_at=0.0,
        body=b"",
    )


def ran(fence: int, failures: int = 0, crashes: int = 0) -> list[Line]:
    """A delivery whose handler began and ended, and that was acked."""
    told = (fence, failures + 1, crashes)
    return [fetched(fence, failures, crashes), run("start", *told), run("end", *told), *settled(fence, "ack")]


def cut_short(fence: int, failures: int = 0, crashes: int = 0, verb: str = "forfeit") -> list[Line]:
    """A delivery whose handler began and did not end, and how it was settled; `verb` "" = not at all."""
    begun = run("start", fence, failures + 1, crashes)
    return [fetched(fence, failures, crashes), begun, *(settled(fence, verb) if verb else [])]


def failed(fence: int, failures: int = 0, crashes: int = 0, verb: str = "nack") -> list[Line]:
    """A delivery whose handler raised."""
    told = (fence, failures + 1, crashes)
    end = settled(fence, verb, adds=(int(verb in ("abandon", "move")), 0))
    return [fetched(fence, failures, crashes), run("start", *told), run("fail", *told), *end]
