"""The things that a verb works with: the settings that apply and the broker, each made when first asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobpool.errors import ConfigurationError

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.broker.config_file import ConfigFile
    from jobpool.settings import Settings

LEVELS = ("debug", "info", "warning", "error", "critical")


class Session:
    """One call of the command line.

    Args:
        flags: The common flags, as they were typed; None = not given.
        verbose: How many `-v`; `quiet` the same of `-q`.
    """

    def __init__(
        self,
        flags: Mapping[str, str | None],
        *,
        log_level: str | None,
        log_format: str | None,
        verbose: int,
        quiet: int,
    ) -> None:
        self._flags = dict(flags)
        self._config = self._flags.pop("config", None)
        self._logging = {"log_level": log_level, "log_format": log_format}
        self._louder = verbose - quiet

    def settings(self, **more: Any) -> Settings:
        """Return the settings that apply, with `more` flags, if they were given. Raises `ConfigurationError`."""
        from jobpool.settings import load

        flags = {key: value for key, value in more.items() if value != ()}
        return load({**self._flags, **self._logging, **flags}, config=self._config)

    def config_file(self) -> ConfigFile:
        """Return the configuration file that applies. Raises `ConfigurationError`."""
        from jobpool.broker.config_file import find_config

        return find_config(self._config)

    def config_directory(self) -> Path:
        """Return the folder of the configuration file, or the working directory. Raises `ConfigurationError`."""
        return self.config_file().directory

    def log_level(self, configured: str) -> str:
        """Return the level that -v and -q make of `configured`; -l is final."""
        if self._logging["log_level"] is not None or not self._louder:
            return configured
        place = LEVELS.index(configured) - self._louder
        return LEVELS[min(max(place, 0), len(LEVELS) - 1)]

    @contextlib.contextmanager
    def broker(self) -> Iterator[QueueBackend]:
        """Open the configured broker for the block, with a log for a command (warnings only, unless asked)."""
        from jobpool.broker.opening import open_backend
        from jobpool.message.signing import EnvelopeSigner
        from jobpool.telemetry.logs import configure

        settings = self.settings()
        asked = self._logging["log_level"] is not None
        configure(self.log_level(settings.log_level if asked else "warning"), settings.log_format)
        signer = EnvelopeSigner(settings.signing_keys() or None)
        backend = open_backend(settings.backend, signer=signer)
        try:
            yield backend
        finally:
            backend.close()

    def backend_flag(self) -> str | None:
        """Return the broker's URL as it was typed; None = not given."""
        return self._flags.get("backend")

    def runtime_dir(self) -> Path:
        """Return the runtime directory, without reading the settings as a whole: health probes come often."""
        from jobpool.ops.runtime_dir import runtime_dir

        return runtime_dir(self._peek("runtime_dir"))

    def pool_name(self) -> str | None:
        """Return the name that was asked for on the command line; None = every pool."""
        return self._flags.get("name")

    def _peek(self, key: str) -> str | None:
        import os

        from jobpool.broker.config_file import find_config

        given = self._flags.get(key) or os.environ.get(f"JOBPOOL_{key.upper()}")
        if given:
            return given
        value = find_config(self._config).values.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"{key} must be a text, not {value!r}")
        return value
