"""The pool's counts and measurements, and their display: to Prometheus, as probes, and as rows a minute."""
