"""Requests and answers of an ASGI server, as far as the gateway's applications share them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from polar.errors import BadRequest, RequestTooLarge

__all__ = [
    "Receive",
    "Scope",
    "Send",
    "bearer",
    "head",
    "read_body",
    "read_headers",
    "send_part",
    "send_whole",
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def read_headers(scope: Scope) -> Mapping[str, str]:
    """Read the headers; names are in lower case."""
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def bearer(headers: Mapping[str, str]) -> str | None:
    """Find the token that a request bears."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return (token.strip() or None) if scheme.lower() == "bearer" else None


async def read_body(receive: Receive, *, limit_bytes: int) -> bytes:
    """Read the whole body.

    Raises:
        BadRequest: The client left.
        RequestTooLarge: It is larger than allowed.
    """
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the client left before its request was complete")
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > limit_bytes:
            raise RequestTooLarge(f"the request is larger than {limit_bytes} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


def head(status: int, content_type: bytes, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    """Make the message that begins an answer."""
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", content_type), *headers],
    }


async def send_part(send: Send, body: bytes) -> None:
    """Send a part of the body, after which more comes."""
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def send_whole(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Send a whole answer in JSON."""
    length = (b"content-length", str(len(body)).encode())
    await send(head(status, b"application/json", length, *headers))
    await send({"type": "http.response.body", "body": body})
