"""Benchmarks of jobpool: `scripts/bench`, explained in bench/README.md.

`__main__.py` lists the benchmarks. The programs that they run are in `samples/`, those of other queues in `peers/`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # their servers are those of the tests
