"""The pool's counts and measurements, and their display: to Prometheus, as probes, and as rows a minute.

`catalogue` has the metrics and the interface, `memory` the implementation; `exposition` and `server` show it; `rollup` sums it
up.
"""
