"""The cook-book's application for the built-in handler `url`, run as it says."""

from __future__ import annotations

import hmac
import json
import re
import shlex
import shutil
from pathlib import Path

from support.pages import DOCS, page, run, section
from support.webserver import WebServer, answer

SECTION = section(page("cookbook"), "Call a URL")


def test_subscribers_are_called_with_signed_bodies_and_no_one_gets_a_call_inward(tmp_path: Path) -> None:
    with WebServer() as server:
        server.answers = {"/hook": answer(b"thanks"), "/gone": answer(b"moved away", "410 Gone")}
        here = f"http://127.0.0.1:{server.port}"
        urls = {
            "acme": f"{here}/hook",
            "closed": f"{here}/gone",
            "sly": "http://169.254.169.254/latest/meta-data/",
            "slier": f"http://acme.example@127.0.0.1:{server.port}/hook",
        }
        subscribers = {name: {"url": url, "secret": f"secret of {name}"} for name, url in urls.items()}
        (tmp_path / "subscribers.json").write_text(json.dumps(subscribers))

        shutil.copy(DOCS / "cookbook" / "webhooks.py", tmp_path)
        announce, pool = (shlex.split(line) for line in re.findall(r"^\$ (.*)$", SECTION, re.MULTILINE))
        run(tmp_path, *announce)
        run(tmp_path, *pool, "--workers", "1", "--until-empty", "--allowed-url-networks", "127.0.0.0/8")

        calls = {seen.path: seen for seen in server.seen}
        dead = json.loads(run(tmp_path, "jobpool", "dead", "list", "--json").stdout)

    assert len(server.seen) == len(calls) == 2
    assert json.loads(calls["/hook"].body) == {"event": "order.paid", "data": {"order": 7}}
    signature = hmac.new(b"secret of acme", calls["/hook"].body, "sha256").hexdigest()
    assert calls["/hook"].headers["x-signature"] == f"sha256={signature}"
    reasons = {letter["name"]: json.dumps(letter) for letter in dead}
    assert sorted(reasons) == ["webhook-closed", "webhook-slier", "webhook-sly"]
    assert "answered 410: moved away" in reasons["webhook-closed"]
    assert "refused (address)" in reasons["webhook-sly"]
    assert "refused (userinfo)" in reasons["webhook-slier"]
    assert "secret of" not in "".join(reasons.values())
