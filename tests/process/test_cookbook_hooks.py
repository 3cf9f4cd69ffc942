"""The cook-book's programs with hooks, with the real libraries: Sentry's own transport, OpenTelemetry and structlog."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.cookbook import Rig


class Sentry(HTTPServer):
    """The receiving end of Sentry's protocol: the events of all envelopes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.events: list[dict[str, Any]] = []

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_port}/1"


class Receiver(BaseHTTPRequestHandler):
    server: Sentry

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        lines = body.split(b"\n")
        items = [json.loads(line) for line in lines[1:] if line.startswith(b"{")]
        self.server.events += [item for item in items if "event_id" in item and "level" in item]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    with Sentry() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_sentry_hears_of_failures_with_their_traceback_and_of_crashes(tmp_path: Path, sentry: Sentry) -> None:
    rig = Rig(tmp_path, "tracked.py")
    known = rig.enqueue(("order.ship", {"order": -1}), ("order.ship", {"order": 1}), ("order.crash", {}))
    log = rig.pool("--max-crashes", "1", SENTRY_DSN=sentry.dsn)
    failed, crashed = sorted(sentry.events, key=lambda event: "exception" not in event)
    [error] = failed["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no order has the number -1")
    assert error["stacktrace"]["frames"][-1]["vars"]["order"] == "-1"
    assert (failed["tags"]["handler"], failed["contexts"]["job"]["id"]) == ("order.ship", known[0])
    assert (crashed["tags"]["reason"], crashed["contexts"]["job"]["id"]) == ("crash-limit", known[2])
    assert "killed by SIGABRT" in crashed["message"]
    assert "in crash" in crashed["extra"]["stack"]
    assert "threads" not in log, "Sentry's worker is started by a hook, after the fork: no child is replaced for it"


def test_a_trace_goes_from_the_producer_to_the_handler_and_its_follow_up(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "traced.py")
    told = tmp_path / "telemetry"
    rig.run("python", "traced.py", "7", TELEMETRY=str(told))
    log = rig.pool(TELEMETRY=str(told))
    values = list(documents(told.read_text("utf-8")))
    spans = {value["name"]: value for value in values if "context" in value}
    assert set(spans) == {"checkout", "order.ship", "pack", "order.thank"}
    assert len({span["context"]["trace_id"] for span in spans.values()}) == 1
    parents = {name: span["parent_id"] for name, span in spans.items()}
    ids = {name: span["context"]["span_id"] for name, span in spans.items()}
    assert parents == {
        "checkout": None,
        "order.ship": ids["checkout"],
        "pack": ids["order.ship"],
        "order.thank": ids["checkout"],
    }
    metrics = values[-1]["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    counts = {point["attributes"]["handler"]: point["value"] for point in metrics[0]["data"]["data_points"]}
    assert counts == {"order.ship": 1, "order.thank": 1}, "both ran in one child, which kept its exporters' threads"
    assert "threads" not in log


def test_what_a_handler_logs_says_its_job(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "logged.py")
    first, second = rig.enqueue(("order.ship", {"order": 3}), ("order.ship", {"order": 4}))
    rig.pool("--history", f"file:{tmp_path}/history")
    rows = [json.loads(line) for line in (tmp_path / "history").read_text("utf-8").splitlines()]
    lines = [json.loads(line) for row in rows for line in row["output"].splitlines() if line]
    said = [(line["job"], line["event"], line.get("order"), line.get("outcome")) for line in lines]
    assert said == [
        (first, "shipping", 3, None),
        (first, "attempt ended", None, "succeeded"),
        (second, "shipping", 4, None),
        (second, "attempt ended", None, "succeeded"),
    ]


def documents(text: str) -> Iterator[Any]:
    """The JSON values that stand one after the other in a text."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        yield value
        at = end + len(text[end:]) - len(text[end:].lstrip())
