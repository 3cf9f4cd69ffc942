"""Credentials without a key, found by azure-identity (environment, managed identity, `az login`)."""

from __future__ import annotations

import asyncio
from typing import Any

from azure.core.credentials import AccessToken

from jobpool.errors import ConfigurationError

CREDENTIAL_VARIABLES = ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_PASSWORD")
"""Variables of azure-identity that are secrets by themselves."""


def credential() -> Any:
    """Return a credential for the SDK. No I/O. Raises as `require`."""
    require()
    from azure.identity import DefaultAzureCredential  # an extra

    return _OnAThread(DefaultAzureCredential())


def require() -> None:
    """Check that azure-identity is there.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        import azure.identity  # noqa: F401 - an extra, and slow to import
    except ImportError as error:
        raise ConfigurationError(
            "servicebus://NAME needs the package 'azure-identity', which is not installed: pip install"
            " 'jobpool[entra]', or use a connection string"
        ) from error


class _OnAThread:
    """A blocking credential for a client that awaits it: azure-identity's own needs one more HTTP library."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        token: AccessToken = await asyncio.to_thread(self._blocking.get_token, *scopes, **options)
        return token

    async def close(self) -> None:
        self._blocking.close()

    async def __aenter__(self) -> _OnAThread:
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.close()
