"""Connections to a vLLM server, and what its refusals mean."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from polar.engines.settings import VllmSettings
from polar.errors import EngineError, EngineRefused

__all__ = ["get_json", "open_client", "raise_for_status", "unreachable"]


def open_client(
    url: str, settings: VllmSettings, transport: httpx.AsyncBaseTransport | None
) -> httpx.AsyncClient:
    """Make a client of one server."""
    key = settings.api_key
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(settings.token_timeout_s, connect=settings.connect_timeout_s),
        # The server closes idle connections, which a request would race with.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        transport=transport,
    )


async def get_json(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """Get a JSON object.

    Raises:
        EngineError: The server cannot be reached or refuses.
    """
    try:
        response = await client.get(path)
    except httpx.HTTPError as error:
        raise unreachable(client, error) from error
    await raise_for_status(response)
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise EngineError(
            "the server's answer is no JSON object",
            where=str(response.request.url),
            fix="Check that vLLM runs at this address.",
        )
    return found


async def raise_for_status(response: httpx.Response) -> None:
    """Turn a refusal into an error that says what to do.

    Raises:
        EngineRefused: The server was started without its scale-out endpoints.
        EngineError: Anything else.
    """
    if response.is_success:
        return
    said = (await response.aread()).decode(errors="replace")
    where = str(response.request.url)
    if response.status_code == httpx.codes.FORBIDDEN:
        raise EngineRefused(
            "the server keeps its token endpoints shut",
            where=where,
            fix="Start vLLM 0.32 or newer with --enable-scale-out.",
        )
    if response.status_code == httpx.codes.NOT_FOUND:
        raise EngineError(
            f"the server has no such address or model: {_message(said)}",
            where=where,
            fix="Check that vLLM runs there, and engine.settings.model; pausing and weight updates "
            "need vLLM to be started with VLLM_SERVER_DEV_MODE=1.",
        )
    raise EngineError(f"the server answers {response.status_code}: {_message(said)}", where=where)


def unreachable(client: httpx.AsyncClient, error: Exception) -> EngineError:
    """Say that a server does not answer."""
    return EngineError(
        f"the server does not answer: {type(error).__name__}: {error}",
        where=str(client.base_url),
        fix="Check that vLLM runs at this address.",
    )


def _message(said: str) -> str:
    """Find the server's own sentence in an error's body."""
    try:
        body = orjson.loads(said)
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "a web page" if said.lstrip().startswith("<") else " ".join(said.split())[:200]
