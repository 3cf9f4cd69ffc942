"""`jobpool enqueue` with what needs a key store: what it asks for arrives, and what cannot be is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from jobpool.broker.opening import open_backend
from jobpool.message.envelope import decode

Jobpool = Callable[..., Result]

GUARDED = ["--idempotency-key", " month-6 ", "--single-instance", "--concurrency-key", "tenant-7"]


def test_what_it_asks_for_is_in_the_message(jobpool: Jobpool) -> None:
    words = ["report", *GUARDED, "--job-name", "monthly", "--expires-in", "2h"]
    ident = jobpool("enqueue", *words).stdout.strip()
    backend = open_backend("sqlite:///jobpool.db")
    message = backend.inspect(ident)
    backend.close()
    assert message is not None
    envelope = decode(message.body, attempts=0)
    assert (envelope.name, envelope.idempotency_key) == ("monthly", "month-6")
    assert (envelope.single_instance, envelope.concurrency_key) == (True, "tenant-7")
    assert envelope.expires == pytest.approx(message.enqueued_at + 7200, abs=60)


def test_a_unique_job_is_there_once_and_its_id_is_told_again(jobpool: Jobpool) -> None:
    words = ["enqueue", "report", "--unique", "--idempotency-key", "month-6"]
    first, second = jobpool(*words).stdout, jobpool(*words).stdout
    assert first == second
    assert json.loads(jobpool("stats", "--json").stdout)[0]["waiting"] == 1


def test_the_lines_of_a_file_say_it_too(jobpool: Jobpool) -> None:
    line = json.dumps({"handler": "report", "idempotency_key": "k", "unique": True, "expires_in": "5m"})
    ids = jobpool("enqueue", "--file", "-", input=f"{line}\n{line}\n").stdout.split()
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_what_cannot_be_is_refused_with_the_bound(jobpool: Jobpool) -> None:
    for words, said in [
        (["--unique"], "unique needs an idempotency_key"),
        (["--idempotency-key", "k" * 10_240], "idempotency_key"),
        (["--single-instance", "--job-name", "n" * 10_240], "1 to 255 printable characters"),
        (["--expires-in", "0"], "expires_in must be more than 0 and at most 3162240000 seconds"),
        (["--expires-in", "1m", "--delay", "1m"], "it starts after 60 s at the earliest"),
    ]:
        result = jobpool("enqueue", "report", *words)
        assert result.exit_code != 0, words
        assert said in result.stderr, words
        assert len(result.stderr) < 1000, "a value of 10 KB is not read out"
