"""The time when a failed attempt is tried again, and the number of attempts of a job: numbers in, numbers out.

The order of steps is fixed, because each one changes the result: grow, cap, round half up, jitter, clamp. The clamp
comes last, so that jitter never lifts a delay above `max_delay`.
"""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal, TypeVar, get_args

from jobpool.errors import LONGEST_WAIT_S, ConfigurationError
from jobpool.message.names import nearest_word
from jobpool.message.setting_types import parse_count, parse_number, parse_share, parse_words
from jobpool.message.units import parse_duration

Strategy = Literal["none", "fixed", "exponential"]
V = TypeVar("V")

REMEMBERED_MESSAGES = 10_000  # messages of which a pool remembers since when, or how often in a row, they were met


def remember(memory: dict[str, V], ident: str, value: V) -> V:
    """Note `value` of a message, and return it; of more than `REMEMBERED_MESSAGES` the oldest note is dropped."""
    memory.pop(ident, None)
    memory[ident] = value
    if len(memory) > REMEMBERED_MESSAGES:
        del memory[next(iter(memory))]
    return value


def count_one_more(memory: dict[str, int], ident: str) -> int:
    """Count a message once more in `memory`, which is bounded as by `remember`; return how many that makes."""
    return remember(memory, ident, memory.get(ident, 0) + 1)


class Dice:
    """A source of random numbers that two processes never share: after a fork it begins a state of its own.

    A pid check and no fork hook, so that a policy is a plain value that needs no register and no clean-up.
    """

    __slots__ = ("_pid", "_random", "_seed")

    def __init__(self, seed: int | None = None, source: random.Random | None = None) -> None:
        self._seed = seed
        self._pid = os.getpid()
        self._random = source or random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        """Draw a number in [low, high]."""
        pid = os.getpid()
        if pid != self._pid:
            self._pid = pid
            self._random = random.Random(None if self._seed is None else f"{self._seed}:{pid}")
        return self._random.uniform(low, high)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The waits before retries, and the number of attempts. Immutable; safe to share between threads.

    `RetryPolicy()` is a pool's default: 1 s, doubling up to 5 minutes, and the attempts that a job or handler asks for.

    Attributes:
        strategy: `none` (delay 0), `fixed` (always `base`: no cap, no jitter) or `exponential`
            (`base * multiplier ** (retry - 1)`).
        base: Seconds; 0 or less acts as 0.
        multiplier: Less than 1 acts as 1.
        max_delay: Seconds, the cap of `exponential`. A value between 0 and `base` acts as `base`; 0 or less = no cap.
            No delay is longer than a hundred years.
        jitter: Share of the delay, clamped to [0, 1]: the delay is drawn from [1 - jitter, 1 + jitter] times itself.
            `"full"` draws it from [0, delay].
        max_attempts: Attempts in all, the first included; 0 or less = this policy sets none.
        resolution: Seconds, > 0: what `exponential` delays are rounded to, half up, before the jitter.
        seed: Makes the jitter repeatable, in one process; a forked one derives its own state from it.
        source: A random source of the caller's own in place of `seed`.

    Raises:
        ConfigurationError: The strategy is unknown, a number is not finite, or `resolution` is not above 0.
    """

    strategy: Strategy = "exponential"
    base: float = 1.0
    multiplier: float = 2.0
    max_delay: float = 300.0
    jitter: float | Literal["full"] = 0.15
    max_attempts: int = 0
    resolution: float = 0.001
    seed: int | None = None
    source: random.Random | None = field(default=None, repr=False, compare=False)
    _dice: Dice = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            known = ", ".join(get_args(Strategy))
            raise ConfigurationError(f"retry strategy {self.strategy!r} is unknown; choose one of: {known}")
        self._check_numbers()
        base, cap = max(0.0, float(self.base)), max(0.0, float(self.max_delay))
        values = {
            "base": base,
            "max_delay": max(cap, base) if cap else 0.0,
            "multiplier": max(1.0, float(self.multiplier)),
            "max_attempts": max(0, self.max_attempts),
            "jitter": "full" if self.jitter == "full" else min(1.0, max(0.0, float(self.jitter))),
            "_dice": Dice(self.seed, self.source),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def preset(cls, name: str, *, seed: int | None = None) -> RetryPolicy:
        """Return a policy by name: `none` (no retries unless a job asks for them) or `exponential` (25 times, to 5 s).

        Raises `ConfigurationError` if there is no preset of that name.
        """
        if name not in PRESETS:
            raise ConfigurationError(f"retry preset {name!r} is unknown; choose one of: {', '.join(PRESETS)}")
        return replace(PRESETS[name], seed=seed)

    def budget(self, max_retries: int | None) -> int:
        """Return the attempts, 1 or more, of a job whose own `max_retries` is given (None = not set).

        That is the smaller of the job's and the policy's, of those that are set; 1 when neither is.
        """
        limits = [] if max_retries is None else [max(1, max_retries + 1)]
        if self.max_attempts:
            limits.append(self.max_attempts)
        return min(limits, default=1)

    def delay(self, retry: int) -> float:
        """Return the seconds to wait before the `retry`-th retry (1-based; less acts as 1). Finite at any number."""
        if self.strategy != "exponential":
            return self.base if self.strategy == "fixed" else 0.0
        limit = self.max_delay or LONGEST_WAIT_S
        try:
            grown = self.base * self.multiplier ** (max(1, retry) - 1)
        except OverflowError:
            grown = LONGEST_WAIT_S if self.base else 0.0
        # Rounded in decimal, as people write numbers: 1.0005 s goes up to 1.001 s although its binary form is less.
        step = Decimal(repr(self.resolution))
        delay = float((Decimal(repr(min(limit, grown))) / step).to_integral_value(ROUND_HALF_UP) * step)
        return min(limit, max(0.0, self._jittered(delay)))

    def compute_delay(self, attempt: int) -> float:
        """Return the same, asked with the number (1-based) of the attempt about to run: 0 for the first."""
        return self.delay(attempt - 1) if attempt > 1 else 0.0

    def _jittered(self, delay: float) -> float:
        if self.jitter == "full":
            return self._dice.uniform(0.0, delay)
        if not self.jitter:
            return delay
        return delay * self._dice.uniform(1.0 - self.jitter, 1.0 + self.jitter)

    def _check_numbers(self) -> None:
        numbers = {"base": self.base, "multiplier": self.multiplier, "max_delay": self.max_delay}
        if self.jitter != "full":
            numbers["jitter"] = self.jitter
        for name, value in numbers.items():
            if isinstance(value, str) or not math.isfinite(value):
                raise ConfigurationError(f"{name} of a retry policy must be a finite number, not {value!r}")
        if not 0 < self.resolution < math.inf:
            raise ConfigurationError(f"resolution of a retry policy must be above 0 seconds, not {self.resolution!r}")


class BackOff:
    """Failures in a row, and when the next try is due: after `first` seconds, doubling up to `longest`."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self.succeeded()

    def failed(self, error: str, now: float) -> float:
        """Count one more failure; return the seconds until the next try."""
        self.failures += 1
        self.last_error = error
        pause = min(self._longest, self._first * 2.0 ** min(self.failures - 1, 30))
        self.next_at = now + pause
        return pause

    def succeeded(self) -> None:
        """Forget all failures: a next try may begin at once."""
        self.failures = 0
        self.next_at = 0.0
        self.last_error = ""


