"""The rules of KEY: what may not begin, be skipped or be enqueued beside another job with the same key."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from stories import asked, fetched, item, run, settled, unknown

from jobpool_torture.judge import broken_keys
from jobpool_torture.ledger import Line
from jobpool_torture.workload import Item

KEYED = {ident: item("keyed", idempotency_key="k") for ident in "ab"} | {"c": item("keyed", idempotency_key="other")}
SINGLE = {ident: item("single", name="n", single_instance=True) for ident in "ab"} | {
    "c": item("single", name="other", single_instance=True)
}

START, END = run("start"), run("end")


def of(ident: str, *lines: Line | list[Line], begun: float, fence: int = 1) -> list[Line]:
    """These lines of one delivery of that job, a second apart from `begun` on."""
    told = [one for line in lines for one in (line if isinstance(line, list) else [line])]
    return [replace(line, id=ident, fence=fence, at=begun + place) for place, line in enumerate(told)]


def done(ident: str, begun: float) -> list[Line]:
    """Begun at that moment, ended and acked: asked 2 s after it, answered 3 s after it."""
    return of(ident, START, END, settled(1, "ack"), begun=begun)


def skipped(ident: str, begun: float, answer: str = "ok", fence: int = 1) -> list[Line]:
    """Fetched at that moment, and acked a second later without a run."""
    return of(ident, fetched(1), settled(1, "ack", answer), begun=begun, fence=fence)


def unsure(ident: str, begun: float) -> list[Line]:
    return of(ident, START, END, unknown(1, "ack"), begun=begun)


KILLED = of("a", START, settled(1, "forfeit"), begun=10)
REFUSED = of("a", START, END, settled(1, "ack", "expired"), begun=10)
LATE_ACK = settled(1, "ack", "not-owner")


def test_a_job_is_skipped_only_when_somebody_had_done_its_key() -> None:
    for case, lines, caught in [
        ("its key was done", [*done("a", 10), *skipped("b", 20)], set()),
        ("by an ack that was not answered", [*unsure("a", 10), *skipped("b", 20)], set()),
        ("by one killed in its ack", [*of("a", START, END, asked(1, "ack"), begun=10), *skipped("b", 20)], set()),
        ("by nobody", skipped("b", 20), {"b"}),
        ("by nobody, and the ack was repeated", skipped("b", 20, "already"), {"b"}),
        ("the ack was refused", skipped("b", 20, "expired"), set()),
        ("later", [*skipped("b", 20), *done("a", 30)], {"b"}),
        ("killed, and the key was marked before the effect", [*KILLED, *skipped("a", 20, fence=2)], {"a"}),
        ("by another that was killed", [*KILLED, *skipped("b", 20)], {"b"}),
        ("by another whose ack was refused", [*REFUSED, *skipped("b", 20)], {"b"}),
        ("another key", [*done("c", 10), *skipped("b", 20)], {"b"}),
        ("by one that was itself skipped", [*skipped("a", 10), *skipped("b", 20)], {"a", "b"}),
    ]:
        assert set(broken_keys(lines, KEYED)) == caught, case


def test_after_an_accepted_ack_no_other_job_of_the_key_begins() -> None:
    for case, lines, caught in [
        ("after the ack", [*done("a", 10), *done("b", 20)], {"b"}),
        ("between its call and its answer", [*done("a", 10), *done("b", 12.5)], set()),
        ("after the ack, and failed", [*done("a", 10), *of("b", START, settled(1, "nack"), begun=20)], {"b"}),
        ("the ack was not answered", [*unsure("a", 10), *done("b", 20)], set()),
        ("stopped before it wrote that it began", [*done("a", 10), *of("b", START, LATE_ACK, begun=20)], set()),
        ("the same, and its pool knew", [*done("a", 10), *of("b", START, begun=20)], set()),
        ("the same job: a RERUN", [*done("a", 10), *of("a", START, settled(2, "release"), begun=20, fence=2)], set()),
        ("another key", [*done("a", 10), *done("c", 20)], set()),
        ("the ack was a skip, which is what is wrong", [*skipped("a", 10), *done("b", 20)], {"a"}),
    ]:
        assert set(broken_keys(lines, KEYED)) == caught, case


@pytest.mark.parametrize("items", [KEYED, SINGLE], ids=["a key", "one at a time"])
def test_two_that_held_the_same_did_not_run_at_once(items: dict[str, Item]) -> None:
    first = of("a", START, settled(1, "nack"), begun=10)
    for case, lines, caught in [
        ("both settled", [*first, *of("b", START, settled(1, "nack"), begun=10.5)], {"b"}),
        ("both settled, and one had crashed", [*KILLED, *of("b", START, settled(1, "nack"), begun=10.5)], {"b"}),
        ("while the first was being settled", [*first, *of("b", START, settled(1, "nack"), begun=11.5)], set()),
        ("it had lost its lease", [*of("a", START, settled(1, "nack", "expired"), begun=10), *done("b", 10.5)], set()),
        ("it may have lost its lease", [*of("a", START, unknown(1, "nack"), begun=10), *done("b", 10.5)], set()),
        ("the first was cut short", [*of("a", START, begun=10), *done("b", 10.5)], set()),
        ("another name", [*first, *of("c", START, settled(1, "nack"), begun=10.5)], set()),
        ("the second did not run", [*first, *of("b", settled(1, "release"), begun=10.5)], set()),
    ]:
        assert set(broken_keys(lines, items)) == caught, case


def test_a_long_run_is_compared_with_all_that_begin_in_it() -> None:
    long = [*of("a", START, begun=10), *of("a", settled(1, "nack"), begun=30)]
    items = SINGLE | {"d": SINGLE["a"]}
    short = [line for place, ident in enumerate("bd") for line in done(ident, 12 + 5 * place)]
    assert set(broken_keys([*short, *long], items)) == {"b", "d"}


def test_single_instances_may_follow_each_other() -> None:
    assert not broken_keys([*done("a", 10), *done("b", 20)], SINGLE)
    assert not broken_keys(skipped("a", 10), {"a": item("single", name="n")}), "no key: LOST, and no matter of keys"


def test_a_unique_key_has_one_message() -> None:
    items = {ident: item("unique", idempotency_key="k") for ident in "ab"}
    first, again = Line("enq", "a", tag="a"), Line("enq", "a", tag="b")
    assert not broken_keys([first, again], items)
    assert set(broken_keys([first, Line("enq", "b", tag="b")], items)) == {"b"}


def test_each_has_its_reason() -> None:
    assert broken_keys([*done("a", 10), *done("b", 20)], KEYED) == {
        "b": "delivery 1 began after a, with its key, was acked"
    }
    assert broken_keys(skipped("b", 20), KEYED) == {
        "b": "delivery 1 was acked without a run, and nobody had done its key"
    }
