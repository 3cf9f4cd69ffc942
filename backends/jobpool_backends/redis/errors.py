"""The meaning of errors of Redis, of the network and of redis-py to the caller: from error to sentence.

A refusal by the server begins with a word (`READONLY …`). One table turns it into `BackendUnavailable` (wait, or mend
the server) or `AccessRefused` (mend the settings, or its rights). A break of the connection carries the operating
system's error. An error in no table is a fault of ours, such as an error in a script, and stays as it is.
"""

from __future__ import annotations

import errno
import re
import ssl
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ConnectionError, InvalidResponse, RedisError, TimeoutError

from jobpool.errors import JobpoolError
from jobpool_backends.errors import HUNG_UP, Meaning, mend, take_no_writes, unreached, wait

if TYPE_CHECKING:
    from jobpool_backends.redis.connection import Endpoint


class Explained(NamedTuple):
    """An error, explained.

    Attributes:
        error: The error to raise; None = the original.
        sound: The connection can be used again.
        hung_up: The other side had closed the connection: a kept one may only have been stale.
    """

    error: JobpoolError | None
    sound: bool = False
    hung_up: bool = False


_GRANT = mend("does not allow this user what jobpool needs: grant it the commands and the keys")
_TAKE_OUT_THE_PASSWORD = mend("has no password set, yet one was given: leave it out, or set one there")
_TOO_OLD = mend("does not know a command that jobpool needs: it must be Redis 6.2 or later, with no command renamed")
_MOVING = wait("is moving these keys to another node: it answers when that is done", sound=True)
_WRITE_CLUSTER = mend("is a node of a cluster: write redis+cluster:// instead")

_BY_WORD = {
    "LOADING": wait("is loading its data from disk: it answers when that is done"),
    "READONLY": wait(
        "is a replica, which takes no writes: after a failover the next call looks for the new master; if there was"
        " none, name the master"
    ),
    "UNBLOCKED": wait("became a replica while it was waited on: the next call looks for the new master"),
    "MASTERDOWN": wait("is a replica that has lost its master: bring the master back, or let a failover finish"),
    "CLUSTERDOWN": wait("says that its cluster is down: bring the missing nodes back (redis-cli --cluster check)"),
    "BUSY": wait("is busy with a script that does not end: find its caller, or end it with SCRIPT KILL", sound=True),
    "TRYAGAIN": _MOVING,
    "OOM": take_no_writes(
        "refuses to grow, for the server's memory is full (maxmemory is reached): raise maxmemory, or remove what is"
        " not needed; nothing was changed"
    ),
    "MISCONF": take_no_writes("refuses writes because it cannot save to its disk: see its log, and free some space"),
    "NOREPLICAS": take_no_writes(
        "refuses writes because too few of its replicas are connected (min-replicas-to-write): bring them back"
    ),
    "NOAUTH": mend(
        "wants a password: write it into the URL, redis://user:password@host, or into the option password (a sentinel's"
        " into sentinel_password)"
    ),
    "WRONGPASS": mend("refuses this user name or password: mend them in the URL or in the options"),
    "NOPERM": _GRANT,
    "DENIED": mend(
        "is in protected mode and takes connections from its own machine only: give it a password, or bind it to an"
        " address on purpose"
    ),
    "MOVED": _WRITE_CLUSTER,
}

_BY_PHRASE = {  # as Redis 6, Redis 7 and Valkey say it
    "max number of clients reached": wait(
        "has no connection left (maxclients): close some clients, or raise maxclients"
    ),
    "DB index is out of range": mend(
        "has no database of this number: choose one below its setting `databases` (16 unless it was changed)"
    ),
    "SELECT is not allowed in cluster mode": _WRITE_CLUSTER,
    "cluster support disabled": mend("is not a node of a cluster: write redis:// instead"),
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

_NO_SOCKET = {
    errno.ENOENT: "is not there: start Redis with this `unixsocket`, or mend the path",
    errno.EACCES: "may not be used by this user: mend `unixsocketperm`, or join the socket's group",
    errno.ENOTSOCK: "is no socket: mend the path",
}


def explain(error: RedisError, place: Endpoint) -> Explained:
    """Explain `error`, which came from `place`."""
    hung_up = False
    meaning = _refusal(error)
    if meaning is None:
        match error:
            case InvalidResponse():
                meaning = wait("does not speak Redis's protocol; if the port wants TLS, write rediss://")
            case TimeoutError():
                meaning = wait(_slow(error, place))
            case ConnectionError():
                meaning, hung_up = _broken(error, place)
            case _:
                return Explained(None, sound=True)
    return Explained(meaning.told(place.title), meaning.sound, hung_up)


def _refusal(error: RedisError) -> Meaning | None:
    text = str(error)
    word = getattr(error, "status_code", None) or text.partition(" ")[0]  # redis-py cuts the words that it knows
    in_script = _IN_SCRIPT.search(text)
    known = _BY_WORD.get(word) or (_BY_WORD.get(in_script[1]) if in_script else None)
    return known or next((meaning for phrase, meaning in _BY_PHRASE.items() if phrase in text), None)


def _slow(error: TimeoutError, place: Endpoint) -> str:
    if "connecting" not in str(error):
        return (
            f"did not answer within {place.timeout:g} s: see whether it runs, is stopped or has too much to do, or"
            " raise the option timeout"
        )
    tls = "" if place.tls is None else "; if the port speaks no TLS, write redis://"
    return f"took no connection in time: see whether it runs and no firewall swallows packets{tls}"


def _broken(error: ConnectionError, place: Endpoint) -> tuple[Meaning, bool]:
    """Return the meaning of a broken connection, and True if the other side had closed it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):  # the operating system's, which redis-py wrapped
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return mend(_tls_trouble(cause)), False
    if cause is None or cause.errno in HUNG_UP or isinstance(cause, ssl.SSLError):
        hint = "if the port wants TLS, write rediss://"
        if place.tls is not None:
            hint = "if it wants a certificate of ours, give ssl_certfile; if the port speaks no TLS, write redis://"
        return wait(f"closed the connection: it was stopped or restarted, or it is full (see its log); {hint}"), True
    no_socket = _NO_SOCKET.get(cause.errno or 0)
    way = unreached(cause, "Redis") or no_socket or f"cannot be reached: {cause.strerror or cause}"
    return wait(way), False


def _tls_trouble(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return (
            f"shows a certificate that is not accepted ({why}): name its authority with ssl_ca_certs, or mend the host"
        )
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "speaks no TLS: write redis:// instead, or name its TLS port"
    if "CERTIFICATE" in reason or "ALERT_UNKNOWN_CA" in reason:  # the server refuses our certificate
        return f"does not accept our certificate ({reason}): mend the options ssl_certfile and ssl_keyfile"
    return f"does not agree on TLS ({reason or error}): mend the ssl_… options, or the server's tls-… settings"
