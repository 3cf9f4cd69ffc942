"""Classification of an attempt: its outcome, from a child's answer or death, and its count once settled. Pure."""

from __future__ import annotations

import signal
from collections.abc import Callable

from jobpool.errors import JobpoolError
from jobpool.message import outcome as ended
from jobpool.message.death import BROKEN, Death, Exit
from jobpool.message.definition import JobDefinition, SentJobs
from jobpool.message.outcome import EndReason, Failed, Outcome, Rejected, ResultKind, Status, Succeeded, TimedOut
from jobpool.message.results import Kept
from jobpool.message.settlement import Abandon, Ack, Forfeit, Leave, Move, Nack, Release, Settled, Settlement
from jobpool.policy import decide


def outcome_of(
    kind: ResultKind,
    *,
    handler: str,
    error: str,
    after: float,
    follow_ups: tuple[JobDefinition, ...] | SentJobs,
    seen_for: float,
    output: str = "",
    peak: int = 0,
    result: Kept | None = None,
) -> Outcome:
    """Return the outcome of an attempt that a child or `QueueWorker` has answered.

    `seen_for`: see `UnknownHandler`. `output` and `peak` (bytes) are for the record of a failure or timeout.
    """
    match kind:
        case ResultKind.SUCCEEDED:
            return Succeeded(follow_ups, result)
        case ResultKind.FAILED | ResultKind.UNRECOVERABLE:
            return Failed(error, permanent=kind is ResultKind.UNRECOVERABLE, cause=printed(output))
        case ResultKind.RETRY:
            return ended.RetryAsked(after, error, printed(output))
        case ResultKind.SNOOZE:
            return ended.Snoozed(after)
        case ResultKind.TIMEOUT:
            return TimedOut(error, by_alarm(error, peak, output).to_text())
        case ResultKind.CANCELLED:
            return ended.Cancelled(error, printed(output))
        case ResultKind.UNKNOWN_HANDLER:
            return ended.UnknownHandler(handler, seen_for)
        case ResultKind.NOT_ALLOWED:
            return ended.HandlerNotAllowed(handler)


def cancelled(outcome: Outcome) -> Outcome:
    """Return the outcome of a delivery that a person has cancelled: a success or a rejection that came first stays."""
    if isinstance(outcome, Succeeded | ended.AlreadyDone | Rejected | ended.LostLease | ended.Cancelled):
        return outcome
    told = getattr(outcome, "error", "")
    return ended.Cancelled(told or ended.Cancelled().error, getattr(outcome, "cause", None))


def checked(outcome: Outcome, check: Callable[[JobDefinition], object]) -> Outcome:
    """Return the outcome; a failure when a follow-up is refused, whose ack could then never be settled.

    `check` is `QueueBackend.pack`.
    """
    if not isinstance(outcome, Succeeded | ended.AlreadyDone):
        return outcome
    try:
        for definition in outcome.follow_ups:
            check(definition)
    except JobpoolError as error:
        return Failed(f"a follow-up job is refused: {error}", permanent=True)
    return outcome


def outcome_of_death(ending: EndReason, ending_text: str, death: Death) -> Outcome:
    """Return the outcome of the running attempt of a child that died before it answered."""
    text = f"{ending_text.strip()}\n{death.stack.strip()}".strip()
    match ending:
        case EndReason.TIMEOUT:
            return TimedOut(text, death.to_text())
        case EndReason.MEMORY:
            return ended.MemoryExceeded(text, death.to_text())
        case EndReason.CANCEL:
            return ended.Cancelled(text, death.to_text())
        case EndReason.STOP | EndReason.RETIRE:
            return ended.Stopped()
        case EndReason.LOST:
            return ended.LostLease()
        case _:
            return ended.Crashed(death.to_text())


def death_of(exited: Exit, ending: EndReason, killer: str = "", stack: str = "", output: str = "") -> Death:
    """Make the record of a child's death. `killer`: the sender of SIGKILL, if known and not the master."""
    if exited.signal is not None:
        how = f"killed by {signal_name(exited.signal)}"
    else:
        why = ": its own code failed, see its last output" if exited.code == BROKEN else ""
        how = f"exited with status {exited.code}{why}"
    return Death(
        _OWN_WORDS.get(ending) or how,
        sent_by=sender_of(exited, ending, killer),
        stack=users_stack(stack),
        peak_memory=exited.peak_rss,
        cpu_seconds=round(exited.cpu_seconds, 3),
        output=output.strip(),
        core=exited.core,
    )


