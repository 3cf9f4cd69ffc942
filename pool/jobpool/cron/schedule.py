"""A cron expression in a time zone: its instants before and after any moment.

The fields are read on local time. The pieces of a zone's timeline (`timeline.Piece`) decide which UTC moment a local
time is. Each piece has local times that fire in it, from `_opening` on, each at its own moment; those left out at its
beginning fire at that beginning.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobpool.cron.calendar import DAY, LocalTimes
from jobpool.cron.timeline import EARLIEST, LATEST, Piece, timeline
from jobpool.message.cron_fields import Kind, parse_fields

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_FAR = 2 * DAY
"""Local time and UTC, and local times before and after any change, are never so far apart."""


class Schedule:
    """The instants of a cron expression in a zone. Immutable; safe in threads; two of one text and zone are equal.

    All instants are aware, in UTC, on whole minutes of the local clock, and no two are the same. docs/cron.md says what
    an expression may hold, and what happens when clocks change.

    Args:
        expression: Five fields (minute, hour, day of month, month, day of week), or `@daily` and its like.
        zone: IANA name of the time zone that the fields are read in.

    Raises:
        InvalidJob: The expression or the zone is refused; the text names the field and what it may hold, or the zones
            that are written alike. Also an expression that never comes, like the 30th of February.

    Attributes:
        expression: In its normal form: lower case, five fields, one space between them.
        zone: As given.
    """

    __slots__ = ("_kind", "_line", "_times", "expression", "zone")

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        fields = parse_fields(expression)
        self.expression = fields.text
        self.zone = zone
        self._kind = fields.kind
        self._times = LocalTimes(fields)
        self._line = timeline(zone)

    def next(self, after: datetime) -> datetime | None:
        """Return the first instant strictly after an aware moment, from 1970 on; None past the year 9998."""
        cursor = max(_seconds(after) + 1, EARLIEST)
        while cursor < LATEST:
            piece = self._line.piece(cursor)
            low = self._opening(piece)
            if cursor > piece.start:
                low = max(low, cursor + piece.offset)
            time = self._times.first_from(low)
            if time is None:
                return None
            if time < piece.end + piece.offset:
                return _moment(max(time - piece.offset, piece.start))
            cursor = self._ahead(piece)
        return None

    def previous(self, at: datetime) -> datetime | None:
        """Return the last instant at or before an aware moment; None when there is none since 1970."""
        cursor = min(_seconds(at), LATEST - 1)
        while cursor >= EARLIEST:
            piece = self._line.piece(cursor)
            time = self._times.last_until(cursor + piece.offset)
            if time is None:
                return None
            if time >= self._opening(piece):
                moment = max(time - piece.offset, piece.start)
                return _moment(moment) if moment >= EARLIEST else None
            cursor = self._back(piece)
        return None

    def between(self, after: datetime, until: datetime, *, most: int, newest: bool = False) -> list[datetime]:
        """Return the instants in (after, until], oldest first.

        Args:
            after: Aware; not itself one of them.
            until: Aware; may be one of them.
            most: How many at most, >= 0; each costs some 10 µs.
            newest: Of too many, keep the last ones instead of the first ones.
        """
        return self._last(after, until, most) if newest else self._first(after, until, most)

    def is_due(self, at: datetime) -> bool:
        """Return whether an instant lies in the minute of an aware moment, and not after it."""
        last = self.previous(at)
        return last is not None and last >= at.replace(second=0, microsecond=0)

    def _first(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        found: list[datetime] = []
        moment = self.next(after)
        while len(found) < most and moment is not None and moment <= until:
            found.append(moment)
            moment = self.next(moment)
        return found

    def _last(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        found: list[datetime] = []
        moment = self.previous(until)
        while len(found) < most and moment is not None and moment > after:
            found.append(moment)
            moment = self.previous(moment - _SECOND)
        return found[::-1]

    def _opening(self, piece: Piece) -> int:
        """Return the local time from which on times fire in this piece.

        Fixed times: from where clocks had got to, so that none is left out and none comes twice. Intervals: those that
        come again fire again. Hourly ones: what the clock really shows.
        """
        shown = piece.start + piece.offset
        if self._kind is Kind.FIXED:
            return piece.reached
        return min(piece.reached, shown) if self._kind is Kind.INTERVAL else shown

    def _ahead(self, piece: Piece) -> int:
        """Return where to look after a piece: at its end, or shortly before the next local time there is, years ahead
        say.
        """
        time = self._times.first_from(piece.end + piece.offset - _FAR)
        return piece.end if time is None else max(piece.end, time - _FAR)

    def _back(self, piece: Piece) -> int:
        """Return where to look before a piece: just before it, or shortly after the last local time there is."""
        time = self._times.last_until(piece.start + piece.offset + _FAR)
        return piece.start - 1 if time is None else min(piece.start - 1, time + _FAR)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (self.expression, self.zone) == (other.expression, other.zone)

    def __hash__(self) -> int:
        return hash((self.expression, self.zone))

    def __repr__(self) -> str:
        return f"Schedule({self.expression!r}, {self.zone!r})"


def _seconds(moment: datetime) -> int:
    """Return whole seconds from 1970 to a moment, rounded down."""
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: write datetime(…, tzinfo=UTC)")
    return (moment - _EPOCH) // _SECOND


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
