"""Messages with file descriptors over a Unix stream socket: the launcher's end."""

from __future__ import annotations

import json
import socket
import struct

TYPE_CHECKING = False  # as `typing` has it, whose import takes milliseconds of every start
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

LENGTH = struct.Struct("!I")
"""Goes before the JSON of each message; descriptors are attached to it."""

MOST_FDS = 8


class Channel:
    """Messages with file descriptors over a stream socket; blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(True)

    def receive(self) -> tuple[Message, list[int]] | None:
        """Receive one message with its descriptors; nothing when the other side is gone."""
        try:
            head, fds, _, _ = socket.recv_fds(self.sock, LENGTH.size, MOST_FDS)
            head += self._exactly(LENGTH.size - len(head)) if head else b""
            if not head:
                return None
            body = self._exactly(LENGTH.unpack(head)[0])
        except (ConnectionError, EOFError):
            return None
        message: Message = json.loads(body)
        return message, list(fds)

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send one message with descriptors; a lost connection is noticed when receiving."""
        body = json.dumps(message).encode()
        try:
            socket.send_fds(self.sock, [LENGTH.pack(len(body))], fds)
            self.sock.sendall(body)
        except ConnectionError:
            pass

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)
