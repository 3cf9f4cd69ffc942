"""Who ended a child, and what its record says, from what was collected of it."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from stage import Stage

from jobpool.ipc.frames import Exited
from jobpool.ipc.process_options import ASKS_STACK
from jobpool.master import events as ev
from jobpool.message.death import BROKEN, Death
from jobpool.message.outcome import Crashed, EndReason, LostLease, MemoryExceeded, Stopped, TimedOut
from jobpool.message.settlement import Abandon, Forfeit
from jobpool.policy.classify import by_alarm, death_of, outcome_of_death, sender_of

OOM = "the kernel: out of memory"


def exited(number: int | None = None, code: int | None = None, **usage: Any) -> Exited:
    return Exited(1, 1000, code, number, **usage)


def test_who_ended_it() -> None:
    for case, end, ending, killer, sender in [
        ("timeout", exited(signal.SIGKILL), EndReason.TIMEOUT, "", "the pool: timeout"),
        ("memory limit", exited(signal.SIGKILL), EndReason.MEMORY, "outside", "the pool: memory limit"),
        ("stop", exited(signal.SIGKILL), EndReason.STOP, "outside", "the pool: stop"),
        ("channel", exited(signal.SIGKILL), EndReason.PROTOCOL, "outside", "the pool: broken channel"),
        ("out of memory", exited(signal.SIGKILL), EndReason.NONE, OOM, OOM),
        ("kill -9", exited(signal.SIGKILL), EndReason.NONE, "outside", "outside"),
        ("no count to be read", exited(signal.SIGKILL), EndReason.NONE, "", "outside, or the kernel"),
        ("kill", exited(signal.SIGTERM), EndReason.NONE, "", "outside, or its own code"),
        ("a fault", exited(signal.SIGSEGV), EndReason.NONE, "", "itself"),
        ("a fault while it is to stop", exited(signal.SIGSEGV), EndReason.STOP, "", "itself"),
        ("abort", exited(signal.SIGABRT), EndReason.NONE, "", "itself"),
        ("CPU limit", exited(signal.SIGXCPU), EndReason.NONE, "", "the kernel: a resource limit"),
        ("exit", exited(code=3), EndReason.NONE, "", "itself"),
    ]:
        assert sender_of(end, ending, killer) == sender, case


def test_the_record_has_the_users_frames_the_usage_and_the_last_output() -> None:
    stack = (
        "Fatal Python error: Segmentation fault\n\n"
        '  File "/app/jobs.py", line 3 in crash\n'
        '  File "/lib/jobpool/handlers/invocation.py", line 70 in call\n'
    )
    usage: dict[str, Any] = {"core": True, "cpu_seconds": 0.1234567, "peak_rss": 5 * 2**20}
    death = death_of(exited(signal.SIGSEGV, **usage), EndReason.NONE, "", stack, "page 7\n\n")
    assert death == Death(
        "killed by SIGSEGV",
        "itself",
        'Fatal Python error: Segmentation fault\n\n  File "/app/jobs.py", line 3 in crash',
        5 * 2**20,
        0.123,
        "page 7",
        core=True,
    )


def test_what_it_means_for_the_attempt() -> None:
    def outcome(ending: EndReason) -> object:
        return outcome_of_death(ending, "too long", death_of(exited(signal.SIGKILL), ending, "outside", "stack"))

    timeout = Death("timeout", "the pool: timeout", "stack").to_text()
    memory = Death("memory limit", "the pool: memory limit", "stack").to_text()
    assert outcome(EndReason.TIMEOUT) == TimedOut("too long\nstack", timeout)
    assert outcome(EndReason.MEMORY) == MemoryExceeded("too long\nstack", memory)
    assert outcome(EndReason.NONE) == Crashed(Death("killed by SIGKILL", "outside", "stack").to_text())
    assert (outcome(EndReason.STOP), outcome(EndReason.LOST)) == (Stopped(), LostLease())


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_only_the_attempt_that_was_begun_has_printed_anything(begun: bool, stage: Stage) -> None:
    """Of one that was not, what is found was printed by the attempt before, perhaps of another customer's job."""
    lease = stage.a_lease("report")
    for _ in range(1 if begun else 3):
        stage.make_ready()
        stage.take_in(lease)
        [slot] = stage.busy
        started = slot.deliveries[0].nonce - (not begun)
        end = Exited(slot.child, slot.pid, None, signal.SIGKILL)
        stage.tell(ev.ChildDied(end, started, frozenset(), "", "secret of a customer", "outside"))
    last = stage.verdicts()[-1]
    assert isinstance(last, Forfeit)
    assert Death.from_text(last.cause) == Death(
        "killed by SIGKILL", "outside", output="secret of a customer" if begun else ""
    )


def test_an_idle_child_that_cannot_go_on_says_why_in_the_log_and_one_that_ends_otherwise_says_nothing() -> None:
    output = "secret of a customer\njobpool: this child cannot go on: OSError(9, 'Bad file descriptor')\n"
    for code, said in ((BROKEN, "jobpool: this child cannot go on: OSError(9, 'Bad file descriptor')"), (1, None)):
        stage = Stage(workers=1).boot()
        [slot] = stage.idle
        end = Exited(slot.child, slot.pid, code, None)
        stage.tell(ev.ChildDied(end, 0, frozenset(), "", output, ""))
        [note] = [note for note in stage.pool.notes if note.event == "a child died"]
        assert note.fields.get("said") == said


def test_an_exit_of_the_childs_own_code_points_to_its_output() -> None:
    for code, how in ((0, "exited with status 0"), (BROKEN, "exited with status 70: its own code failed, see")):
        death = death_of(Exited(1, 100, code, None), EndReason.NONE)
        assert death.how.startswith(how)


def test_the_alarms_own_stack_is_in_its_record() -> None:
    death = by_alarm("Job 'x' exceeded maximum execution time of 1 seconds.\n  File a, line 1\n", 7, "page 7\n")
    assert death == Death("timeout", "the pool: timeout", "  File a, line 1\n", 7, output="page 7")


def test_a_child_that_the_alarm_or_the_request_for_its_stack_kills_has_timed_out() -> None:
    """Its handler has given such a signal its default action back."""
    for number, seconds, earlier, outcome in (
        (signal.SIGALRM, 10.01, 0.0, "timeout"),
        (signal.SIGALRM, 9.99, 0.02, "timeout"),
        (signal.SIGALRM, 9.0, 0.02, "crash"),
        (ASKS_STACK, 11.01, 0.0, "timeout"),
        (signal.SIGSEGV, 11.01, 0.0, "crash"),
    ):
        stage = Stage(workers=1).boot()
        slot = stage.run("slow")
        stage.after(seconds)
        stage.die(slot, number=number, earlier=earlier)
        [verdict] = stage.verdicts()
        if outcome == "crash":
            assert isinstance(verdict, Forfeit), (number, seconds)
        else:
            assert isinstance(verdict, Abandon), (number, seconds)
            said = (verdict.reason, verdict.error)
            assert said == (outcome, "Job 'slow' exceeded maximum execution time of 10 seconds.")
