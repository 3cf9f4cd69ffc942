"""The network of one pool while faults overlap: each begins and ends alone, the network has only one state."""

from __future__ import annotations

import time
from collections.abc import Callable

from jobpool_torture.network import Direction, Proxy
from jobpool_torture.schedule import Fault

BOTH: tuple[Direction, ...] = ("up", "down")
_HOLES: tuple[tuple[tuple[Direction, ...], bool], ...] = tuple(
    (directions, keep) for keep in (True, False) for directions in (BOTH, ("up",), ("down",))
)


def hole_of(pick: int) -> tuple[tuple[Direction, ...], bool]:
    """Return which directions nothing gets through in, and whether it is kept till later."""
    return _HOLES[pick % len(_HOLES)]


def is_silent(pick: int) -> bool:
    """Return whether a dropped reply leaves its connection half-open, instead of cutting it."""
    return pick % 2 == 1


class NetworkState:
    """The faults that are in force on one proxy. Every method blocks for the proxy's answer, some milliseconds.

    All of them raise `NetworkFailed` when the proxy is not there any more.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._active: dict[int, Fault] = {}
        self._cleared_at = 0.0
        self._begin: dict[str, Callable[[Fault], str]] = {
            "net.cut": self._cut,
            "net.hole": self._hole,
            "net.refuse": self._refuse,
            "net.delay": self._delay,
            "net.drop": self._drop,
        }

    def was_bad_since(self, moment: float) -> bool:
        """Return whether any fault was in force at or after `moment` (CLOCK_MONOTONIC)."""
        return bool(self._active) or self._cleared_at >= moment

    def begin(self, fault: Fault) -> str:
        """Put it in force; what it does."""
        told = self._begin[fault.kind](fault)
        if fault.kind != "net.cut":
            self._active[fault.number] = fault
        self._cleared_at = time.monotonic()
        return told

    def end(self, number: int) -> None:
        """End that fault; the others go on."""
        ended = self._active.pop(number, None)
        if ended is None:
            return
        self._cleared_at = time.monotonic()
        self._proxy.restore()  # of holes and refusals; those that go on are put in force again
        self._proxy.delay(0.0)
        self._proxy.drop_replies(0)
        for fault in self._active.values():
            self._begin[fault.kind](fault)

    def clear(self) -> None:
        """End all faults."""
        for number in list(self._active):
            self.end(number)

    # --- kinds ----------------------------------------------------------------------------------------

    def _cut(self, _: Fault) -> str:
        links = self._proxy.counts().open
        self._proxy.cut()
        return f"{links} connections reset"

    def _hole(self, fault: Fault) -> str:
        directions, keep = hole_of(fault.pick)
        self._proxy.black_hole(*directions, keep=keep)
        what = {BOTH: "nothing gets through", ("up",): "nothing reaches the broker"}.get(
            directions, "nothing comes back"
        )
        return f"{what}, and is {'held back' if keep else 'lost'}"

    def _refuse(self, _: Fault) -> str:
        self._proxy.refuse()
        return "new connections are refused"

    def _delay(self, fault: Fault) -> str:
        self._proxy.delay(fault.amount)
        return f"everything comes {fault.amount * 1000:.0f} ms later"

    def _drop(self, fault: Fault) -> str:
        silent = is_silent(fault.pick)
        self._proxy.drop_replies(share=fault.amount, seed=fault.pick, then="silent" if silent else "cut")
        return f"{fault.amount:.0%} of the replies lost, the connection {'left silent' if silent else 'cut'}"
