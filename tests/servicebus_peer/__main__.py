"""The command line: `python -m servicebus_peer --port 5672 --auto-create`, with tests/ on the path.

Prints one line of JSON when it listens, with `port`, `control_port` and `connection_string`, and ends on SIGINT and
SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal

from servicebus_peer.broker import HOST, Broker
from servicebus_peer.running import running
from servicebus_peer.settings import Settings, connection_string


def main() -> None:
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO)
    asyncio.run(_serve(Settings(options.port, options.auth, options.auto_create)))


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings) as (broker, control_port):
        print(_ready(broker, control_port), flush=True)
        await stop.wait()


def _ready(broker: Broker, control_port: int) -> str:
    text = connection_string(HOST, broker.port)
    return json.dumps({"port": broker.port, "control_port": control_port, "connection_string": text})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m servicebus_peer", description="A small Service Bus for tests.")
    parser.add_argument("--port", type=int, default=5672, help="for AMQP, on 127.0.0.1; 0 = a free one")
    parser.add_argument("--no-auth", dest="auth", action="store_false", help="take every token, and need none")
    parser.add_argument("--auto-create", action="store_true", help="make a queue when a client asks for it")
    return parser


if __name__ == "__main__":
    main()
