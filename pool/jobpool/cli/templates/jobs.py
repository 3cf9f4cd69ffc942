"""The first handlers. jobpool.toml names this module in `apps`; each worker process has it imported."""

from __future__ import annotations

import jobpool


@jobpool.handler("count_primes", max_retries=2, timeout=60)
def count_primes(ctx: jobpool.JobContext, below: int = 2_000_000) -> str:
    """Count the primes below `below` with a sieve: real work for one core.

    Enqueue it from a shell:  jobpool enqueue count_primes below=5000000
    or from Python:           count_primes.enqueue(below=5_000_000)
    """
    sieve = bytearray([1]) * max(below, 2)
    sieve[0] = sieve[1] = 0
    root = int(below**0.5)
    for number in range(2, root + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, len(sieve), number)))
            ctx.progress(number / root, f"crossing out multiples of {number}")
    return f"{sum(sieve):,} primes below {below:,}"
