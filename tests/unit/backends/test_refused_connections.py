"""A broker that is not there: the producer's traceback is one, and ends in a sentence that names the mend."""

from __future__ import annotations

import traceback

import pytest

from jobpool.client.jobs import Jobs
from jobpool.errors import BackendUnavailable

NOTHING_THERE = "127.0.0.1:1"

URLS = [
    f"redis://{NOTHING_THERE}/0",
    f"redis+cluster://{NOTHING_THERE}",
    f"redis+sentinel://{NOTHING_THERE}/main",
    f"postgresql://me:hidden@{NOTHING_THERE}/x",
    f"beanstalk://{NOTHING_THERE}",
    f"Endpoint=sb://{NOTHING_THERE};SharedAccessKeyName=n;SharedAccessKey=aGlkZGVu;UseDevelopmentEmulator=true",
]


@pytest.mark.parametrize("url", URLS, ids=lambda url: url.partition(":")[0])
def test_a_refused_connection_is_one_traceback(url: str) -> None:
    with Jobs(url) as jobs, pytest.raises(BackendUnavailable) as refused:
        jobs.define("report").dispatch()
    told = "".join(traceback.format_exception(refused.value))
    assert told.count("Traceback (most recent call last)") == 1
    assert told.splitlines()[-1].startswith("jobpool.errors.BackendUnavailable: ")
    assert NOTHING_THERE in str(refused.value)
    assert "hidden" not in told
