"""Calls of Linux that Python does not offer: parents and orphans, descriptors, the out-of-memory killer.

PR_SET_PDEATHSIG fires when the parent *thread* that forked ends, reaches no grandchild, and must be followed by a look
at getppid(). An orphan becomes a direct child of its nearest living ancestor that is a sub-reaper, whatever session or
group it has put itself into. So it can be found.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from jobpool.errors import ConfigurationError, is_debugging
from jobpool.ipc.packets import close_all
from jobpool.message.control_groups import group_files

_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
_STOPS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_REQUESTS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL}
_FAULTS = {getattr(signal, f"SIG{name}") for name in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP")}
PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}
ACCIDENTAL_SIGNALS = signal.valid_signals() - _HARMLESS - _STOPS - _REQUESTS - _FAULTS - PYTHON_IGNORES
"""Signals that end a process by default, and that nobody sends to a pool who means that: USR1, ALRM, real-time ones, …

A fault's or an abort's are not among them: the kernel, a debugger or systemd's watchdog do mean them.
"""

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_WAITID = ctypes.CDLL(None).waitid
_CHECKED_LIMITS = 0, 1, 2, 3, 6, 7, 9
"""Numbers of the resource limits that jobs fail at: CPU, FSIZE, DATA, STACK, NPROC, NOFILE, AS."""
_ANY_CHILD = os.WEXITED | os.WNOHANG | os.WNOWAIT
BELIEVED_S = 1.0  # after a rise of the count of kills by the kernel, for which a death by SIGKILL is put down to it
TRACKER_S = 0.5  # that a resource tracker gets to tidy up
_EXEC_LIMIT_S = 0.1  # in which a process gets the arguments of the program that it executes
_SWEEP_PAUSE_S = 0.0005  # between two looks at a process that was sent SIGKILL; most are dead within one


def check_kernel() -> None:
    """Raise `ConfigurationError` unless this is Linux 5.4 (pidfd) or newer, and /proc has the list of children."""
    if sys.platform != "linux":
        raise ConfigurationError(f"jobpool runs its workers on Linux only, and this is {sys.platform}: use a container")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        raise ConfigurationError(
            f"jobpool needs Linux 5.4 or newer (pidfd_open), and this is {platform.release()}: {error}"
        ) from error
    if not _children_file(os.getpid(), os.getpid()).exists():
        raise ConfigurationError(
            "/proc/self/task/*/children is missing: mount /proc, and use a kernel with CONFIG_PROC_CHILDREN"
        )


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in (errno.ENXIO, errno.EIO)  # a process without free descriptors has not lost it
    return True


@functools.cache
def ends_with_terminal() -> bool:
    """Return whether this process belonged to a terminal when this was first asked, and `nohup` had not started it."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()


def terminal_is_closed() -> bool:
    """Return whether the terminal that this process should end with has been closed."""
    return ends_with_terminal() and not _has_terminal()


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def signal_at_parents_death(number: int) -> None:
    """Have the kernel send this process `number` when the thread that forked it ends; 0 = no longer."""
    _prctl(_PR_SET_PDEATHSIG, number)


def die_with_parent(expected_ppid: int) -> None:
    """Be killed when the parent dies. A parent that is dead already is another one by now: then die at once."""
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != expected_ppid:
        os.kill(os.getpid(), signal.SIGKILL)


