"""A child runs jobs and tells how they ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from childrig import ChildProcess, Server
from support.descriptors import no_more_descriptors
from support.waiting import wait_until

from jobpool.child.channel import PACKED_AT_ONCE, ChannelProducer
from jobpool.errors import BackendUnavailable
from jobpool.ipc import packets
from jobpool.ipc.board_layout import ChildState
from jobpool.ipc.frames import Ask, BootFailed, Reply, decode
from jobpool.master.settle_thread import produce
from jobpool.message.definition import JobDefinition, SentJobs
from jobpool.message.outcome import ResultKind
from jobpool_backends.memory import MemoryBackend

Start = Callable[..., ChildProcess]


def test_a_job_succeeds_and_the_page_says_so(child: ChildProcess) -> None:
    result = child.succeed("noop")

    assert (result.output, result.error, result.leaving) == ("", "", "")
    assert 0 <= result.duration < 5
    wait_until(lambda: child.page.done == 1)
    assert child.page.state is ChildState.IDLE
    assert (child.page.nonce, child.page.pid) == (1, child.pid)
    assert (child.page.handler, child.page.ident) == ("noop", "0123456789abcdef")


def test_the_context_tells_what_the_frame_said(start_child: Start) -> None:
    told = json.loads(start_child().succeed("tell", attempts=4).output)
    assert told == {"attempt": 5, "fence": 3, "crashes": 1, "queue": "default", "id": "0123456789abcdef"}


def test_text_of_a_class_of_its_own_is_returned_as_text(child: ChildProcess) -> None:
    assert child.succeed("render").output == "<p>"


@pytest.mark.parametrize(
    ("handler", "payload", "kind", "text"),
    [
        pytest.param("fail", {}, ResultKind.FAILED, "ValueError: no such customer", id="exception"),
        pytest.param("leave", {"code": 3}, ResultKind.FAILED, "SystemExit: 3", id="sys.exit(3)"),
        pytest.param("fail_untellably", {}, ResultKind.FAILED, "Mute", id="an error without words"),
        pytest.param(
            "sum_up", {"month": "x"}, ResultKind.UNRECOVERABLE, "field 'customer' is missing", id="short payload"
        ),
    ],
)
def test_a_failure_is_told(child: ChildProcess, handler: str, payload: object, kind: ResultKind, text: str) -> None:
    result = child.run(handler, payload)

    assert result.kind is kind
    assert text in result.error
    assert "jobpool/child" not in result.error
    child.succeed("noop")
    wait_until(lambda: (child.page.done, child.page.failed) == (1, 1))


def test_a_body_that_is_no_wire_object_is_answered(child: ChildProcess) -> None:
    child.send_body(b"[]")
    assert child.result().kind is ResultKind.UNRECOVERABLE
    child.succeed("noop")


def test_threads_of_an_async_handler_do_not_wear_the_child(child: ChildProcess) -> None:
    assert child.succeed("use_a_thread").leaving == ""
    assert child.succeed("use_a_thread").output == "42"


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        pytest.param(Reply(["a", "b"]), ResultKind.SUCCEEDED, '["a","b"]', id="ids"),
        pytest.param(Reply([], "BackendUnavailable", "broker gone"), ResultKind.FAILED, "broker gone", id="outage"),
        pytest.param(Reply([], "InvalidJob", "too deep"), ResultKind.FAILED, "InvalidJob: too deep", id="refused"),
        pytest.param(Reply([], "print", "odd"), ResultKind.FAILED, "BackendUnavailable: odd", id="unknown kind"),
    ],
)
def test_the_default_producer_asks_the_master(child: ChildProcess, reply: Reply, kind: ResultKind, text: str) -> None:
    child.send("enqueue_at_once")
    asked = child.hear()
    assert isinstance(asked, Ask)
    assert [job.handler for job in SentJobs(asked.definitions, ())] == ["noop", "tell"]
    child.reply(reply)
    result = child.result()
    assert result.kind is kind
    assert text in result.output + result.error


def test_the_title_tells_the_slot_the_state_and_the_job(start_child: Start) -> None:
    child = start_child(title="pool")
    assert child.title == "pool: slot 0 idle"
    child.send("hang_sleep", timeout=0.0)
    wait_until(lambda: child.title == "pool: slot 0 busy hang_sleep 0123456789abcdef")


def test_in_a_series_of_quick_jobs_the_title_names_the_handler_alone(start_child: Start) -> None:
    """The job before is quick, and right before the next one, unless the machine is very busy."""

    def shown() -> str:
        child = start_child()
        child.send("noop")
        child.send("noop")
        child.send("hang_sleep", timeout=0.0)
        wait_until(lambda: "busy hang_sleep" in child.title)
        return child.title.partition(": slot ")[2].partition(" ")[2]

    assert "busy hang_sleep" in (shown() for _ in range(20))


def test_the_title_says_idle_again(child: ChildProcess) -> None:
    child.succeed("noop")
    wait_until(lambda: child.title.endswith("idle"))
    child.succeed("noop")


def test_the_page_names_the_nonce_while_the_job_runs(child: ChildProcess) -> None:
    nonce = child.send("hang_sleep", timeout=30.0, attempts=2)
    wait_until(lambda: child.page.handler == "hang_sleep")
    page = child.page
    assert (page.nonce, page.state, page.attempt) == (nonce, ChildState.BUSY, 3)
    assert page.deadline == pytest.approx(page.started + 30.0)


def test_a_frame_that_was_not_read_can_be_taken_back(child: ChildProcess) -> None:
    child.send("hang_sleep", timeout=3.0)  # so long that what waits behind it is taken back first
    child.send("noop")
    wait_until(lambda: child.page.nonce == 1)
    child.work_reading.recv(100_000)
    assert child.result().kind is ResultKind.TIMEOUT
    assert child.hear() is None
    assert child.page.nonce == 1


def test_the_child_leaves_when_its_work_ends(child: ChildProcess) -> None:
    child.succeed("noop")
    child.end_work()
    assert child.exit_status() == 0


def test_a_child_that_cannot_import_the_app_says_why(tmp_path: Path) -> None:
    app = tmp_path / "vanishing.py"
    app.write_text("import jobpool\n\n@jobpool.handler\ndef noop(ctx): ...\n")
    with Server(apps=["vanishing"], sys_path=[str(tmp_path)], preload=False) as server:
        app.unlink()
        child = server.start_child()
        frame = child.hear()
        assert isinstance(frame, BootFailed)
        assert "there is no module 'vanishing'" in frame.error
        assert child.exit_status() == 69


def test_the_answer_to_a_question_that_could_not_be_sent_is_not_waited_for() -> None:
    channel, master = packets.pair()
    with closing(channel), closing(master):
        producer = ChannelProducer(channel)
        with no_more_descriptors(), pytest.raises(BackendUnavailable, match="Too many open files"):
            producer.enqueue(JobDefinition("any", "x" * packets.INLINE_BYTES))
        packets.send(master, Reply(["a1"]).encode())
        channel.settimeout(5)
        assert producer.enqueue(JobDefinition("any", {})) == "a1"


def test_many_jobs_are_signed_in_pieces_so_that_the_masters_loop_is_never_held_for_long() -> None:
    channel, master = packets.pair()
    sizes: list[int] = []

    def answer() -> None:
        reader = packets.Reader(master)
        while packet := reader.read():
            ask = decode(packet)
            assert isinstance(ask, Ask)
            jobs = SentJobs(ask.definitions, ())
            sizes.append(len(list(jobs)))
            packets.send(master, produce(MemoryBackend(), 1, ask, jobs).reply.encode())

    thread = threading.Thread(target=answer)
    thread.start()
    with closing(master), closing(channel):
        packed = ChannelProducer(channel).pack(JobDefinition("any", {}, identifier=f"n{n}") for n in range(601))
        channel.close()
        thread.join()
    assert [message.id for message in packed] == [f"n{n}" for n in range(601)]
    assert sizes == [PACKED_AT_ONCE, PACKED_AT_ONCE, 101]