PRESETS = {
    "none": RetryPolicy("none"),
    "exponential": RetryPolicy("exponential", base=0.2, max_delay=5.0, multiplier=2.0, jitter=0.20, max_attempts=25),
}

FIXED_BASE_S = 5.0  # of `fixed` when none is given

_BACKOFF_FIELDS = {
    "base": ("base", parse_duration),
    "multiplier": ("multiplier", parse_number),
    "max": ("max_delay", parse_duration),
    "jitter": ("jitter", parse_share),
    "attempts": ("max_attempts", parse_count),
}
"""Word of the setting `retry` → field of the policy, and what parses it."""

_TAKES = {"none": ("attempts",), "fixed": ("base", "attempts"), "exponential": tuple(_BACKOFF_FIELDS)}


def parse_retry(value: object) -> RetryPolicy:
    """Return the policy that a text such as `"exponential base=5s max=5m attempts=25"` describes.

    A word left out is that of `RetryPolicy()`. But `fixed` waits for 5 s, and a lone `exponential` is the preset.
    Raises `ValueError` if it cannot be read; the text says how to write it.
    """
    text, given = parse_words(value, {word: parse for word, (_, parse) in _BACKOFF_FIELDS.items()})
    strategy, *unknown = text.lower().split() or [""]
    if strategy not in _TAKES:
        raise ValueError(
            f"must be 'none', 'fixed' or 'exponential', then words such as base=5s max=5m attempts=25, not {value!r}"
        )
    if unknown:
        raise ValueError(_not_known(unknown[-1], _TAKES[strategy]))
    useless = [word for word in given if word not in _TAKES[strategy]]
    if useless:
        takes = ", ".join(f"{word}=" for word in _TAKES[strategy])
        raise ValueError(f"{strategy!r} takes {takes} and not {useless[0]}=: use 'exponential', or leave it out")
    if not given and strategy in PRESETS:
        return PRESETS[strategy]
    if strategy == "fixed":
        given.setdefault("base", FIXED_BASE_S)
    return RetryPolicy(**{"strategy": strategy} | {_BACKOFF_FIELDS[word][0]: given[word] for word in given})


def _not_known(given: str, takes: tuple[str, ...]) -> str:
    near = nearest_word(given.partition("=")[0], takes)
    meant = f"did you mean {near}=?" if near else f"write {', '.join(f'{word}=' for word in takes)}"
    return f"{given!r} is not known there; {meant}"


def parse_backoff(value: object) -> RetryPolicy:
    """Return the waits of a handler's own `backoff`: a text as for `parse_retry`, without `attempts=`.

    Raises `ValueError` if it cannot be read, or names attempts.
    """
    if isinstance(value, str) and "attempts=" in value:
        raise ValueError("takes no attempts=: write max_retries= beside it")
    return replace(parse_retry(value), max_attempts=0)