def hide_memory() -> None:
    """Keep this process's memory, environment and descriptors from other processes of its user.

    Processes with CAP_SYS_PTRACE still read them. There is no core dump. Forks are hidden too, executed programs not.
    JOBPOOL_DEBUG leaves all as it is.
    """
    if not is_debugging():
        _prctl(_PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Adopt the orphans among the descendants of this process. Not inherited by a fork."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def direct_children(of: int = 0) -> set[int]:
    """Return the children of a process, adopted and uncollected ones too; 0 = this one's.

    Raises `OSError` if /proc cannot be read.
    """
    pids: set[int] = set()
    main = of or os.getpid()  # its thread comes last: it inherits the children of a thread that ends meanwhile
    for task in sorted(os.listdir(f"/proc/{main}/task"), key=str(main).__eq__):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            pids.update(map(int, _children_file(main, task).read_text().split()))
    return pids


def _children_file(pid: int, task: int | str) -> Path:
    return Path(f"/proc/{pid}/task/{task}/children")


def has_children() -> bool:
    """Return whether there is any child, adopted or dead and not collected. One system call."""
    # Not os.waitid, which costs twice as much where there is none, as after nearly every job: it raises.
    return bool(_WAITID(os.P_ALL, 0, None, _ANY_CHILD) == 0)


def is_child(pid: int) -> bool:
    """Return whether it is a child of this process, dead or alive: until it is collected, its pid is nobody else's."""
    try:
        os.waitid(os.P_PID, pid, _ANY_CHILD)
    except ChildProcessError:
        return False
    return True


def is_dead(pid: int) -> bool:
    """Return whether it is a child of this process that is dead and not collected."""
    try:
        return os.waitid(os.P_PID, pid, _ANY_CHILD) is not None
    except ChildProcessError:
        return False


def sweep_strays(keep: Collection[int], limit_s: float, spare: Callable[[set[int]], set[int]] = lambda _: set()) -> int:
    """Kill and collect every child of this process that is not in `keep`, until no stranger remains.

    A killed stranger's own children are adopted before its death can be collected. So when a look finds no stranger,
    there is none in the whole tree below, but for the children of those in `keep`.
    A child that does not die within `limit_s` seconds, >= 0 (state D), is left: sweep again later. `spare`: told
    of the strangers at each look, returns those that are left, too.
    Returns how many were collected.
    """
    give_up = time.monotonic() + limit_s
    collected = 0
    while (strays := direct_children().difference(keep)) and (strays := strays - spare(strays)):
        for pid in strays:
            kill(pid)
        dead = sum(map(collect, strays))
        collected += dead
        if time.monotonic() >= give_up:
            break
        if not dead:
            time.sleep(_SWEEP_PAUSE_S)
    return collected


def sweep_all(limit_s: float) -> None:
    """Sweep every child; resource trackers get `TRACKER_S` to end by themselves. This process must not hold a pipe."""
    give_up = time.monotonic() + TRACKER_S
    while has_children() and time.monotonic() < give_up:
        sweep_strays((), limit_s, resource_trackers)
        time.sleep(_SWEEP_PAUSE_S)
    sweep_strays((), limit_s)


def resource_trackers(pids: Iterable[int]) -> set[int]:
    """Return those processes that call themselves Python's or joblib's resource tracker.

    It unlinks the shared memory that its users have left, and ends, as soon as they are dead: its pipe closes then.
    """
    give_up = time.monotonic() + _EXEC_LIMIT_S
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            while not (told := Path(f"/proc/{pid}/cmdline").read_bytes()) and time.monotonic() < give_up:
                if os.waitid(os.P_PID, pid, _ANY_CHILD):
                    break
                time.sleep(_SWEEP_PAUSE_S)  # it executes its program right now
            if b"resource_tracker" in told:
                found.add(pid)
    return found


def kill(pid: int) -> None:
    """Kill a child that nobody else collects, so that its pid cannot be another's. One that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pgid: int) -> None:
    """Kill a process group whose leader was not collected yet. An empty one is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGKILL)


def collect(pid: int) -> bool:
    """Collect a child; return whether it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # other code collected it, or this process ignores SIGCHLD
        return True


def limits() -> list[tuple[int, int]]:
    """Return every resource limit of this process as (soft, hard), by its number; -1 = unlimited.

    Read without the module `resource`: `child.restore` asks if this process has imported it.
    """
    words = (line[26:].split()[:2] for line in limits_text().splitlines()[1:])
    return [tuple(-1 if word == b"unlimited" else int(word) for word in pair) for pair in words]  # type: ignore[misc]


def limits_text() -> bytes:
    """Return the same in the kernel's words, to be compared: that is quicker."""
    return _told_of_self("limits")


