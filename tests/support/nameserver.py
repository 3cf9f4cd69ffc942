"""A name server on loopback that answers as the test says, and the system's own resolver pointed to it."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from ipaddress import ip_address

A, AAAA = 1, 28
TYPES = {A: 4, AAAA: 6}


class NameServer:
    """Answers over UDP for the names in `zone`; there are no others. Use as a context manager.

    `zone[name]` lists what is answered to the first question of each type, the second, and so on; the last goes on for
    ever. Each is a list of addresses; None = no answer before the end. `asked` holds the questions.
    """

    def __init__(self, zone: dict[str, list[list[str] | None]]) -> None:
        self.zone = zone
        self.asked: list[tuple[str, int]] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._unanswered: list[tuple[bytes, tuple[str, int]]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> NameServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        for question, client in self._unanswered:
            self._socket.sendto(question[:2] + b"\x85\x83" + question[4:], client)
        self._socket.close()

    def lookup(self, host: str) -> list[str]:
        """What jobpool's own lookup says when the resolver of this thread asks here."""
        from jobpool.handlers.builtin.url.addresses import system_lookup

        _point_this_thread_at(self.port)
        return system_lookup(host)

    def _serve(self) -> None:
        while True:
            question, client = self._socket.recvfrom(512)
            if not question:
                return
            answer = self._answer(question)
            if answer is None:
                self._unanswered.append((question, client))
            else:
                self._socket.sendto(answer, client)

    def _answer(self, question: bytes) -> bytes | None:
        name, end = _read_name(question, 12)
        kind = struct.unpack_from(">H", question, end)[0]
        times = self.asked.count((name, kind))
        self.asked.append((name, kind))
        sets = self.zone.get(name)
        found = [] if sets is None else sets[min(times, len(sets) - 1)]
        if found is None:
            return None
        records = [_record(kind, address) for address in found if ip_address(address).version == TYPES.get(kind)]
        flags = 0x8580 if sets is not None else 0x8583  # an authority's answer; "there is no such name"
        head = question[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
        return head + question[12 : end + 4] + b"".join(records)


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    labels = []
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1


def _record(kind: int, address: str) -> bytes:
    packed = ip_address(address).packed
    return struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(packed)) + packed  # 0xC00C: the name in the question


def _point_this_thread_at(port: int) -> None:
    """Make glibc's resolver ask on this port of loopback, once, for a second: fields of <resolv.h>'s `__res_state`."""
    libc = ctypes.CDLL(None)
    libc.__getattr__("__res_init")()
    state = libc.__getattr__("__res_state")
    state.restype = ctypes.c_void_p
    at = state()
    for field, value in {0: 1, 4: 1, 16: 1}.items():  # retrans, in seconds; retry; nscount
        ctypes.c_int.from_address(at + field).value = value
    server = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton("127.0.0.1") + bytes(8)
    ctypes.memmove(at + 20, server, len(server))  # nsaddr_list
