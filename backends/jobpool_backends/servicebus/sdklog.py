"""A filter for the SDK's log lines about breaking connections: a channel recovers from them, and logs one line.

Only of our own thread; and only those three, which come each time as warnings, or as errors with a traceback.
"""

from __future__ import annotations

import logging

from jobpool_backends.servicebus.loop import LOOP_THREAD_NAME

FILTERED_LINES = {
    "azure.servicebus.aio._base_handler_async": "Unexpected error occurred",
    "azure.servicebus._pyamqp.aio._connection_async": "Connection closed with error",
    "azure.servicebus._pyamqp.aio._management_operation_async": "Failed to complete management operation",
}
"""By logger: how the text begins."""


def install_log_filter() -> None:
    """Install the filter. May be called any number of times."""
    for name in FILTERED_LINES:
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.threadName != LOOP_THREAD_NAME or not str(record.msg).startswith(FILTERED_LINES[record.name])
