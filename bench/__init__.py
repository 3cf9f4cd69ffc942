"""Benchmarks of jobpool: `scripts/bench`, explained in bench/README.md."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # their servers are those of the tests
