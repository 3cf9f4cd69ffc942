"""Errors of the network and of beanstalkd: from error to sentence.

beanstalkd answers a word; greenstalk has a class for each. Some are ordinary answers (`NOT_FOUND`, `TIMED_OUT`). One
table turns the others into `WriteRefused` (wait, or mend the server), `ConfigurationError` (mend the settings) or
`InvalidJob` (mend the job). Breaks of the connection carry the operating system's error.
"""

from __future__ import annotations

import errno
import socket

import greenstalk

from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, JobpoolError, WriteRefused
from jobpool_backends.beanstalk.address import Address

_UNREACHABLE = {
    errno.ECONNREFUSED: "refuses connections: nothing listens there. Start beanstalkd, or mend the address",
    errno.EHOSTUNREACH: "cannot be reached from here: mend the host, the route or the firewall",
    errno.ENETUNREACH: "cannot be reached from here: mend the host, the route or the firewall",
    errno.EMFILE: "cannot be reached, because this process has no file descriptor left: raise `ulimit -n`",
    errno.ENFILE: "cannot be reached, because this machine has no file descriptor left: raise fs.file-max",
    errno.EADDRNOTAVAIL: "cannot be reached, because this machine has no free port left: close some connections",
}

_HUNG_UP = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN, errno.ENOTCONN, errno.EBADF})

_REFUSALS: dict[type[greenstalk.Error], tuple[type[JobpoolError], str]] = {
    greenstalk.DrainingError: (
        WriteRefused,
        "is in drain mode, and takes no jobs until it is restarted: somebody sent it SIGUSR1. Restart it, or name"
        " another server",
    ),
    greenstalk.OutOfMemoryError: (
        WriteRefused,
        "is out of memory or disk: give it more, or let the queues drain; nothing was changed",
    ),
    greenstalk.BuriedError: (
        WriteRefused,
        "is out of memory, and buried a job that it could not place in its queue: give it more, then kick it",
    ),
    greenstalk.InternalError: (
        WriteRefused,
        "reports an internal error, as a rule a binlog that cannot be written: check its disk and its log",
    ),
    greenstalk.JobTooBigError: (
        InvalidJob,
        "does not take a job as big as this: make its payload smaller, or start the server with a larger -z",
    ),
    greenstalk.BadFormatError: (
        ConfigurationError,
        "does not take a command as jobpool writes it: check the option tube_prefix, and that it is beanstalkd 1.12"
        " or later",
    ),
    greenstalk.UnknownCommandError: (
        ConfigurationError,
        "does not know a command that jobpool needs (reserve-job): upgrade it to beanstalkd 1.12 or later",
    ),
}

TROUBLE = (OSError, AssertionError, greenstalk.UnknownResponseError, ValueError, LookupError)
"""After any of these a connection is of no more use. greenstalk asserts that answers end as they must."""


def explain_break(error: BaseException, address: Address) -> BackendUnavailable:
    """Explain a break of the connection."""
    return BackendUnavailable(f"{address.title} {_why(error, address)}")


def explain_unreached(error: OSError, address: Address) -> BackendUnavailable:
    """Explain why no connection came about."""
    if isinstance(error, TimeoutError):
        slow = "took no connection in time: see whether it runs and no firewall swallows packets"
        return BackendUnavailable(f"{address.title} {slow}, or raise the option connect_timeout")
    return explain_break(error, address)


def refusal(error: greenstalk.Error, address: Address) -> JobpoolError | None:
    """Explain a refusal; None for an ordinary answer."""
    known = _REFUSALS.get(type(error))
    return known[0](f"{address.title} {known[1]}") if known else None


def _why(error: BaseException, address: Address) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"did not answer within {address.timeout:g} s: see whether it runs, is stopped or is behind a firewall, or"
            " raise the option timeout"
        )
    if isinstance(error, socket.gaierror):
        return "cannot be found: mend the host name, or the name service of this machine"
    if not isinstance(error, OSError):
        return "does not speak beanstalkd's protocol: mend the host or the port"
    number = error.errno or errno.ECONNRESET  # greenstalk raises ConnectionError without one
    if number in _UNREACHABLE:
        return _UNREACHABLE[number]
    if number in _HUNG_UP:
        return "closed the connection: it was stopped or restarted, or has no file descriptor left (ulimit -n)"
    return f"cannot be reached: {error.strerror or error}"
