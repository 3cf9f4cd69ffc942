"""The command line: `python -m servicebus_peer --port 5672 --queue jobs,lock_duration=30`, with tests/ on the path.

Prints one line of JSON when it listens, with `port`, `control_port` and `connection_string`, and ends on SIGINT and
SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
from dataclasses import fields, replace
from typing import Any

from servicebus_peer.broker import HOST, Broker
from servicebus_peer.properties import QueueProperties
from servicebus_peer.running import running
from servicebus_peer.settings import KEY, KEY_NAME, Settings, connection_string

Wanted = tuple[str, dict[str, Any]]
"""A queue's name, and the properties that are given for it."""


def main() -> None:
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO)
    settings = Settings(
        port=options.port,
        control_port=options.control_port,
        key_name=options.key_name,
        key=options.key,
        auth=options.auth,
        auto_create=options.auto_create,
        standing_clock=options.standing_clock,
        defaults=options.defaults,
    )
    asyncio.run(_serve(settings, options.queue))


async def _serve(settings: Settings, queues: list[Wanted]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings) as (broker, control_port):
        for name, properties in queues:
            broker.namespace.create(name, replace(settings.defaults, **properties))
        print(_ready(broker, control_port), flush=True)
        await stop.wait()


def _ready(broker: Broker, control_port: int) -> str:
    settings = broker.settings
    text = connection_string(HOST, broker.port, settings.key_name, settings.key)
    return json.dumps({"port": broker.port, "control_port": control_port, "connection_string": text})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m servicebus_peer", description="A small Service Bus for tests.")
    parser.add_argument("--port", type=int, default=5672, help="for AMQP, on 127.0.0.1; 0 = a free one")
    parser.add_argument("--control-port", type=int, default=0, help="for orders; 0 = a free one")
    parser.add_argument(
        "--queue", type=_queue, action="append", default=[], help="NAME[,PROPERTY=VALUE]...; repeatable"
    )
    parser.add_argument("--defaults", type=_defaults, default=QueueProperties(), help="PROPERTY=VALUE[,...] of queues")
    parser.add_argument("--key-name", default=KEY_NAME, help="of the shared access policy")
    parser.add_argument("--key", default=KEY, help="of the same")
    parser.add_argument("--no-auth", dest="auth", action="store_false", help="take every token, and need none")
    parser.add_argument("--auto-create", action="store_true", help="make a queue when a client asks for it")
    parser.add_argument("--standing-clock", type=float, help="Unix time of a clock that moves only when it is turned")
    return parser


def _queue(text: str) -> Wanted:
    name, _, pairs = text.partition(",")
    return name, _properties(pairs)


def _defaults(text: str) -> QueueProperties:
    return QueueProperties(**_properties(text))


def _properties(text: str) -> dict[str, Any]:
    known = [field.name for field in fields(QueueProperties)]
    given: dict[str, Any] = {}
    for key, _, value in (pair.partition("=") for pair in text.split(",") if pair):
        if key not in known:
            raise argparse.ArgumentTypeError(f"a queue has {', '.join(known)}, and no {key!r}")
        given[key] = json.loads(value)
    QueueProperties(**given)  # a value out of bounds is told here
    return given


if __name__ == "__main__":
    main()
