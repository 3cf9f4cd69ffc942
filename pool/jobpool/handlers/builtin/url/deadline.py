"""A point in time that one whole call keeps to."""

from __future__ import annotations

from time import monotonic


class Deadline:
    """A point in time.

    Args:
        seconds: From now.
    """

    def __init__(self, seconds: float) -> None:
        self._at = monotonic() + seconds

    def left(self) -> float:
        """Return seconds until then, > 0.

        Raises:
            TimeoutError: There are none.
        """
        left = self._at - monotonic()
        if left <= 0:
            raise TimeoutError("the call's time is up")
        return left
