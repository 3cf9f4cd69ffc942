"""Settings that contradict each other or the promise. Pure, but for the files of settings and of keys."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from math import floor
from urllib.parse import parse_qsl

from jobpool.broker.config_file import ConfigFile, hidden_beside
from jobpool.broker.finding import Finding, Level
from jobpool.broker.opening import LOCAL, judge_key_file, redact, scheme_of
from jobpool.errors import ConfigurationError
from jobpool.master.serving import unserved_limits
from jobpool.policy.retry import RetryPolicy
from jobpool.settings import Settings

MIN_KEY_BYTES = 16  # bytes of a signing key: half of what HMAC-SHA256 can use, and beyond guessing

SHORT_TTL_S, LONG_TTL_S = 3.0, 3600.0  # outside of these a ttl deserves a word
USUAL_CALL_TIMEOUT_S = 5.0  # of a call where the URL says nothing: the longest of the backends' own limits


def judge(settings: Settings) -> Iterator[Finding]:
    yield from judge_keys(settings)
    yield from judge_fit(settings)
    yield judge_ttl(settings.ttl, settings.backend)
    yield judge_timeout(settings.default_timeout, settings.max_timeout)
    yield judge_retries(settings.retry)
    yield judge_crashes(settings.max_crashes)


def judge_hidden(config: ConfigFile) -> Iterator[Finding]:
    """Judge if another configuration file is not read because of this one."""
    if other := hidden_beside(config):
        why, mend = "they count for nothing beside a jobpool.toml", "keep the settings in one of the two"
        yield Finding("configuration-file", Level.WARNING, f"{other} has settings, too", why, mend)


def judge_file(config: ConfigFile) -> Iterator[Finding]:
    """Judge if everybody on the machine can read a secret in the configuration file."""
    check, backend = "configuration-file", config.values.get("backend")
    if config.path is None:
        return
    mode = stat.S_IMODE(config.path.stat().st_mode)
    secrets = ["signing_key"] if "signing_key" in config.values else []
    if isinstance(backend, str) and redact(backend) != backend:
        secrets.append("the password in backend")
    found = f"{config.path} has mode {mode:04o}"
    if not secrets or not mode & 0o004:
        yield Finding(check, Level.OK, found)
        return
    why = f"everybody on this machine can read {' and '.join(secrets)}"
    yield Finding(check, Level.PROBLEM, found, why, f"chmod 600 {config.path}, or keep secrets in a file of their own")


def judge_fit(settings: Settings) -> Iterator[Finding]:
    """Judge limits of queues that the pool does not serve."""
    why, mend = "it limits nothing here", "correct the name, or leave it to the pool that serves the queue"
    limits = unserved_limits(settings, settings.queue_names)
    unserved = [Finding("settings", Level.WARNING, told, why, mend) for told in limits]
    yield from unserved or [Finding("settings", Level.OK, "the settings fit together")]


def judge_crashes(max_crashes: int) -> Finding:
    if max_crashes:
        return Finding("crashes", Level.OK, f"max_crashes is {max_crashes}")
    why = "a job that crashes its process each time does so for ever"
    return Finding("crashes", Level.WARNING, "max_crashes is 0 (no limit)", why, "set max_crashes to 5")


def judge_keys(settings: Settings) -> Iterator[Finding]:
    """Judge the signing keys; their text is never told."""
    check = "signing-key"
    try:
        keys = settings.signing_keys()
    except ConfigurationError as error:
        why = "no pool starts with this"
        yield Finding(check, Level.PROBLEM, str(error), why, "write one key a line, readable for the pool's user")
        return
    if not keys:
        yield _no_key(check, settings.backend)
        return
    file = settings.signing_key_file
    exposed = None if file is None else judge_key_file(file)
    well = Finding(check, Level.OK, f"messages are signed ({len(keys)} key{'s' if len(keys) != 1 else ''})")
    yield from [*([exposed] if exposed else []), *judge_strength(keys)] or [well]


def judge_strength(keys: Sequence[str]) -> Iterator[Finding]:
    """Judge the keys themselves; find nothing if they are good, or there is none."""
    check = "signing-key"
    shortest = min((len(key.encode()) for key in keys), default=MIN_KEY_BYTES)
    if shortest < MIN_KEY_BYTES:
        found = f"a signing key has {shortest} byte{'s' if shortest != 1 else ''}, fewer than {MIN_KEY_BYTES}"
        why = "who has one signed message can guess it, and then enqueue anything"
        yield Finding(check, Level.PROBLEM, found, why, "make one with `openssl rand -hex 32`")
    if len(set(keys)) < len(keys):
        why = "a rotation that changes nothing: what the old key signed is believed for ever"
        yield Finding(check, Level.WARNING, "a signing key is listed twice", why, "put a new one first")


def _no_key(check: str, url: str) -> Finding:
    try:
        scheme = scheme_of(url)
    except ConfigurationError:
        return Finding(check, Level.NOTE, "no signing key, and whether others reach the broker is not known")
    if scheme in LOCAL:
        return Finding(check, Level.OK, f"no signing key, and only this machine's users reach {scheme}://")
    why = "anyone who reaches the broker can have any handler run with any payload"
    mend = "set signing_key in the pools and where jobs are enqueued (`openssl rand -hex 32`)"
    return Finding(check, Level.PROBLEM, f"no signing key, on a broker that others can reach ({scheme}://)", why, mend)


def judge_ttl(ttl: float, url: str) -> Finding:
    """Judge `ttl`: a lease is renewed at a third of it, and must survive a call that runs into the URL's `timeout`."""
    try:
        timeout = float(dict(parse_qsl(url.partition("?")[2])).get("timeout", USUAL_CALL_TIMEOUT_S))
    except ValueError:  # the check of the broker says so
        timeout = USUAL_CALL_TIMEOUT_S
    limit = f"a call to the broker may take {timeout:.12g} s"
    if timeout >= ttl * 2 / 3:
        why = "one renewal without an answer (they begin at a third of it) loses leases, and their jobs run twice"
        below = floor(ttl / 3 * 10) / 10
        mend = f"set ttl to {timeout * 3:.12g} or more"
        mend += f", or ?timeout= in backend to {below:.12g} or less" if below else ""
        return Finding("ttl", Level.PROBLEM, f"ttl is {ttl:.12g} s, and {limit}", why, mend)
    if ttl < SHORT_TTL_S:
        why = "a master that stands still for so long (a suspend, swapping) loses its leases, and their jobs run twice"
        return Finding("ttl", Level.WARNING, f"ttl is {ttl:.12g} s", why, "set ttl to 30")
    if ttl > LONG_TTL_S:
        why = "after the death of a machine its jobs wait for so long until another pool gets them"
        mend = "set ttl to 30: leases are renewed, jobs may take longer"
        return Finding("ttl", Level.WARNING, f"ttl is {ttl:.12g} s", why, mend)
    return Finding("ttl", Level.OK, f"ttl is {ttl:.12g} s, and {limit}")


