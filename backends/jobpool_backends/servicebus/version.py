"""Which versions of the SDK this package knows from the inside: asked before anything of it is imported."""

from __future__ import annotations

KNOWN_SDK_VERSION = "7.15"
"""As in pyproject.toml; `internals`, `credit` and `dispositions` rest on it."""


def check_sdk_version(installed: str) -> None:
    """Raise `ImportError` for a version other than the known one: else odd errors would follow later."""
    if not f"{installed}.".startswith(f"{KNOWN_SDK_VERSION}."):
        raise ImportError(
            f"azure-servicebus {installed} is installed, and jobpool works with {KNOWN_SDK_VERSION} only:"
            " pip install 'jobpool[servicebus]'"
        )
