"""Errors of the network and of beanstalkd: from error to sentence.

beanstalkd answers a word; greenstalk has a class for each. Some are ordinary answers (`NOT_FOUND`, `TIMED_OUT`). One
table turns the others into `WriteRefused` (wait, or mend the server), `ConfigurationError` (mend the settings) or
`InvalidJob` (mend the job). Breaks of the connection carry the operating system's error.
"""

from __future__ import annotations

import errno

import greenstalk

from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, JobpoolError
from jobpool_backends.beanstalk.address import Address
from jobpool_backends.errors import HUNG_UP, Meaning, take_no_writes, unreached

_MEANINGS = {
    greenstalk.DrainingError: take_no_writes(
        "is in drain mode, and takes no jobs until it is restarted: somebody sent it SIGUSR1. Restart it, or name"
        " another server"
    ),
    greenstalk.OutOfMemoryError: take_no_writes(
        "is out of memory or disk: give it more, or let the queues drain; nothing was changed"
    ),
    greenstalk.BuriedError: take_no_writes(
        "is out of memory, and buried a job that it could not place in its queue: give it more, then kick it"
    ),
    greenstalk.InternalError: take_no_writes(
        "reports an internal error, as a rule a binlog that cannot be written: check its disk and its log"
    ),
    greenstalk.JobTooBigError: Meaning(
        InvalidJob,
        "does not take a job as big as this: make its payload smaller, or start the server with a larger -z",
    ),
    greenstalk.BadFormatError: Meaning(
        ConfigurationError,
        "does not take a command as jobpool writes it: check the option tube_prefix, and that it is beanstalkd 1.12"
        " or later",
    ),
    greenstalk.UnknownCommandError: Meaning(
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
    known = _MEANINGS.get(type(error))
    return known.told(address.title) if known else None


def _why(error: BaseException, address: Address) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"did not answer within {address.timeout:g} s: see whether it runs, is stopped or is behind a firewall, or"
            " raise the option timeout"
        )
    if not isinstance(error, OSError):
        return "does not speak beanstalkd's protocol: mend the host or the port"
    if (error.errno or errno.ECONNRESET) in HUNG_UP:  # greenstalk raises ConnectionError without one
        return "closed the connection: it was stopped or restarted, or has no file descriptor left (ulimit -n)"
    return unreached(error, "beanstalkd") or f"cannot be reached: {error.strerror or error}"
