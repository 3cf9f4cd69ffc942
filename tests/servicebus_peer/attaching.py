"""To which node a client may attach a link, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebus_peer import cbs, codes, management
from servicebus_peer.links import IncomingLink, Link
from servicebus_peer.message import parsed
from servicebus_peer.namespace import Queue
from servicebus_peer.outgoing import ConsumerLink, ReplyLink
from servicebus_peer.performatives import Attach
from servicebus_peer.requests import Request
from servicebus_peer.requests import parsed as parsed_request
from servicebus_peer.sections import unbatched
from servicebus_peer.store import Store

if TYPE_CHECKING:
    from servicebus_peer.session import Session


def linked(session: Session, asked: Attach) -> tuple[Link, int]:
    """The link, and the largest message that it takes, to be told the client; 0 = no limit. Raises `AmqpError`."""
    address = cbs.entity_of(asked.address)
    session.broker.faults.check("attach", address)
    if address.lower() == cbs.NODE:
        return _request_link(session, asked, cbs.NODE, None), 0
    session.connection.authorization.require(address)
    if address.lower().endswith(management.NODE):
        store = session.broker.namespace.store(address[: -len(management.NODE)])
        return _request_link(session, asked, address, store), 0
    queue, store = session.broker.namespace.find(address)
    if asked.role is codes.RECEIVER:
        return _consumer(session, asked, address, queue, store), 0
    return _producer(session, asked, address, queue, store), store.properties.max_message_size


def _consumer(session: Session, asked: Attach, address: str, queue: Queue, store: Store) -> ConsumerLink:
    queue.check_receive()
    return ConsumerLink(session, asked, address, store, session.broker.consumers(store))


def _producer(session: Session, asked: Attach, address: str, queue: Queue, store: Store) -> IncomingLink:
    queue.check_send()

    def take(payload: bytes, message_format: int) -> None:
        session.broker.faults.check("send", queue.name)
        queue.check_send()
        _enqueue(store, payload, message_format)

    return IncomingLink(session, asked, address, "send", take)


def _enqueue(store: Store, payload: bytes, message_format: int) -> None:
    """A batch is taken whole or not at all, and has the limit of one message."""
    if message_format != codes.BATCH:
        store.enqueue(parsed(payload))
        return
    store.check_size(len(payload))
    for message in [parsed(part) for part in unbatched(payload)]:
        store.enqueue(message)


def _request_link(session: Session, asked: Attach, address: str, store: Store | None) -> Link:
    """One half of the pair for requests and replies; `store` is None for $cbs."""
    if asked.role is codes.RECEIVER:
        return ReplyLink(session, asked, address)

    def take(payload: bytes, _message_format: int) -> None:
        request = parsed_request(payload)
        if store is None:
            _put_token(session, request)
        else:
            _manage(session, address, store, request)

    return IncomingLink(session, asked, address, None, take)


def _manage(session: Session, address: str, store: Store, request: Request) -> None:
    faults = session.broker.faults
    link = session.reply_link(address)
    payload = management.answer(store, faults, request)
    if link is not None:
        faults.reply("management", lambda: link.reply(payload))


def _put_token(session: Session, request: Request) -> None:
    """Refused in the reply, not by the transfer's outcome: the SDK cannot take one that is rejected."""
    payload = cbs.answer(session.connection.authorization, request)
    link = session.reply_link(cbs.NODE)
    if link is not None:
        link.reply(payload)
