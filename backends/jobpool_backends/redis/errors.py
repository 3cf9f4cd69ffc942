"""The meaning of errors of Redis, of the network and of redis-py to the caller: from error to sentence.

A refusal by the server begins with a word (`READONLY …`). One table turns it into `BackendUnavailable` (wait, or mend
the server) or `AccessRefused` (mend the settings, or its rights). A break of the connection carries the operating
system's error. An error in no table is a fault of ours, such as an error in a script, and stays as it is.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import ConnectionError, InvalidResponse, RedisError, TimeoutError

from jobpool.errors import AccessRefused, BackendUnavailable, JobpoolError, WriteRefused


class Place(Protocol):
    """The server that an error came from."""

    @property
    def title(self) -> str: ...

    @property
    def timeout(self) -> float: ...

    @property
    def is_secure(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an error.

    Attributes:
        error: The error to raise; None = the original.
        sound: The connection can be used again.
        hung_up: The other side had closed the connection: a kept one may only have been stale.
    """

    error: JobpoolError | None
    sound: bool = False
    hung_up: bool = False


@dataclass(frozen=True, slots=True)
class _Refusal:
    kind: type[JobpoolError]
    text: str
    sound: bool = False


def _wait(text: str) -> _Refusal:
    """Refuse for now: the server cannot, and the connection is as good as before."""
    return _Refusal(BackendUnavailable, text, sound=True)


def _turn_away(text: str) -> _Refusal:
    """Refuse for another server, which may be the right one by now, or for a new connection to this one."""
    return _Refusal(BackendUnavailable, text)


def _mend(text: str) -> _Refusal:
    return _Refusal(AccessRefused, text)


def _take_no_writes(text: str) -> _Refusal:
    """Refuse writes only: the server answers, and calls that need no room may go on."""
    return _Refusal(WriteRefused, text, sound=True)


_GRANT = _mend("does not allow this user what jobpool needs: grant it the commands and the keys")
_TAKE_OUT_THE_PASSWORD = _mend("has no password set, yet one was given: leave it out, or set one there")
_TOO_OLD = _mend("does not know a command that jobpool needs: it must be Redis 6.2 or later, with no command renamed")
_MOVING = _wait("is moving these keys to another node: it answers when that is done")
_WRITE_CLUSTER = _mend("is a node of a cluster: write redis+cluster:// instead")

_BY_WORD = {
    "LOADING": _turn_away("is loading its data from disk: it answers when that is done"),
    "READONLY": _turn_away(
        "is a replica, which takes no writes: after a failover the next call looks for the new master; if there was"
        " none, name the master"
    ),
    "UNBLOCKED": _turn_away("became a replica while it was waited on: the next call looks for the new master"),
    "MASTERDOWN": _turn_away("is a replica that has lost its master: bring the master back, or let a failover finish"),
    "CLUSTERDOWN": _turn_away(
        "says that its cluster is down: bring the missing nodes back (redis-cli --cluster check)"
    ),
    "BUSY": _wait("is busy with a script that does not end: find its caller, or end it with SCRIPT KILL"),
    "TRYAGAIN": _MOVING,
    "OOM": _take_no_writes(
        "refuses to grow, for the server's memory is full (maxmemory is reached): raise maxmemory, or remove what is"
        " not needed; nothing was changed"
    ),
    "MISCONF": _take_no_writes("refuses writes because it cannot save to its disk: see its log, and free some space"),
    "NOREPLICAS": _take_no_writes(
        "refuses writes because too few of its replicas are connected (min-replicas-to-write): bring them back"
    ),
    "NOAUTH": _mend(
        "wants a password: write it into the URL, redis://user:password@host, or into the option password (a sentinel's"
        " into sentinel_password)"
    ),
    "WRONGPASS": _mend("refuses this user name or password: mend them in the URL or in the options"),
    "NOPERM": _GRANT,
    "DENIED": _mend(
        "is in protected mode and takes connections from its own machine only: give it a password, or bind it to an"
        " address on purpose"
    ),
    "MOVED": _WRITE_CLUSTER,
}

_BY_PHRASE = {  # as Redis 6, Redis 7 and Valkey say it
    "max number of clients reached": _turn_away(
        "has no connection left (maxclients): close some clients, or raise maxclients"
    ),
    "DB index is out of range": _mend(
        "has no database of this number: choose one below its setting `databases` (16 unless it was changed)"
    ),
    "SELECT is not allowed in cluster mode": _WRITE_CLUSTER,
    "cluster support disabled": _mend("is no node of a cluster: write redis:// instead"),
    "unknown command": _TOO_OLD,
    "Unknown Redis command called from": _TOO_OLD,
    "Unknown command called from": _TOO_OLD,
    "without any password configured": _TAKE_OUT_THE_PASSWORD,
    "no password is set": _TAKE_OUT_THE_PASSWORD,
    "attempted to access a non local key": _MOVING,
    "user executing the script can't": _GRANT,
    "ACL failure in script": _GRANT,
}