def judge_timeout(default_timeout: float, max_timeout: float) -> Finding:
    """Judge the timeout of jobs and handlers that name none."""
    if default_timeout:
        return Finding("timeout", Level.OK, f"default_timeout is {default_timeout:.12g} s")
    if max_timeout:
        return Finding("timeout", Level.OK, f"max_timeout is {max_timeout:.12g} s")
    why = "a handler that hangs holds its place, and its job, for ever"
    mend = "set default_timeout, and `timeout=0` on the handlers that need it"
    return Finding("timeout", Level.WARNING, "default_timeout is 0 (unlimited)", why, mend)


def judge_retries(retry: RetryPolicy) -> Finding:
    strategy, attempts = retry.strategy, retry.max_attempts
    if strategy == "none" and attempts > 1:
        why = "the attempts follow each other at once, so an outage of a second uses them all up"
        found = f"retry is 'none', with attempts={attempts}"
        return Finding("retry", Level.WARNING, found, why, "set retry to 'exponential'")
    if strategy != "none" and attempts == 1:
        why = "no job is ever tried again, whatever it asks for"
        mend = "write attempts=2 or more, or attempts=0: no limit of the pool"
        return Finding("retry", Level.PROBLEM, f"retry is {strategy!r}, with attempts=1", why, mend)
    limit = "as many attempts as a job or its handler asks for, or one"
    if attempts:
        limit = f"attempts at most: {attempts}, also of a job that asks for none"
    return Finding("retry", Level.OK, f"retry is {strategy!r}, {limit}")
