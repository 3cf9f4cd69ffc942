from __future__ import annotations

from jobpool.ipc.linux import allow_open_files

allow_open_files(8192)  # hundreds of children at once, six descriptors each; many systems allow 1,024 at first