_IN_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")
"""Redis 6 puts the refusal of a command behind the place in the script that sent it."""

_HUNG_UP = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN, errno.ENOTCONN, errno.EBADF})

_UNREACHABLE = {
    errno.ECONNREFUSED: "refuses connections: nothing listens there. Start Redis, or mend the address",
    errno.ENOENT: "is not there: start Redis with this `unixsocket`, or mend the path",
    errno.EACCES: "may not be used by this user: mend `unixsocketperm`, or join the socket's group",
    errno.ENOTSOCK: "is no socket: mend the path",
    errno.EHOSTUNREACH: "cannot be reached from here: mend the host, the route or the firewall",
    errno.ENETUNREACH: "cannot be reached from here: mend the host, the route or the firewall",
    errno.EMFILE: "cannot be reached, because this process has no file descriptor left: raise `ulimit -n`",
}


def explain(error: RedisError, place: Place) -> Meaning:
    """Explain `error`, which came from `place`."""
    refusal = _refusal(error)
    if refusal is not None:
        return Meaning(_say(refusal.kind, place, refusal.text), sound=refusal.sound)
    if isinstance(error, InvalidResponse):
        return Meaning(_unavailable(place, "does not speak Redis's protocol; if the port wants TLS, write rediss://"))
    if isinstance(error, TimeoutError):
        return Meaning(_unavailable(place, _slow(error, place)))
    if isinstance(error, ConnectionError):
        return _broken(error, place)
    return Meaning(None, sound=True)


def _refusal(error: RedisError) -> _Refusal | None:
    text = str(error)
    word = getattr(error, "status_code", None) or text.partition(" ")[0]  # redis-py cuts the words that it knows
    known = _BY_WORD.get(word)
    if known is not None:
        return known
    in_script = _IN_SCRIPT.search(text)
    if in_script is not None and in_script[1] in _BY_WORD:
        return _BY_WORD[in_script[1]]
    return next((refusal for phrase, refusal in _BY_PHRASE.items() if phrase in text), None)


def _slow(error: TimeoutError, place: Place) -> str:
    if "connecting" not in str(error):
        return (
            f"did not answer within {place.timeout:g} s: see whether it runs, is stopped or has too much to do, or"
            " raise the option timeout"
        )
    tls = "; if the port speaks no TLS, write redis://" if place.is_secure else ""
    return f"took no connection in time: see whether it runs and no firewall swallows packets{tls}"


def _broken(error: ConnectionError, place: Place) -> Meaning:
    cause = _beneath(error)
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Meaning(_tls_trouble(cause, place))
    if isinstance(cause, socket.gaierror):
        return Meaning(_unavailable(place, "cannot be found: mend the host name, or the name service of this machine"))
    if cause is not None and cause.errno in _UNREACHABLE:
        return Meaning(_unavailable(place, _UNREACHABLE[cause.errno]))
    if cause is None or cause.errno in _HUNG_UP or isinstance(cause, ssl.SSLError):
        return Meaning(_unavailable(place, _hung_up(place)), hung_up=True)
    return Meaning(_unavailable(place, f"cannot be reached: {cause.strerror or cause}"))


def _hung_up(place: Place) -> str:
    if place.is_secure:
        hint = "if it wants a certificate of ours, give ssl_certfile; if the port speaks no TLS, write redis://"
    else:
        hint = "if the port wants TLS, write rediss://"
    return f"closed the connection: it was stopped or restarted, or it is full (see its log); {hint}"


def _tls_trouble(error: ssl.SSLError, place: Place) -> JobpoolError:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        text = (
            f"shows a certificate that is not accepted ({why}): name its authority with ssl_ca_certs, or mend the host"
        )
    elif reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        text = "speaks no TLS: write redis:// instead, or name its TLS port"
    elif "CERTIFICATE" in reason or "ALERT_UNKNOWN_CA" in reason:  # the server refuses our certificate
        text = f"does not accept our certificate ({reason}): mend the options ssl_certfile and ssl_keyfile"
    else:
        text = f"does not agree on TLS ({reason or error}): mend the ssl_… options, or the server's tls-… settings"
    return _say(AccessRefused, place, text)


def _beneath(error: BaseException) -> OSError | None:
    """Return the operating system's error that redis-py wrapped."""
    current: BaseException | None = error
    while current is not None and not isinstance(current, OSError):
        current = current.__cause__ or current.__context__
    return current


def _unavailable(place: Place, what: str) -> JobpoolError:
    return _say(BackendUnavailable, place, what)


def _say(kind: type[JobpoolError], place: Place, what: str) -> JobpoolError:
    return kind(f"{place.title} {what}")
