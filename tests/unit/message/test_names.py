"""What queue names, ids and other names may hold."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import row

from jobpool.errors import InvalidJob
from jobpool.message.names import check_identifier, check_name, check_queue

ODD_NAMES: tuple[Any, ...] = ("", "n" * 256, "a\nb", "a\x1b[31m", "\ud800", b"bytes")


def check_job_name(name: Any) -> str:
    return check_name(name, "job name")


def test_names_that_are_good() -> None:
    for check, names in {
        check_queue: ("a", "reports", "9", "eu-west.pdf_v2", "A" * 100),
        check_identifier: ("0123456789abcdef", "sync-0123456789ab", "order:2026/7@eu", "a" * 128),
        check_job_name: ("report", "Bericht für Zoë", "app.jobs:run", "n" * 255),
    }.items():
        for name in names:
            assert check(name) == name, (check, name)


def test_odd_names_are_refused_with_what_they_may_hold() -> None:
    odd_queues = ("", "A" * 101, ".hidden", "-option", "two words", "a/b", "a:b", "a{b}", "reports\n", "größe", 7, None)
    for check, told, names in [
        (check_queue, "queue name .* is refused: 1 to 100 letters, digits", odd_queues),
        (check_identifier, "identifier .* is refused: 1 to 128", ("", "a" * 129, "-x", "a b", "a\n", "é", "a*", 1)),
        (check_job_name, "job name .* is refused: 1 to 255 printable", ODD_NAMES),
    ]:
        for name in names:
            with row(check, name), pytest.raises(InvalidJob, match=told):
                check(name)
