"""The meaning of Postgres's errors to the caller: by code; while connecting, when libpq tells no code, by its words.

The words are those of servers that speak English; other errors mean unavailability, and are quoted.
"""

from __future__ import annotations

import re
from typing import NoReturn

import psycopg

from jobpool.errors import InvalidJob, JobpoolError
from jobpool_backends.errors import Meaning, outage, refusal, write_refusal
from jobpool_backends.postgres.connection import Address, AnswerTimeout
from jobpool_backends.postgres.in_transaction import BATCH_NOT_OPEN, not_open

HIDDEN_POOLER = frozenset({"26000", "42P05"})
"""A prepared statement is not there, or is there already: a pooler lends sessions, and did not show it."""

UNDONE = HIDDEN_POOLER | {
    "57P01",  # the server was told to stop, or an operator ended this session
    "57P05",  # idle for longer than the server allows
    "25P03",  # the same, within a transaction
    "25006",  # a standby by now: a new connection may lead to the new primary
    "0A000",  # the plan of a prepared statement does not fit a table that was migrated meanwhile
}
"""The fault lies in this connection, and the server has done nothing, or undone it."""

_UNKNOWN = (
    "57P02",  # another session crashed
    "08",  # the connection broke, here or behind a pooler
)
_CONFLICTS = ("40001", "40P01")

_UNAVAILABLE = {
    "22003": "holds a number out of range in a table of schema {schema!r}: look for a row that was changed by hand",
    "25006": "is a standby or read-only: name its primary, or all hosts with target_session_attrs=read-write",
    "25P03": "ended the session, which was idle in a transaction for too long: try again",
    "25P04": "ended a transaction that took too long: look at its load, or raise transaction_timeout",
    "40001": "could not put this transaction in an order with others, again and again: look for long transactions",
    "40P01": "found dead-locks, again and again: look for other programs that lock jobpool's tables",
    "53200": "is out of memory: give it more, or lower work_mem and max_connections",
    "53300": "has no connection left: raise max_connections, or put a pooler in front",
    "53400": "has reached a configured limit: look into its log",
    "55P03": "could not lock a row or table in time: look for long transactions",
    "57014": "did not finish a statement in time and cancelled it: look at its load and for locks, or raise the option"
    " timeout",
    "57P01": "is stopping, or somebody ended the session: try again when it is up",
    "57P02": "restarts after a crash of one of its sessions: try again",
    "57P03": "is starting or stopping: try again when it is up",
    "57P05": "ended the session, which was idle for too long: try again",
    "58030": "reports an input/output error: check its disk",
    "XX001": "reports damaged data: check its disk, restore a copy",
    "XX002": "reports a damaged index: check its disk, then REINDEX",
}
_REFUSED = {
    "28000": "refuses this user: check the user in the URL and the server's pg_hba.conf",
    "28P01": "refuses this password or user: check them in the URL",
    "3D000": "has no such database: create it (createdb), or name another in the URL",
    "42501": 'does not allow this user what jobpool needs: GRANT USAGE ON SCHEMA "{schema}", and SELECT,'
    " INSERT, UPDATE, DELETE ON ALL TABLES and EXECUTE ON ALL FUNCTIONS in it",
    "3F000": "has no schema {schema!r} any more: run `jobpool init`",
    "42P01": "has lost a table of schema {schema!r}: restore it",
    "42883": "has lost a function of schema {schema!r}: restore it",
}
# Patterns of errors of libpq and pgbouncer while connecting: when trying again may help, and when it does not.
_UNREACHED = {
    "session is (not )?read-only|in hot standby mode": "is not what target_session_attrs asks for: look which host is"
    " the primary now",
    "Connection refused|No such file or directory": "refuses connections: start it, or check host and port in the URL",
    "timeout expired|timed out|No route to host|Network is unreachable": "does not answer: check host and port in the"
    " URL, the network and its firewalls",
    "resolve host|translate host name|[Nn]ame resolution|Name or service": "has no address: check the host's name in"
    " the URL, and name resolution",
    "starting up|shutting down|recovery mode|not yet accepting|server_login_retry|server login (has been )?fail": "is"
    " starting or stopping: try again when it is up",
    "too many (clients|connections)|connection slots are reserved|no more connections allowed": "has no connection"
    " left: raise max_connections (a role's CONNECTION LIMIT, max_client_conn of pgbouncer), or use fewer",
    "closed the connection unexpectedly|Connection reset|Broken pipe": "closed the connection: try again when it is up",
}

