"""`memory://`: the contract in its shortest form, in this process, on a clock that a test may turn.

It is what the other backends are compared with. One lock makes every step atomic. Nothing is kept when the process
ends.

* `values`: a message, a queue, and what is asked of one message
* `ending`: values that end by themselves
* `store`: where messages are, and how they move
* `settling`: what each settlement does
* `places`: keys, holds and rates, granted to leases
* `notes`: records and logs
* `keys`: the key store
* `backend`: the class that puts them together
"""

from __future__ import annotations

from jobpool_backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
