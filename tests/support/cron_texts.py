"""Strategies of hypothesis: cron expressions that are allowed, zones that do odd things, moments."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/Caracas",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Pacific/Apia",
    "Pacific/Chatham",
)

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@st.composite
def _item(draw: st.DrawFn, least: int, most: int, names: tuple[str, ...] = ()) -> str:
    low = draw(st.integers(least, most))
    high = draw(st.integers(least, most))
    kind = draw(st.sampled_from(("value", "value", "range", "step", "from", "every")))
    first = names[low - least] if bool(names) and draw(st.booleans()) else str(low)
    if kind == "every":
        return f"*/{draw(st.integers(1, most - least))}"
    if kind == "from" and low < most:
        return f"{first}/{draw(st.integers(1, most - low))}"
    if kind == "step" and low < high:
        return f"{first}-{high}/{draw(st.integers(1, high - low))}"
    return f"{first}-{high}" if kind == "range" and low != high else first


def _field(least: int, most: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    items = st.lists(_item(least, most, names), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), items)


PLAIN = st.tuples(_field(0, 59), _field(0, 23), _field(1, 31), _field(1, 12, _MONTHS), _field(0, 6, _DAYS)).map(
    " ".join
)
"""What any cron understands; some of them never come."""

_SPECIAL_DAYS = st.one_of(st.just("l"), st.just("l,1,15-17"))
_SPECIAL_WEEKDAYS = st.one_of(
    st.tuples(st.sampled_from((*_DAYS, *map(str, range(8)))), st.integers(1, 5)).map(
        lambda pair: f"{pair[0]}#{pair[1]}"
    ),
    st.integers(0, 7).map("l{}".format),
    st.just("fri#2,l0"),
    st.sampled_from(("1-7", "5-7", "0-7", "1-7/2", "2-7/5", "7", "7,3")),
)

ALLOWED = st.one_of(
    PLAIN,
    st.tuples(
        _field(0, 59),
        _field(0, 23),
        st.one_of(_field(1, 31), _SPECIAL_DAYS),
        _field(1, 12, _MONTHS),
        st.one_of(_field(0, 6, _DAYS), _SPECIAL_WEEKDAYS),
    ).map(" ".join),
)
"""And what is allowed besides."""

MOMENTS = st.datetimes(datetime(1975, 1, 1), datetime(2090, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))
