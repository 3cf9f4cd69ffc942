from __future__ import annotations

import sys
from pathlib import Path

from jobpool.ipc.linux import allow_open_files

SUPPORT = str(Path(__file__).parents[2] / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

allow_open_files(8192)  # hundreds of children at once, six descriptors each; many systems allow 1,024 at first
