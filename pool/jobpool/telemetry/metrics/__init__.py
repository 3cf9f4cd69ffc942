"""What a pool counts and measures, and how it is shown: to Prometheus, as probes, and as rows a minute.

`collector` is the interface and `memory` what the pool uses; `exposition` and `server` show it; `rollup` sums it up.
"""