def by_alarm(error: str, peak: int = 0, output: str = "") -> Death:
    """Make the record of an attempt that its alarm ended: the child lives, and has told the stack itself."""
    return Death(
        "timeout", f"the pool: {EndReason.TIMEOUT.value}", error.partition("\n")[2], peak, output=output.strip()
    )


def printed(output: str) -> str | None:
    """Make the record of an attempt that failed by itself, from its output; None if there is none."""
    return Death("", output=output.strip()).to_text() if output.strip() else None


def sender_of(exited: Exit, ending: EndReason, killer: str) -> str:
    """Name who ended it. A process's own signals cannot be told from those of others, but for faults."""
    number = exited.signal
    if ending in _OWN_WORDS or (number == signal.SIGKILL and ending is not EndReason.NONE):
        return f"the pool: {_OWN_WORDS.get(ending, ending.value)}"
    if number is None or number in _FAULTS:
        return "itself"
    if number in _LIMITS:
        return "the kernel: a resource limit"
    return killer or "outside, or the kernel" if number == signal.SIGKILL else "outside, or its own code"


_OWN_WORDS = {EndReason.TIMEOUT: "timeout", EndReason.MEMORY: "memory limit", EndReason.CANCEL: "cancelled"}
_FAULTS = {getattr(signal, f"SIG{name}") for name in ("SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS")}
_LIMITS = {signal.SIGXCPU, signal.SIGXFSZ}


def signal_name(number: int) -> str:
    """Return SIGSEGV for 11; the number for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_OURS = ("/jobpool/ipc/", "/jobpool/child/", "/jobpool/handlers/", "<frozen runpy>")
_HOOKS = "/jobpool/handlers/hooks.py"  # shown: its functions say which kind of hook it was


def users_stack(stack: str) -> str:
    """Return a fault handler's dump without the frames that lead from the interpreter's start to the handler."""
    lines = stack.strip().splitlines()
    return "\n".join(line for line in lines if _HOOKS in line or not any(ours in line for ours in _OURS))


_STATUS: dict[type[Settlement | Leave], Status] = {
    Ack: Status.ACKED,
    Nack: Status.REQUEUED,
    Abandon: Status.DEAD_LETTERED,
    Release: Status.RELEASED,
    Forfeit: Status.CRASHED,
    Move: Status.MOVED,
    Leave: Status.LOST,
}


def status_of(settlement: Settlement | Leave, outcome: Outcome, settled: Settled = Settled.OK) -> Status:
    """Return the value of `WorkerResult.status`. `settled`: the backend's answer; a refusal is always `lost`."""
    if not settled:
        return Status.LOST
    match settlement, outcome:
        case Ack(), ended.AlreadyDone():
            return Status.SKIPPED_IDEMPOTENT
        case Abandon(), Rejected():
            return Status.REJECTED
        case Abandon(), ended.Cancelled():
            return Status.CANCELLED
        case Leave(), ended.Crashed() | ended.NeverStarted() if settlement is not decide.LEASE_LOST:
            return Status.CRASHED
        case _:
            return _STATUS[type(settlement)]


SUCCEEDED: tuple[str, ...] = ("succeeded",)
LEASE_LOST: tuple[str, ...] = ("lease_lost",)
REAPED: tuple[str, ...] = ("reaped",)
REAPED_DEAD: tuple[str, ...] = ("reaped", "failed_permanently")


def counters_of(settlement: Settlement | Leave, outcome: Outcome, settled: Settled = Settled.OK) -> tuple[str, ...]:
    """Return the counters of the delivery, of `OUTCOMES`, once the backend has answered `settled`."""
    if type(outcome) is Succeeded and type(settlement) is Ack and settled:
        return SUCCEEDED  # nearly all messages, once each
    timed_out = ("timed_out",) if isinstance(outcome, TimedOut) else ()
    failed = ("failed",) if counts_as_attempt(outcome) else ()  # not a failed attempt if the handler never ran
    match status_of(settlement, outcome, settled):
        case Status.REQUEUED:
            return ("failed", "requeued", *timed_out)
        case Status.DEAD_LETTERED:
            return (*failed, "failed_permanently", *timed_out)
        case Status.MOVED:
            return (*(failed or ("crashed",)), "moved")
        case Status.REJECTED:
            signature = isinstance(outcome, Rejected) and outcome.signature
            return ("rejected_signature" if signature else "rejected_payload",)
        case Status.LOST:
            return LEASE_LOST
        case Status.ACKED:
            return ()
        case other:
            return (other.value.replace("-", "_"),)


def counts_as_attempt(outcome: Outcome) -> bool:
    """Return whether the handler ran and is responsible for the failure."""
    return isinstance(outcome, Failed | ended.RetryAsked | TimedOut | ended.MemoryExceeded)
