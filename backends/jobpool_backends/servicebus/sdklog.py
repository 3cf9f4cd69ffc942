"""What the SDK logs of connections that break: left out, for a channel gets over it, and tells it in one line.

Only of our own thread; and only those three, which come as warnings, or as errors with a traceback, each time.
"""

from __future__ import annotations

import logging

from jobpool_backends.servicebus.loop import THREAD

TOLD = {
    "azure.servicebus.aio._base_handler_async": "Unexpected error occurred",
    "azure.servicebus._pyamqp.aio._connection_async": "Connection closed with error",
    "azure.servicebus._pyamqp.aio._management_operation_async": "Failed to complete management operation",
}
"""By logger: how the text begins."""


def leave_out() -> None:
    """From now on. To be called as often as one likes."""
    for name in TOLD:
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.threadName != THREAD or not str(record.msg).startswith(TOLD[record.name])
