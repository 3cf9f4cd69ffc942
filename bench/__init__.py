"""Benchmarks of jobpool: `scripts/bench`, explained in bench/README.md."""
