"""Azure Service Bus: `Endpoint=sb://…` (a connection string), or `servicebus://NAMESPACE` with azure-identity.

The SDK's asynchronous client, on one thread and event loop of the backend's own, behind the contract's plain calls.

| module | content |
| --- | --- |
| `address`, `identity` | connection strings, URLs and credentials |
| `trouble` | the SDK's errors: cause and mend in one sentence |
| `records` | the content of a message, with its counters |
| `loop` | the thread and its event loop: started at the first call, never inherited by a fork |
| `sdklog` | the SDK's log lines that we leave out |
| `channel` | one sender or receiver of the SDK: one coroutine at a time, thrown away on any doubt |
| `version` | the SDK's version |
| `internals` | the few internals of the SDK that this package needs |
| `credit` | fetching and waiting with no credit left at the broker |
| `dispositions`, `dispositions` | settling on the link that received, many at once |
| `namespace`, `client` | all channels of a namespace; those of one queue |
| `receiver` | one receiver of a queue: it fetches, waits and settles, one thing at a time |
| `sending` | batches by size, scheduled by annotation |
| `fetching`, `waiting` | from messages to leases; waiting on several queues at once |
| `locks` | the end of a lease, by this machine's clock |
| `leases` | the leases of this client: refusals that need no broker |
| `settling`, `renewing` | ending a lease; holding it longer |
| `charging` | crashes, their policy, and those charged since the last reap |
| `peeking`, `sights`, `looking`, `sifting`, `tending` | the administrator's part |
| `settings`, `checks` | settings of a queue that can lose jobs |
| `backend` | the contract, put together |
"""

from __future__ import annotations

import azure.servicebus

from jobpool_backends.servicebus.version import check_sdk_version

check_sdk_version(azure.servicebus.__version__)

from jobpool_backends.servicebus.backend import ServiceBusBackend as ServiceBusBackend  # noqa: E402 - after the check
