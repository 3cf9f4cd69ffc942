"""Tells subscribers what has happened, by webhooks: every call is a job of its own, signed, retried, and never inward.

    python webhooks.py order.paid '{"order": 7}'     # a job for each subscriber in subscribers.json
    jobpool --app webhooks.py --queue webhooks

subscribers.json holds what subscribers have registered: {"acme": {"url": "https://acme.example/hook", "secret": "…"}}.
Their URLs are whatever they have typed, and nothing here trusts them: the handler `url` calls public addresses only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobpool import JobBuilder, Jobs, builtin

builtin("url", max_retries=8, timeout=60)


def announce(jobs: Jobs, event: str, data: Any, subscribers: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Enqueue one call for each subscriber; the ids of the jobs."""
    body = json.dumps({"event": event, "data": data})
    return jobs.enqueue_many(_call(jobs, name, body, **given).to_definition() for name, given in subscribers.items())


def _call(jobs: Jobs, subscriber: str, body: str, url: str, secret: str) -> JobBuilder:
    """Signed when it is enqueued, so that the secret itself is in no message and in no log."""
    headers = {"Content-Type": "application/json", "X-Signature": signature(body, secret)}
    payload = {"method": "POST", "url": url, "options": {"headers": headers, "body": body, "timeout": 10}}
    return jobs.define("url", payload).queue("webhooks").named(f"webhook-{subscriber}")


def signature(body: str, secret: str) -> str:
    """What a subscriber computes too, to see that a call is ours."""
    return "sha256=" + hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()


if __name__ == "__main__":
    with Jobs() as jobs:
        announce(jobs, sys.argv[1], json.loads(sys.argv[2]), json.loads(Path("subscribers.json").read_text()))