_UNWELCOME = {
    "password authentication failed|no password supplied|SASL authentication failed|auth(entication)? failed|no such"
    " user": "refuses this password or user: check them in the URL",
    "role .* does not exist|not permitted to log in": "does not know this user: check it in the URL, or create it",
    "no pg_hba.conf entry|pg_hba.conf rejects": "does not let this user in from here: add a line to its pg_hba.conf",
    "database .* does not exist|no such database": "has no such database: create it (createdb), or name another in the"
    " URL",
    "permission denied for database": "does not let this user into the database: GRANT CONNECT, or name another user",
    "not currently accepting connections": "does not accept connections to this database: name another in the URL",
    "SSL|certificate": "and this program do not agree on encryption: check sslmode and the certificates in the URL",
    "unsupported startup parameter|configuration parameter|invalid .*value|could not match|definition of service"
    "|auth(entication)? method requirement": "cannot be asked that:"
    " check the parameters in the URL (a pooler takes few of them)",
}

_BY_CODE = {
    "53100": write_refusal("has a full disk: free some space there"),
    "54000": write_refusal("has reached a limit of its own, and takes no writes: see its log"),
    **{code: outage(text) for code, text in _UNAVAILABLE.items()},
    **{code: refusal(text) for code, text in _REFUSED.items()},
}
_BY_WORDS = {
    **{pattern: outage(text) for pattern, text in _UNREACHED.items()},
    **{pattern: refusal(text) for pattern, text in _UNWELCOME.items()},
}
_SILENT = outage("does not answer: check the network, its load, its synchronous standbys and a pooler's pool_size")
_POOLER_MODE = refusal("is behind a pooler that allows no transactions: set pool_mode = transaction in pgbouncer.ini")
_CLOSED = outage("closed the connection: try again when it is up")
_ELSE = outage("cannot be reached")
_UNKEPT = Meaning(InvalidJob, "cannot keep a value")
# Classes of codes: the server's resources, limits, state and faults.
_BY_CLASS = dict.fromkeys(("53", "54", "55", "57", "58", "XX"), outage("reports trouble of its own: see its log"))


def is_conflict(error: psycopg.Error) -> bool:
    """Return whether the server gave the way to another transaction: the same, tried again, may well succeed."""
    return error.sqlstate in _CONFLICTS


def is_stale(error: psycopg.Error) -> bool:
    """Return whether the fault may lie in this connection alone, so that a new one is worth a try at once."""
    if error.sqlstate is None:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return lost and not isinstance(error, AnswerTimeout)
    return error.sqlstate in UNDONE or error.sqlstate.startswith(_UNKNOWN)


def raise_explained(error: psycopg.Error, address: Address) -> NoReturn:
    """Raise what the error of a statement means. One that nothing here explains is a fault in jobpool, and stays."""
    code = error.sqlstate or ""
    meaning = _BY_CODE.get(code) or _BY_CLASS.get(code[:2])
    if code == BATCH_NOT_OPEN:
        raise not_open(error) from None
    if isinstance(error, AnswerTimeout):
        meaning = _SILENT
    elif meaning is None and "statement pooling mode" in str(error):
        meaning = _POOLER_MODE
    elif meaning is None and is_stale(error):
        meaning = _CLOSED
    elif meaning is None and isinstance(error, psycopg.DataError):
        meaning = _UNKEPT
    if meaning is None:
        raise error
    raise _said(meaning, str(error).strip().partition("\n")[0], address) from None


def raise_unreached(error: psycopg.Error, address: Address) -> NoReturn:
    """Raise what an error while connecting means."""
    if error.sqlstate is not None or isinstance(error, AnswerTimeout):
        raise_explained(error, address)
    lines = str(error).strip().split("\n")  # of several hosts
    found = ((meaning, line) for pattern, meaning in _BY_WORDS.items() for line in lines if re.search(pattern, line))
    raise _said(*next(found, (_ELSE, lines[0])), address) from None


def _said(meaning: Meaning, words: str, address: Address) -> JobpoolError:
    words = re.sub(r"^.*connection (failed|is bad): ", "", words)
    return meaning.kind(f"Postgres at {address.where} {meaning.text.format(schema=address.schema)} ({words})")
