"""Azure Service Bus: `Endpoint=sb://…` (a connection string), or `servicebus://NAMESPACE` with azure-identity.

The SDK's asynchronous client, on one thread and event loop of the backend's own, behind the contract's plain calls.

* `internals`: the few internals of the SDK that this package needs
* `namespace`, `queue_client`, `channel`: the event loop, the channels of one queue, and one sender or receiver
* `records`: the content of a message; `enqueue`, `leases`, `settle`: its life
* `inspect`, `bulk`, `checks`: the administrator's side
"""

from __future__ import annotations

import azure.servicebus

from jobpool.broker.opening import CLIENTS

KNOWN_SDK_VERSION = "7.15"  # as in pyproject.toml; `internals` rests on it


def check_sdk_version(installed: str) -> None:
    """Raise `ImportError` for a version other than the known one: else odd errors would follow later."""
    if not f"{installed}.".startswith(f"{KNOWN_SDK_VERSION}."):
        raise ImportError(
            f"azure-servicebus {installed} is installed, and jobpool works with {KNOWN_SDK_VERSION} only:"
            f" pip install '{CLIENTS['azure']}'"
        )


check_sdk_version(azure.servicebus.__version__)

from jobpool_backends.servicebus.backend import ServiceBusBackend as ServiceBusBackend  # noqa: E402 - after the check
