"""The order of jobs that depend on one another, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import row

from jobpool.cron.scheduler import execution_order, job_name
from jobpool.errors import ConfigurationError
from jobpool.message.definition import JobDefinition


def jobs(text: str) -> list[JobDefinition]:
    """`c:ab` is a job `c` that depends on `a` and `b`; in the order of declaration."""
    return [
        JobDefinition("run", name=name, depends_on=tuple(before))
        for name, _, before in (word.partition(":") for word in text.split())
    ]


def order(text: str) -> str:
    return "".join(job_name(job) for job in ordered(jobs(text)))


def ordered(jobs: list[JobDefinition]) -> list[JobDefinition]:
    return [jobs[number] for number in execution_order(jobs, [f"{job_name(job)}.py" for job in jobs])]


def test_each_comes_after_what_it_depends_on() -> None:
    for case, declared, expected in [
        ("none", "", ""),
        ("all free", "a b c", "abc"),
        ("backwards", "c:b b:a a", "abc"),
        ("b does not wait", "a:c b c", "bca"),
        ("as declared where free", "z y:x x w:z", "zxyw"),
        ("a diamond: who becomes free goes first if declared first", "d:bc b:a c:a a e", "abcde"),
        ("twice the same", "b:aa a", "ab"),
    ]:
        assert order(declared) == expected, case


def test_a_job_without_a_name_is_called_like_its_handler() -> None:
    after = JobDefinition("report", depends_on=("import",))
    before = JobDefinition("import")

    assert ordered([after, before]) == [before, after]


def test_a_dependency_that_is_missing() -> None:
    with pytest.raises(ConfigurationError) as refused:
        order("a b:ax")
    assert str(refused.value) == "Dependency 'x' for job 'b' does not exist."
    assert refused.value.__notes__ == ["'b', which depends on it, is declared in b.py"]


def test_a_circle_is_named_in_the_notes() -> None:
    for case, declared, circle in [
        ("itself", "a:a", "'a' (a.py) → 'a'"),
        ("two", "a:b b:a", "'a' (a.py) → 'b' (b.py) → 'a'"),
        ("three, with others before them", "x a:x d:c b:ad c:b", "'d' (d.py) → 'c' (c.py) → 'b' (b.py) → 'd'"),
        ("who waits for a circle is not in it", "w:a a:b b:a", "'a' (a.py) → 'b' (b.py) → 'a'"),
    ]:
        with row(case), pytest.raises(ConfigurationError) as refused:
            order(declared)
        assert str(refused.value) == "Circular dependency detected in jobs.", case
        assert refused.value.__notes__ == [f"Each waits for the next: {circle}"], case


def test_two_of_one_name_are_both_described() -> None:
    twice = [JobDefinition("report", cron_expression="@daily"), JobDefinition("other", name="report")]

    with pytest.raises(ConfigurationError) as refused:
        execution_order(twice, ["shop.py:10", "mails.py:7"])
    assert str(refused.value) == (
        "two scheduled jobs are named 'report': handler 'report', '0 0 * * *' in shop.py:10 and handler 'other',"
        " '* * * * *' in mails.py:7; give one of them another name with .named(…)"
    )


@given(st.lists(st.sets(st.integers(0, 11)), min_size=12, max_size=12), st.permutations(range(12)))
def test_any_order_of_jobs_without_a_circle(waits: list[set[int]], shuffled: list[int]) -> None:
    """Each may wait for lower numbers only, so there is no circle, however they are declared."""
    declared = [
        JobDefinition("run", name=str(number), depends_on=tuple(str(low) for low in waits[number] if low < number))
        for number in shuffled
    ]

    found = ordered(declared)

    assert sorted(map(job_name, found)) == sorted(map(job_name, declared))
    placed: list[JobDefinition] = []
    for job in found:
        free = [each for each in declared if each not in placed and _is_free(each, placed)]
        assert job == free[0]
        placed.append(job)


def _is_free(job: JobDefinition, placed: list[JobDefinition]) -> bool:
    return set(job.depends_on) <= {job_name(each) for each in placed}
