"""The pool's counts and measurements, and their display: to Prometheus, as probes, and as rows a minute.

`collector` is the interface and `memory` the pool's implementation; `exposition` and `server` show it; `rollup` sums it
up.
"""
