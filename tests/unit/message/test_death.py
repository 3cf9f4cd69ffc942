"""The record of an abnormal end: to text and back within its bound, whatever is in it, and as people read it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpool.message.death import MAX_RECORD_BYTES, Death, cause_headline, innermost
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Nack
from jobpool_backends.memory import MemoryBackend

FULL = Death(
    how="killed by SIGSEGV",
    sent_by="itself",
    stack='Current thread 0x1 (most recent call first):\n  File "app.py", line 7 in crash',
    peak_memory=31 * 2**20,
    cpu_seconds=0.25,
    output="reading page 7\nreading page 8",
    core=True,
)


@given(
    how=st.text(max_size=40),
    sent_by=st.text(max_size=40),
    stack=st.text(max_size=200),
    output=st.text(max_size=200),
    peak=st.integers(0, 2**50),
    cpu=st.floats(0, 1e9),
    core=st.booleans(),
)
def test_any_record_survives_its_text(
    how: str, sent_by: str, stack: str, output: str, peak: int, cpu: float, core: bool
) -> None:
    death = Death(how, sent_by, stack, peak, cpu, output, core)
    assert Death.from_text(death.to_text()) == death


def test_the_text_is_one_json_object_of_what_is_known() -> None:
    assert json.loads(Death("timeout", "the pool: timeout").to_text()) == {
        "how": "timeout",
        "sent_by": "the pool: timeout",
    }


def test_any_other_text_is_how_it_ended() -> None:
    for text in [
        "lease expired",
        "SIGSEGV",
        "killed by SIGSEGV\nFile x, line 7",
        "",
        "{",
        "{}",
        "[1]",
        '{"how": 7}',
        '{"how": "x", "stack": ["y"]}',
        '{"how": "x", "core": "yes"}',
        '{"what": "somebody else\'s"}',
        "\x00\udc80",
        *(f'{{"how": "killed", "peak_memory": {peak}}}' for peak in (-1, 2**63, 10**400)),
    ]:
        assert Death.from_text(text) == Death(text), text


def test_a_newer_versions_record_is_read_without_what_is_new() -> None:
    assert Death.from_text('{"how": "timeout", "moon": "full"}') == Death("timeout")


@pytest.mark.parametrize("char", ["x", "é", "\x00", "\udc80", "𝄞", "\n", '"'])
def test_the_text_is_bounded_and_keeps_heads_and_tails(char: str) -> None:
    long = "first" + char * 200_000 + "last"
    text = Death("killed by SIGABRT", "itself", stack=long, output=long, peak_memory=7).to_text()
    assert len(text.encode()) <= MAX_RECORD_BYTES
    death = Death.from_text(text)
    assert (death.how, death.sent_by, death.peak_memory) == ("killed by SIGABRT", "itself", 7)
    for kept in (death.stack, death.output):
        assert kept.startswith("first")
        assert kept.endswith("last")
        assert "bytes dropped" in kept


def test_even_how_is_bounded() -> None:
    assert len(Death("x" * 10**6).to_text()) <= MAX_RECORD_BYTES


SEGV, BROKEN = "killed by SIGSEGV (itself)", "killed by SIGKILL (the pool: broken channel)"


def test_lines_for_tables_and_logs() -> None:
    for case, death, short, line in [
        ("full", FULL, SEGV, f"{SEGV}, core dumped; peak memory 31 MiB, CPU 0.25 s"),
        ("the pool", Death("timeout", "the pool: timeout", cpu_seconds=2.0), "timeout", "timeout; CPU 2.00 s"),
        ("the pool, for another reason", Death("killed by SIGKILL", "the pool: broken channel"), BROKEN, BROKEN),
        ("of the reaper's", Death("lease expired"), "lease expired", "lease expired"),
        ("of an older version", Death("killed by X\nstack"), "killed by X", "killed by X"),
        ("nothing", Death(""), "no cause is known", "no cause is known"),
    ]:
        assert (death.short, death.headline) == (short, line), case


def test_all_of_it_for_people() -> None:
    assert FULL.details() == (
        "killed by SIGSEGV\n"
        "ended by      itself\n"
        "peak memory   31 MiB\n"
        "CPU time      0.25 s\n"
        "core          dumped\n"
        "stack\n"
        "  Current thread 0x1 (most recent call first):\n"
        '    File "app.py", line 7 in crash\n'
        "last output\n"
        "  reading page 7\n"
        "  reading page 8"
    )
    assert Death("lease expired").details() == "lease expired"


def test_no_cause_is_no_line() -> None:
    assert cause_headline(None) is None
    assert cause_headline("lease expired") == "lease expired"


def test_a_message_tells_how_its_last_killed_attempt_ended() -> None:
    backend = MemoryBackend()
    ident = backend.enqueue(JobDefinition("report"))
    [lease] = backend.fetch_many("default", limit=1)
    before = backend.inspect(ident)
    backend.settle_many([(lease, Nack(cause=Death("killed by SIGSEGV", "itself").to_text()))])
    after = backend.inspect(ident)
    assert before is not None
    assert after is not None
    assert (before.death, after.death) == (None, Death("killed by SIGSEGV", "itself"))


DUMP = """Fatal Python error: Segmentation fault

Thread 0x00007f3a (most recent call first):
  File "helper.py", line 1 in wait

Current thread 0x00007f3b (most recent call first):
  File "deep.py", line 4 in d
  File "deep.py", line 3 in c
  File "deep.py", line 2 in b
  File "deep.py", line 1 in a"""
IN_C = """

Current thread's C stack trace (most recent call first):
  Binary file "python", at _Py_DumpStack+0x4a [0x499c1d]"""  # from Python 3.14 on


def test_the_innermost_calls_are_those_of_the_thread_that_crashed() -> None:
    for case, stack, calls in [
        ("crash", DUMP, [f'File "deep.py", line {n} in {c}' for n, c in ((4, "d"), (3, "c"), (2, "b"))]),
        ("crash, with C code", DUMP + IN_C, innermost(DUMP)),
        ("no thread is named", '  File "a.py", line 1 in a', ['File "a.py", line 1 in a']),
        ("none", "", []),
    ]:
        assert innermost(stack) == calls, case
