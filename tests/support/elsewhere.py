"""Runs a Python program as on another system: without the modules and names that Python lacks there.

    python -m support.elsewhere macos|windows PROGRAM ARGUMENTS

They are those whose "Availability" in Python's documentation leaves the system out. Other libraries are imported first:
they know how to do without.
"""

from __future__ import annotations

import ctypes
import runpy
import selectors
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

LIBRARIES = """
asyncio click concurrent.futures croniter email greenstalk hiredis http.server logging.handlers multiprocessing orjson
psutil psycopg redis setproctitle shutil sqlite3 ssl subprocess tempfile urllib3 uuid zoneinfo
"""
WITHOUT_MODULES = {"macos": "", "windows": "curses fcntl grp posix pty pwd readline resource syslog termios tty"}
LINUX_ALONE = {
    "fcntl": "F_ADD_SEALS F_GETPIPE_SZ F_GET_SEALS F_OFD_SETLK F_SEAL_GROW F_SEAL_SEAL F_SEAL_SHRINK F_SEAL_WRITE"
    " F_SETPIPE_SZ",
    "os": "MFD_ALLOW_SEALING MFD_CLOEXEC O_DIRECT O_PATH O_TMPFILE P_PIDFD copy_file_range eventfd eventfd_read"
    " eventfd_write getrandom getresgid getresuid getxattr listxattr memfd_create pidfd_open pipe2 posix_fadvise"
    " posix_fallocate sched_getaffinity sched_setaffinity setresgid setresuid setxattr splice",
    "resource": "prlimit",
    "select": "EPOLLIN epoll",
    "signal": "SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    "socket": "MSG_CMSG_CLOEXEC MSG_NOSIGNAL SCM_CREDENTIALS SOCK_CLOEXEC SOCK_NONBLOCK SO_PASSCRED SO_PEERCRED"
    " TCP_KEEPIDLE TCP_QUICKACK TCP_USER_TIMEOUT",
    "time": "CLOCK_BOOTTIME CLOCK_TAI",
}
NOT_ON_WINDOWS = {
    "mmap": "MAP_ANON MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED PROT_EXEC PROT_READ PROT_WRITE",
    "os": "O_CLOEXEC O_DIRECTORY O_DSYNC O_NOFOLLOW O_NONBLOCK O_SYNC WNOHANG chown chroot fchdir fchmod fchown"
    " fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority"
    " getsid getuid killpg lchown lockf mkfifo mknod nice openpty pathconf posix_spawn pread preadv pwrite pwritev"
    " readv register_at_fork sched_yield sendfile setegid seteuid setgid setgroups setpgid setpriority setsid setuid"
    " statvfs sync sysconf ttyname uname wait wait3 wait4 waitid writev",
    "select": "POLLERR POLLHUP POLLIN POLLOUT POLLPRI poll",
    "signal": "ITIMER_REAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGSYS SIGTRAP"
    " SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGWINCH SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm"
    " getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigwait",
    "socket": "AF_UNIX CMSG_LEN CMSG_SPACE MSG_DONTWAIT MSG_EOR SCM_RIGHTS SOCK_SEQPACKET recv_fds send_fds",
    "time": "CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_REALTIME CLOCK_THREAD_CPUTIME_ID clock_getres"
    " clock_gettime clock_gettime_ns clock_settime tzset",
}


class Missing:
    """A finder that finds none of these modules."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def not_of_nothing(name: object, *_: object, **__: object) -> None:
    raise TypeError(f"bad argument type for built-in operation: {name}")


def become(system: str) -> None:
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc, assignment]
    for library in LIBRARIES.split():
        import_module(library)
    for table in (LINUX_ALONE, NOT_ON_WINDOWS)[: 2 if system == "windows" else 1]:
        for module, names in table.items():
            home = import_module(module)
            for name in names.split():
                vars(home).pop(name, None)
    modules = set(WITHOUT_MODULES[system].split())
    for name in modules:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing(modules))
    if system == "windows":
        ctypes.CDLL = not_of_nothing  # type: ignore[misc, assignment]
    sys.platform = {"macos": "darwin", "windows": "win32"}[system]


if __name__ == "__main__":
    become(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
