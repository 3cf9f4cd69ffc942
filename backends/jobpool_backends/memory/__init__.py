"""`memory://`: the contract in its shortest form, in this process, on a clock that a test may turn.

It is what the other backends are compared with. One lock makes every step atomic. Nothing is kept when the process
ends.

* `values`: a message, a queue, a claim, and what is asked of one message
* `ending`: what ends by itself
* `store`: where messages are, and how they move
* `settling`: what each settlement does
* `places`: keys, holds and rates, granted to leases
* `notes`: records and logs
* `keys`: the key store
* `claiming`: how messages are claimed, and what becomes of claims
* `claims`: the part for claims and posted messages
* `backend`: the class that puts them together
"""

from __future__ import annotations

from jobpool_backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
