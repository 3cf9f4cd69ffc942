"""Another SDK than the one whose inside is known is refused in one sentence, before anything of it is used."""

from __future__ import annotations

import importlib
import inspect

import azure.servicebus
import pytest
from azure.servicebus.aio import _async_utils

import jobpool_backends.servicebus
from jobpool_backends.servicebus import check_sdk_version
from jobpool_backends.servicebus.namespace import FILTERED_LINES


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


def test_the_line_about_a_handler_that_does_not_close_is_left_out_of_the_log() -> None:
    [begin] = [begin for module, begin in FILTERED_LINES.items() if module == _async_utils.__name__]
    assert f'_log.warning("{begin}' in inspect.getsource(_async_utils)
