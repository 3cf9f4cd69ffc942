"""Reads rollups back, page by page."""

from __future__ import annotations

from collections.abc import Iterator

from jobpool.broker.key_store import KeyStore
from jobpool.telemetry.metrics.rollup import SPACE, Row, decode, stamp

PAGE = 5_000


def rollups(keys: KeyStore, since: float, until: float) -> Iterator[Row]:
    """Yield the rows of the minutes that begin in [since, until), Unix times, in their order; of all pools.

    Raises:
        BackendUnavailable: The broker does not answer.

    Blocks for a round trip each `PAGE` rows.
    """
    after, end = stamp(since), stamp(until)
    while True:
        page = keys.list_records(SPACE, after=after, limit=PAGE)
        for name, value in page:
            if name >= end:
                return
            row = decode(value)
            if row is not None:
                yield row
        if len(page) < PAGE:
            return
        after = page[-1][0]
