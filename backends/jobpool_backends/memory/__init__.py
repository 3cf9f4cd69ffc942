"""`memory://`: the contract in its shortest form, in this process, on a clock that a test may turn.

It is what the other backends are compared with. One lock makes every step atomic. `backend` puts the parts together:
`store` (messages and their moves, on the `values`), `places` (grants to leases), `keys` and `claims`.
"""

from __future__ import annotations

from jobpool_backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
