"""Azure Service Bus: `Endpoint=sb://…` (a connection string), or `servicebus://NAMESPACE` with azure-identity.

The SDK's asynchronous client, on one thread and event loop of the backend's own, behind the contract's plain calls.

| module | what it holds |
| --- | --- |
| `address`, `identity` | from a connection string or URL to where the namespace is and how to get in |
| `trouble` | what the SDK's errors mean: cause and mend in one sentence |
| `records` | what a message carries, and how counters ride on it |
| `loop` | the thread and its event loop: started at the first call, never inherited by a fork |
| `sdklog` | what the SDK logs, and we tell ourselves |
| `channel` | one sender or receiver of the SDK: one coroutine at a time, thrown away on any doubt |
| `version` | which SDK it must be |
| `internals` | the few things that the SDK keeps to itself and this package needs |
| `credit` | asking for what there is now, and waiting, with no credit left behind |
| `dispositions`, `verdicts` | settling on the link that received, many at once |
| `hub`, `station` | all channels of a namespace; those of one queue |
| `taker` | one receiver of a queue: it fetches, waits and settles, one thing at a time |
| `sending` | batches by size, scheduled by annotation |
| `fetching`, `waiting` | from messages to leases; waiting on several queues at once |
| `locks` | when a lease ends, by this machine's clock |
| `holdings` | who holds what until when: refusals that need no broker |
| `settling`, `renewing` | what becomes of a lease; holding it longer |
| `charging` | crashes, by which policy, and who was charged since the last reap |
| `peeking`, `sights`, `looking`, `sifting`, `tending` | the administrator's part |
| `settings`, `checks` | what a queue's settings can lose |
| `backend` | the contract, put together |
"""

from __future__ import annotations

import azure.servicebus

from jobpool_backends.servicebus.version import check

check(azure.servicebus.__version__)

from jobpool_backends.servicebus.backend import ServiceBusBackend as ServiceBusBackend  # noqa: E402 - after the check