def own_memory() -> int:
    """Return bytes of this process's memory that a fork has from its birth: neither of files nor shared."""
    _, resident, shared, *_ = _told_of_self("statm").split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def resident_memory() -> int:
    """Return bytes of this process's memory that are in RAM."""
    return int(_told_of_self("statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_wanted(thread: int | None) -> float:
    """Return the seconds for which a thread of this process has had a CPU or waited for one; 0 if it has ended."""
    try:
        return sum(map(int, _told_of_self(f"task/{thread}/schedstat").split()[:2])) / 1e9
    except OSError:
        return 0.0


def _told_of_self(name: str) -> bytes:
    fd = os.open(f"/proc/self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 16384)
    finally:
        os.close(fd)


def restore_limits(before: list[tuple[int, int]]) -> bool:
    """Put back each resource limit that is lower than it was; False = that cannot be done.

    Looks only at those limits that jobs fail at, which costs two microseconds. Notes a raised limit in `before`.
    """
    import resource

    for number in _CHECKED_LIMITS:
        now = resource.getrlimit(number)
        if now != before[number]:
            if all(new == -1 or new >= old != -1 for new, old in zip(now, before[number], strict=True)):
                before[number] = now
                continue
            try:
                resource.setrlimit(number, before[number])
            except (ValueError, OSError):
                return False
    return True


_RIGHTS = re.compile(rb"^(?:Uid|Gid|Groups|Cap\w+|NoNewPrivs|Seccomp):.*", re.MULTILINE)


def rights() -> tuple[int, list[bytes]]:
    """Return niceness, user, groups, capabilities and filters of system calls of this process, to be compared."""
    return os.getpriority(os.PRIO_PROCESS, 0), _RIGHTS.findall(_told_of_self("status"))


Scheduling = tuple[set[int], int, int]


def scheduling(pid: int = 0) -> Scheduling | None:
    """Return the processors that a process may use, its policy, and its priority there; None: it cannot be known.

    musl refuses the question.
    """
    try:
        return os.sched_getaffinity(pid), os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority
    except OSError:
        return None


def restore_scheduling(before: Scheduling) -> bool:
    """Set what `scheduling` has returned; return whether that was allowed."""
    processors, policy, priority = before
    try:
        os.sched_setaffinity(0, processors)
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        return False
    return True


def allow_open_files(count: int) -> int:
    """Raise the soft limit of open files to `count`, as far as the hard limit lets it; return the limit then."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    reached = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    return reached


def share_open_files(pid: int) -> None:
    """Give a process this one's limit of open files, if that is allowed and the process lives."""
    import resource

    with contextlib.suppress(PermissionError, ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))


def open_fds() -> set[int]:
    fds: set[int] = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the list names its own descriptor, which is closed again
            fcntl.fcntl(fd, fcntl.F_GETFD)
            fds.add(fd)
    return fds


def close_all_but(keep: Collection[int]) -> None:
    close_all(open_fds().difference(keep))


def blind(fds: Iterable[int]) -> None:
    """Cut each descriptor off from its file, but keep its number taken.

    For descriptors whose owners in this process still believe in them: a read or write gives EBADF, as if closed. A
    late `close` by the owner hits no innocent file that got the same number.
    """
    nothing = os.open("/dev/null", os.O_PATH | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


def prefer_as_victim(points: int) -> None:
    """Raise `oom_score_adj` by `points`, to 1000 at most, if allowed: this process dies before its betters do."""
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(1000, int(path.read_text()) + points)))


class OomKills:
    """The count of this process's own control group, in which its children are too. `file`: see `find_oom_kills`.

    A process that dies of SIGKILL cannot say who sent it. The count of its group, read before and after, can. All that
    runs in the container or service shares a group. So a rise is believed for a second only, and once for each kill.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._last = oom_kills_in(file)
        self._spare = 0
        self._seen_at = 0.0

    def look(self, now: float) -> None:
        """Take in a rise. Called now and then, so that an old one is not put down to a later death."""
        last, self._last = self._last, oom_kills_in(self._file)
        if last is not None and self._last is not None and self._last > last:
            self._spare = self._last - last
            self._seen_at = now

    def killed_one(self, now: float) -> bool | None:
        """Return whether the SIGKILL of a death just collected was the kernel's; None = the count cannot be read."""
        self.look(now)
        if self._last is None:
            return None
        if self._spare <= 0 or now - self._seen_at > BELIEVED_S:
            return False
        self._spare -= 1
        return True


def oom_kills_in(file: Path | None) -> int | None:
    """Return the count in `memory.events` (cgroup v2) or `memory.oom_control` (v1); None before Linux 4.13."""
    try:
        found = re.search(r"^oom_kill +([0-9]+)$", file.read_text(), re.MULTILINE) if file else None
    except OSError:
        return None
    return int(found[1]) if found else None


def find_oom_kills(root: Path = Path("/")) -> Path | None:
    """Return the file with the count of this process's group; None if there is none, as in the root of all groups."""
    files = group_files("memory", "events", "oom_control", root)
    return next((file for file in files if oom_kills_in(file) is not None), None)
