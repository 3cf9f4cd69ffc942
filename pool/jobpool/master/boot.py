"""Back-off for children and fork servers that do not come up. Pure."""

from __future__ import annotations

from jobpool.telemetry.metrics.probes import BOOT_LOOP

FIRST_BOOT_PAUSE_S = 0.1
MAX_BOOT_PAUSE_S = 30.0
LOOP_AT = BOOT_LOOP
"""From this many failures in a row, the pool says that it is in a boot loop (health, readiness)."""


class BootBackOff:
    """Counts failures in a row and says when the next try is due."""

    def __init__(self) -> None:
        self.failures = 0
        self.next_at = 0.0
        self.last_error = ""

    def failed(self, error: str, now: float) -> None:
        """One more failure: wait 0.1 s, doubling up to 30 s."""
        self.failures += 1
        self.last_error = error
        self.next_at = now + min(MAX_BOOT_PAUSE_S, FIRST_BOOT_PAUSE_S * 2.0 ** min(self.failures - 1, 30))

    def succeeded(self) -> None:
        self.failures = 0
        self.next_at = 0.0
        self.last_error = ""
