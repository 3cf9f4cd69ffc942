"""Which versions of the SDK this package knows from the inside: asked before anything of it is imported."""

from __future__ import annotations

KNOWN = "7.15"
"""As in pyproject.toml; `internals`, `credit` and `dispositions` rest on it."""


def check(installed: str) -> None:
    """Raises `ImportError` for another version than the known one: odd errors would follow, and later."""
    if not f"{installed}.".startswith(f"{KNOWN}."):
        raise ImportError(
            f"azure-servicebus {installed} is installed, and jobpool works with {KNOWN} only:"
            " pip install 'jobpool[servicebus]'"
        )
