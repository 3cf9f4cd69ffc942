"""One connection: AMQP 2.2 and 2.4.

HEADERS --(SASL header)--> SASL --(init)--> HEADERS --(AMQP header)--> OPENING --(open)--> OPEN --(close)--> CLOSED
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, cast

from servicebus_peer import codes, replies, sasl
from servicebus_peer.cbs import Authorization
from servicebus_peer.errors import CONNECTION_FORCED
from servicebus_peer.framing import (
    AMQP_HEADER,
    EMPTY,
    MAX_FRAME_SIZE,
    SASL_HEADER,
    Frame,
    FrameReader,
    Header,
    frame,
)
from servicebus_peer.output import Output
from servicebus_peer.performatives import Attach, Begin, Detach, Disposition, Flow, Open, Transfer
from servicebus_peer.session import Session

if TYPE_CHECKING:
    from servicebus_peer.broker import Broker

log = logging.getLogger(__name__)

GRACE = 0.05
"""Seconds in which a client that is told `close` may read it before the socket is closed."""


class Stage(Enum):
    HEADERS = 1
    SASL = 2
    OPENING = 3
    OPEN = 4
    CLOSED = 5


class Connection(asyncio.Protocol):
    """What it answers to one read of the socket goes out as one write."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sessions: dict[int, Session] = {}
        self.authorization = Authorization(broker.settings)
        self.max_frame_size = MAX_FRAME_SIZE
        self._reader = FrameReader()
        self._stage = Stage.HEADERS
        self._output: Output | None = None
        self._held = b""
        self._deaf = False
        self._beat: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    # --- asyncio.Protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._output = Output(cast(asyncio.Transport, transport))
        self.broker.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._stage = Stage.CLOSED
        for timer in (self._beat, self._end):
            if timer is not None:
                timer.cancel()
        for session in self.sessions.values():
            session.end()
        self.sessions.clear()
        self.broker.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self.broker.faults.stalled:
            self._held += data
        elif self._stage is not Stage.CLOSED and not self._deaf:
            self._take(data)

    def _take(self, data: bytes) -> None:
        assert self._output is not None
        self._output.gather()
        try:
            for found in self._reader.feed(data):
                self._on_header(found.data) if isinstance(found, Header) else self._on_frame(found)
                if self._stage is Stage.CLOSED:
                    break
        except Exception:
            log.exception("a bug of this peer, or of a test's own client")
            self.abort()
        finally:
            self._output.flush(self.broker.faults)

    # --- what the broker has it do ------------------------------------------------------------------

    def send(self, channel: int, body: bytes) -> None:
        """A frame; nothing once it is closed."""
        if self._stage is not Stage.CLOSED:
            self._write(frame(channel, body))

    def close(self, condition: str | None = CONNECTION_FORCED, description: str = "") -> None:
        """Say `close`, and close the socket soon after."""
        if self._stage is Stage.OPEN:
            self._write(frame(0, replies.close(replies.maybe_error(condition, description))))
        self._stage = Stage.CLOSED
        self._end = self._end or self._loop.call_later(GRACE, self._hang_up)

    def abort(self) -> None:
        """Reset it: what has not been sent is lost, and the client reads an error."""
        if self._output is not None:
            self._output.reset()

    def _hang_up(self) -> None:
        if self._output is not None:
            self._output.close()

    def resume(self, keep: bool) -> None:
        """After a stall: what was held goes on its way; or it is lost, and nothing ever passes here again."""
        held, self._held = self._held, b""
        if keep:
            self._take(held)
        else:
            self._deaf = True
            if self._output is not None:
                self._output.deafen()

    # --- headers and frames -------------------------------------------------------------------------

    def _on_header(self, header: bytes) -> None:
        if header == SASL_HEADER:
            self._write(SASL_HEADER + sasl.offer())
            self._stage = Stage.SASL
        else:
            self._write(AMQP_HEADER)
            self._stage = Stage.OPENING

    def _on_frame(self, frame: Frame) -> None:
        match self._stage:
            case Stage.SASL:
                self._write(sasl.outcome())
                self._stage = Stage.HEADERS
            case Stage.OPENING:
                self._on_open(Open.read(frame.fields))
            case _:
                self._on_performative(frame)

    def _on_open(self, opened: Open) -> None:
        self.max_frame_size = min(opened.max_frame_size, MAX_FRAME_SIZE)
        self._stage = Stage.OPEN
        self._write(frame(0, replies.open_("servicebus-peer")))
        if opened.idle_time_out:
            self._keep_alive(max(opened.idle_time_out / 2000, 0.1))

    def _on_performative(self, frame: Frame) -> None:
        if frame.code == codes.BEGIN:
            self.sessions[frame.channel] = Session(self, frame.channel, Begin.read(frame.fields))
        elif frame.code == codes.CLOSE:
            self.close(None)
        else:
            session = self.sessions.get(frame.channel)
            if session is None:  # the SDK sends on after its `end` now and then
                self.close()
            elif frame.code == codes.END:
                self._end_session(frame.channel, session)
            else:
                _HANDLERS[frame.code](session, frame)

    def _end_session(self, channel: int, session: Session) -> None:
        session.end()
        del self.sessions[channel]
        self.send(channel, replies.end())

    # --- output -------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._output is not None:
            self._output.write(data, self.broker.faults)

    def _keep_alive(self, every: float) -> None:
        """Empty frames, for a client that gives up one who is silent for twice as long: AMQP 2.4.5."""
        if self._output is not None and time.monotonic() - self._output.last > every * 0.9:
            self._write(EMPTY)
        self._beat = self._loop.call_later(every, self._keep_alive, every)


_HANDLERS: dict[int, Callable[[Session, Frame], None]] = {
    codes.ATTACH: lambda session, frame: session.on_attach(Attach.read(frame.fields)),
    codes.FLOW: lambda session, frame: session.on_flow(Flow.read(frame.fields)),
    codes.TRANSFER: lambda session, frame: session.on_transfer(Transfer.read(frame.fields), frame.payload),
    codes.DISPOSITION: lambda session, frame: session.on_disposition(Disposition.read(frame.fields)),
    codes.DETACH: lambda session, frame: session.on_detach(Detach.read(frame.fields)),
}
