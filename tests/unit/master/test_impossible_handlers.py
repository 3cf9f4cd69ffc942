"""Handlers that ask for what the pool's backend cannot do: its app is refused, and the sentence names one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jobpool.broker.values import Capabilities
from jobpool.ipc.frames import HandlerInfo, Loaded
from jobpool.master.on_children import _not_possible


def test_the_first_that_cannot_work_is_named() -> None:
    for case, can, handler, said in [
        ("results", Capabilities(), HandlerInfo("bill", result_ttl=60.0), "'bill' is declared with result_ttl"),
        ("kept", Capabilities(key_store=True), HandlerInfo("bill", result_ttl=60.0), ""),
        ("none asked for", Capabilities(), HandlerInfo("bill", result_ttl=0.0), ""),
        (
            "transactions",
            Capabilities(),
            HandlerInfo("own", ack_in_transaction=True),
            "'own' is declared with ack_in_transaction",
        ),
    ]:
        pool: Any = SimpleNamespace(can=can)
        assert _not_possible(pool, Loaded([HandlerInfo("plain"), handler])) == said, case
