"""What goes wrong with a server of the tests."""

from __future__ import annotations


class ServerFailed(Exception):
    """A server is not installed, did not start, or did not stop; the text says why, with the end of its log."""
