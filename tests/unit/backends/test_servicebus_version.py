"""Another SDK than the one whose inside is known is refused in one sentence, before anything of it is used."""

from __future__ import annotations

import importlib

import azure.servicebus
import pytest

import jobpool_backends.servicebus
from jobpool_backends.servicebus import check_sdk_version


@pytest.mark.parametrize("installed", ["7.15", "7.15.0", "7.15.9", "7.15.0b1"])
def test_what_is_known_is_taken(installed: str) -> None:
    check_sdk_version(installed)


@pytest.mark.parametrize("installed", ["7.14.3", "7.16.0", "7.150.0", "8.0.0"])
def test_what_is_not_known_is_refused_when_the_backend_is_imported(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure.servicebus, "__version__", installed)
    with pytest.raises(ImportError, match=rf"azure-servicebus {installed} is installed, and jobpool works with 7\.15"):
        importlib.reload(jobpool_backends.servicebus)
