"""Which environment variables only the master may know."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_OURS = re.compile(r"(JOBPOOL|JOBS)_", re.IGNORECASE)
_SECRET_NAME = re.compile(r"URL|URI|DSN|BACKEND|BROKER|STATE|KEY|SECRET|TOKEN|PASSW|SIGN|CREDENTIAL", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://|Endpoint=", re.IGNORECASE)


def scrubbed(environ: Mapping[str, str], credentials: Collection[str] = ()) -> dict[str, str]:
    """`environ` without what only the master may know: its own variables that hold a broker's URL or a key.

    Variables of other names are the app's, and stay, but for those of the broker's own `credentials`.
    """
    return {name: value for name, value in environ.items() if name not in credentials and not _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    return bool(_OURS.match(name) and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)))
